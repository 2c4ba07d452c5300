"""Where torch's own Python code asks how a tensor lies in memory, which decides no size."""

from __future__ import annotations

import os
import sys
from types import FrameType

import torch

_FILE = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "_prims_common", "__init__.py")
_SORTS = "K.__lt__"
_NEAR = 6
"""``guard_or_false``, what stands for it during a capture, and what it calls are between."""


def sorts_strides() -> bool:
    """Whether the caller is asked in order to sort the axes of a tensor by their strides."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_NEAR):
        frame = frame.f_back if frame is not None else None
        if frame is not None and frame.f_code.co_filename == _FILE:
            return frame.f_code.co_qualname.endswith(_SORTS)
    return False
