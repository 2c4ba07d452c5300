"""The statements that Python runs or leaves out by one test, ``if idx.numel(): out[idx] = f(x[idx])``, read from the
source.

``if none: continue`` and what follows it in the loop is such a statement, too. Which variables of the function may be
read behind it is read from the bytecode.
"""

from __future__ import annotations

import ast
import dis
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from fx2onnx.capture.python.data_numbers import DataNumber
from fx2onnx.torchcompat.source_ast import Place, UnreadableError, place_of, position, tree_of, value_of


@dataclass(frozen=True, slots=True)
class Conditional:
    """Statements in a row that run or do not."""

    body: Sequence[ast.stmt]
    runs_where: bool
    """The truth of what Python asks with which they run."""
    returned: ast.expr | None = None
    """The value that the function returns if the statements do not run and it ends there."""
    orelse: Sequence[ast.stmt] = ()
    """The statements that run where these do not."""

    def covers(self, line: int) -> bool:
        return self.body[0].lineno <= line <= (self.body[-1].end_lineno or 0)

    def calls(self) -> bool:
        """Return whether one of the statements does nothing but call something."""
        return any(isinstance(one, ast.Expr) for one in _statements([*self.body, *self.orelse]))

    def goes_on_with_iterator(self, frame: FrameType) -> bool:
        """Return whether the statements name an iterator of the function's, which may be further on after them."""
        rows = [*self.body, *self.orelse]
        names = {node.id for statement in rows for node in ast.walk(statement) if isinstance(node, ast.Name)}
        return any(hasattr(frame.f_locals.get(name), "__next__") for name in names)

    def returned_in(self, frame: FrameType) -> torch.Tensor | None:
        """The tensor that the function returns where they do not run."""
        try:
            value = None if self.returned is None else value_of(self.returned, frame)
        except UnreadableError:
            return None
        return value if isinstance(value, torch.Tensor) else None

    def replaces_tensors_only(self, frame: FrameType) -> bool:
        """Return whether all variables that get a value have a tensor as the frame comes to the statements."""
        names = {
            node.id
            for one in self.body
            for node in ast.walk(one)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        return all(isinstance(frame.f_locals.get(name), torch.Tensor) for name in names & read_later(frame))

    def changes_tensors_only(self, frame: FrameType, line: int) -> bool:
        """Return whether what the statements of a line change in place, as the frame comes to it, are tensors; or numbers."""
        return all(
            _is_tensor(target, frame, isinstance(statement, ast.AugAssign))
            for statement in _statements(self.body)
            if statement.lineno == line and isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For)
            for target in _changed(statement)
        )


def conditional_at(frame: FrameType) -> Conditional | None:
    """The statements that the truth that the frame asks for decides about, where nothing but assignments, calls and loops is in them."""
    place = position(frame)
    if place is None or frame.f_lasti not in _jumps(frame.f_code):
        return None
    return _conditionals(frame.f_code).get(place)


