"""The values that iterations of a loop hand on: tensors and numbers, by the variables, attributes, elements and
memories that have them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from fx2onnx.capture.captured import Symbol, TensorInfo
from fx2onnx.capture.loops.exits import Numbers
from fx2onnx.capture.loops.parts import (
    TURN,
    Entry,
    HandedOn,
    Kinds,
    Linear,
    Part,
    Unlike,
    at_turn,
    kind_of,
    name_of,
    with_sizes,
)
from fx2onnx.capture.loops.pieces import begin_of, simplest
from fx2onnx.capture.loops.ragged import SIZE, axes_of
from fx2onnx.capture.loops.state import Change, Grown, grown_list
from fx2onnx.capture.loops.turns import Repeat, Turns, become
from fx2onnx.capture.python.held import MISSING, Value
from fx2onnx.capture.python.places import put, value_at
from fx2onnx.capture.recording.values import Memory, ValuesBefore
from fx2onnx.capture.registry import load_family
from fx2onnx.capture.shapes.symnode import sym_int, unwrap
from fx2onnx.sizes.expr import Dim, DimLike, Scalar
from fx2onnx.torchcompat.pytrees import flatten

aten = torch.ops.aten
COUNT = TensorInfo(torch.int64, ())


@dataclass(eq=False)
class Slot:
    """A part of what a turn may add to a list."""

    grown: Grown
    place: int
    """The number of the element."""
    leaf: Value
    """What this turn adds; None for nothing."""
    sample: Value
    info: TensorInfo | None
    number: int
    pack: tuple[HandedOn, int] | None = None
    """All such parts one behind the other, where they differ in a size, and the axis of that."""

    @property
    def item_key(self) -> Hashable:
        return "item", self.grown.identity, self.number

    @property
    def adds_key(self) -> Hashable:
        return "adds", self.grown.identity, self.number

    @property
    def is_packed(self) -> bool:
        return bool(axes_of(self.info))

    def info_at(self, index: Dim) -> TensorInfo:
        """The type of a part that a turn does not add."""
        if self.info is not None and not self.is_packed:
            return at_turn(self.info, index)  # type: ignore[no-any-return]
        is_real = isinstance(self.sample, float | torch.SymFloat) and not self.is_packed
        return TensorInfo(
            torch.bool if isinstance(self.sample, bool) else torch.float64 if is_real else torch.int64, ()
        )


class Plan:
    """The values that the iterations of a loop are known to hand on. Another turn confirms that, or gives another
    plan.
    """

    def __init__(self, loop: Value, known: Plan | None = None) -> None:
        self.loop, self.tracer = loop, loop.tracer
        self.entries: dict[object, Entry] = {}
        self.memories: dict[int, tuple[Memory, HandedOn]] = {}
        self.lists: dict[object, Grown] = {} if known is None else known.added
        self._common: dict[object, HandedOn] = {} if known is None else known._common
        """What turns hand on for lists and counts, the same on all paths."""
        self._asked: set[object] = set() if known is None else known._asked
        """The lists whose last element turns read."""
        self.added: dict[object, Grown] = {}
        """The lists that grew in the last turn, with what was added."""
        self.carried: list[HandedOn] = []
        self.inputs: list[torch.fx.Node] = []
        self._free: dict[str, Dim] = {}
        """Sizes without a formula, in the turn that runs."""
        self._counters: dict[Numbers, HandedOn] = {}
        self._turned: list[list[Value]] = []
        self._ends: list[tuple[object, HandedOn]] = []
        """Last elements of lists that the turn took."""
        self._lengths: list[tuple[object, HandedOn]] = []
        """The numbers of what the turns before added to a list, where some add nothing."""
        self._slots: dict[object, list[Slot]] = {}
        self.markers: frozenset[int] = frozenset()
        """Ids of what stands in lists for what former turns added."""

    # -- before a turn ------------------------------------------------------------------------------------------------
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

    def _input(self, carried: HandedOn) -> torch.fx.Node:
        values, env = self.tracer.values, self.tracer.sizes
        graph, values.graph = values.graph, self.loop.paths.graphs[0]
        known = at_turn(carried.info, self.index)
        for name in sorted(carried.free() - self._free.keys()):
            self._free[name] = env.new_unbacked()
        info = with_sizes(known, self._free)
        carried.given = values.new_fake(info.dims, info.dtype, carried.device)
        node: torch.fx.Node = values.add_input(f"carried_{len(self.carried)}", carried.given)
        self.carried.append(carried)
        self.inputs.append(node)
        if carried.free():
            values.tie_symbols(values.behind_input(node))
        if carried.is_number:
            number_of = load_family("overloads.unbacked_scalars").number_of
            if carried.info.dtype == torch.int64:
                carried.given = sym_int(self.tracer.sizes, number_of(self.tracer, node))
            else:
                carried.given = carried.given.item()
        values.graph = graph
        return node

    def _given(self, part: Part) -> Value:
        if isinstance(part, HandedOn):
            self._input(part)
            return part.given
        return sym_int(self.tracer.sizes, at_turn(part.value, self.index)) if isinstance(part, Linear) else part.value

    def _stand_in(self, key: object, grown: Grown) -> None:
        """The list has what the turns before added, of which only the last element is at hand."""
        held = grown.holder if grown.place is None else [*grown.before]
        item, info = grown.sample[-1], grown.infos[-1]
        is_tensor = isinstance(item, torch.Tensor)
        if info is None:
            info = TensorInfo(torch.float32, ())
        start = held[-1] if held else None
        given: list[torch.Tensor] = []

        def element(index: Value) -> torch.Tensor:
            if index != -1 or not is_tensor or axes_of(info):
                raise self.loop.loops.refused(
                    "a turn reads another element than the last of a list that the turns fill"
                )
            if not given:
                if not isinstance(start, torch.Tensor) or self.kinds.info(start) != info:
                    self.loop.wants_first = True
                self._asked.add(key)
                carried = self._handed_on("end", key, info, item.device, start)
                self._ends.append((key, carried))
                given.append(carried.given)
            return given[0]

        def whole() -> torch.Tensor:
            raise self.loop.loops.refused("a turn takes all elements of a list that the turns fill")

        dims = with_sizes(at_turn(info, self.index), {str(SIZE): 1}).dims
        marker = self.tracer.values.new_fake(dims, info.dtype)
        length = sym_int(self.tracer.sizes, (self.index - self.loop.first) * len(grown.sample))
        if not grown.is_kept:
            counted = self._handed_on("length", key, COUNT, torch.device("cpu"), 0, is_number=True)
            self._lengths.append((key, counted))
            length = counted.given
        if key in self._asked:
            element(-1)
        self.tracer.repeats[id(marker)] = Repeat(marker, length, whole, element)
        self.markers |= {id(marker)}
        held.append(marker)
        become(held, Turns)
        self._turned.append(held)
        if grown.place is not None:
            put(grown.place, held)

    def _handed_on(
        self, kind: str, key: object, info: TensorInfo, device: torch.device, start: Value, is_number: bool = False
    ) -> HandedOn:
        """Hand on a value for a list or a count, and give it to the turn as an input."""
        carried = self._common.setdefault((kind, key, str(info)), HandedOn(info, device, start, is_number=is_number))
        self._input(carried)
        return carried

    def leave(self) -> None:
        """Lists are lists again."""
        for held in self._turned:
            become(held, list)

    # -- behind a turn ------------------------------------------------------------------------------------------------
    def after(self, changes: Iterable[Change | Grown | str], before: ValuesBefore) -> Plan:
        """The plan itself, where the turn left what it says; else another one. Raises Unlike where the first turn differs."""
        found: dict[object, Change] = {}
        has_several = self.loop.paths.has_several
        self.added = {key: one._replace(items=[], is_kept=False) for key, one in self.lists.items() if has_several}
        for each in changes:
            if isinstance(each, str):
                raise self.loop.loops.refused(each)
            grown = each if isinstance(each, Grown) else self.longer(each)
            if grown is not None:
                self._note_grown(grown)
            elif isinstance(each, Change):
                may_stay = bool(self.loop.exits.found) or has_several
                is_read = each.is_read or (may_stay and each.before is not MISSING)
                found[each.place.identity] = each._replace(is_read=is_read)
        following = Plan(self.loop, self)
        for key in {**self.entries, **found}:
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
        self._take_outputs(before)
        return self

    def again(self) -> Plan:
        """The same plan, for another path through a turn."""
        same = Plan(self.loop, self)
        same.entries, same.memories = {**self.entries}, {**self.memories}
        return same

    def longer(self, change: Change) -> Grown | None:
        """The list that takes the place of one, with further elements: ``out = out + [h]``."""
        is_list = type(change.before) is list and isinstance(change.after, list)
        return grown_list(change.after, change.before, self.markers, change.place) if is_list else None

    def _note_grown(self, grown: Grown) -> None:
        items, known = [*grown.items], self.lists.get(grown.identity)
        infos = tuple(self.kinds.info_of_item(leaf.value) for leaf in flatten(items)[0])
        if len(items) > 1 and (len({*map(str, infos)}) > 1 or axes_of(infos[0])):
            raise self.loop.loops.refused("a turn adds several things of different types to a list")
        is_kept = not self.loop.is_left_by_data or not self.loop.paths.has_several
        sample: Sequence[Value] = items
        if known is not None:
            is_kept &= known.is_kept and len(known.sample) == len(items)
            if len(known.sample) > len(items) and known.infos[: len(infos)] == infos:
                sample, infos = known.sample, known.infos
        self.added[grown.identity] = grown._replace(items=items, infos=infos, is_kept=is_kept, sample=sample)

    def slots(self, grown: Grown) -> list[Slot]:
        """The parts of what turns may add to a list."""
        found = self._slots.get(grown.identity)
        if found is None:
            samples, now = ([leaf.value for leaf in flatten([*part])[0]] for part in (grown.sample, grown.items))
            now += [None] * (len(samples) - len(now))
            is_several = len(grown.sample) > 1
            found = self._slots[grown.identity] = [
                Slot(grown, number if is_several else 0, *each, number)
                for number, each in enumerate(zip(now, samples, grown.infos, strict=True))
            ]
        return found

    def _is_same(self, other: Plan) -> bool:
        if self.memories.keys() != other.memories.keys() or self.entries.keys() != other.entries.keys():
            return False
        pairs = ((entry.parts, other.entries[key].parts) for key, entry in self.entries.items())
        return all([*map(id, one)] == [*map(id, two)] for one, two in pairs)

    def _entry(self, known: Entry | None, change: Change | None) -> Entry:
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
        entry = Entry(place, before, is_read, parts, build, values)
        if known is not None:
            known.after, known.build = values, build
        return entry

    # -- the loop -----------------------------------------------------------------------------------------------------
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
        self._check_shared(tensors, [item for item in items if isinstance(item, torch.Tensor)], before)

    def pack(self, slot: Slot, item: torch.Tensor | None) -> torch.Tensor | None:
        """Carry the elements of a list that differ in one size, all behind each other. Returns that size of this one."""
        info, axes = slot.info, axes_of(slot.info)
        assert info is not None
        if len(axes) > 1:
            raise self.loop.loops.refused("a list holds tensors that differ in more than one size from turn to turn")
        rest = [size for size in info.dims if size != SIZE]
        dims = (self._size_of_pack(slot, item.shape[axes[0]] if item is not None else 0), *rest)
        key = (slot.grown.identity, slot.number)
        carried = self._handed_on("pack", key, TensorInfo(info.dtype, dims), slot.sample.device, 0)
        slot.pack = carried, axes[0]
        packed, size = carried.given, None
        if item is not None:
            pieces = [packed, item.movedim(axes[0], 0)]
            packed, size = torch.cat(pieces[::-1] if slot.grown.is_front else pieces), item.shape[axes[0]]
        node = self.tracer.values.node_of(packed)
        carried.output = self.loop.exits.at_list(slot.grown.identity, len(slot.grown.items), carried, node)
        return None if size is None else self.loop.loops.as_tensor(size)

    def _size_of_pack(self, slot: Slot, size: Value) -> DimLike:
        """The size of all that the turns before have added, where the elements are pieces one behind the other; else one without a
        formula.
        """
        begin = begin_of(at_turn(unwrap(size), TURN, self.index), TURN)
        is_steady = slot.grown.is_kept and not self.loop.exits.found and not self.loop.paths.has_several
        if begin is None or not is_steady:
            return self.loop.free_size(0, f"{slot.grown.identity} {slot.number}")  # type: ignore[no-any-return]
        return begin - simplest(at_turn(begin, self.loop.first), self.tracer.sizes)  # type: ignore[return-value]

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
        if of_items & written or (writes_given and is_shared):
            raise self.loop.loops.refused("a list holds tensors that later turns write into")
        counts = [*map(id, memories)]
        self.loop.shares |= any(counts.count(one) > 1 or one in before.memories for one in counts)
        if self.loop.shares:
            self.loop.loops.fixed |= {id(memory): memory for memory in memories}
        self._shared = self.loop.shares

    def count(self, index: Dim, before: Iterable[Numbers]) -> None:
        """Also hand on the number of turns so far, and those but for a turn that some exits leave."""
        self._counters = {}
        linear = [part.before for entry in self.entries.values() for part in entry.parts if isinstance(part, Linear)]
        for exits in dict.fromkeys([frozenset[Any](), *linear, *before]):
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
            return result
        if isinstance(part, Linear):
            length = self.loop.counts[part.before] if part.before else length
            return sym_int(self.tracer.sizes, at_turn(part.value, length if part.is_read else length - 1))
        return part.value
