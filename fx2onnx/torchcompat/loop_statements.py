"""The tests of a function's loops: of each iteration, and of what leaves the loop."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType
from typing import TypeAlias, TypeVar

from fx2onnx.torchcompat.source_ast import Place, is_within, place_of, position, tree_of

T = TypeVar("T")


def is_at_loop(frame: FrameType, lines: Collection[int]) -> bool:
    """Return whether the frame is at what a ``for`` goes through with one of these lines in it, or with an ``if ...`` that leaves it."""
    place = position(frame)
    loops = {one.loop for one in _exits(frame.f_code)} if place is not None else set()
    for loop in ast.walk(tree_of(frame.f_code)) if place is not None else ():
        # until Python 3.11 the place is that of the whole statement
        if isinstance(loop, ast.For) and (place == place_of(loop) or is_within(place, place_of(loop.iter))):  # type: ignore[arg-type]
            return loop in loops or any(loop.lineno <= line <= (loop.end_lineno or 0) for line in lines)
    return False


def loop_at(frame: FrameType) -> Place | None:
    """The place of the ``for`` that asks for its next element."""
    place = position(frame)  # until Python 3.11 that of the whole statement
    found = [one.loop for one in _exits(frame.f_code)]
    loops = [loop for loop in found if isinstance(loop, ast.For)] if place is not None else []
    return next((place_of(loop) for loop in loops if place in (place_of(loop), place_of(loop.iter))), None)


def exit_at(frame: FrameType) -> tuple[Exit, int] | None:
    """The statement that leaves a loop whose test the frame is at, with the number of the part that it asks for."""
    return _asked_part(frame, [(one, one.head) for one in _exits(frame.f_code)])


Tree: TypeAlias = "int | tuple[str, tuple[Tree, ...]]"
"""A test: the number of a part, or ``and`` or ``or`` of tests."""


@dataclass(frozen=True, eq=False)
class Head:
    """The condition of each iteration of a ``while``, or of a ``while True`` in its first ``if ...`` that leaves it."""

    statement: ast.While | ast.If
    loop: ast.For | ast.While
    operands: Sequence[tuple[ast.expr, bool]]
    """The parts of the test in order, each with the answer that is for staying in the loop."""
    tree: Tree
    """The combination of the parts: Python stays in the loop where it holds."""


def head_at(frame: FrameType) -> tuple[Head, int] | None:
    """The head of a loop without elements whose test the frame is at, with the number of the part that it asks for."""
    return _asked_part(frame, [(head, head) for head in _while_heads(frame.f_code)])


def is_in_while(frame: FrameType) -> bool:
    """Return whether the frame is in a turn of a ``while``."""
    loops = [head.loop for head in _while_heads(frame.f_code)]
    return any(loop.lineno < frame.f_lineno <= (loop.end_lineno or 0) for loop in loops)


def _asked_part(frame: FrameType, heads: Sequence[tuple[T, Head]]) -> tuple[T, int] | None:
    place = position(frame) if heads else None
    for found, head in heads if place is not None else ():
        for index, (operand, _) in enumerate(head.operands):
            wholes = map(place_of, (head.statement, head.statement.test)) if len(head.operands) == 1 else ()
            if is_within(place, place_of(operand)) or place in wholes:  # type: ignore[arg-type]
                return found, index
    return None


@lru_cache(maxsize=256)
def _while_heads(code: CodeType) -> Sequence[Head]:
    found = [_head(loop) for loop in ast.walk(tree_of(code)) if isinstance(loop, ast.While) and not loop.orelse]
    return [head for head in found if head is not None]


def _head(loop: ast.While) -> Head | None:
    if not isinstance(loop.test, ast.Constant):
        return _head_of(loop, loop, stays=True)
    exits = (each for each in loop.body if isinstance(each, ast.If) and not each.orelse)
    first = next((each for each in exits if isinstance(each.body[-1], ast.Break | ast.Return)), None)
    return _head_of(first, loop, stays=False) if first is not None and loop.test.value else None


@dataclass(frozen=True, eq=False)
class Exit:
    """An ``if ...: break`` or ``if ...: return`` in a loop."""

    loop: ast.For | ast.While
    head: Head
    does_more: bool
    """True if Python does more there than to go on behind the loop."""
    returns: bool
    """True if Python leaves the function."""


@lru_cache(maxsize=256)
def _exits(code: CodeType) -> Sequence[Exit]:
    loops = [node for node in ast.walk(tree_of(code)) if isinstance(node, ast.For | ast.While)]
    found = [(loop, each, part) for loop in loops for each, part in _inner_ifs(loop.body)]
    heads = [(part, _head_of(each, loop, stays=part is not each.body), loop) for loop, each, part in found]
    return [
        Exit(loop, head, bool(loop.orelse) or not isinstance(part[0], ast.Break), isinstance(part[-1], ast.Return))
        for part, head, loop in heads
        if head is not None
    ]


def _inner_ifs(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.If, list[ast.stmt]]]:
    """Statements ``if ...: break`` and ``if ...: return`` that leave the loop of that body, with the part that does."""
    for each in body:
        if isinstance(each, ast.If):
            part = next(
                (one for one in (each.body, each.orelse) if one and isinstance(one[-1], ast.Break | ast.Return)), None
            )
            if part is not None:
                yield each, part
            yield from _inner_ifs([*each.body, *each.orelse])
        elif isinstance(each, ast.With):
            yield from _inner_ifs(each.body)


def _head_of(statement: ast.While | ast.If, loop: ast.For | ast.While, stays: bool) -> Head | None:
    """The head with that test, whose truth ``stays`` is for staying in the loop; None where a part of it decides by itself."""
    operands: list[tuple[ast.expr, bool]] = []
    tree = _tree(statement.test, stays, operands)
    decides = (ast.BoolOp, ast.IfExp, ast.NamedExpr)
    if any(isinstance(node, decides) for operand, _ in operands for node in ast.walk(operand)):
        return None
    return Head(statement, loop, operands, tree)


def _tree(test: ast.expr, stays: bool, operands: list[tuple[ast.expr, bool]]) -> Tree:
    """The test with truth ``stays`` as ``and`` and ``or`` of parts, which are added to ``operands``."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _tree(test.operand, not stays, operands)
    if isinstance(test, ast.Compare) and len(test.ops) > 1:
        pairs = zip([test.left, *test.comparators], test.ops, test.comparators, strict=False)
        parts: list[ast.expr] = [ast.copy_location(ast.Compare(one, [op], [two]), test) for one, op, two in pairs]
        return _joined_trees(parts, True, stays, operands)
    if isinstance(test, ast.BoolOp):
        return _joined_trees(test.values, isinstance(test.op, ast.And), stays, operands)
    operands.append((test, stays))
    return len(operands) - 1


def _joined_trees(parts: Sequence[ast.expr], is_and: bool, stays: bool, operands: list[tuple[ast.expr, bool]]) -> Tree:
    return "and" if is_and is stays else "or", tuple(_tree(part, stays, operands) for part in parts)
