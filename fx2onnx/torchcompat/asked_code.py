"""The code that asks for the truth of a test, or for a number: what its instructions say that the answer is for."""

from __future__ import annotations

import ast
import dis
import logging
import os
import sys
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType

import numpy as np
import torch

from fx2onnx.base.code_patch import ANSWERING, answers_for_caller
from fx2onnx.base.source import SourceLocation
from fx2onnx.torchcompat.caught_errors import end_by_data
from fx2onnx.torchcompat.frames import (
    LIBRARIES,
    TORCH_FOLDER,
    asking_frame,
    is_of_modules,
    is_user,
    location_at,
    user_frame,
)
from fx2onnx.torchcompat.source_ast import (
    Stretch,
    called_by,
    calls_that_show,
    counted,
    is_at_loop,
    is_in,
    only_shows,
    place_of,
    shown,
    tree_of,
)

_LOGGING = os.path.dirname(os.path.abspath(logging.__file__)) + os.sep
_FUNCTIONAL = os.path.join(TORCH_FOLDER, "nn", "functional.py")


_NUMBERS = frozenset({"int", "float", "len", "range", "numel"})


@answers_for_caller
def file_of_number() -> set[str]:
    """The name of the user's file whose code asks, where it takes a part of a tensor or calls what may give a number for a size;
    else nothing. NumPy's own files count on plain numbers.
    """
    frame = asking_frame()
    if frame is None or not is_user(frame.f_code) or asked_by_numpy():
        return set()
    names, space = frame.f_code.co_names, frame.f_globals
    asks = frame.f_lasti in subscripts_of(frame.f_code) or any(
        name in _NUMBERS or isinstance(space.get(name), BuiltinFunctionType) for name in names
    )
    return {str(space.get("__name__"))} if asks else set()


@answers_for_caller
def checked_by_user() -> bool:
    """Return whether the user's code asks for a comparison of sizes, directly or through ``torch._check``."""
    frame = asking_frame()
    while (
        frame is not None and frame.f_code.co_name.startswith(("_check", "expect_true")) and not is_user(frame.f_code)
    ):
        frame = frame.f_back
    return frame is not None and is_user(frame.f_code)


def asserted_by_user() -> bool:
    """Return whether the user's code decides in an ``assert``: its other branch ends the run."""
    frame = user_frame()
    return frame is not None and frame.f_lasti in _assertions(frame.f_code)


def formats_message() -> bool:
    """Return whether the user's code formats a text that a function which checks something gets as its message, and nobody else:
    ``torch._check(x > 0, f"... {y}")``.
    """
    frame = user_frame()
    return frame is not None and frame.f_lasti in _messages(frame.f_code) and not is_in(frame, _kept_calls(frame))


def shown_at() -> SourceLocation | None:
    """The line of a statement of the user's that prints, logs or raises, where the text that is made now is for nobody else."""
    frame, is_logged = user_frame(), False
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_LOGGING):
            is_logged = True
        elif is_user(code) and (not is_logged or _is_at_shown(frame)):
            return location_at(code, frame.f_lineno) if _is_at_shown(frame) else None
        frame = frame.f_back  # from a handler to who logs
    return None


def _is_at_shown(frame: FrameType) -> bool:
    """Return whether the frame is at what is only shown."""
    return is_in(frame, shown(frame.f_code, frozenset(place for _, place in _kept_calls(frame))))


def _kept_calls(frame: FrameType) -> list[Stretch]:
    """The calls that may keep what they are named to show or to check."""
    calls = calls_that_show(frame.f_code).items()
    return [(frame.f_code, place_of(call)) for call, is_used in calls if _may_keep(called_by(call, frame), is_used)]


