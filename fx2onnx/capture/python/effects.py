"""Watches what runs between two lines: whether it does anything but compute with tensors, which the recorder sees.

Functions of torch do not; a function of anybody else must neither give attributes, elements or variables of others a value nor
call what might.
"""

from __future__ import annotations

import builtins
import dis
import math
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from types import BuiltinFunctionType, BuiltinMethodType, CodeType, FrameType
from typing import TypeAlias

import numpy as np
import torch

from fx2onnx.base.answering import answers_for_caller
from fx2onnx.base.changes import before_change
from fx2onnx.torchcompat.frames import is_user

Trace: TypeAlias = Callable[[FrameType, str, object], "Trace | None"]
_OWN = frozenset(
    {"STORE_FAST", "DELETE_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "STORE_FAST_MAYBE_NULL"}
)
"""Instructions that change what no one else sees."""
_CHANGES = ("STORE_", "DELETE_", "IMPORT_", "YIELD_", "SEND")
_LIBRARY, _SITE = os.path.dirname(dis.__file__) + os.sep, f"{os.sep}site-packages{os.sep}"
_NUMPY = os.path.dirname(np.__file__) + os.sep
_HIDES_CALLS = frozenset({"map", "filter", "exec", "eval", "partial", "reduce", "partialmethod", "methodcaller"})
"""What calls functions without that being seen."""
_OF_BUILTINS = frozenset(
    getattr(builtins, name)
    for name in (
        "abs",
        "all",
        "any",
        "callable",
        "divmod",
        "getattr",
        "hasattr",
        "hash",
        "id",
        "isinstance",
        "issubclass",
        "len",
    )
) | frozenset(getattr(builtins, name) for name in ("max", "min", "pow", "round", "sorted", "sum"))
_READS = frozenset({"copy", "count", "get", "index", "items", "keys", "values"})
"""Methods of lists and dicts."""
_SEEN = (
    torch.Tensor,
    str,
    bytes,
    int,
    float,
    complex,
    tuple,
    frozenset,
    torch.dtype,
    torch.device,
    torch.SymInt,
    torch.SymFloat,
)


@lru_cache(maxsize=4096)
def _computes_only(code: CodeType) -> bool:
    """Whether a function gives values to its own variables only; torch's do, as far as the recorder does not see it."""
    if not is_user(code):
        return True
    if _HIDES_CALLS & {*code.co_names}:
        return False
    return not any(map(_changes_others, dis.get_instructions(code)))


def _changes_others(one: dis.Instruction) -> bool:
    """Whether an instruction gives anything but a variable of its function a value; ``x += y`` may write into ``x``."""
    is_in_place = one.opname == "BINARY_OP" and one.argrepr.endswith("=")
    return is_in_place or (one.opname.startswith(_CHANGES) and one.opname not in _OWN)


def _is_harmless(function: object) -> bool:
    """Whether a function of C computes only."""
    if not isinstance(function, BuiltinFunctionType | BuiltinMethodType):
        return False
    owner = function.__self__
    if isinstance(owner, _SEEN) or function in _OF_BUILTINS or owner is math:
        return True
    if isinstance(owner, list | dict):
        return function.__name__ in _READS
    name = getattr(owner, "__module__", None) if isinstance(owner, type) else getattr(owner, "__name__", None)
    return str(name or function.__module__).startswith("torch")


def _is_of_user(frame: FrameType | None) -> bool:
    """Whether a function is the user's, or one of Python's own library or of NumPy that the user's called, rather than torch's."""
    while frame is not None and _is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and is_user(frame.f_code)


def _is_of_library(file: str) -> bool:
    """Whether it runs for whoever called it, as a text that torch evaluates does; a body that evaluates one is seen to."""
    return (
        file == "<string>"
        or file.endswith("typing_extensions.py")
        or file.startswith(_NUMPY)
        or (file.startswith(_LIBRARY) and _SITE not in file)
    )


@answers_for_caller
class Watch:
    """Of what this thread runs. ``at_line(frame, line, None)`` is called before each line of the frames that were begun with, and
    ``at_line(frame, None, value)`` as such a frame ends with a value.
    """

    def __init__(self, at_line: Callable[[FrameType, int | None, object], None]) -> None:
        self._at_line = at_line
        self._before: tuple[object, object] | None = None
        self._frames: list[tuple[FrameType, object]] = []
        self.seen: str = ""
        """What else was done."""

    def begin(self, frame: FrameType) -> None:
        if self._before is None:
            before = self._before = sys.gettrace(), sys.getprofile()
            before_change(lambda: _set(*before) if self._before is not None else None)
            self.seen = ""
        self._frames.append((frame, frame.f_trace))
        frame.f_trace = self._of_lines
        _set(self._of_calls, self._profile)

    def end(self) -> None:
        if self._before is not None:
            before, self._before = self._before, None
            while self._frames:
                frame, trace = self._frames.pop()
                frame.f_trace = trace  # type: ignore[assignment]
            _set(*before)

    def _of_calls(self, frame: FrameType, event: str, arg: object) -> None:
        """Of frames that begin later no line is of interest."""

    def _of_lines(self, frame: FrameType, event: str, arg: object) -> Trace | None:
        if event == "line":
            self._at_line(frame, frame.f_lineno, None)
        elif event == "return":
            self._at_line(frame, None, arg)
        elif event == "exception" and isinstance(arg, tuple) and not issubclass(arg[0], StopIteration):
            self.seen = f"{arg[0].__name__} is raised"
        return self._of_lines if self._before is not None else None

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            if not _computes_only(frame.f_code) and _is_of_user(frame):
                self.seen = f"{frame.f_code.co_qualname} may do more than compute"
        elif event == "c_call" and not _is_harmless(arg) and _is_of_user(frame):
            self.seen = f"{arg} is called"


def _set(trace: object, profile: object) -> None:
    sys.settrace(trace)  # type: ignore[arg-type]
    sys.setprofile(profile)  # type: ignore[arg-type]