@lru_cache(maxsize=256)
def _jumps(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions that ask for a truth and go one way or the other; since Python 3.13 a comparison may ask itself."""
    return frozenset(
        one.offset
        for one in dis.get_instructions(code)
        if one.opname.startswith(("POP_JUMP", "TO_BOOL"))
        or (one.opname == "COMPARE_OP" and one.argrepr.startswith("bool("))
    )


@lru_cache(maxsize=256)
def _conditionals(code: CodeType) -> Mapping[Place, Conditional]:
    """Conditional expressions by the places where Python may be as it asks."""
    found: dict[Place, Conditional] = {}
    for parent in ast.walk(tree_of(code)):
        for _, rows in ast.iter_fields(parent):
            for index, statement in enumerate(rows if isinstance(rows, list) else []):
                if isinstance(statement, ast.If):
                    is_tail = rows is getattr(parent, "body", None)
                    found |= _by_place(statement, parent, rows[index + 1 :] if is_tail else [])
    return found


def _by_place(statement: ast.If, parent: ast.AST, rest: Sequence[ast.stmt]) -> Mapping[Place, Conditional]:
    """The statements that an ``if`` guards; ``rest``: the statements that follow it in the body of ``parent``."""
    test = statement.test
    last = test.values[-1] if isinstance(test, ast.BoolOp) else test
    is_not = isinstance(last, ast.UnaryOp) and isinstance(last.op, ast.Not)
    asked = last.operand if isinstance(last, ast.UnaryOp) and is_not else last
    leaves = _leaves(statement.body, parent)
    body = statement.body if leaves is None else rest
    is_whole = last is test
    if statement.orelse and (leaves is not None or not is_whole or not _is_plain(statement.orelse, ())):
        return {}
    if not body or not _asks_once(asked) or (leaves is not None and not is_whole):
        return {}
    if not _is_plain(body, () if leaves is None else (type(leaves),)):
        return {}
    returned = leaves.value if isinstance(leaves, ast.Return) else None
    conditional = Conditional(body, is_not == (leaves is not None), returned, statement.orelse)
    places: list[ast.expr | ast.stmt] = [asked, last, statement] if is_whole else [asked]
    return dict.fromkeys(map(place_of, places), conditional)


def _leaves(body: Sequence[ast.stmt], parent: ast.AST) -> ast.Continue | ast.Return | None:
    """The statement that does nothing but leave out the rest of a loop's body, or of a function."""
    only = body[0] if len(body) == 1 else None
    if isinstance(only, ast.Continue) and isinstance(parent, ast.For | ast.While):
        return only
    is_return = isinstance(only, ast.Return) and only.value is not None and isinstance(parent, ast.FunctionDef)
    return only if is_return else None  # type: ignore[return-value]


def _asks_once(test: ast.expr) -> bool:
    """Return whether Python asks for one truth, that of the whole test."""
    return not isinstance(test, ast.BoolOp | ast.IfExp) and not (isinstance(test, ast.Compare) and len(test.ops) > 1)


_PLAIN = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Pass, ast.If, ast.For)
_SUSPENDS = (ast.Await, ast.Yield, ast.YieldFrom)


def _is_plain(body: Sequence[ast.stmt], leaves: tuple[type[ast.stmt], ...]) -> bool:
    """Return whether the statements run to their end, or leave as those of ``leaves`` do, one to a line, and what they change can
    be seen.
    """
    lines = [statement.lineno for statement in _statements(body)]
    if len(lines) != len(set(lines)) or any(isinstance(node, _SUSPENDS) for line in body for node in ast.walk(line)):
        return False
    return all(_is_plain_statement(statement, leaves) for statement in body)


def _is_plain_statement(statement: ast.stmt, leaves: tuple[type[ast.stmt], ...]) -> bool:
    if not isinstance(statement, _PLAIN):
        return isinstance(statement, leaves)
    leaves = (*leaves, ast.Continue) if isinstance(statement, ast.For) else leaves
    inner = [*statement.body, *statement.orelse] if isinstance(statement, ast.If | ast.For) else []
    return all(_is_plain_statement(each, leaves) for each in inner)


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.For):
            yield from _statements([*statement.body, *statement.orelse])


def _changed(statement: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For) -> Iterator[ast.expr]:
    """The expressions that an assignment changes in place; variables that get a value are not among them."""
    pending = [*statement.targets] if isinstance(statement, ast.Assign) else [statement.target]
    while pending:
        target = pending.pop()
        if isinstance(target, ast.Tuple | ast.List):
            pending += target.elts
        elif not isinstance(target, ast.Name) or isinstance(statement, ast.AugAssign):
            yield target


def _is_tensor(target: ast.expr, frame: FrameType, is_augmented: bool) -> bool:
    """Return whether an assignment to the target writes into a tensor, or adds to a number."""
    owner = target.value if isinstance(target, ast.Subscript) else target
    if not isinstance(owner, ast.Name | ast.Attribute) or (isinstance(target, ast.Attribute) and not is_augmented):
        return False
    try:
        value = value_of(owner, frame)
    except UnreadableError:
        return False
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(target, ast.Name) and isinstance(value, int | float | torch.SymInt | torch.SymFloat | DataNumber)


