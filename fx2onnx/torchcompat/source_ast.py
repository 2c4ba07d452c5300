"""The place of the user's code in a statement, read from its source or bytecode: at a test, at the head of a loop, in a
cached call."""

from __future__ import annotations

import ast
import dis
import inspect
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from types import CodeType, FrameType, FunctionType
from typing import TypeAlias

import torch

from fx2onnx.base.source import lines_of

Place: TypeAlias = tuple[int, int, int, int]
"""First and last line, first and last column."""
Stretch: TypeAlias = tuple[CodeType, Place]
"""Part of a function."""
PURE_METHODS = frozenset({"size", "dim"})
"""Attributes and methods of tensors that say what is known of them and record nothing."""


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
    except (SyntaxError, IndexError, ValueError):  # a lambda begins within a statement
        return _statement_at(first, "".join(lines_of(code.co_filename)))
    return ast.increment_lineno(tree, first - 1 - is_indented)


@lru_cache(maxsize=64)
def _statement_at(line: int, text: str) -> ast.Module:
    """The shortest statement of a file that a line lies in; nothing where there is none."""
    try:
        statements = [node for node in ast.walk(_tree_of_file(text)) if isinstance(node, ast.stmt)]
    except (SyntaxError, ValueError):
        return ast.Module([], [])
    around = [node for node in statements if node.lineno <= line <= (node.end_lineno or 0)]
    return ast.Module(sorted(around, key=lambda node: (node.end_lineno or 0) - node.lineno)[:1], [])


@lru_cache(maxsize=8)
def _tree_of_file(text: str) -> ast.Module:
    return ast.parse(text)


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
        case ast.Slice():
            ends = (node.lower, node.upper, node.step)
            return slice(*(None if end is None else _integer(end, frame) for end in ends))
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
    if isinstance(owner, tuple | list) and isinstance(index, slice):
        return owner[index]
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
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip


def is_at_loop(frame: FrameType) -> bool:
    """Return whether the frame is at what a ``for`` or a comprehension goes through, or at a ``range``."""
    if frame.f_code.co_code[frame.f_lasti] == _GET_ITER:  # until Python 3.11 its place is the whole statement
        return True
    place = position(frame)
    return place is not None and any(is_within(place, head) for head in _loops(frame.f_code))


_GET_ITER = dis.opmap["GET_ITER"]


@lru_cache(maxsize=256)
def _loops(code: CodeType) -> list[Place]:
    nodes = list(ast.walk(tree_of(code)))
    calls = (node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    ranges = [place_of(call) for call in calls if call.func.id == "range"]  # type: ignore[attr-defined]
    return [*ranges, *(place_of(node.iter) for node in nodes if isinstance(node, ast.For | ast.comprehension))]


_PRINT = frozenset({"print", "pprint"})
_LOG = frozenset({"debug", "info", "warn", "warning", "critical", "exception"})
"""Methods that take a text and give nothing."""
_SHOW_ALONE = _PRINT | _LOG | {"write", "error", "log"}
"""Functions that show a text where the call is a statement; elsewhere their result may be used."""
_CHECK = ("_check", "_assert")
_KEEP = frozenset({"append", "appendleft", "extend", "insert", "setdefault", "update"})
"""Methods that keep what they are given."""
_SCOPE = frozenset({"locals", "vars", "eval", "exec"})
"""Functions that read variables without naming them."""


def name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _keeps(node: ast.AST) -> bool:
    return isinstance(node, ast.NamedExpr) or (isinstance(node, ast.Call) and name_of(node.func) in _KEEP)


def _file_of(node: ast.AST) -> Iterator[str]:
    """The variable whose file or stream a call writes to or closes."""
    match node:
        case ast.Call(ast.Attribute(ast.Name(name), "write" | "close" | "flush")):
            yield name
        case ast.Call(func, keywords=[*_, ast.keyword("file", ast.Name(name))]) if name_of(func) in _PRINT:
            yield name


@lru_cache(maxsize=256)
def calls_that_show(code: CodeType) -> dict[ast.Call, bool]:
    """The calls of functions and methods whose names say that they show or check a text, each with whether its result is used."""
    nodes = list(ast.walk(tree_of(code)))
    dropped = {node.value for node in nodes if isinstance(node, ast.Expr)}
    calls = [(node, name_of(node.func)) for node in nodes if isinstance(node, ast.Call)]
    words = "check", "assert"
    return {
        call: call not in dropped
        for call, name in calls
        if name in _SHOW_ALONE or any(word in name.lower() for word in words)
    }


def called_by(call: ast.Call, frame: FrameType) -> object:
    """The function that a call runs, or the property that gives it; None where the variables of the frame do not say it."""
    try:
        if not isinstance(call.func, ast.Attribute):
            found = value_of(call.func, frame)
        else:
            found = inspect.getattr_static(value_of(call.func.value, frame), call.func.attr, None)
    except UnreadableError:
        return None
    while isinstance(found, partial):
        found = found.func
    own = inspect.getattr_static(type(found), "__call__", None)
    return own if isinstance(own, FunctionType) else getattr(found, "__func__", found)


@lru_cache(maxsize=256)
def only_shows(code: CodeType, returns: bool) -> bool:
    """Return whether a function, or method, does nothing with its arguments but to show and to test them, or, unless ``returns``, to
    return them."""
    more = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + more]} - {"self", "cls"}
    nodes = list(ast.walk(tree_of(code)))
    places = [place for _, place in shown(code)]
    places += [place_of(node.test) for node in nodes if isinstance(node, ast.If | ast.IfExp | ast.Assert)]
    places += [place_of(node) for node in nodes if isinstance(node, ast.Return) and not returns]
    reads = (node for node in nodes if isinstance(node, ast.Name) and node.id in names)
    return all(any(is_within(place_of(node), place) for place in places) for node in reads)


