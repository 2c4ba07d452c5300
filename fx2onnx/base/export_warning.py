"""``ExportWarning``: what a report's warnings are in Python's own machinery of warnings."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterable

from fx2onnx.base.source import PACKAGE_FOLDER

_INSIDE = (PACKAGE_FOLDER + os.sep, contextlib.__file__)
"""Files of frames between a warning and the user's call: functions of fx2onnx, some of them in contexts."""


class ExportWarning(UserWarning):
    """Something that was asked for and that the file does not have, or what it takes for its results to be right.

    Each line of ``report.warnings`` is one. They are given before a file is written: where a filter makes an error of them,
    nothing is written.
    """


def warn(texts: Iterable[str]) -> None:
    """Give each of ``texts`` once, at the line that called fx2onnx."""
    level = None
    for text in dict.fromkeys(texts):
        level = level or _level_of_caller()
        warnings.warn(text, ExportWarning, stacklevel=level)


def _level_of_caller() -> int:
    """The ``stacklevel``, counted from the caller of this function, of the first frame outside of fx2onnx."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    return level
