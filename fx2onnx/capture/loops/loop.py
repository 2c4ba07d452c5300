"""One loop that Python is in, whose turns are run until it is known what they hand on."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Sequence
from types import FrameType

import torch
import torch.fx

from fx2onnx.capture.captured import Symbol, TensorInfo
from fx2onnx.capture.loops.elements import Elements
from fx2onnx.capture.loops.exits import Exits, Join, Numbers
from fx2onnx.capture.loops.lists import ListPart, grow
from fx2onnx.capture.loops.parts import FREE, Unlike
from fx2onnx.capture.loops.paths import PathEnd, TurnPaths
from fx2onnx.capture.loops.plan import LoopPlan
from fx2onnx.capture.loops.state import UNTOLD, Held
from fx2onnx.capture.loops.truths import HeadTest, Truth, below, negated
from fx2onnx.capture.loops.turns import Turns, stacked
from fx2onnx.capture.python.data_numbers import DataNumber
from fx2onnx.capture.python.held import Value
from fx2onnx.capture.recording.control_flow import Nested, record_scan
from fx2onnx.capture.recording.decisions import Test
from fx2onnx.capture.recording.nested import ValuesBefore
from fx2onnx.capture.recording.values import Memory, tensor_info
from fx2onnx.capture.shapes.symnode import sym_int, unwrap
from fx2onnx.sizes.assumptions import Assumption
from fx2onnx.sizes.expr import Dim, DimLike, Scalar
from fx2onnx.sizes.relation import COMPARE, Relation
from fx2onnx.torchcompat.frames import user_frame
from fx2onnx.torchcompat.loop_statements import Exit, exit_at, loop_at
from fx2onnx.torchcompat.source_ast import place_of

MOST_TRIES = 6
"""Turns that are run to see what the others find changed."""

_HELD = (torch.Tensor, int, float, torch.SymInt, torch.SymFloat, torch.SymBool, DataNumber)
aten = torch.ops.aten


class Loop:
    """A loop that Python is in."""

    def __init__(self, loops: Value, frames: Sequence[FrameType], series: Elements | None) -> None:
        self.loops, self.tracer, self._frames, self.frame = loops, loops.tracer, frames, frames[-1]
        self.series = self._whole = series
        """The iterable of the loop; None while the number of turns is unknown."""
        self.tracer.values.mark()
        self.where = self.tracer.values.where
        self.first = 0
        """The number of the first of the turns that are the loop of the file."""
        self.wants_first = False
        """True if the first iteration has to run outside of the loop."""
        self.known_before: frozenset[str] = frozenset()
        """Symbols of data that are known before the turn."""
        self.turns: DimLike = 0 if series is None else unwrap(series.length)
        """The number of iterations."""
        self.counts: dict[Numbers, DimLike] = {}
        """The number of iterations except for one that Python leaves by some exits."""
        self.exits, self.paths = Exits(self), TurnPaths(self)
        self.shares = False
        """True if tensors that the turn leaves may be one."""
        self.left_again: dict[Exit, None] = {}
        """The statements that leave the loop where Python runs the turn once more."""
        self._is_over = False
        self.is_left_by_data = False
        """True if data decides on one of the paths of a turn whether there is another."""
        self.place = loop_at(self.frame)
        """The place of the ``for`` statement in the source; None where there is none."""
        self._tries = 0
        self.plan: LoopPlan | None = None
        self._free: dict[tuple[str, str], Dim] = {}
        self._count_again, self._first_symbol, self.runs = 0, 0, 0
        """The number of ``left_again`` before, the number of the first symbol that the turn makes, and of the turns that were run."""

    @property
    def may_free(self) -> bool:
        """True if sizes may change from turn to turn without a formula: where a first turn by itself does not help."""
        return self.first > 0

    @property
    def may_be_none(self) -> bool:
        """True if there may be no turn, although no named size is 0: places keep what they have."""
        return bool(self.tracer.sizes.may_fail(Relation("ge", (self.turns, self.first + 1))))

    def free_size(self, before: Scalar, after: Scalar) -> Dim:
        """A size that a turn changes so, without a formula; the same one for tensors of the same size."""
        name = f"{FREE}{len(self._free)}"
        return self._free.setdefault((str(before), str(after)), Dim.symbol(name))

    def next(self) -> Value:
        """The element of the next turn; StopIteration behind the last one."""
        if self.plan is None and not self.first and self.where in self.tracer.branching.first_turns:
            return self._first_turn()
        if self.plan is None:
            return self._element(
                self._begin(Held(self._frames, filled=self.loops.collected_by(self.frame)), LoopPlan(self))
            )
        if self._is_over:
            raise StopIteration
        if self.loops.open[-1] is not self or self.tracer.values.graph is not self.paths.graphs[-1]:
            raise self.loops.refused("Python leaves a loop within it before its end")
        try:
            return self._after_turn(self.plan)
        except Unlike as error:
            return self._alone(str(error))

    def _element(self, index: Dim) -> Value:
        assert self._whole is not None
        return self._whole.at(sym_int(self.tracer.sizes, index))

    def _begin(self, held: Held, plan: LoopPlan) -> Dim:
        self.held = held
        return self._turn(plan)

    def _turn(self, plan: LoopPlan, *, is_again: bool = False) -> Dim:
        """Begin to record a turn; what it carries is as the plan says. ``is_again``: on another path. Returns its number."""
        tracer, env = self.tracer, self.tracer.sizes
        self.paths = self.paths if is_again else TurnPaths(self)
        self.paths.begin()
        tracer.values.settle()
        self.plan, self._before, self._known = plan, ValuesBefore(tracer.values), env.kept()
        self._types, self._lent, self.exits = tracer.types.kept(), len(self.loops.lent), Exits(self)
        self._viewed = frozenset(tracer.values.views)
        if is_again:
            env.next_unbacked = self._first_symbol
        else:
            self.known_before, self._first_symbol = env.unbacked, env.next_unbacked
        env.unchecked, self._symbols = {}, frozenset(tracer.values.symbols)
        tracer.values.graph = self.paths.graphs[0]
        self.loops.open.append(self)
        self._node = tracer.values.add_input("turn", tracer.values.new_fake((), torch.int64))
        index: Dim = env.new_unbacked()
        self.index = index
        tracer.values.symbols[str(index)] = Symbol(str(index), tracer.values.behind_input(self._node), None)
        env.hints = {**env.hints, str(index): self._hint()}
        supposed = [] if self.series is None else [*below(index, unwrap(self.series.length))]
        supposed += [Relation("ge", (index, 1))] if self.first else []
        env.know(supposed={**env.facts.supposed, **dict.fromkeys(supposed)})
        plan.begin(index)
        return index

    def _hint(self) -> int:
        """A number of a turn that is no first or last one, where there are such at the example's sizes."""
        if self.series is None:
            return 0
        most = int(self.tracer.sizes.hint(unwrap(self.series.length))) - 1
        return max(self.first, min(self.first + 2, most))

    def answer(self, test: Relation) -> bool | None:
        """Return whether a comparison of the turn's number holds in all turns but the first; None where that is not all."""
        facts = self.tracer.sizes.facts
        known: bool | None = facts.is_settled(test)
        if known is not None or self.first or str(self.index) not in test.symbols() or test.op not in COMPARE:
            return known
        later = Relation("ge", (self.index, 1))
        known = facts.supposing(later).is_settled(test)
        self.wants_first |= known is not None
        return known

    def stays(self, test: Test) -> bool | None:
        """The answer with which Python stays in the loop, where it asks whether to leave it; the file asks ``test``."""
        frame = user_frame()
        is_here = frame is self.frame and len(self._frames) == 1  # a generator would go on behind its loop
        found = exit_at(frame) if frame is not None and is_here else None
        if found is None or frame is None or (place_of(found[0].loop) != self.place):
            return None
        (one, part), values = found, self.tracer.values
        stays = one.head.operands[part][1]
        known = self.loops.tests.expected(frame, one.head, part)
        if known is not None:
            return known  # type: ignore[no-any-return]
        leaves: Truth = negated(values, test) if stays else test
        if len(one.head.operands) > 1:
            with self.tracer.mode if isinstance(test, torch.fx.Node) else contextlib.nullcontext():  # an operator asks
                tested = HeadTest(self.loops, frame, one.head)
                leaves = negated(values, tested.truth)
            self.loops.tests.expect(frame, one.head, tested.asked_behind(part, True), True)
        if isinstance(leaves, bool):
            return stays is not leaves
        if one.does_more:
            self.exits.add_again(leaves, one, self.plan)
        else:
            self.exits.add(leaves, self.plan, self.held, in_call=isinstance(test, torch.fx.Node))
        return stays

    def leaves_within(self, test: Relation, by: Exit) -> None:
        """Python leaves the loop from a loop within it, where the test holds."""
        self.exits.add_again(test, by, self.plan)

    def _again(self) -> Scalar | None:
        """The number of the turn that Python runs once more, since it leaves it by a statement that does more; else None."""
        for again in self.left_again:
            relation, number = self.exits.was_left_by(again)
            if self.loops.tests.leaves(self, again, relation):
                if self._whole is not None:
                    env, within = self.tracer.sizes, below(number, unwrap(self._whole.length))
                    env.know(supposed={**env.facts.supposed, **dict.fromkeys(within)})
                return number
        return None

    def memories_before(self) -> Iterable[tuple[Memory, torch.fx.Node, int]]:
        """Memories as they were before the turn."""
        return self._before.memories.values()

    def _after_turn(self, plan: LoopPlan) -> Value:
        if self._ended(plan):
            again = self._again()
            if again is None or self._whole is None:
                raise StopIteration
            return self._whole.at(sym_int(self.tracer.sizes, again))
        return self._element(self.index)

    def _ended(self, plan: LoopPlan) -> bool:
        """A turn is over. Records the loop where it is the last one; else another one has begun."""
        if self.wants_first and not plan.has_new_states(self.held.changes(plan, may_add_nothing=True)):
            raise Unlike("Python decides by whether a turn is the first")
        self.wants_first = False
        self.exits.settle(self.index, self._counted())
        left = self.is_left_by_data or self.exits.turns is None, len(self.left_again)
        found = plan.after(self.held.changes(plan, may_add_nothing=self.paths.has_several), self._before)
        if found is plan and self.paths.has_several and left != (self.is_left_by_data, self._count_again):
            (self.is_left_by_data, self._count_again), found = left, plan.again()
        if found is plan:
            end = self.paths.ended(self._end_of_path(plan))
            if end is not None:
                self._finish(plan, end)
                return True
            self._leave(is_kept=False)
            self._turn(plan.again(), is_again=True)
            return False
        self._tries += 1
        if self._tries > MOST_TRIES:
            raise self.loops.refused("what a turn changes differs from turn to turn")
        self._leave(is_kept=False)
        self._turn(found)
        return False

    def _counted(self) -> Scalar | None:
        """The number of turns, except for those that are left; None where data tells."""
        return self.turns

    def _goes_on_at_end(self) -> torch.fx.Node | None:
        """The node that tells at the end of a turn whether there is another; None where the number of turns does."""
        return None

    def _alone(self, why: str) -> Value:
        """Run the first turn by itself."""
        self._leave(is_kept=False)
        if self.first:
            raise self.loops.refused(why)
        return self._first_turn()

    def _first_turn(self) -> Value:
        """The element of the turn that is run by itself; that there is one has to hold, where not every size but 0 says so."""
        assert self.series is not None
        env, some = self.tracer.sizes, Relation("ge", (unwrap(self.series.length), 1))
        if env.certain("ge", *some.args) is None and not env.facts.excludes_zero_only(some):
            env.expect("ge", *some.args)
        self.first, self.wants_first, self._tries, self.plan = 1, False, 0, None
        return self.series.at(0)

    def _leave(self, *, is_kept: bool) -> None:
        """Everything is as before the turn; ``is_kept``: what was learnt of sizes stays."""
        tracer, env, before = self.tracer, self.tracer.sizes, self._before
        self.loops.open.pop()
        self.loops.over |= {*self.paths.graphs}
        self.held.put_back()
        assert self.plan is not None
        self.plan.leave()
        tracer.types.go_back(self._types)  # they may be of what held in the turn only
        for memory, node, version in before.memories.values():
            memory.node, memory.version, memory.late = node, version, None
        for source, view in tracer.values.sources.items():
            if id(view.memory) not in before.memories and view.memory.version:
                view.memory.node, view.memory.version, view.memory.late = source, 0, None
        before.restore()
        for key, view in tracer.values.views.items():
            if key not in self._viewed and id(view.memory) in before.memories:
                view.version = -1  # met in the turn: what it shows behind it is another node
        if is_kept:
            self.loops.check_lent(since=self._lent)
            env.know(supposed=self._known.facts.supposed)
        else:
            del self.loops.lent[self._lent :]
            alive = {
                tracer.values.root,
                tracer.values.path_graph,
                before.graph,
                *(graph for one in self.loops.open for graph in one.paths.graphs),
            }
            symbols = tracer.values.symbols
            for name in [name for name, symbol in symbols.items() if symbol.node.graph not in alive]:
                if name not in self._symbols:
                    del symbols[name]
            after, next_unbacked, hints = env.facts, env.next_unbacked, env.hints
            env.go_back(self._known)
            env.know(unbacked=after.unbacked, signed=after.signed)
            env.next_unbacked, env.hints = next_unbacked, hints
        env.unchecked = self._known.unchecked

    def _end_of_path(self, plan: LoopPlan) -> PathEnd:
        """The path that ends here, with what the turn leaves on it."""
        values, exits, joins = self.tracer.values, self.exits, dict[Hashable, Join]()
        slots = [slot for one in plan.added.values() for slot in plan.slots(one)]
        for slot in slots:
            item = None if slot.leaf is None else self._as_tensor(slot.leaf)
            if slot.is_packed:
                item = plan.pack(slot, item)
            info = self._type_of_item(slot, item)
            joins |= zip(
                (slot.item_key, slot.adds_key),
                exits.added(slot.grown.identity, slot.place, info, None if item is None else values.node_of(item)),
                strict=True,
            )
        if exits.turns is None:
            before = {} if self.paths.has_several else map(exits.before_added, plan.added.values())
            plan.count(self.index, [*before, *(frozenset({each}) for each in self.left_again)])
            joins["stays"] = exits.stays(self._goes_on_at_end())
        joins |= {one: one.output for one in plan.carried}
        nodes = exits.joined([*joins.values()])
        inputs: dict[Hashable, torch.fx.Node] = {"turn": self._node}
        inputs |= zip(plan.carried, plan.inputs, strict=True)
        may_differ = frozenset(key for key, join in joins.items() if join.may_differ)
        symbols = {name: one for name, one in values.symbols.items() if name not in self._symbols}
        return PathEnd(
            self.paths.decisions, self.paths.graphs, inputs, dict(zip(joins, nodes, strict=True)), may_differ, symbols
        )

    def _finish(self, plan: LoopPlan, end: PathEnd) -> None:
        """Record the loop, whose body is the turn."""
        tracer = self.tracer
        before = {key: self.exits.before_added(one) for key, one in plan.added.items() if not self.paths.has_several}
        stays = [end.outputs["stays"]] if "stays" in end.outputs else []
        if not stays:
            self.turns = self.exits.turns  # type: ignore[assignment]
            self.series = Elements(sym_int(tracer.sizes, self.turns), lambda index: index)
        elif self._goes_on_at_end() is not None:
            self.series = None
        slots = [slot for one in plan.added.values() for slot in plan.slots(one)]
        wanted = [key for slot in slots for key in (slot.item_key, *([] if slot.grown.is_kept else [slot.adds_key]))]
        carry, added = ([end.outputs[key] for key in keys] for keys in (plan.carried, wanted))
        if self.held.is_untold:
            raise self.loops.refused(UNTOLD)
        self._leave(is_kept=True)
        self._is_over = True
        self.held.forget()
        tracer.values.symbols |= end.symbols
        if not carry and not added:
            plan.give([])
            return
        if stays:
            self.turns = tracer.sizes.new_unbacked()
        nodes = [*carry, *added, *stays]
        inputs = [end.inputs[key] for key in (*plan.carried, "turn")]
        body = Nested(end.graphs[0], inputs, nodes, tuple(node.meta["val"] for node in nodes))
        infos = [node.meta["val"] for node in added]
        stacked = [TensorInfo(info.dtype, (self.turns - self.first, *info.dims)) for info in infos]  # type: ignore[arg-type]
        with tracer.values.at(self.where):
            start = plan.starts()
            numbers = [] if self.series is None else [torch.arange(self.first, self.series.length)]
            infos = [*plan.types_behind(self.turns), *stacked]
            xs = [*map(tracer.values.node_of, numbers)]
            results = record_scan(tracer, body, start, xs, infos=infos, is_left=bool(stays), begins=self._begins())
            if stays:
                plan.counted(results[: len(carry)])
            plan.give(results[: len(carry)])
            found = dict(zip([*plan.carried, *wanted], results, strict=True))
            for key, one in plan.added.items():
                grow(self, one, plan.slots(one), found, before.get(key, frozenset()))
        self.loops.notes.append(Assumption("a loop over a dynamic size is a loop of the file", self.where))

    def _begins(self) -> torch.fx.Node | None:
        """The node that tells whether there is a first turn, where data does."""
        return None

    def _as_tensor(self, item: Value) -> torch.Tensor:
        if type(item) is Turns:
            return stacked(item)
        if not isinstance(item, _HELD):
            raise self.loops.refused(f"a turn adds a {type(item).__name__} to a list")
        return self.loops.as_tensor(item)  # type: ignore[no-any-return]

    def _type_of_item(self, slot: ListPart, item: torch.Tensor | None) -> TensorInfo:
        if item is None:
            return slot.info_at(self.index)
        if self.tracer.values.node_of(item).graph in self.loops.over:
            raise self.loops.refused("a turn adds as many elements to a list as a size says")
        info = tensor_info(item)
        symbols = {name for size in info.dims if isinstance(size, Dim) for name in size.symbols()}
        if symbols & (self.tracer.sizes.unbacked - self.known_before):
            raise self.loops.refused("a list holds tensors whose sizes differ from turn to turn")
        return info
