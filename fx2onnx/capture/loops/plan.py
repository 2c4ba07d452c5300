"""The values that iterations of a loop hand on: tensors and numbers, by the variables, attributes, elements and
memories that have them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

import torch
import torch.fx

from fx2onnx.capture.captured import Symbol, TensorInfo
from fx2onnx.capture.loops.exits import Numbers
from fx2onnx.capture.loops.lists import COUNT, GrowingLists
from fx2onnx.capture.loops.parts import (
    HandedOn,
    Kinds,
    Linear,
    ListState,
    LoopEntry,
    Part,
    Unlike,
    at_turn,
    kind_of,
    name_of,
    simplest,
    with_sizes,
)
from fx2onnx.capture.loops.state import Grown, PlaceChange, Remade, has_repeats
from fx2onnx.capture.loops.turns import Turns
from fx2onnx.capture.python.held import LIST, MISSING, Value
from fx2onnx.capture.python.places import put, value_at
from fx2onnx.capture.recording.nested import ValuesBefore
from fx2onnx.capture.recording.values import Memory, tensor_info
from fx2onnx.capture.shapes.symnode import sym_int
from fx2onnx.sizes.expr import Dim, Scalar
from fx2onnx.torchcompat.pytrees import flatten

aten = torch.ops.aten
_LISTS = (list, Turns)


def _are_alike(change: PlaceChange) -> bool:
    """Return whether a place has tensors and numbers before and behind a turn, and in the same structure."""
    (before, _), (after, _) = flatten(change.before), flatten(change.after)
    kinds = {kind_of(leaf.value) for leaf in (*before, *after)}
    return kinds == {torch.Tensor} and [leaf.keys for leaf in before] == [leaf.keys for leaf in after]


class LoopPlan(GrowingLists):
    """The values that the iterations of a loop are known to hand on. Another turn confirms that, or gives another
    plan.
    """

    def __init__(self, loop: Value, known: LoopPlan | None = None) -> None:
        super().__init__(loop, known)
        self.entries: dict[object, LoopEntry] = {}
        self.memories: dict[int, tuple[Memory, HandedOn]] = {}
        self.states: dict[object, ListState] = {}
        self._counters: dict[Numbers, HandedOn] = {}
        self._took_number = False
        """True if Python took the number of the turn as a plain one."""

    def tried_number(self, dim: Dim) -> int | None:
        """The number at the first turn, where a first run shows what turns change, as ``out[i]`` of a list that they fill; else None."""
        if self.entries or self.lists or self.states or self.memories or dim.symbols() != {str(self.index)}:
            return None
        self._took_number = True
        return int(dim.evaluate({str(self.index): self.loop.first}))

    def begin(self, index: Dim) -> None:
        """A turn finds what the one before left, of which only the type is known."""
        self.index, self.kinds = index, Kinds(self.loop, index)
        for memory, carried in self.memories.values():
            memory.node, memory.version = self._input(carried), memory.version + 1
            carried.given_version = memory.version
        for entry in self.entries.values():
            if entry.is_read:
                entry.given = [self._given(part) for part in entry.parts]
                put(entry.place, entry.build(entry.given))
        for key, grown in self.lists.items():
            if not grown.is_hidden:
                self._stand_in(key, grown)
        for state in self.states.values():
            self._input(state.carried)
            state.begin(self.loop.loops)

    def _given(self, part: Part) -> Value:
        if isinstance(part, HandedOn):
            self._input(part)
            return part.given
        return sym_int(self.tracer.sizes, at_turn(part.value, self.index)) if isinstance(part, Linear) else part.value

    def leave(self) -> None:
        """Lists are lists again."""
        super().leave()
        for state in self.states.values():
            state.leave()

    def after(self, changes: Iterable[PlaceChange | Grown | Remade | str], before: ValuesBefore) -> LoopPlan:
        """The plan itself, where the turn left what it says; else another one. Raises Unlike where the first turn differs."""
        found: dict[object, PlaceChange] = {}
        has_several = self.loop.paths.has_several
        self.added = {key: one._replace(items=[], is_kept=False) for key, one in self.lists.items() if has_several}
        states = {**self.states}
        for each in changes:
            if isinstance(each, str):
                raise self.loop.loops.refused(each)
            each = self._told(each)
            if isinstance(each, Remade):
                states[each.identity] = states.get(each.identity) or ListState.found(self.loop, self.kinds, each)
            elif isinstance(each, Grown):
                self._note_grown(each)
            else:
                may_stay = bool(self.loop.exits.found) or has_several
                is_kept = may_stay and each.before is not MISSING
                is_read = each.is_read or is_kept or (self.loop.may_be_none and _are_alike(each))
                found[each.place.identity] = each._replace(is_read=is_read)
        for key in states:
            self.added.pop(key, None)
        following = LoopPlan(self.loop, self)
        following.states = states
        for key in {**self.entries, **found}:
            if not (key in states or (isinstance(key, tuple) and key[0] == LIST and key[1] in states)):
                following.entries[key] = self._entry(self.entries.get(key), found.get(key))
        for memory, carried in self.memories.values():
            if memory.version == carried.given_version and not has_several:
                raise Unlike("the first turn writes into a tensor that later ones do not write into")
        for memory, _ in before.written():
            known = self.memories.get(id(memory))
            following.memories[id(memory)] = known or (memory, HandedOn(memory.info, torch.device("cpu"), memory))
        following.memories |= self.memories
        is_known = self._is_same(following) and self.added.keys() == self.lists.keys()
        pairs = [(self.added[key], grown) for key, grown in self.lists.items()] if is_known else []
        is_known &= len(self._ends) == len(self._asked & self.lists.keys())
        if not is_known or any(
            (one.infos, one.is_front, one.is_kept) != (two.infos, two.is_front, two.is_kept) for one, two in pairs
        ):
            return following
        if self._took_number:
            raise self.loop.loops.refused("Python needs the number of a turn as a plain number")
        self._take_outputs(before)
        return self

    def _told(self, change: PlaceChange | Grown | Remade) -> PlaceChange | Grown | Remade:
        """Tell a list that grows, and one of which all elements are handed on, from other changes."""
        if isinstance(change, PlaceChange):
            grown = self.longer(change)
            if grown is None and has_repeats(change.after) and type(change.before) in _LISTS:
                return Remade(change.after, change.before, change.place)
            change = grown or change
        if isinstance(change, Grown) and (
            has_repeats(change.items) or change.identity in self.read_whole or self._grows_at_both_ends(change)
        ):
            return Remade(change.holder, change.before, change.place)
        return change

    def _grows_at_both_ends(self, change: Grown) -> bool:
        """Return whether the turn adds to the end of a list to whose beginning it adds on another path."""
        known = self.lists.get(change.identity)
        return known is not None and known.is_front and bool(change.items) and not change.is_front

    def has_new_states(self, changes: Iterable[PlaceChange | Grown | Remade | str]) -> bool:
        """Return whether the turn changes another list at will, whose length is another one in the next turn."""
        told = (self._told(each) for each in changes if not isinstance(each, str))
        return any(isinstance(each, Remade) and each.identity not in self.states for each in told)

    def again(self) -> LoopPlan:
        """The same plan, for another path through a turn."""
        same = LoopPlan(self.loop, self)
        same.entries, same.memories, same.states = {**self.entries}, {**self.memories}, {**self.states}
        return same

    def _is_same(self, other: LoopPlan) -> bool:
        if self.states.keys() != other.states.keys() or self.memories.keys() != other.memories.keys():
            return False
        if self.entries.keys() != other.entries.keys():
            return False
        pairs = ((entry.parts, other.entries[key].parts) for key, entry in self.entries.items())
        return all([*map(id, one)] == [*map(id, two)] for one, two in pairs)

    def _entry(self, known: LoopEntry | None, change: PlaceChange | None) -> LoopEntry:
        place, before, is_read = (
            (change.place, change.before, change.is_read)
            if change is not None
            else (known.place, known.before, known.is_read)  # type: ignore[union-attr]
        )
        after = value_at(place)
        if after is MISSING and known is not None and all(isinstance(part, HandedOn) for part in known.parts):
            return known  # another path gives the variable a value
        (leaves, _), (left, build) = flatten(before), flatten(after)
        is_alike = [leaf.keys for leaf in leaves] == [leaf.keys for leaf in left] and kind_of(before) is kind_of(after)
        if is_read and not is_alike:
            raise Unlike(f"{place.name} is a {name_of(before)} before the first turn and a {name_of(after)} behind it")
        values = [leaf.value for leaf in left]
        starts = [leaf.value for leaf in leaves] if is_alike else [MISSING] * len(values)
        known_parts = known.parts if known is not None and len(known.parts) == len(values) else [None] * len(values)
        if not is_read:
            starts = [MISSING] * len(values)
        parts = [self.kinds.part(place, *each) for each in zip(starts, values, known_parts, strict=True)]
        for index, part in enumerate(parts):
            if isinstance(part, Linear) and is_read and self.loop.exits.moves(place.identity, index, values[index]):
                parts[index] = HandedOn(COUNT, torch.device("cpu"), starts[index], is_number=True)
        entry = LoopEntry(place, before, is_read, parts, build, values)
        if known is not None:
            known.after, known.build = values, build
        return entry

    def _take_outputs(self, before: ValuesBefore) -> None:
        """Note what the turn leaves, while it is open."""
        values, exits = self.tracer.values, self.loop.exits
        for memory_key, (memory, carried) in self.memories.items():
            carried.output = exits.at_memory(memory_key, memory.present())
        tensors: list[torch.Tensor] = []
        for key, entry in self.entries.items():
            is_missing = value_at(entry.place) is MISSING
            for index, (part, after) in enumerate(zip(entry.parts, entry.after, strict=True)):
                if isinstance(part, HandedOn):
                    if entry.is_read is False and part not in self.carried:
                        self._input(part)
                    after = part.given if is_missing else after
                    if part.is_number:
                        after = self.loop.loops.as_tensor(after).to(part.info.dtype)
                    elif isinstance(after, torch.Tensor):
                        tensors.append(after)
                    else:
                        after = self.loop.loops.as_tensor(after)
                    part.output = exits.at_place(key, index, part, values.node_of(after))
                elif isinstance(part, Linear):
                    part.before = exits.before_number(key, entry, index)
                    if part.before and self.loop.paths.has_several:
                        raise self.loop.loops.refused(
                            f"Python leaves the loop where {entry.place.name} is another number"
                        )
        for key, carried in self._ends:
            items = self.added[key].items
            carried.output = exits.at_list(
                key, len(items), carried, values.node_of(items[-1] if items else carried.given)
            )
        for key, carried in self._lengths:
            count = len(self.added[key].items)
            length = aten.scalar_tensor.default(carried.given + count, dtype=torch.int64)
            carried.output = exits.at_list(key, count, carried, values.node_of(length))
        items = [leaf.value for grown in self.added.values() for leaf in flatten([*grown.items])[0]]
        lists = [id(state.source.now()) for state in self.states.values()]
        if len({*lists}) < len(lists):
            raise self.loop.loops.refused("two names have one list that turns change")
        for key, state in self.states.items():
            state.carried.output = exits.at_place(key, 0, state.carried, values.node_of(state.now(self.loop)))
            items += state.items(self.loop.loops)
        self._check_shared(tensors, [item for item in items if isinstance(item, torch.Tensor)], before)

    def _check_shared(self, tensors: list[torch.Tensor], items: list[torch.Tensor], before: ValuesBefore) -> None:
        """Refuse what later turns would write into by another name; behind the loop, nothing may."""
        values = self.tracer.values
        written = {id(memory) for memory, _ in before.written()} | set(self.memories)
        for carried in self.carried:
            if isinstance(carried.given, torch.Tensor) and values.view_of(carried.given).memory.version:
                written.add(id(values.view_of(carried.given).memory))
        memories = [values.view_of(tensor).memory for tensor in [*tensors, *items]]
        of_items, of_tensors = ({*map(id, each)} for each in (memories[len(tensors) :], memories[: len(tensors)]))
        writes_given = any(
            id(values.view_of(each.given).memory) in written
            for each in self.carried
            if isinstance(each.given, torch.Tensor) and not isinstance(each.start, Memory)
        )
        is_shared = bool(of_items & of_tensors) or len(of_tensors) < len(tensors)
        of_states = {id(values.view_of(state.carried.given).memory) for state in self.states.values()}
        is_shared |= bool(of_states & of_tensors)
        if (of_items | of_states) & written or (writes_given and is_shared):
            raise self.loop.loops.refused("a list holds tensors that later turns write into")
        counts = [*map(id, memories)]
        self.loop.shares |= any(counts.count(one) > 1 or one in before.memories for one in counts)
        if self.loop.shares:
            self.loop.loops.fixed |= {id(memory): memory for memory in memories}
        self._shared = self.loop.shares

    def count(self, index: Dim, before: Iterable[Numbers]) -> None:
        """Hand on the number of turns so far, too, and the number without a turn that some exits leave."""
        self._counters = {}
        linear = [part.before for entry in self.entries.values() for part in entry.parts if isinstance(part, Linear)]
        for exits in dict.fromkeys([frozenset[Hashable](), *linear, *before]):
            counter = self._handed_on("turns", exits, COUNT, torch.device("cpu"), self.loop.first)
            counter.output = self.loop.exits.counted(index, exits)
            self._counters[exits] = counter

    def counted(self, results: Sequence[torch.Tensor]) -> None:
        """The numbers of turns are what the loop handed on last."""
        loop = self.loop
        for exits, result in zip(self._counters, results[-len(self._counters) :], strict=True):
            node = self.tracer.values.node_of(result)
            turns = loop.counts[exits] = self.tracer.sizes.new_unbacked() if exits else loop.turns
            self.tracer.unbacked_scalars[node] = turns
            self.tracer.values.symbols[str(turns)] = Symbol(str(turns), node, None)

    def starts(self) -> list[torch.fx.Node]:
        """The nodes of what there is before the first of the turns."""
        return [self._start(carried) for carried in self.carried]

    def _start(self, carried: HandedOn) -> torch.fx.Node:
        values, start = self.tracer.values, carried.start
        info = at_turn(carried.info, self.loop.first)
        if isinstance(start, Memory):
            return start.present()
        if callable(start):
            start = start()
            its = tensor_info(start)
            if (its.dtype, its.dims[1:]) != (info.dtype, info.dims[1:]):
                raise self.loop.loops.refused("a turn changes a list of tensors of different types")
        if not isinstance(start, torch.Tensor):
            number = 0 if start is None else start
            info = with_sizes(
                info, dict.fromkeys(carried.free(), 0)
            )  # of elements behind each other, before there are some
            sizes = [sym_int(self.tracer.sizes, size) for size in info.dims]
            start = (
                aten.full.default(sizes, number, dtype=info.dtype)
                if sizes
                else aten.scalar_tensor.default(number, dtype=info.dtype)
            )
        return values.node_of(start)  # type: ignore[no-any-return]

    def types_behind(self, length: Scalar) -> list[TensorInfo]:
        """The types of what the loop leaves after so many turns."""
        names = dict.fromkeys(name for one in self.carried for name in sorted(one.free()))
        env = self.tracer.sizes
        free = {name: env.new_unbacked() for name in names}
        infos = [with_sizes(at_turn(one.info, length), free) for one in self.carried]
        return [replace(info, dims=tuple(simplest(size, env) for size in info.dims)) for info in infos]

    def give(self, results: Sequence[torch.Tensor]) -> None:
        """Every place has what the last turn left."""
        values, by_part = self.tracer.values, dict(zip(self.carried, results, strict=True))
        for carried, result in by_part.items():
            if carried.free():
                values.tie_symbols(values.node_of(result))
        length = self.loop.turns
        for memory, carried in self.memories.values():
            memory.node, memory.version = values.node_of(by_part[carried]), memory.version + 1
        for state in self.states.values():
            result = by_part[state.carried]
            state.give(self.loop.loops, result)
            if self._shared:
                self.loop.loops.fixed[id(values.view_of(result).memory)] = values.view_of(result).memory
        for entry in self.entries.values():
            put(entry.place, entry.build([self._left(part, by_part, length) for part in entry.parts]))

    def _left(self, part: Part, by_part: dict[HandedOn, torch.Tensor], length: Scalar) -> Value:
        if isinstance(part, HandedOn):
            result = by_part[part]
            if part.is_number:
                return result.item()
            if self._shared:
                memory = self.tracer.values.view_of(result).memory
                self.loop.loops.fixed[id(memory)] = memory
            if self.loop.may_be_none or self.loop.paths.has_several or self.loop.exits.found:
                self.loop.loops.may_be_number(result, part.start)
            return result
        if isinstance(part, Linear):
            length = self.loop.counts[part.before] if part.before else length
            return sym_int(self.tracer.sizes, at_turn(part.value, length if part.is_read else length - 1))
        return part.value
