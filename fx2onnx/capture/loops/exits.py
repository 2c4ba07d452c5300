"""Where Python leaves a loop by data or sizes in the middle of a turn, ``if h.sum() > limit: break``.

The turn is recorded as if Python stayed. What a variable has behind the loop is then what it had at the exit where that was taken.
Where Python does more there than to go on behind the loop, as ``return h`` does, that is what it had before the turn, which Python
runs once more if the loop was left there.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.fx

from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.loops.parts import TURN, Entry, HandedOn, Linear, at_turn
from fx2onnx.capture.loops.state import Change, Grown
from fx2onnx.capture.loops.truths import node_of, number
from fx2onnx.capture.python.held import MISSING, Value
from fx2onnx.capture.python.places import value_at
from fx2onnx.capture.recording.control_flow import Nested
from fx2onnx.capture.recording.decisions import Test
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.expr import Dim, Scalar, apply
from fx2onnx.sizes.relation import COMPARE, Relation
from fx2onnx.torchcompat.loop_statements import Exit
from fx2onnx.torchcompat.operators import HIGHER_ORDER
from fx2onnx.torchcompat.pytrees import flatten

aten = torch.ops.aten


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
    rest: torch.fx.Graph | None = None
    """The rest of the turn, if Python leaves that out rather than the loop."""


@dataclass(eq=False)
class Join:
    """A value that the turn leaves."""

    output: torch.fx.Node
    """Behind the whole turn."""
    at_exit: Callable[[Left], torch.fx.Node | None]
    """Where Python leaves it; None where that is of no matter."""
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
        self._joins: list[Join] = []

    def skips(self) -> list[Left]:
        """The tests with one answer to which Python leaves out the rest of the turn."""
        return [left for left in self.found if left.rest is not None]

    def graphs(self) -> list[torch.fx.Graph]:
        """The graphs of the turn, of which each but the first is what Python does where it does not leave out the rest."""
        return [self._loop._graph, *(left.rest for left in self.skips())]

    def add_skip(self, test: Test, plan: Value, held: Value) -> None:
        """Python leaves out the rest of the turn where the test holds; what is recorded from here on is that rest."""
        env, values = self._loop.tracer.sizes, self._loop.tracer.values
        self.add(test, plan, held)
        for view in [*values.views.values()]:
            view.memory.present()
        for name, plugin in self._loop.tracer.plugins.items():
            if name != "loops":
                plugin.before_nested()
        values.graph = self.found[-1].rest = torch.fx.Graph()
        if isinstance(test, Relation):
            env.know(supposed={**env.facts.supposed, test.negated(): None})

    def add_again(self, test: Test, again: Exit, plan: Value) -> None:
        """Python leaves where the test holds, and does more there; the turn is as if it had not begun."""
        values = self._loop.tracer.values
        memories = {key: values.node_of(carried.given) for key, (_, carried) in plan.memories.items()}
        self.found.append(Left(test, node_of(values, test), memories, again=again))

    def add(self, test: Test, plan: Value, held: Value) -> None:
        """Python leaves where the test holds."""
        values = self._loop.tracer.values
        counts: dict[object, int] = {}
        is_clean = not self.skips()
        for each in held.changes(plan.markers, is_over=False):
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
        exits = [(place, left) for place, left in enumerate(self.found) if left.rest is None]
        counts = self._counts = {place: _stays_for(left, index) for place, left in exits}
        counts[len(self.found)] = turns
        known = [count for count in counts.values() if count is not None]
        self.turns = least(known) if len(known) == len(counts) else None

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
            for other, count in self._counts.items()
            if other != place
        ]
        parts = [Relation(op, (number, count)) for op, count in others]
        return parts[0] if len(parts) == 1 else Relation("and", tuple(parts)), number

    # -- what the turn leaves ---------------------------------------------------------------------------------------
    def at_memory(self, key: int, output: torch.fx.Node) -> Join:
        """The value of a memory behind the iteration."""
        return Join(output, lambda left: left.memories[key])

    def at_place(self, key: object, index: int, part: HandedOn, output: torch.fx.Node) -> Join:
        """The value of a part of a place behind the iteration."""

        def at_exit(left: Left) -> torch.fx.Node:
            leaves = left.values.get(key)
            value = leaves[index] if leaves is not None and index < len(leaves) else part.given
            return _as_node(self._loop.tracer.values, value)

        return Join(output, at_exit)

    def at_list(self, key: object, count: int, carried: HandedOn, output: torch.fx.Node) -> Join:
        """The last element of a list, or its length, behind the turn."""

        def at_exit(left: Left) -> torch.fx.Node:
            is_added = left.counts.get(key, 0) == count
            return output if is_added else _as_node(self._loop.tracer.values, carried.given)

        return Join(output, at_exit, may_differ=bool(carried.free()))

    def added(self, key: object, item: torch.fx.Node) -> Join:
        """An element that the turn adds to a list; zeros where it does not."""
        info, values = item.meta["val"], self._loop.tracer.values

        def at_exit(left: Left) -> torch.fx.Node | None:
            if left.rest is None:
                return None
            if left.counts.get(key, 0):
                return item
            zeros: torch.fx.Node = values.call(aten.full.default, ([*info.dims], 0), {"dtype": info.dtype}, info)
            return zeros

        return Join(item, at_exit)

    def is_kept(self, grown: Grown) -> bool:
        """Return whether every turn that ends adds to a list."""
        counts = {left.counts.get(grown.identity, 0) for left in self.skips()}
        if counts - {0, len(grown.items)}:
            raise self._loop.loops.refused("a turn adds only some of several elements to a list")
        return 0 not in counts or not grown.items

    def adds(self, key: object) -> Join:
        """Tell whether the turn adds to a list."""
        with self._outermost() as values:
            no, yes = (number(values, holds, torch.bool) for holds in (False, True))
        return Join(yes, lambda left: None if left.rest is None else yes if left.counts.get(key, 0) else no)

    def counted(self, index: Dim, before: frozenset[int]) -> Join:
        """The number of turns so far but for one that is left by an exit of ``before``."""
        with self._outermost() as values:
            this, following = (number(values, count, torch.int64) for count in (index, index + 1))
        places = {id(left): place for place, left in enumerate(self.found)}
        return Join(following, lambda left: this if places[id(left)] in before else following)

    def stays(self, at_end: torch.fx.Node | None) -> Join:
        """Tell whether there is another turn; ``at_end``: whether there is behind the whole turn, where data tells."""
        with self._outermost() as values:
            no, yes = (number(values, holds, torch.bool) for holds in (False, True))
        return Join(yes if at_end is None else at_end, lambda left: no if left.rest is None else yes)

    @contextlib.contextmanager
    def _outermost(self) -> Iterator[Value]:
        """Inside, nodes are of the turn, whatever it leaves out."""
        values = self._loop.tracer.values
        before, values.graph = values.graph, self._loop._graph
        yield values
        values.graph = before

    def joined(self, joins: Sequence[Join]) -> list[torch.fx.Node]:
        """The nodes of what the turn leaves, wherever Python leaves it, or leaves out the rest of it."""
        values, found = self._loop.tracer.values, [join.output for join in joins]
        for left in reversed(self.found):
            if left.rest is not None:
                values.graph = left.node.graph
            elif self.turns is not None:
                continue
            others = [join.at_exit(left) or found[at] for at, join in enumerate(joins)]
            infos = [*map(self._either, joins, found, others)]
            is_whole = any(info != one.meta["val"] for info, one in zip(infos, found, strict=True))
            if left.rest is not None or is_whole:
                found = self._chosen(left, others, found, infos)
            else:
                found = [
                    one if one is two else values.call(aten.where.self, (left.node, two, one), {}, info)
                    for one, two, info in zip(found, others, infos, strict=True)
                ]
        return found

    def _either(self, join: Join, one: torch.fx.Node, other: torch.fx.Node) -> TensorInfo:
        """The type of one of two values, with new symbols for sizes in which they differ."""
        info: TensorInfo = one.meta["val"]
        its: TensorInfo = other.meta["val"]
        if info == its:
            return info
        if (info.dtype, len(info.dims)) != (its.dtype, len(its.dims)) or not (join.may_differ or self._loop.may_free):
            raise self._loop.loops.refused("Python leaves the loop where a variable has another type")
        new = self._loop.tracer.sizes.new_unbacked
        return replace(info, dims=tuple(a if a == b else new() for a, b in zip(info.dims, its.dims, strict=True)))

    def _chosen(
        self, left: Left, skipped: list[torch.fx.Node], done: list[torch.fx.Node], types: Sequence[TensorInfo]
    ) -> list[torch.fx.Node]:
        """The values where Python leaves the rest of the turn out, or the loop, or those behind it."""
        values, places = self._loop.tracer.values, [at for at, one in enumerate(done) if one is not skipped[at]]
        infos = tuple(types[at] for at in places)
        sides = [
            Nested(torch.fx.Graph(), [], [skipped[at] for at in places], infos),
            Nested(left.rest or torch.fx.Graph(), [], [done[at] for at in places], infos),
        ]
        if places:
            node = values.call(HIGHER_ORDER["cond"], (left.node, *sides, []), {}, infos)
            for index, at in enumerate(places):
                done[at] = values.call(operator.getitem, (node, index), {}, infos[index])
        return done

    # -- numbers and lists --------------------------------------------------------------------------------------------
    def moves(self, key: object, index: int, after: Value) -> bool:
        """Return whether a number is another one where Python leaves out the rest of the turn."""
        leaves = [left.values.get(key) for left in self.skips()]
        return any(each is not None and unwrap(each[index]) != unwrap(after) for each in leaves)

    def before_number(self, key: object, entry: Entry, index: int) -> frozenset[int]:
        """The exits that leave a number as it was before the turn; others leave it as the turn does."""
        part = entry.parts[index]
        assert isinstance(part, Linear)
        after = at_turn(part.value, TURN + 1) if part.is_read else part.value
        found = set()
        for place, left in enumerate(self.found):
            if self.turns is not None and left.rest is None:
                continue
            leaves = left.values.get(key)
            now = None if leaves is None else at_turn(unwrap(leaves[index]), TURN, self._loop.index)
            if now != after and (left.rest is not None or (now != part.value and leaves is not None)):
                raise self._loop.loops.refused(f"Python leaves the loop where {entry.place.name} is another number")
            found |= {place} if now != after else set()
        return frozenset(found)

    def before_added(self, grown: Grown) -> frozenset[int]:
        """The exits before what the turn adds to a list; others are behind it."""
        exits = [(place, left) for place, left in enumerate(self.found) if left.rest is None and self.turns is None]
        counts = {place: left.counts.get(grown.identity, 0) for place, left in exits}
        if {*counts.values()} - {0, len(grown.items)}:
            raise self._loop.loops.refused("Python leaves the loop between elements that a turn adds to a list")
        return frozenset(place for place, count in counts.items() if not count)


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
