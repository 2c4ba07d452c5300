"""The statement whose test the user's code asks for, read from its source."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

import torch

PURE_METHODS = frozenset({"size", "dim"})
"""Of tensors: they say what is known of them and record nothing."""


class UnreadableError(Exception):
    """An expression that may do more than name a number or a tensor."""


def asked_statement(frame: FrameType) -> tuple[ast.If | ast.IfExp, list[ast.expr]] | None:
    """The ``if`` without ``else``, or the conditional expression, one of whose tests the frame is at; with those of its tests, joined
    by ``or``, of which one has to hold, from that one on.
    """
    place = _position(frame)
    return None if place is None else _statements(frame.f_code).get(place)


def _position(frame: FrameType) -> tuple[int, ...] | None:
    for index, place in enumerate(frame.f_code.co_positions()):
        if 2 * index == frame.f_lasti:
            return None if None in place else place  # type: ignore[return-value]
    return None


Place = tuple[int, ...]


@lru_cache(maxsize=256)
def _statements(code: CodeType) -> Mapping[Place, tuple[ast.If | ast.IfExp, list[ast.expr]]]:
    """By the place of each test."""
    found: dict[Place, tuple[ast.If | ast.IfExp, list[ast.expr]]] = {}
    for node in ast.walk(_tree(code)):
        if isinstance(node, ast.IfExp) or (isinstance(node, ast.If) and not node.orelse):
            tests = node.test.values if _is_or(node.test) else [node.test]  # type: ignore[attr-defined]
            for index, test in enumerate(tests):
                inner = test.operand if _is_not(test) else test  # type: ignore[attr-defined]
                found[_place(inner)] = node, tests[index:]
    return found


def _is_or(node: ast.expr) -> bool:
    return isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)


def _is_not(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _place(node: ast.expr) -> Place:
    return node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0


def _tree(code: CodeType) -> ast.Module:
    """The function's own source at its own lines; nothing where there is none."""
    first = code.co_firstlineno
    lines = linecache.getlines(code.co_filename)[first - 1 :]
    try:
        block = "".join(inspect.getblock(lines))
        is_indented = block[:1].isspace()
        tree = ast.parse("if 1:\n" + block if is_indented else block)
    except (SyntaxError, IndexError, ValueError):
        return ast.Module([], [])
    return ast.increment_lineno(tree, first - 1 - is_indented)


def value_of(node: ast.expr, frame: FrameType) -> Any:
    """What an expression of names, numbers, parts of lists and arithmetic is now. Raises UnreadableError for any other."""
    reader = _READERS.get(type(node))
    if reader is None:
        raise UnreadableError
    return reader(node, frame)


def _name(node: Any, frame: FrameType) -> Any:
    for space in (frame.f_locals, frame.f_globals):
        if node.id in space:
            return space[node.id]
    raise UnreadableError


def _attribute(node: Any, frame: FrameType) -> Any:
    owner = value_of(node.value, frame)
    if isinstance(owner, torch.Tensor):
        if node.attr == "shape":
            return owner.shape
        raise UnreadableError
    found = getattr(owner, "__dict__", {}).get(node.attr, _MISSING)
    if found is _MISSING:
        raise UnreadableError
    return found


_MISSING = object()


def _part(node: Any, frame: FrameType) -> Any:
    owner, index = value_of(node.value, frame), value_of(node.slice, frame)
    if not isinstance(owner, tuple | list) or type(index) is not int or not -len(owner) <= index < len(owner):
        raise UnreadableError
    return owner[index]


def _arithmetic(node: Any, frame: FrameType) -> Any:
    operation = _ARITHMETIC.get(type(node.op))
    sides = [_integer(side, frame) for side in (node.left, node.right)]
    if operation is None:
        raise UnreadableError
    return operation(*sides)


def _integer(node: ast.expr, frame: FrameType) -> Any:
    value = value_of(node, frame)
    if type(value) is not int and not isinstance(value, torch.SymInt):
        raise UnreadableError
    return value


def _negated(node: Any, frame: FrameType) -> Any:
    if not isinstance(node.op, ast.USub):
        raise UnreadableError
    return -_integer(node.operand, frame)


def _comparison(node: Any, frame: FrameType) -> Any:
    operation = _COMPARISONS.get(type(node.ops[0]))
    if operation is None or len(node.ops) > 1:
        raise UnreadableError
    return operation(_integer(node.left, frame), _integer(node.comparators[0], frame))


def _method(node: Any, frame: FrameType) -> Any:
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in PURE_METHODS or node.keywords:
        raise UnreadableError
    owner = value_of(node.func.value, frame)
    if not isinstance(owner, torch.Tensor):
        raise UnreadableError
    return getattr(owner, node.func.attr)(*(_integer(arg, frame) for arg in node.args))


_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda one, two: one + two,
    ast.Sub: lambda one, two: one - two,
    ast.Mult: lambda one, two: one * two,
}
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Gt: lambda one, two: one > two,
    ast.GtE: lambda one, two: one >= two,
    ast.Lt: lambda one, two: one < two,
    ast.LtE: lambda one, two: one <= two,
    ast.Eq: lambda one, two: one == two,
    ast.NotEq: lambda one, two: one != two,
}
_READERS: dict[type, Callable[[Any, FrameType], Any]] = {
    ast.Constant: lambda node, frame: node.value,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Subscript: _part,
    ast.BinOp: _arithmetic,
    ast.UnaryOp: _negated,
    ast.Compare: _comparison,
    ast.Call: _method,
}


@lru_cache(maxsize=256)
def reads(code: CodeType, name: str) -> bool:
    """Whether the function reads a variable of that name anywhere."""
    found = (node for node in ast.walk(_tree(code)) if isinstance(node, ast.Name) and node.id == name)
    return any(isinstance(node.ctx, ast.Load) for node in found)
