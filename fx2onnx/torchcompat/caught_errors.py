"""Errors that forward catches: the statements around a call, read from bytecode and source, and errors that the numbers
of operands raise."""

from __future__ import annotations

import ast
import builtins
import dis
import os
import sys
import traceback
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType, FrameType
from typing import NoReturn, TypeAlias

from fx2onnx.base.source import PACKAGE_FOLDER
from fx2onnx.torchcompat.frames import is_user
from fx2onnx.torchcompat.source_ast import Stretch, UnreadableError, is_in, name_of, tree_of, value_of

_RUNS = {os.path.join(PACKAGE_FOLDER, "capture", *path) for path in (["run.py"], ["strategies", "exported.py"])}
"""The files whose functions call forward."""


def is_caught(error: type[BaseException] | None = None) -> bool:
    """Return whether forward catches errors of that class, or of any, of what it calls now, and goes on."""
    frame: FrameType | None = sys._getframe(1)
    found = False
    while frame is not None and frame.f_code.co_filename not in _RUNS:
        code = frame.f_code
        if not found and code.co_exceptiontable and is_user(code) and _may_catch(code):
            goes_on = _catches(frame, error)
            found = any(goes_on)
            error = None if goes_on else error  # another one, of a class that is not known here
        frame = frame.f_back
    return found and frame is not None


_MATCHES = dis.opmap["CHECK_EXC_MATCH"]
_CATCHES_ALL = bytes([dis.opmap["PUSH_EXC_INFO"], 0, dis.opmap["POP_TOP"], 0])


def _may_catch(code: CodeType) -> bool:
    """Return False for most code that has a ``finally`` or a ``with`` alone: its source need not be read."""
    instructions = code.co_code
    return _MATCHES in instructions[::2] or _CATCHES_ALL in instructions or "suppress" in code.co_names


def end_by_data(error: Exception) -> NoReturn:
    """Raise what a kernel of eager PyTorch raises for numbers of its operands, in the place of the user's call."""
    raise error


def is_of_data(error: BaseException) -> bool:
    """Return whether ``end_by_data`` raised the error."""
    return any(frame.f_code is end_by_data.__code__ for frame, _ in traceback.walk_tb(error.__traceback__))


Handler: TypeAlias = tuple[Stretch, Sequence[ast.expr] | None, bool]
"""The body of a ``try`` or of a ``with suppress(...)``, the classes of errors that it catches, where None stands for all, and whether
it goes on: no ``except`` that ends with ``raise``.
"""


@lru_cache(maxsize=1024)
def _handlers(code: CodeType) -> Sequence[Handler]:
    found: list[tuple[Sequence[ast.stmt], Sequence[ast.expr] | None, bool]] = []
    for node in ast.walk(tree_of(code)):
        if isinstance(node, ast.Try):
            for each in node.handlers:
                kinds = None if each.type is None else _parts(each.type)
                found.append((node.body, kinds, not isinstance(each.body[-1], ast.Raise)))
        elif isinstance(node, ast.With):
            calls = (item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call))
            found += [(node.body, call.args, True) for call in calls if name_of(call.func) == "suppress"]
    return [
        ((code, (body[0].lineno, body[-1].end_lineno or 0, 0, sys.maxsize)), kinds, goes_on)
        for body, kinds, goes_on in found
    ]


def _parts(kind: ast.expr) -> Sequence[ast.expr]:
    return kind.elts if isinstance(kind, ast.Tuple) else [kind]


def _catches(frame: FrameType, error: type[BaseException] | None) -> list[bool]:
    """True for each handler of the frame that goes on, of those for a class of errors or for any; of all where one raises another."""
    around = [(kinds, goes_on) for stretch, kinds, goes_on in _handlers(frame.f_code) if is_in(frame, [stretch])]
    found = [
        goes_on for kinds, goes_on in around if kinds is None or any(_is_kind(kind, frame, error) for kind in kinds)
    ]
    return found if all(found) else [goes_on for _, goes_on in around]


def _is_kind(kind: ast.expr, frame: FrameType, error: type[BaseException] | None) -> bool:
    """Return whether an expression is a class that ``error`` is of; what is not known may be."""
    try:
        found = getattr(builtins, kind.id if isinstance(kind, ast.Name) else "", None) or value_of(kind, frame)
    except UnreadableError:
        return True
    return error is None or not isinstance(found, type | tuple) or issubclass(error, found)