@lru_cache(maxsize=256)
def shown(code: CodeType, keeping: frozenset[Place] = frozenset()) -> list[Stretch]:
    """The calls that print or log, the statements that raise, messages of ``assert``, and what is assigned to variables that are
    read in these alone. Calls within which something is kept, those of ``keeping``, and those that write to what is read back, are
    not among them.
    """
    found: list[ast.expr | ast.stmt] = []
    given: dict[str, list[ast.expr]] = {}
    nodes = list(ast.walk(tree_of(code)))
    loads = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    read_back = loads - Counter(name for node in nodes for name in _file_of(node))
    outside = {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    for node in nodes:
        match node:
            case ast.Expr(ast.Call(func)) if name_of(func) in _SHOW_ALONE or name_of(func).startswith(_CHECK):
                found.append(node)
            case ast.Call(ast.Name(name)) if name in _PRINT:
                found.append(node)
            case ast.Call(ast.Attribute(attr=name)) if name in _LOG:
                found.append(node)
            case ast.Raise():
                found.append(node)
            case ast.Assert(msg=ast.expr() as message):
                found.append(message)
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), value=ast.expr() as value):
                given.setdefault(name, []).append(value)
            case ast.AugAssign(ast.Name(name)):
                outside.add(name)
    kept = [
        *keeping,
        *(
            place_of(node)  # type: ignore[arg-type]
            for node in nodes
            if _keeps(node) or any(name in read_back for name in _file_of(node))
        ),
    ]
    places = [place for place in map(place_of, found) if not any(is_within(part, place) for part in kept)]
    inside = set[str]()
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            own = map(place_of, given.get(node.id, []))  # text = text + ...
            is_shown = any(is_within(place_of(node), place) for place in (*places, *own))
            (inside if is_shown else outside).add(node.id)
    names = set[str]() if _SCOPE & loads.keys() else inside - outside
    places += [place_of(value) for name in names for value in given.get(name, [])]
    return [(code, place) for place in places]


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
    return now is not None and any(is_within(now, place) for place in places)


def is_within(place: Place, other: Place) -> bool:
    (first, last, begin, end), (above, below, left, right) = place, other
    return (above, left) <= (first, begin) and (last, end) <= (below, right)


@lru_cache(maxsize=256)
def reads(code: CodeType, name: str) -> bool:
    """Return whether the function reads a variable of that name anywhere."""
    found = (node for node in ast.walk(tree_of(code)) if isinstance(node, ast.Name) and node.id == name)
    return any(isinstance(node.ctx, ast.Load) for node in found)
