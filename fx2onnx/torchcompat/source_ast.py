"""Where in a statement the user's code is, read from its source or bytecode: at a test, at the head of a loop, in a cached call."""

from __future__ import annotations

import ast
import dis
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType
from typing import TypeAlias, TypeVar

import torch

from fx2onnx.base.source import lines_of

Place: TypeAlias = tuple[int, int, int, int]
"""First and last line, first and last column."""
Stretch: TypeAlias = tuple[CodeType, Place]
"""Part of a function."""
PURE_METHODS = frozenset({"size", "dim"})
"""Attributes and methods of tensors that say what is known of them and record nothing."""


T = TypeVar("T")


class UnreadableError(Exception):
    """An expression that may do more than name a number or a tensor."""


def asked_statement(frame: FrameType) -> tuple[ast.If | ast.IfExp, list[ast.expr]] | None:
    """The ``if`` without ``else``, or the conditional expression, one of whose tests the frame is at; with those of its tests, joined
    by ``or``, of which one has to hold, from that one on.
    """
    place = position(frame)
    return None if place is None else _statements(frame.f_code).get(place)


def position(frame: FrameType) -> Place | None:
    for index, place in enumerate(frame.f_code.co_positions()):
        if 2 * index == frame.f_lasti:
            return None if None in place else place  # type: ignore[return-value]
    return None


@lru_cache(maxsize=256)
def _statements(code: CodeType) -> Mapping[Place, tuple[ast.If | ast.IfExp, list[ast.expr]]]:
    """The tests of a function, by the place of each."""
    found: dict[Place, tuple[ast.If | ast.IfExp, list[ast.expr]]] = {}
    for node in ast.walk(tree_of(code)):
        if isinstance(node, ast.IfExp) or (isinstance(node, ast.If) and not node.orelse):
            test = node.test
            tests = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]
            for index, test in enumerate(tests):
                if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                    test = test.operand
                found[place_of(test)] = node, tests[index:]
                if len(tests) == 1 and not isinstance(test, ast.Compare | ast.BoolOp):
                    found[place_of(node)] = node, tests  # where Python asks a number whether it is 0
    return found


def place_of(node: ast.expr | ast.stmt) -> Place:
    return node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0


def tree_of(code: CodeType) -> ast.Module:
    """The function's own source at its own lines; nothing where there is none."""
    first = code.co_firstlineno
    lines = lines_of(code.co_filename)[first - 1 :]
    try:
        block = "".join(inspect.getblock(lines))
        is_indented = block[:1].isspace()
        tree = ast.parse("if 1:\n" + block if is_indented else block)
    except (SyntaxError, IndexError, ValueError):
        return ast.Module([], [])
    return ast.increment_lineno(tree, first - 1 - is_indented)


