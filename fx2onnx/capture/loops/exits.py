"""Loops that Python leaves by data or sizes in the middle of a turn, as by ``if h.sum() > limit: break``.

The turn is recorded as if Python stayed. What a variable has behind the loop is then what it had at the exit where that was taken.
Where Python does more there than to go on behind the loop, as ``return h`` does, that is what it had before the turn, which Python
runs once more if the loop was left there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
import torch.fx

from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.loops.parts import TURN, HandedOn, Linear, LoopEntry, at_turn
from fx2onnx.capture.loops.state import Grown, PlaceChange, Remade
from fx2onnx.capture.loops.truths import TRUTH, node_of, number
from fx2onnx.capture.python.data_numbers import DataNumber
from fx2onnx.capture.python.held import MISSING, Value
from fx2onnx.capture.python.places import value_at
from fx2onnx.capture.recording.control_flow import record_cond
from fx2onnx.capture.recording.decisions import Test
from fx2onnx.capture.recording.values import Memory, View
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.expr import Dim, Scalar, apply
from fx2onnx.sizes.relation import COMPARE, Relation
from fx2onnx.torchcompat.loop_statements import Exit
from fx2onnx.torchcompat.pytrees import flatten

aten = torch.ops.aten
Numbers: TypeAlias = "frozenset[Hashable]"
"""Exits of a turn, by their numbers, or by their statements where Python does more there."""


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


@dataclass(eq=False)
class Join:
    """A value that the turn leaves."""

    output: torch.fx.Node
    """The value behind the whole turn."""
    at_exit: Callable[[Left], torch.fx.Node | None]
    """The value at an exit; None where the exit has none that matters."""
    may_differ: bool = False
    """True if its sizes may differ there."""


class Exits:
    """The exits of the turn that runs, in order."""

    def __init__(self, loop: Value) -> None:
        self._loop, self.found = loop, list[Left]()
        self.turns: Scalar | None = None
        """The number of turns, where that is a formula."""
        self._counts: dict[int, Scalar | None] = {}
        """For how many turns Python stays at each exit, and behind them how many turns there are without exits."""

    def add_again(self, test: Test, again: Exit, plan: Value) -> None:
        """Python leaves where the test holds, and does more there; the turn is as if it had not begun."""
        values = self._loop.tracer.values
        memories = {key: values.node_of(carried.given) for key, (_, carried) in plan.memories.items()}
        self.found.append(Left(test, node_of(values, test), memories, again=again))
        self._loop.left_again.setdefault(again)

    def add(self, test: Test, plan: Value, held: Value, *, in_call: bool) -> None:
        """Python leaves where the test holds. ``in_call``: an operator asks, and no others are recorded meanwhile."""
        values = self._loop.tracer.values
        counts: dict[object, int] = {}
        is_clean = not self._loop.paths.has_several
        for each in held.changes(plan, is_over=False):
            if isinstance(each, str):
                raise self._loop.loops.refused(each)
            if isinstance(each, Remade):
                is_clean &= each.identity in plan.states and plan.states[each.identity].is_as_given()
                continue
            grown = each if isinstance(each, Grown) else plan.longer(each)
            if grown is not None:
                counts[grown.identity] = len(grown.items)
            known = plan.entries.get(each.place.identity) if isinstance(each, PlaceChange) else None
            is_same = known is not None and known.is_as_given(each.after)
            is_clean &= is_same or (grown is not None and not grown.items)
        found: dict[object, list[Value] | None] = {}
        with self._loop.tracer.mode if in_call else contextlib.nullcontext():
            for key, entry in plan.entries.items():
                value = value_at(entry.place)
                leaves = [leaf.value for leaf in flatten(value)[0]]
                found[key] = None if value is MISSING else [self._kept(leaf) for leaf in leaves]
            found |= {key: [values.node_of(state.now(self._loop))] for key, state in plan.states.items()}
        is_clean &= all(state.is_as_given() for state in plan.states.values())
        memories = {key: memory.present() for key, (memory, carried) in plan.memories.items()}
        is_clean &= all(memory.version == carried.given_version for memory, carried in plan.memories.values())
        is_clean &= all(memory.node is node for memory, node, _ in self._loop.memories_before())
        self.found.append(Left(test, node_of(values, test), memories, found, counts, is_clean))

    def unless_left(self, holds: torch.Tensor) -> torch.Tensor:
        """``holds``, or that Python has left the loop before in this turn."""
        values = self._loop.tracer.values
        for left in self.found:
            if left.node.graph is values.graph:
                is_left = values.new_fake((), torch.bool, holds.device)
                values.add_view(View(Memory(left.node, TRUTH), (), left.node, TRUTH, 0, is_left))
                holds = torch.logical_or(holds, is_left)
        return holds

    def _kept(self, leaf: Value) -> Value:
        is_data = isinstance(leaf, torch.Tensor) or type(leaf) is DataNumber
        return self._as_node(leaf) if is_data else leaf

    def _as_node(self, value: Value) -> torch.fx.Node:
        """The node of a tensor, or of a number as one of its Python type."""
        values = self._loop.tracer.values
        if isinstance(value, torch.fx.Node):
            return value
        if isinstance(value, torch.Tensor) or type(value) is DataNumber:
            return values.node_of(self._loop.loops.as_tensor(value))  # type: ignore[no-any-return]
        dtype = {bool: torch.bool, float: torch.float64}.get(type(value), torch.int64)
        return number(values, unwrap(value), dtype)

    def settle(self, index: Dim, turns: Scalar | None) -> None:
        """The turn is over. ``turns``: how many there are without exits; None where data tells."""
        counts = self._counts = {place: _stays_for(left, index) for place, left in enumerate(self.found)}
        counts[len(self.found)] = turns
        known = [count for count in counts.values() if count is not None]
        self.turns = least(known) if len(known) == len(counts) and not self._loop.is_left_by_data else None

    def was_left_by(self, again: Exit) -> tuple[Relation, Scalar]:
        """The condition under which the loop was left at an exit where Python does more, and the number of that turn."""
        if self.turns is None:
            number, counts = self._loop.counts[frozenset({again})], self._loop.counts
            return Relation("lt", (number, counts[frozenset()])), number
        place = next(place for place, left in enumerate(self.found) if left.again is again)
        number = self._counts[place]
        assert number is not None
        others = [
            ("lt" if other < place or other == len(self.found) else "le", count)
            for other, count in self._counts.items()
            if other != place
        ]
        parts = [Relation(op, (number, count)) for op, count in others]
        return parts[0] if len(parts) == 1 else Relation("and", tuple(parts)), number

    def at_memory(self, key: int, output: torch.fx.Node) -> Join:
        """The value of a memory behind the iteration."""
        return Join(output, lambda left: left.memories[key])

    def at_place(self, key: object, index: int, part: HandedOn, output: torch.fx.Node) -> Join:
        """The value of a part of a place behind the iteration."""

        def at_exit(left: Left) -> torch.fx.Node:
            leaves = left.values.get(key)
            value = leaves[index] if leaves is not None and index < len(leaves) else part.given
            return self._as_node(value)

        return Join(output, at_exit, may_differ=bool(part.free()))

    def at_list(self, key: object, count: int, carried: HandedOn, output: torch.fx.Node) -> Join:
        """The last element of a list, or its length, behind the turn."""

        def at_exit(left: Left) -> torch.fx.Node:
            is_added = left.counts.get(key, 0) == count
            return output if is_added else self._as_node(carried.given)

        return Join(output, at_exit, may_differ=bool(carried.free()))

    def added(self, key: object, place: int, info: TensorInfo, item: torch.fx.Node | None) -> list[Join]:
        """The element of that place which the turn adds to a list, zeros where it does not; and whether it does."""
        with self._outermost() as values:
            no, yes = (number(values, holds, torch.bool) for holds in (False, True))
            zeros = (
                values.call(aten.full.default, ([*info.dims], 0), {"dtype": info.dtype}, info) if item is None else item
            )
        adds = yes if item is not None else no
        return [
            Join(zeros, lambda left: None),
            Join(adds, lambda left: adds if left.counts.get(key, 0) > place else no),
        ]

    def counted(self, index: Dim, before: Numbers) -> Join:
        """The number of turns so far except for one that is left by an exit of ``before``."""
        with self._outermost() as values:
            this, following = (number(values, count, torch.int64) for count in (index, index + 1))
        keys = {id(left): left.again or place for place, left in enumerate(self.found)}
        return Join(following, lambda left: this if keys[id(left)] in before else following)

    def stays(self, at_end: torch.fx.Node | None) -> Join:
        """Tell whether there is another turn; ``at_end``: whether there is behind the whole turn, where data tells."""
        with self._outermost() as values:
            no, yes = (number(values, holds, torch.bool) for holds in (False, True))
        return Join(yes if at_end is None else at_end, lambda left: no)

    @contextlib.contextmanager
    def _outermost(self) -> Iterator[Value]:
        """Inside, nodes are of the turn, whatever it leaves out."""
        values = self._loop.tracer.values
        before, values.graph = values.graph, self._loop.paths.graphs[0]
        yield values
        values.graph = before

    def joined(self, joins: Sequence[Join]) -> list[torch.fx.Node]:
        """The nodes of what the turn leaves, wherever Python leaves it."""
        values, found = self._loop.tracer.values, [join.output for join in joins]
        for left in reversed(self.found if self.turns is None else ()):
            others = [join.at_exit(left) or found[at] for at, join in enumerate(joins)]
            infos = [
                self.either(*pair, join.may_differ)
                for join, pair in zip(joins, zip(found, others, strict=True), strict=True)
            ]
            if any(info != one.meta["val"] for info, one in zip(infos, found, strict=True)):
                places = [at for at, one in enumerate(found) if one is not others[at]]
                sides = [(torch.fx.Graph(), [side[at] for at in places]) for side in (others, found)]
                chosen = record_cond(values, left.node, sides, [infos[at] for at in places])
                found = [*found]
                for at, one in zip(places, chosen, strict=True):
                    found[at] = one
            else:
                found = [
                    one if one is two else values.call(aten.where.self, (left.node, two, one), {}, info)
                    for one, two, info in zip(found, others, infos, strict=True)
                ]
        return found

    def either(self, one: torch.fx.Node, other: torch.fx.Node, may_differ: bool) -> TensorInfo:
        """The type of one of two values, with new symbols for sizes in which they differ."""
        info: TensorInfo = one.meta["val"]
        its: TensorInfo = other.meta["val"]
        if info == its:
            return info
        if (info.dtype, len(info.dims)) != (its.dtype, len(its.dims)) or not (may_differ or self._loop.may_free):
            raise self._loop.loops.refused("Python leaves the loop where a variable has another type")
        new = self._loop.tracer.sizes.new_unbacked
        return replace(info, dims=tuple(a if a == b else new() for a, b in zip(info.dims, its.dims, strict=True)))

    def moves(self, key: object, index: int, after: Value) -> bool:
        """Return whether a number is another one where Python leaves a turn that has several paths."""
        leaves = [left.values.get(key) for left in self.found] if self._loop.paths.has_several else []
        return any(each is not None and unwrap(each[index]) != unwrap(after) for each in leaves)

    def before_number(self, key: object, entry: LoopEntry, index: int) -> Numbers:
        """The exits that leave a number as it was before the turn; others leave it as the turn does."""
        part = entry.parts[index]
        assert isinstance(part, Linear)
        after = at_turn(part.value, TURN + 1) if part.is_read else part.value
        found: set[Hashable] = set()
        for place, left in enumerate(self.found):
            if self.turns is not None:
                continue
            leaves = left.values.get(key)
            now = None if leaves is None else at_turn(unwrap(leaves[index]), TURN, self._loop.index)
            if now != after and now != part.value and leaves is not None:
                raise self._loop.loops.refused(f"Python leaves the loop where {entry.place.name} is another number")
            found |= {left.again or place} if now != after else set()
        return frozenset(found)

    def before_added(self, grown: Grown) -> Numbers:
        """The exits before what the turn adds to a list; others are behind it."""
        exits = self.found if self.turns is None else []
        counts = {left.again or place: left.counts.get(grown.identity, 0) for place, left in enumerate(exits)}
        if {*counts.values()} - {0, len(grown.items)}:
            raise self._loop.loops.refused("Python leaves the loop between elements that a turn adds to a list")
        return frozenset(place for place, count in counts.items() if not count)


def _stays_for(left: Left, index: Dim) -> Scalar | None:
    """For how many turns from 0 on Python stays at an exit, where a formula tells."""
    is_formula = left.is_clean and isinstance(left.test, Relation)
    return count_of(left.test.negated(), index) if is_formula else None  # type: ignore[union-attr]


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
