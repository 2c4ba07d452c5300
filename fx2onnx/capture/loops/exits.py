"""Where Python leaves a loop by data or sizes in the middle of a turn, ``if h.sum() > limit: break``.

The turn is recorded as if Python stayed. What a variable has behind the loop is then what it had at the exit where that was taken.
Where Python does more there than to go on behind the loop, as ``return h`` does, that is what it had before the turn, which Python
runs once more if the loop was left there.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FrameType
from typing import TypeAlias

import torch
import torch.fx

from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.loops.parts import TURN, Entry, HandedOn, Linear, at_turn
from fx2onnx.capture.loops.state import Change, Grown, value_at
from fx2onnx.capture.python.held import MISSING, Value
from fx2onnx.capture.recording.control_flow import Nested
from fx2onnx.capture.recording.decisions import Test
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.expr import Dim, Scalar, apply
from fx2onnx.sizes.relation import COMPARE, Relation
from fx2onnx.torchcompat.operators import HIGHER_ORDER
from fx2onnx.torchcompat.pytrees import flatten
from fx2onnx.torchcompat.source_ast import Exit, Head, Tree

aten = torch.ops.aten
TRUTH = TensorInfo(torch.bool, ())
Truth: TypeAlias = bool | Relation | torch.fx.Node


@dataclass(eq=False)
class Left:
    """An exit of the turn that runs."""

    test: Test
    """True where Python leaves."""
    node: torch.fx.Node
    memories: dict[int, torch.fx.Node]
    values: dict[object, list[Value] | None] = field(default_factory=dict)
    """The parts of what each place has there, tensors as nodes; by the place. Without one, it is as before the turn."""
    counts: dict[object, int] = field(default_factory=dict)
    """The number of elements that the turn has added to each list before the exit."""
    is_clean: bool = True
    """True if the turn has changed nothing before the exit."""
    again: Exit | None = None
    """The statement, if Python runs the turn once more to do what it does there."""


class Exits:
    """The exits of the turn that runs, in order."""

    def __init__(self, loop: Value) -> None:
        self._loop, self.found = loop, list[Left]()
        self.turns: Scalar | None = None
        """The number of turns, where that is a formula."""
        self._counts: list[Scalar | None] = []
        """For how many turns Python stays at each exit, and how many turns there are without exits."""

    def add_again(self, test: Test, again: Exit, plan: Value) -> None:
        """Python leaves where the test holds, and does more there; the turn is as if it had not begun."""
        values = self._loop.tracer.values
        memories = {key: values.node_of(carried.given) for key, (_, carried) in plan.memories.items()}
        self.found.append(Left(test, node_of(values, test), memories, again=again))

    def add(self, test: Test, plan: Value, held: Value) -> None:
        """Python leaves where the test holds."""
        values = self._loop.tracer.values
        counts: dict[object, int] = {}
        is_clean = True
        for each in held.changes(plan.markers):
            if isinstance(each, str):
                raise self._loop.loops.refused(each)
            grown = each if isinstance(each, Grown) else plan.longer(each)
            if grown is not None:
                counts[grown.identity] = len(grown.items)
            known = plan.entries.get(each.place.identity) if isinstance(each, Change) else None
            is_same = known is not None and known.is_as_given(each.after)
            is_clean &= is_same or (grown is not None and not grown.items)
        found: dict[object, list[Value] | None] = {}
        for key, entry in plan.entries.items():
            value = value_at(entry.place)
            leaves = [leaf.value for leaf in flatten(value)[0]]
            found[key] = None if value is MISSING else [_kept(values, leaf) for leaf in leaves]
        memories = {key: memory.present() for key, (memory, carried) in plan.memories.items()}
        is_clean &= all(memory.version == carried.given_version for memory, carried in plan.memories.values())
        is_clean &= all(memory.node is node for memory, node, _ in self._loop.memories_before())
        self.found.append(Left(test, node_of(values, test), memories, found, counts, is_clean))

    def settle(self, index: Dim, turns: Scalar | None) -> None:
        """The turn is over. ``turns``: how many there are without exits; None where data tells."""
        counts = self._counts = [*map(_stays_for, self.found, [index] * len(self.found)), turns]
        self.turns = None if None in counts else least(counts)  # type: ignore[arg-type]

    def again(self) -> list[frozenset[int]]:
        """The exits where Python does more, each by itself."""
        return [frozenset({place}) for place, left in enumerate(self.found) if left.again is not None]

    def was_left_at(self, place: int) -> tuple[Relation, Scalar]:
        """The condition under which the loop was left at an exit where Python does more, and the number of that turn."""
        if self.turns is None:
            number, counts = self._loop.counts[frozenset({place})], self._loop.counts
            return Relation("lt", (number, counts[frozenset()])), number
        number = self._counts[place]
        assert number is not None
        others = [
            ("lt" if other < place or other == len(self.found) else "le", count)
            for other, count in enumerate(self._counts)
            if other != place
        ]
        parts = [Relation(op, (number, count)) for op, count in others]
        return parts[0] if len(parts) == 1 else Relation("and", tuple(parts)), number

    def at_memory(self, key: int, output: torch.fx.Node) -> torch.fx.Node:
        """The value of a memory behind the iteration."""
        return self._joined(output, lambda left: left.memories[key])

    def at_place(self, key: object, index: int, part: HandedOn, output: torch.fx.Node) -> torch.fx.Node:
        """The value of a part of a place behind the iteration."""

        def at_exit(left: Left) -> torch.fx.Node:
            leaves = left.values.get(key)
            value = leaves[index] if leaves is not None and index < len(leaves) else part.given
            return _as_node(self._loop.tracer.values, value)

        return self._joined(output, at_exit)

    def at_list(self, key: object, count: int, carried: HandedOn, output: torch.fx.Node) -> torch.fx.Node:
        """The last element of a list behind the turn."""
        before = self._loop.tracer.values.node_of(carried.given)
        return self._joined(output, lambda left: output if left.counts.get(key, 0) == count else before)

    def _joined(self, output: torch.fx.Node, at_exit: Callable[[Left], torch.fx.Node]) -> torch.fx.Node:
        values = self._loop.tracer.values
        for left in reversed(self.found if self.turns is None else []):
            other = at_exit(left)
            if other.meta["val"] != output.meta["val"]:
                raise self._loop.loops.refused("Python leaves the loop where a variable has another type")
            if other is not output:
                output = values.call(aten.where.self, (left.node, other, output), {}, output.meta["val"])
        return output

    def before_number(self, key: object, entry: Entry, index: int) -> frozenset[int]:
        """The exits that leave a number as it was before the turn; others leave it as the turn does."""
        part = entry.parts[index]
        assert isinstance(part, Linear)
        after = at_turn(part.value, TURN + 1) if part.is_read else part.value
        found = set()
        for place, left in enumerate(self.found if self.turns is None else []):
            leaves = left.values.get(key)
            now = None if leaves is None else at_turn(unwrap(leaves[index]), TURN, self._loop.index)
            if now != after and now != part.value and leaves is not None:
                raise self._loop.loops.refused(f"Python leaves the loop where {entry.place.name} is another number")
            found |= {place} if now != after else set()
        return frozenset(found)

    def before_added(self, grown: Grown) -> frozenset[int]:
        """The exits before what the turn adds to a list; others are behind it."""
        counts = [left.counts.get(grown.identity, 0) for left in self.found] if self.turns is None else []
        if {*counts} - {0, len(grown.items)}:
            raise self._loop.loops.refused("Python leaves the loop between elements that a turn adds to a list")
        return frozenset(place for place, count in enumerate(counts) if not count)

    def counted(self, index: Dim, before: frozenset[int]) -> torch.fx.Node:
        """The number of turns so far but for one that is left by an exit of ``before``."""
        values = self._loop.tracer.values
        this, following = (number(values, count, torch.int64) for count in (index, index + 1))
        places = {id(left): place for place, left in enumerate(self.found)}
        return self._joined(following, lambda left: this if places[id(left)] in before else following)

    def is_taken(self) -> torch.fx.Node:
        """The node that tells whether the turn is left."""
        values = self._loop.tracer.values
        taken, *others = (left.node for left in self.found)
        for other in others:
            taken = call(values, "logical_or", taken, other)
        return taken


def _stays_for(left: Left, index: Dim) -> Scalar | None:
    """For how many turns from 0 on Python stays at an exit, where a formula tells."""
    is_formula = left.is_clean and isinstance(left.test, Relation)
    return count_of(left.test.negated(), index) if is_formula else None  # type: ignore[union-attr]


# -- nodes ---------------------------------------------------------------------------------------------------------------
def _kept(values: Value, leaf: Value) -> Value:
    return values.node_of(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _as_node(values: Value, value: Value) -> torch.fx.Node:
    if isinstance(value, torch.Tensor):
        return values.node_of(value)  # type: ignore[no-any-return]
    return value if isinstance(value, torch.fx.Node) else number(values, unwrap(value), torch.int64)


def call(values: Value, name: str, *nodes: torch.fx.Node) -> torch.fx.Node:
    """The node of an operator that gives a truth."""
    packet, _, overload = name.partition(".")
    made: torch.fx.Node = values.call(getattr(getattr(aten, packet), overload or "default"), nodes, {}, TRUTH)
    return made


def number(values: Value, value: Scalar, dtype: torch.dtype) -> torch.fx.Node:
    """The node of a number as a tensor."""
    info = TensorInfo(dtype, ())
    made: torch.fx.Node = values.call(aten.scalar_tensor.default, (value,), {"dtype": dtype}, info)
    return made


def node_of(values: Value, truth: bool | Test) -> torch.fx.Node:
    """A truth as the node of a bool tensor of one number."""
    if isinstance(truth, torch.fx.Node):
        return _as_truth(values, truth)
    if not isinstance(truth, Relation):
        return number(values, bool(truth), torch.bool)
    if truth.op in COMPARE:
        return call(values, f"{truth.op}.Tensor", *(number(values, arg, torch.int64) for arg in truth.args))
    first, *others = (node_of(values, arg) for arg in truth.args)
    if truth.op == "not":
        return call(values, "logical_not", first)
    for other in others:
        first = call(values, f"logical_{truth.op}", first, other)
    return first


def _as_truth(values: Value, node: torch.fx.Node) -> torch.fx.Node:
    info = node.meta["val"]
    if info.dims:
        node = values.call(aten.reshape.default, (node, ()), {}, TensorInfo(info.dtype, ()))
    is_bool = info.dtype == torch.bool
    return node if is_bool else values.call(aten.ne.Scalar, (node, 0), {}, TRUTH)


def negated(values: Value, truth: Truth) -> Truth:
    """Whether a test does not hold."""
    if isinstance(truth, bool):
        return not truth
    return truth.negated() if isinstance(truth, Relation) else call(values, "logical_not", _as_truth(values, truth))


class HeadTest:
    """The test at which Python stands, for the present values; and what it asks for in it."""

    def __init__(self, loops: Value, frame: FrameType, head: Head) -> None:
        self._loops, self._frame, self._head, self._tracer = loops, frame, head, loops.tracer
        self._truths: dict[int, bool | None] = {}
        """Of each part that is asked for, whether it is for staying; None where sizes or data decide it."""
        self.truth = self._of(head.tree)
        """Whether Python stays."""

    def asked_behind(self, part: int, stays: bool) -> list[int]:
        """The parts that Python asks for behind one, where all answers are for staying, or for leaving."""
        found: list[int] = []

        def holds(tree: Tree) -> bool:
            if not isinstance(tree, int):
                return all(map(holds, tree[1])) if tree[0] == "and" else any(map(holds, tree[1]))
            truth = self._truths.get(tree, stays)
            found.extend([tree] if truth is None and tree > part else [])
            return stays if truth is None else truth

        holds(self._head.tree)
        return found

    def _of(self, tree: Tree) -> Truth:
        return self._part(tree) if isinstance(tree, int) else self._joined(*tree)

    def _joined(self, op: str, parts: Sequence[Tree]) -> Truth:
        """Several parts, ``and`` or ``or``. One that reads from tensors is computed only where those before it do not decide."""
        truth: Truth = op == "and"
        for place, part in enumerate(parts):
            if not isinstance(truth, bool) and self._may_fail(part):
                return self._behind(truth, op, parts[place:])
            one = self._of(part)
            if one is (op == "or"):
                return one
            if not isinstance(one, bool):
                truth = one if isinstance(truth, bool) else self._both(op, truth, one)
        return truth

    def _behind(self, truth: Relation | torch.fx.Node, op: str, parts: Sequence[Tree]) -> torch.fx.Node:
        """The test of further parts, where ``truth`` does not decide."""
        env, values = self._tracer.sizes, self._tracer.values
        before, test = env.facts.supposed, node_of(values, truth)
        with values.nested() as graph:
            if isinstance(truth, Relation):
                env.know(supposed={**before, (truth if op == "and" else truth.negated()): None})
            found = node_of(values, self._joined(op, parts))
        env.know(supposed=before)
        with values.nested() as other:
            sides = [Nested(graph, [], [found], (TRUTH,)), Nested(other, [], [node_of(values, op == "or")], (TRUTH,))]
        if op == "or":
            sides.reverse()
        node = values.call(HIGHER_ORDER["cond"], (test, *sides, []), {}, (TRUTH,))
        return values.call(operator.getitem, (node, 0), {}, TRUTH)  # type: ignore[no-any-return]

    def _part(self, place: int) -> Truth:
        operand, stays = self._head.operands[place]
        code = _code_of(operand, self._frame.f_code.co_filename)
        with self._loops.tests.evaluating(code) as tests:
            holds = eval(code, {**self._frame.f_globals, **self._frame.f_locals})  # as Python does there
        self._truths[place] = None if tests else holds is stays
        if not tests:
            return holds is stays
        return tests[-1] if stays else negated(self._tracer.values, tests[-1])

    def _both(
        self, op: str, one: Relation | torch.fx.Node, other: Relation | torch.fx.Node
    ) -> Relation | torch.fx.Node:
        if isinstance(one, Relation) and isinstance(other, Relation):
            return Relation(op, (one, other))
        values = self._tracer.values
        return call(values, f"logical_{op}", node_of(values, one), node_of(values, other))

    def _may_fail(self, tree: Tree) -> bool:
        if not isinstance(tree, int):
            return any(map(self._may_fail, tree[1]))
        return any(isinstance(node, ast.Subscript) for node in ast.walk(self._head.operands[tree][0]))


@lru_cache(maxsize=256)
def _code_of(operand: ast.expr, file: str) -> CodeType:
    """An expression whose value is the truth of another one."""
    truth = ast.IfExp(operand, ast.Constant(True), ast.Constant(False))
    return compile(ast.fix_missing_locations(ast.Expression(ast.copy_location(truth, operand))), file, "eval")


# -- numbers of turns ----------------------------------------------------------------------------------------------------
def count_of(test: Relation, index: Dim) -> Scalar | None:
    """For how many numbers from 0 on the comparison holds before it does not; None where that is no formula."""
    if test.op in ("and", "or"):
        counts = [count_of(part, index) if isinstance(part, Relation) else None for part in test.args]
        begins_again = test.op == "or" and any(
            getattr(part, "op", "ne") not in COMPARE.keys() - {"ne"} for part in test.args
        )
        return None if None in counts or begins_again else least(counts, "min" if test.op == "and" else "max")  # type: ignore[arg-type]
    if test.op not in COMPARE.keys() - {"eq"} or test.has_reals():
        return None
    gap = test.args[0] - test.args[1]
    if not isinstance(gap, Dim):
        return None
    rest = gap.substitute({str(index): 0})
    step = gap.substitute({str(index): 1}) - rest
    if type(step) is not int or step == 0 or gap != rest + step * index:
        return None
    if test.op in ("gt", "ge") or (test.op == "ne" and step < 0):
        rest, step = -rest, -step
    if step < 0 or (test.op == "ne" and step != 1):
        return None
    rest -= test.op in ("le", "ge")
    count = -apply("floordiv", rest, step)
    return apply("max", count, 0)


def least(counts: Sequence[Scalar], kind: str = "min") -> Scalar:
    """The least of several numbers; with ``kind`` of ``max`` the greatest."""
    found = counts[0]
    for count in counts[1:]:
        found = apply(kind, found, count)
    return found