def _may_keep(called: object, is_used: bool) -> bool:
    """Return whether a function of the user's own, or one that a property of theirs gives, or a method of a container, keeps its arguments."""
    if isinstance(called, BuiltinFunctionType):
        return isinstance(called.__self__, list | set | dict | deque)
    function = called.fget if isinstance(called, property) else called
    if not isinstance(function, FunctionType):
        return False
    code = function.__code__
    is_own = not code.co_filename.startswith(LIBRARIES) and is_user(code)
    return is_own and (function is not called or not only_shows(code, is_used))


def is_shown(warnings: list[str]) -> bool:
    """Return whether a text of a data-dependent number is only printed, logged or raised; the first time, that it is not in the file
    becomes one of ``warnings``.
    """
    where = shown_at()
    if where is None:
        return False
    text = "forward prints or logs numbers that depend on data; the file does not"
    if not any(line.startswith(text) for line in warnings):
        warnings.append(f"{text} ({where})")
    return True


def is_only_shown() -> bool:
    """Return whether the text that is made now is printed, logged, raised or a message of a check, and nothing else."""
    return shown_at() is not None or formats_message()


def refused_by_user() -> bool:
    """Return whether the user's code asks in an ``if`` whose body raises: the test is false wherever the run goes on."""
    frame = user_frame()
    return frame is not None and frame.f_lasti in _refusals(frame.f_code)


def asked_by_numpy() -> bool:
    """Return whether a function of NumPy's own asks."""
    frame = user_frame()
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("numpy.")


def calls_numpy() -> bool:
    """Return whether NumPy asks, or a function that uses it."""
    frame = user_frame()
    spaces = frame.f_code.co_names if frame is not None else ()
    return frame is not None and (
        str(frame.f_globals.get("__name__")).startswith("numpy.")
        or any(frame.f_globals.get(name) is np for name in spaces)
    )


def loops() -> bool:
    """Return whether the user's code asks how often it loops."""
    frame = user_frame()
    return frame is not None and is_at_loop(frame)


def is_in_while() -> bool:
    """Return whether the user's code is within a ``while`` loop."""
    frame = user_frame()
    return frame is not None and any(
        isinstance(node, ast.While) and node.lineno <= frame.f_lineno <= (node.end_lineno or 0)
        for node in ast.walk(tree_of(frame.f_code))
    )


def subscripts() -> bool:
    """Return whether the user's code takes a part of a tensor: torch reads the numbers of tensors in a slice, and takes no symbol."""
    frame = user_frame()
    return frame is not None and frame.f_lasti in subscripts_of(frame.f_code)


