"""Notices of what goes on: warnings at the line that called fx2onnx, lines of its logger, and a list of the errors that are made."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fx2onnx.base.source import PACKAGE_FOLDER

if TYPE_CHECKING:
    import logging


class MadeErrors(threading.local):
    errors: list[Exception] | None = None
    """The errors that this thread made since it began to keep them."""


MADE = MadeErrors()


@contextlib.contextmanager
def errors_made() -> Iterator[list[Exception]]:
    """Inside, the list gets every error that this thread makes, whether it is raised or not."""
    before, MADE.errors = MADE.errors, []
    try:
        yield MADE.errors
    finally:
        MADE.errors.clear()
        MADE.errors = before


_INSIDE = (PACKAGE_FOLDER + os.sep, contextlib.__file__)
"""Files of frames between a warning and the user's call: functions of fx2onnx, some of them in contexts."""


class ExportWarning(UserWarning):
    """Something that was asked for and that the file does not have, or what it takes for its results to be right.

    Each line of ``report.warnings`` is one. They are given before a file is written: where a filter makes an error of them,
    nothing is written.
    """


def logger() -> logging.Logger:
    """The logger ``fx2onnx``, which is silent unless a program configures logging."""
    import logging  # a hundredth of the time of `import fx2onnx`

    found = logging.getLogger("fx2onnx")
    if not found.handlers:
        found.addHandler(logging.NullHandler())
    return found


def warn(texts: Iterable[str]) -> None:
    """Give each of ``texts`` once, at the line that called fx2onnx and to the logger."""
    level, raised = None, []
    for text in dict.fromkeys(texts):
        level = level or _level_of_caller()
        logger().warning(text)
        try:
            warnings.warn(text, ExportWarning, stacklevel=level)
        except ExportWarning:
            raised.append(text)
    if raised:
        raise ExportWarning("\n".join(raised))


def _level_of_caller() -> int:
    """The ``stacklevel``, counted from the caller of this function, of the first frame outside of fx2onnx."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    return level
