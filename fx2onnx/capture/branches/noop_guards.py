"""Statements that do nothing where their test is false, ``if pad > 0: x = x[:, :n]``: they are run without asking, so that one
program is right for all sizes, where each decision would double the number of runs.

What makes it exact: the statement only gives names of the function new values, and where its test is false each is the value that
the name had: a tensor cropped to its size or padded by nothing, a size that is equal. A copy may not be written into later, nor
what it is made of, since eager PyTorch makes none where the test is false.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from types import FrameType

import torch
import torch.fx

from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.capture.op_table import Op, name_of
from fx2onnx.capture.rare_roads import RunPlugin
from fx2onnx.capture.recording.decisions import WrittenLater
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import Memory
from fx2onnx.sizes.ceilings import multiple_of
from fx2onnx.sizes.expr import Dim, Scalar
from fx2onnx.sizes.facts import SizeFacts
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.frames import asking_frame
from fx2onnx.torchcompat.source_ast import UnreadableError, asked_statement, body_of, reads, value_of

aten = torch.ops.aten


@answers_for_caller
class NoopGuards(RunPlugin):
    """The statements of one run that were run without asking."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self._memories: dict[int, Memory] = {}
        self._nodes: set[torch.fx.Node] = set()
        """The nodes of tensors that were copied without need."""

    def answer(self, relation: Relation) -> bool | None:
        """The answer to what the user's code asks with which the body of its statement runs, where that is right for all sizes."""
        tracer = self.tracer
        env = tracer.sizes
        frame = asking_frame()
        found = None if frame is None else asked_statement(frame)
        if found is None or frame is None:
            return None
        statement, tests = found
        try:
            asked = next((one for one in _relations_of(tests[0], frame) if one[0] == relation), None)
            known = None if asked is None else _where_none_holds(tests, frame, env.facts)
            if asked is None or known is None:
                return None
            look = _Look(frame, known)
            env.no_multiple = rest = _no_multiple(statement, *asked)
            if not look.is_idle(statement):
                return None
        except UnreadableError:
            return None
        finally:
            env.no_multiple = None
        if rest is not None:
            places = (*env.no_multiple_in.get(rest, ()), *body_of(frame, statement))
            env.no_multiple_in = {**env.no_multiple_in, rest: places}
        for tensor in look.copied:
            memory = tracer.values.view_of(tensor).memory
            self._memories[id(memory)] = memory
            self._nodes.add(tracer.values.node_of(tensor))
        return asked[1]

    @property
    def count(self) -> int:
        """The number of tensors that were copied without need."""
        return len(self._nodes)

    def keep(self, memory: Memory) -> None:
        """A tensor that may be such a copy."""
        self._memories[id(memory)] = memory

    def before_write(self, memory: Memory) -> None:
        """Raises WrittenLater where the memory is one of such a copy, or of what it was made of."""
        node = memory.node
        is_copy = (
            node.op == "call_function" and name_of(node.target) in Op.MAY_COPY.names and node.args[0] in self._nodes
        )
        if id(memory) in self._memories or is_copy:
            raise WrittenLater


def _relations_of(test: ast.expr, frame: FrameType) -> list[tuple[Relation, bool]]:
    """The relations of sizes that a test asks for, each with the answer with which the test holds."""
    holds = True
    pairs = _unequal_sizes(test, frame)
    if pairs is not None:
        return [(Relation("eq", pair), False) for pair in pairs if any(isinstance(size, Dim) for size in pair)]
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, holds = test.operand, False
    value = _undecided(value_of(test, frame))
    if isinstance(value, Dim):
        value = Relation("ne", (value, 0))
    return [(value, holds)] if isinstance(value, Relation) else []


def _unequal_sizes(test: ast.expr, frame: FrameType) -> list[tuple[Scalar, Scalar]] | None:
    """The pairs of sizes of a test whether two shapes differ, ``x.shape[2:] != y.shape[2:]``; None for another test."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.NotEq):
        return None
    one, other = (value_of(side, frame) for side in (test.left, test.comparators[0]))
    if not isinstance(one, list | tuple) or not isinstance(other, list | tuple) or len(one) != len(other):
        return None
    return [(_undecided(first), _undecided(second)) for first, second in zip(one, other, strict=True)]  # type: ignore[misc]


def _no_multiple(statement: ast.If | ast.IfExp, relation: Relation, holds: bool) -> tuple[Dim, int] | None:
    """The size that is no multiple of a divisor wherever the statement runs: there ``4 - n % 4`` is ``-n % 4``, which is nothing
    where it is one.
    """
    multiple = None if isinstance(statement.test, ast.BoolOp) else multiple_of(relation)
    return None if multiple is None or multiple.where_it_holds == holds else (multiple.size, multiple.divisor)


def _undecided(value: object) -> object:
    """The expression or the comparison behind a number of torch's."""
    return value.node.value if isinstance(value, torch.SymInt | torch.SymBool) else value


def _where_none_holds(tests: Sequence[ast.expr], frame: FrameType, facts: SizeFacts) -> SizeFacts | None:
    """The facts on sizes where no test holds; None where there are no such sizes."""
    for test in tests:
        found = _relations_of(test, frame)
        if not found:
            return None
        for relation, holds in found:
            facts = facts.supposing(relation.negated() if holds else relation)
    return facts if all(sizes.first(1) for sizes in facts.sets.values()) else None


