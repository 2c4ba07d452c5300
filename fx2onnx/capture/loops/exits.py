"""Where Python leaves a loop by data or sizes in the middle of a turn, ``if h.sum() > limit: break``.

The turn is recorded as if Python stayed. What a variable has behind the loop is then what it had at the exit where that was taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.fx

from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.loops.parts import TURN, Entry, HandedOn, Linear, at_turn
from fx2onnx.capture.loops.state import Change, Grown, value_at
from fx2onnx.capture.python.held import MISSING, Value
from fx2onnx.capture.recording.decisions import Test
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.expr import Dim, Scalar, apply
from fx2onnx.sizes.relation import COMPARE, Relation
from fx2onnx.torchcompat.pytrees import flatten

aten = torch.ops.aten
TRUTH = TensorInfo(torch.bool, ())


@dataclass(eq=False)
class Left:
    """An exit of the turn that runs."""

    test: Test
    """True where Python leaves."""
    node: torch.fx.Node
    values: dict[object, list[Value] | None]
    """The parts of what each place has there, tensors as nodes; by the place."""
    memories: dict[int, torch.fx.Node]
    counts: dict[object, int]
    """The number of elements that the turn has added to each list before the exit."""
    is_clean: bool
    """True if the turn has changed nothing before the exit."""


class Exits:
    """The exits of the turn that runs, in order."""

    def __init__(self, loop: Value) -> None:
        self._loop, self.found = loop, list[Left]()
        self.turns: Scalar | None = None
        """The number of turns, where that is a formula."""

    def add(self, test: Test, is_left_by: bool, plan: Value, held: Value) -> None:
        """Python asks for a test there, with which answer it leaves."""
        values = self._loop.tracer.values
        test = (
            test if is_left_by else test.negated() if isinstance(test, Relation) else call(values, "logical_not", test)
        )
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
        self.found.append(Left(test, node_of(values, test), found, memories, counts, is_clean))

    def settle(self, index: Dim, turns: Scalar | None) -> None:
        """The turn is over. ``turns``: how many there are without exits; None where data tells."""
        counts = [turns, *map(_stays_for, self.found, [index] * len(self.found))]
        self.turns = None if None in counts else least(counts)  # type: ignore[arg-type]

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


# -- numbers of turns ----------------------------------------------------------------------------------------------------
def count_of(test: Relation, index: Dim) -> Scalar | None:
    """For how many numbers from 0 on the comparison holds before it does not; None where that is no formula."""
    if test.op == "and":
        counts = [count_of(part, index) if isinstance(part, Relation) else None for part in test.args]
        return None if None in counts else least(counts)  # type: ignore[arg-type]
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


def least(counts: list[Scalar]) -> Scalar:
    """The least of several numbers."""
    found = counts[0]
    for count in counts[1:]:
        found = apply("min", found, count)
    return found