def value_of(node: ast.expr, frame: FrameType) -> object:
    """The value that an expression of names, numbers, parts of lists and arithmetic has now. Raises UnreadableError for any other."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return _named(node.id, frame)
        case ast.Attribute():
            return _attribute(value_of(node.value, frame), node.attr)
        case ast.Subscript():
            return _part(value_of(node.value, frame), value_of(node.slice, frame))
        case ast.UnaryOp(op=ast.USub()):
            return -_integer(node.operand, frame)
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](_integer(node.left, frame), _integer(node.right, frame))
        case ast.BinOp() if type(node.op) in _DIVISIONS:
            return _DIVISIONS[type(node.op)](_integer(node.left, frame), _divisor(node.right, frame))
        case ast.Compare(ops=[op], comparators=[other]) if type(op) in _COMPARISONS:
            return _COMPARISONS[type(op)](_integer(node.left, frame), _integer(other, frame))
        case ast.Call(func=ast.Attribute() as method, keywords=[]) if method.attr in PURE_METHODS:
            owner = value_of(method.value, frame)
            if isinstance(owner, torch.Tensor):
                return getattr(owner, method.attr)(*(_integer(arg, frame) for arg in node.args))
    raise UnreadableError


def _named(name: str, frame: FrameType) -> object:
    for space in (frame.f_locals, frame.f_globals):
        if name in space:
            return space[name]
    raise UnreadableError


def _attribute(owner: object, name: str) -> object:
    """The value of an expression that needs no code to run."""
    if isinstance(owner, torch.Tensor) and name == "shape":
        return owner.shape
    found = {} if isinstance(owner, torch.Tensor) else getattr(owner, "__dict__", {})
    if name not in found:
        raise UnreadableError
    return found[name]


def _part(owner: object, index: object) -> object:
    if not isinstance(owner, tuple | list) or type(index) is not int or not -len(owner) <= index < len(owner):
        raise UnreadableError
    return owner[index]


def _integer(node: ast.expr, frame: FrameType) -> int:
    value = value_of(node, frame)
    if type(value) is not int and not isinstance(value, torch.SymInt):
        raise UnreadableError
    return value  # type: ignore[return-value]


def _divisor(node: ast.expr, frame: FrameType) -> int:
    """A plain number: of others it is not known here that they are not 0."""
    value = value_of(node, frame)
    if type(value) is not int or value == 0:
        raise UnreadableError
    return value


_DIVISIONS: dict[type, Callable[[int, int], int]] = {ast.Mod: operator.mod, ast.FloorDiv: operator.floordiv}
_ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_COMPARISONS: dict[type, Callable[[int, int], object]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def is_at_loop(frame: FrameType) -> bool:
    """Return whether the frame is at what a ``for`` or a comprehension goes through, or at a ``range``."""
    if frame.f_code.co_code[frame.f_lasti] == _GET_ITER:  # until Python 3.11 its place is the whole statement
        return True
    place = position(frame)
    return place is not None and any(_is_within(place, head) for head in _loops(frame.f_code))


_GET_ITER = dis.opmap["GET_ITER"]


@lru_cache(maxsize=256)
def _loops(code: CodeType) -> list[Place]:
    nodes = list(ast.walk(tree_of(code)))
    calls = (node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    ranges = [place_of(call) for call in calls if call.func.id == "range"]  # type: ignore[attr-defined]
    return [*ranges, *(place_of(node.iter) for node in nodes if isinstance(node, ast.For | ast.comprehension))]


def goes_through_left_loop(frame: FrameType) -> bool:
    """Return whether the frame is at what a ``for`` goes through with an ``if ...`` in it that leaves it."""
    place = position(frame)
    loops = (one.loop for one in _exits(frame.f_code) if isinstance(one.loop, ast.For)) if place is not None else ()
    return any(_is_within(place, place_of(loop.iter)) for loop in loops)  # type: ignore[arg-type]


def loop_at(frame: FrameType) -> Place | None:
    """The place of the ``for`` that asks for its next element."""
    place = position(frame)  # until Python 3.11 that of the whole statement
    found = [*(one.loop for one in _exits(frame.f_code)), *(one.loop for one in _skips(frame.f_code))]
    loops = [loop for loop in found if isinstance(loop, ast.For)] if place is not None else []
    return next((place_of(loop) for loop in loops if place in (place_of(loop), place_of(loop.iter))), None)


def skip_at(frame: FrameType) -> tuple[Skip, int] | None:
    """What leaves out the rest of a turn whose test the frame is at, with the number of the part that it asks for."""
    return _asked_part(frame, [(one, one.head) for one in _skips(frame.f_code)])


def exit_at(frame: FrameType) -> tuple[Exit, int] | None:
    """The statement that leaves a loop whose test the frame is at, with the number of the part that it asks for."""
    return _asked_part(frame, [(one, one.head) for one in _exits(frame.f_code)])


Tree: TypeAlias = "int | tuple[str, tuple[Tree, ...]]"
"""A test: the number of a part, or ``and`` or ``or`` of tests."""


@dataclass(frozen=True, eq=False)
class Head:
    """The condition of each iteration of a ``while``, or of a ``while True`` in its first ``if ...`` that leaves it."""

    statement: ast.While | ast.If
    loop: ast.For | ast.While | None
    """None for a comprehension."""
    operands: Sequence[tuple[ast.expr, bool]]
    """The parts of the test in order, each with the answer that is for staying in the loop."""
    tree: Tree
    """How the parts are joined: Python stays where this holds."""


def head_at(frame: FrameType) -> tuple[Head, int] | None:
    """The head of a loop without elements whose test the frame is at, with the number of the part that it asks for."""
    return _asked_part(frame, [(head, head) for head in _while_heads(frame.f_code)])


def _asked_part(frame: FrameType, heads: Sequence[tuple[T, Head]]) -> tuple[T, int] | None:
    place = position(frame) if heads else None
    for found, head in heads if place is not None else ():
        for index, (operand, _) in enumerate(head.operands):
            wholes = map(place_of, (head.statement, head.statement.test)) if len(head.operands) == 1 else ()
            if _is_within(place, place_of(operand)) or place in wholes:  # type: ignore[arg-type]
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
    """Whether Python does more there than to go on behind the loop."""
    returns: bool
    """Whether Python leaves the function."""


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


@dataclass(frozen=True, eq=False)
class Skip:
    """A test in a loop or comprehension, with one answer to which Python adds nothing to a list in that turn."""

    loop: ast.For | ast.While | None
    """None for a comprehension, whose function has no other loop."""
    head: Head


@lru_cache(maxsize=256)
def _skips(code: CodeType) -> Sequence[Skip]:
    found: list[tuple[ast.For | ast.While | None, Head | None]] = []
    for node in ast.walk(tree_of(code)):
        if isinstance(node, ast.ListComp | ast.GeneratorExp) and len(node.generators) == 1:
            for test in node.generators[0].ifs:
                statement = ast.copy_location(ast.If(test, [], []), test)
                found.append((None, _head_of(statement, None, stays=True)))
        elif isinstance(node, ast.For | ast.While):
            *before, last = node.body
            for place, each in enumerate(before):
                leaves = isinstance(each, ast.If) and not each.orelse and isinstance(each.body[0], ast.Continue)
                if leaves and _grows(node.body[place + 1 :]):
                    found.append((node, _head_of(each, node, stays=False)))  # type: ignore[arg-type]
            if isinstance(last, ast.If) and not last.orelse and _grows(last.body):
                found.append((node, _head_of(last, node, stays=True)))
    return [Skip(loop, head) for loop, head in found if head is not None]


def _grows(body: Sequence[ast.stmt]) -> bool:
    """Return whether statements add to lists."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    named = any(isinstance(func, ast.Attribute) and func.attr in ("append", "extend", "insert") for func in calls)
    sums = (node.value for node in nodes if isinstance(node, ast.AugAssign))
    return named or any(isinstance(value, ast.List) for value in sums)


