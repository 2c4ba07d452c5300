"""Sizes as keys: of a dict that keeps what is computed, and of a function that ``functools.lru_cache`` makes.

Such a key may be any that equal expressions share. In a table that is looked up it has to be a plain number, and so has a key made of
data: a dict of results by number has as many as there are different numbers.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import CodeType, FrameType

import torch

from fx2onnx.base.changes import before_change
from fx2onnx.base.code_patch import THREAD, answers_for_caller
from fx2onnx.capture.shapes.symnode import DimNode, may_be_size
from fx2onnx.sizes.expr import Dim
from fx2onnx.torchcompat.frames import asking_frame, is_user
from fx2onnx.torchcompat.source_ast import UnreadableError, place_of, position, tree_of, value_of


@answers_for_caller
def hashing(original: Callable[[torch.SymInt], int]) -> Callable[[torch.SymInt], int]:
    """A key of a dict has to be a plain number; a function that keeps its results keeps them by expression, in a dict of its own, too.
    torch itself counts on sizes that have no hash.
    """

    def hashed(self: torch.SymInt) -> int:
        frame = asking_frame()
        if frame is None or not is_user(frame.f_code):
            return int(original(self))
        node = self.node if isinstance(self.node, DimNode) else None
        if node is None or not isinstance(node.value, Dim):
            return hash(int(self))
        of_data = node.value.symbols() & node.env.unbacked  # a plain number is needed where they may be one key
        by_text = hash(("size", str(node.value)))  # -1 and -2 have one hash, and Python would compare
        if _calls_cached(frame):
            return by_text
        found = None if of_data else _table_at(frame)
        if found is None and of_data and THREAD.tracer.branching.has_loops and THREAD.tracer.plugin("loops").open:
            raise THREAD.tracer.plugin("loops").refused(*_KEY_OF_TURN)
        if found is None:
            return hash(int(self))
        return _COMPARED if found is _LOCAL else by_text

    return hashed


_KEY_OF_TURN = (
    "a number that only the model's run knows is the key of a dict, as in found[i] = h",
    "keep a list in the place of the dict: found.append(h) with an element for each turn, and torch.stack(found)[i] to look up",
)
"""The reason for refusing a number of data as a key in a turn of a loop, and the step to take."""
_COMPARED = hash("a size whose table compares it with others")
_LOCAL: dict[object, object] = {}
"""A dict of the function itself, which has as many keys as there are different sizes: Python compares those of one hash."""


def _without_sizes(table: dict[object, object]) -> None:
    left = [(key, value) for key, value in table.items() if not may_be_size(key)]
    if len(left) < len(table):
        table.clear()
        table.update(left)


def _calls_cached(frame: FrameType) -> bool:
    """Return whether ``frame`` is in a call of a function made by ``functools.lru_cache``: ``f(n)``, ``self.f(n)``, ``a.b.f(n)``.

    Such a call takes the hash of its arguments, as a dict does for its key, but any hash will do that equal arguments share.
    """
    path = _callee(frame.f_code, frame.f_lasti)
    if not path:
        return False
    found: object = frame.f_locals.get(path[0], frame.f_globals.get(path[0]))
    for name in path[1:]:
        found = inspect.getattr_static(found, name, None)
    found = found.__func__ if isinstance(found, classmethod | staticmethod) else found
    return any(isinstance(one, functools._lru_cache_wrapper) for one in (found, getattr(found, "__wrapped__", None)))


def _table_at(frame: FrameType) -> dict[object, object] | None:
    """The dict that the frame looks up a key in, or writes one, where a function of the same class or file keeps what it computes: one
    that stores into it with a key, or one whose keys are no plain numbers. The capture leaves no such key in it. ``_LOCAL`` for one of
    the function itself.
    """
    place = position(frame) if THREAD.captures else None
    for node, table in _lookups(frame.f_code) if place is not None else ():
        if place_of(node) != place:
            continue
        if isinstance(table, ast.Dict):
            return None if any(isinstance(key, ast.Constant) for key in table.keys) else _LOCAL
        try:
            found = value_of(table, frame)
        except UnreadableError:
            return None
        is_local = isinstance(table, ast.Name) and table.id in frame.f_code.co_varnames
        if not isinstance(found, dict) or not _may_have_sizes(found, frame, table, is_local):
            return None
        before_change(functools.partial(_without_sizes, found))
        return _LOCAL if is_local else found
    return None


def _may_have_sizes(table: Mapping[object, object], frame: FrameType, name: ast.expr, is_local: bool) -> bool:
    """Return whether no plain number among the keys may be equal to a size, or the table keeps what the function computes."""
    if is_local:
        return not any(type(key) is int for key in table)
    return _is_stored(frame.f_code, name) or not _has_numbers(table)


_LOOKS_UP = frozenset({"get", "setdefault", "pop"})


@lru_cache(maxsize=256)
def _lookups(code: CodeType) -> Sequence[tuple[ast.expr, ast.expr]]:
    """Expressions that take the hash of a key, with the container."""
    found: list[tuple[ast.expr, ast.expr]] = []
    for node in ast.walk(tree_of(code)):
        match node:
            case ast.Subscript():
                found.append((node, node.value))
            case ast.Dict():
                found.append((node, node))
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[table]):
                found.append((node, table))
            case ast.Call(func=ast.Attribute() as method) if method.attr in _LOOKS_UP:
                found.append((node, method.value))
    return found


def _is_stored(code: CodeType, table: ast.expr) -> bool:
    """Return whether the function stores what it computes into the container."""
    name = ast.dump(table)
    stores = (node for node, held in _lookups(code) if ast.dump(held) == name)
    return any(
        (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "setdefault")
        for node in stores
    )


def _has_numbers(table: Mapping[object, object]) -> bool:
    keys = (part for key in table for part in (key if isinstance(key, tuple) else (key,)))
    return any(type(part) is int for part in keys)


@lru_cache(maxsize=1024)
def _callee(code: CodeType, offset: int) -> tuple[str, ...]:
    """The name that the call at ``offset`` calls, with those of the objects that it is taken from; empty where it is none.

    The instructions that load a callee stand in the source where the call begins, its arguments further on.
    """
    instructions = list(dis.get_instructions(code))
    # While a function of Python runs, its caller is at the end of the call's instruction: it has no offset of its own.
    place = max((place for place, one in enumerate(instructions) if one.offset <= offset), default=None)
    if place is None or not instructions[place].opname.startswith("CALL"):
        return ()
    begin = _begin(instructions[place])
    path: list[str] = []
    for one in instructions[:place]:
        if _begin(one) != begin or not one.opname.startswith("LOAD_"):
            continue
        if one.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")):
            path.append(str(one.argval))
        elif one.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME")):
            path = [str(one.argval)]
    return tuple(path)


def _begin(instruction: dis.Instruction) -> tuple[int | None, int | None]:
    positions = instruction.positions
    return (positions.lineno, positions.col_offset) if positions is not None else (None, None)