_ENDS = ("RETURN_", "RAISE_", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "INTERPRETER_EXIT")
"""Instructions that the next one does not follow."""


def read_later(frame: FrameType) -> frozenset[str]:
    """The variables that the frame may read as they are now; those that other functions share are among them."""
    code = frame.f_code
    return _live(code)[frame.f_lasti] | {*code.co_cellvars, *code.co_freevars}


class Live(NamedTuple):
    """The variables that a frame at the head of a loop may read as they are now."""

    at_head: frozenset[str]
    in_body: frozenset[str]
    """The names that another turn reads, or what follows it where the turn does not change them."""
    targets: frozenset[str]
    """The variables to which a ``for`` gives the element."""


def live_variables(frame: FrameType, stays: bool | None = None) -> Live:
    """The names that are read after the head of the loop at which the frame stands. ``stays``: the truth with which a ``while``
    goes on.
    """
    code = frame.f_code
    shared = {*code.co_cellvars, *code.co_freevars}
    live = _live(code)
    body = min(offset for offset in live if offset > frame.f_lasti)
    if stays is not None:
        jump = next(one for one in dis.get_instructions(code) if one.offset >= frame.f_lasti and "_IF_" in one.opname)
        after = min(offset for offset in live if offset > jump.offset)
        body = jump.argval if stays is ("IF_TRUE" in jump.opname) else after
    targets = frozenset(_targets(code, frame.f_lasti)) if stays is None else frozenset[str]()
    return Live(live[frame.f_lasti] | shared, live[body] | shared, targets)


def _targets(code: CodeType, head: int) -> set[str]:
    """The variables to which a ``for`` gives the element."""
    behind = (one for one in dis.get_instructions(code) if one.offset > head)
    stores = itertools.takewhile(lambda one: one.opname.startswith(("STORE_", "UNPACK_SEQUENCE")), behind)
    return {one.argval for one in stores if isinstance(one.argval, str)}


@lru_cache(maxsize=256)
def _live(code: CodeType) -> Mapping[int, frozenset[str]]:
    """Names that are read later, by the offset of the instruction that comes next."""
    instructions = list(dis.get_instructions(code))
    places = {one.offset: place for place, one in enumerate(instructions)}
    following = [_following(one, place, places, len(instructions)) for place, one in enumerate(instructions)]
    uses = [_uses(one) for one in instructions]
    caught = _read_by_handlers(following, uses)
    live = [caught] * len(instructions)
    changed = True
    while changed:
        changed = False
        for place in reversed(range(len(instructions))):
            after = caught.union(*(live[target] for target in following[place]))
            reads, writes = uses[place]
            before = reads | (after - writes)
            changed |= before != live[place]
            live[place] = before
    return {one.offset: live[place] for place, one in enumerate(instructions)}


def _following(one: dis.Instruction, place: int, places: Mapping[int, int], count: int) -> list[int]:
    jumps = [places[one.argval]] if one.opcode in (*dis.hasjrel, *dis.hasjabs) else []
    ends = (one.opname.startswith(_ENDS) and one.opname != "RETURN_GENERATOR") or place + 1 == count
    return jumps if ends else [*jumps, place + 1]


def _uses(one: dis.Instruction) -> tuple[frozenset[str], frozenset[str]]:
    """The variables that an instruction reads, and those that it gives a value. Of one that does both with two
    variables, both are read.
    """
    if "_FAST" not in one.opname:
        return frozenset(), frozenset()
    names = frozenset(one.argval if isinstance(one.argval, tuple) else (one.argval,))
    return (names, frozenset()) if "LOAD_" in one.opname else (frozenset(), names)


def _read_by_handlers(following: list[list[int]], uses: list[tuple[frozenset[str], frozenset[str]]]) -> frozenset[str]:
    """The variables that are read where only an exception leads."""
    reached, pending = {0}, [0]
    while pending:
        for target in following[pending.pop()]:
            if target not in reached:
                reached.add(target)
                pending.append(target)
    return frozenset[str]().union(*(reads for place, (reads, _) in enumerate(uses) if place not in reached))