class _Look:
    """A look at a statement from the frame that is at its test. ``known``: of sizes where the test is false. Raises UnreadableError."""

    def __init__(self, frame: FrameType, known: SizeFacts) -> None:
        self._frame, self._known = frame, known
        self.copied: list[torch.Tensor] = []

    def is_idle(self, statement: ast.If | ast.IfExp) -> bool:
        if isinstance(statement, ast.IfExp):
            other = statement.orelse
            return isinstance(other, ast.Name) and self._gives(statement.body, other.id)
        return all(self._changes_nothing(line) for line in statement.body)

    def _changes_nothing(self, line: ast.stmt) -> bool:
        """Return whether an assignment gives each name what it is."""
        if not isinstance(line, ast.Assign) or len(line.targets) != 1:
            return False
        target, value = line.targets[0], line.value
        if isinstance(target, ast.Name):
            return self._gives(value, target.id)
        if not isinstance(target, ast.Tuple) or not all(isinstance(part, ast.Name) for part in target.elts):
            return False
        names = [part.id for part in target.elts if isinstance(part, ast.Name)]
        given = value.elts if isinstance(value, ast.Tuple) else value_of(value, self._frame)
        if not isinstance(given, list | tuple) or len(given) != len(names):
            return False
        return all(self._gives(part, name) for part, name in zip(given, names, strict=True))

    def _gives(self, value: object, name: str) -> bool:
        """Return whether a value is what the name has."""
        if name == "_" and not reads(self._frame.f_code, name):
            return True
        now = self._frame.f_locals.get(name)
        if isinstance(now, torch.Tensor):
            return isinstance(value, ast.expr) and self._gives_tensor(value, name, now)
        if type(now) is not int and not isinstance(now, torch.SymInt):
            return False
        after = value_of(value, self._frame) if isinstance(value, ast.expr) else value
        return self._is_certain("eq", after, now)

    def _gives_tensor(self, value: ast.expr, name: str, tensor: torch.Tensor) -> bool:
        while not isinstance(value, ast.Name):
            inner = self._operand(value, tensor)
            if inner is None:
                return False
            value = inner
        return value.id == name

    def _operand(self, value: ast.expr, tensor: torch.Tensor) -> ast.expr | None:
        """The operand of a step that changes nothing; a step that copies is noted."""
        if isinstance(value, ast.Subscript):
            return value.value if self._takes_all(value.slice, tensor) else None
        if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute | ast.Name):
            return None
        self.copied.append(tensor)
        if isinstance(value.func, ast.Attribute) and value.func.attr == "contiguous":
            return None if value.args or value.keywords else value.func.value
        return value.args[0] if self._pads_nothing(value) or self._resizes_to(value, tensor) else None

    def _pads_nothing(self, call: ast.Call) -> bool:
        if value_of(call.func, self._frame) is not torch.nn.functional.pad or len(call.args) != 2 or call.keywords:
            return False
        widths = call.args[1]
        given = widths.elts if isinstance(widths, ast.Tuple | ast.List) else value_of(widths, self._frame)
        return isinstance(given, list | tuple) and all(self._is_zero(width) for width in given)

    def _resizes_to(self, call: ast.Call, tensor: torch.Tensor) -> bool:
        """Return whether a call interpolates to the sizes that the tensor has."""
        if value_of(call.func, self._frame) is not torch.nn.functional.interpolate or len(call.args) not in (1, 2):
            return False
        given = {word.arg: word.value for word in call.keywords} | dict(zip(["size"], call.args[1:], strict=False))
        size = given.get("size")
        sizes = (
            size.elts
            if isinstance(size, ast.Tuple | ast.List)
            else None
            if size is None
            else value_of(size, self._frame)
        )
        if not isinstance(sizes, list | tuple) or not given.keys() <= {"size", "mode", "align_corners"}:
            return False
        wanted = [value_of(one, self._frame) if isinstance(one, ast.expr) else one for one in sizes]
        now = tensor.shape[tensor.dim() - len(wanted) :]
        return len(wanted) == tensor.dim() - 2 and all(
            self._is_certain("eq", *pair) for pair in zip(wanted, now, strict=True)
        )

    def _is_zero(self, width: object) -> bool:
        return self._is_certain("eq", value_of(width, self._frame) if isinstance(width, ast.expr) else width, 0)

    def _takes_all(self, index: ast.expr, tensor: torch.Tensor) -> bool:
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        return all(self._is_whole(part, tensor.shape[axis]) for part, axis in _axes(parts, tensor.dim()))

    def _is_whole(self, part: ast.expr, size: object) -> bool:
        """Return whether a slice takes all of an axis."""
        if not isinstance(part, ast.Slice) or part.step is not None:
            return False
        first = 0 if part.lower is None else value_of(part.lower, self._frame)
        if type(first) is not int or first > 0 or (first < 0 and not self._is_certain("le", size, -first)):
            return False
        return part.upper is None or self._is_certain("ge", value_of(part.upper, self._frame), size)

    def _is_certain(self, op: str, lhs: object, rhs: object) -> bool:
        one, other = _undecided(lhs), _undecided(rhs)
        if not isinstance(one, int | Dim) or not isinstance(other, int | Dim):
            return False
        return self._known.holds(op, one, other)


def _axes(parts: Sequence[ast.expr], rank: int) -> Iterator[tuple[ast.expr, int]]:
    """Each part of an index with its axis; ``...`` stands for those between. Raises UnreadableError."""
    dots = [place for place, part in enumerate(parts) if isinstance(part, ast.Constant) and part.value is Ellipsis]
    if len(dots) > 1 or len(parts) - len(dots) > rank:
        raise UnreadableError
    for place, part in enumerate(parts):
        if place not in dots:
            yield part, place if not dots or place < dots[0] else rank - len(parts) + place


PLUGIN = NoopGuards