def _head_of(statement: ast.While | ast.If, loop: ast.For | ast.While | None, stays: bool) -> Head | None:
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


_SHOW = frozenset(
    {"print", "pprint", "write", "warn", "debug", "info", "warning", "error", "critical", "exception", "log"}
)
"""Functions and methods that take a text and give nothing."""


def name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@lru_cache(maxsize=256)
def shown(code: CodeType) -> list[Stretch]:
    """The statements that print, log or raise, and messages of ``assert``."""
    found: list[ast.expr | ast.stmt] = []
    for node in ast.walk(tree_of(code)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = name_of(node.value.func)
            found += [node] if name in _SHOW or name.startswith(("_check", "_assert")) else []
        elif isinstance(node, ast.Raise):
            found.append(node)
        elif isinstance(node, ast.Assert) and node.msg is not None:
            found.append(node.msg)
    return [(code, place_of(node)) for node in found]


@lru_cache(maxsize=256)
def counted(code: CodeType) -> list[Stretch]:
    """The expressions whose method ``numel`` is called, and those that a variable is given of which it is called."""
    nodes = list(ast.walk(tree_of(code)))
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    holders = [func.value for func in calls if isinstance(func, ast.Attribute) and func.attr == "numel"]
    names = {holder.id for holder in holders if isinstance(holder, ast.Name)}
    given = (node for node in nodes if isinstance(node, ast.Assign))
    holders += [node.value for node in given if any(getattr(target, "id", None) in names for target in node.targets)]
    return [(code, place_of(holder)) for holder in holders]


def body_of(frame: FrameType, statement: ast.If | ast.IfExp) -> list[Stretch]:
    """The statements that run where the test of a statement holds."""
    parts = statement.body if isinstance(statement, ast.If) else [statement.body]
    return [(frame.f_code, place_of(part)) for part in parts]


def is_in(frame: FrameType, stretches: Iterable[Stretch]) -> bool:
    """Return whether the frame is in one of the stretches."""
    places = [place for code, place in stretches if code is frame.f_code]
    now = position(frame) if places else None
    return now is not None and any(_is_within(now, place) for place in places)


def _is_within(place: Place, other: Place) -> bool:
    (first, last, begin, end), (above, below, left, right) = place, other
    return (above, left) <= (first, begin) and (last, end) <= (below, right)


@lru_cache(maxsize=256)
def reads(code: CodeType, name: str) -> bool:
    """Return whether the function reads a variable of that name anywhere."""
    found = (node for node in ast.walk(tree_of(code)) if isinstance(node, ast.Name) and node.id == name)
    return any(isinstance(node.ctx, ast.Load) for node in found)