@lru_cache(maxsize=1024)
def subscripts_of(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions that take a part of something, or write one."""
    names = ("BINARY_SUBSCR", "BINARY_SLICE", "STORE_SUBSCR", "STORE_SLICE")
    return frozenset(one.offset for one in dis.get_instructions(code) if one.opname in names or one.argrepr == "[]")


def counts_elements() -> bool:
    """Return whether the user's code takes a shape whose ``numel`` it calls then: ``x.shape[1:].numel()``."""
    frame = user_frame()
    return frame is not None and "numel" in frame.f_code.co_names and is_in(frame, counted(frame.f_code))


def unpacks() -> int:
    """Into how many names the user's code takes what it calls now apart; 0 where it does not."""
    frame = user_frame()
    return 0 if frame is None else _unpacked(frame.f_code).get(frame.f_lasti, 0)


@lru_cache(maxsize=1024)
def _unpacked(code: CodeType) -> dict[int, int]:
    """The functions called, by the offset of a call, or of the caches behind it, where a frame stands while it calls Python."""
    found = pairwise(dis.get_instructions(code))
    calls = [(one.offset, after) for one, after in found if after.opname == "UNPACK_SEQUENCE"]
    return {offset: after.arg or 0 for begin, after in calls for offset in range(begin, after.offset, 2)}


@lru_cache(maxsize=1024)
def _messages(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions that format a message of a check: of statements that are a call of it."""
    found: list[int] = []
    formats: list[int] = []
    checks = False
    for one in dis.get_instructions(code):
        checks = checks or (
            one.opname.startswith("LOAD_")
            and (isinstance(one.argval, str) and any(word in one.argval.lower() for word in ("check", "assert")))
        )
        if one.opname.startswith("FORMAT_"):
            formats.append(one.offset)
        elif one.opname == "POP_TOP" or one.opname.startswith(("STORE_", "POP_JUMP", "RETURN_", "RAISE_", "JUMP_")):
            found += formats if checks and one.opname == "POP_TOP" else []
            formats, checks = [], False
    return frozenset(found)


def refused_by_torch() -> bool:
    """Return whether ``torch.nn.functional`` asks in an ``if`` whose body raises: the test is false wherever the run goes on."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _FUNCTIONAL and not is_user(frame.f_code):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename != _FUNCTIONAL:
        return False
    return frame.f_lasti in _refusals(frame.f_code)


@answers_for_caller
def asks_in(stretches: Iterable[Stretch]) -> bool:
    """Return whether the user's code asks in one of the stretches."""
    frame = asking_frame()
    return frame is not None and is_in(frame, stretches)


@lru_cache(maxsize=1024)
def _assertions(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions that ask for the truth of what ``assert`` states."""
    instructions = list(dis.get_instructions(code))
    failures = {one.offset for one in instructions if one.opname == "LOAD_ASSERTION_ERROR"}
    found: list[int] = []
    tests: list[int] = []
    is_negated = False
    for instruction in instructions:
        if instruction.offset in failures and not is_negated:
            found += tests
        is_jump = instruction.opname.startswith("POP_JUMP")
        is_negated = is_jump and "FALSE" in instruction.opname  # assert not a
        if is_negated and instruction.argval in failures:  # assert a and b
            found += [*tests, instruction.offset]
        tests = [*tests, instruction.offset] if is_jump or instruction.opname == "TO_BOOL" else []
    return frozenset(found)


@lru_cache(maxsize=1024)
def _refusals(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions that ask for the truth of a test before a block that only raises."""
    instructions = list(dis.get_instructions(code))
    places = {one.offset: place for place, one in enumerate(instructions)}
    found: list[int] = []
    for place, instruction in enumerate(instructions):
        is_jump = instruction.opname.startswith("POP_JUMP") and "FALSE" in instruction.opname
        body = instructions[place + 1 : places.get(instruction.argval, 0)] if is_jump else []
        if body and body[-1].opname == "RAISE_VARARGS" and not any("JUMP" in one.opname for one in body):
            found += [
                instruction.offset,
                *(one.offset for one in instructions[place - 1 : place] if one.opname == "TO_BOOL"),
            ]
    return frozenset(found)


_FILE = os.path.join(TORCH_FOLDER, "_prims_common", "__init__.py")
_SORTS = "K.__lt__"
_NEAR = 6
"""``guard_or_false``, what stands for it during a capture, and what it calls are between."""


def sorts_strides() -> bool:
    """Return whether the caller is asked in order to sort the axes of a tensor by their strides."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_NEAR):
        frame = frame.f_back if frame is not None else None
        if frame is not None and frame.f_code.co_filename == _FILE:
            return frame.f_code.co_qualname.endswith(_SORTS)
    return False


def raises_in_eager(frame: FrameType) -> bool:
    """Return whether what the frame raises by a statement ends the run in eager PyTorch, too: the user's does, ``torch.nn``'s,
    ``torch._assert``, and the user's ``torch._check``, where torch's own are of kernels written in Python.
    """
    code, above = frame.f_code, frame
    while above.f_code.co_filename == torch.__file__ and above.f_back is not None:
        above = above.f_back
    is_asked = is_user(above.f_code) or id(above.f_code) in ANSWERING  # ours that answer stand for the user's call
    is_check = code.co_name.startswith("_check") and code is not above.f_code and is_asked
    is_assert = code.co_name == "_assert" and code.co_filename == torch.__file__
    return is_of_modules(code) or code is end_by_data.__code__ or is_check or is_assert
