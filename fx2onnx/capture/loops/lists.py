"""The lists that turns of a loop add to: what stands for them in a turn, and what they have behind the loop."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.fx

from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.loops.elements import Repeat
from fx2onnx.capture.loops.exits import Numbers
from fx2onnx.capture.loops.parts import TURN, HandedOn, Kinds, at_turn, begin_of, simplest, with_sizes
from fx2onnx.capture.loops.ragged import SIZE, Added, axes_of
from fx2onnx.capture.loops.state import Grown, PlaceChange, grown_list
from fx2onnx.capture.loops.turns import Turns, become
from fx2onnx.capture.python.data_numbers import DataNumber
from fx2onnx.capture.python.held import Value
from fx2onnx.capture.python.places import put
from fx2onnx.capture.recording.values import tensor_info
from fx2onnx.capture.registry import load_family
from fx2onnx.capture.shapes.symnode import sym_int, unwrap
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.torchcompat.pytrees import flatten

aten = torch.ops.aten
COUNT = TensorInfo(torch.int64, ())


@dataclass(eq=False)
class ListPart:
    """A part of what a turn may add to a list."""

    grown: Grown
    place: int
    """The number of the element."""
    leaf: Value
    """The elements that this turn adds; None where it adds none."""
    sample: Value
    info: TensorInfo | None
    number: int
    pack: tuple[HandedOn, list[int]] | None = None
    """All such parts one behind the other, where they differ in sizes, and the axes of these."""

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
        if self.is_packed and len(axes_of(self.info)) > 1:
            return TensorInfo(torch.int64, (len(axes_of(self.info)),))
        is_real = isinstance(self.sample, float | torch.SymFloat) and not self.is_packed
        return TensorInfo(
            torch.bool if isinstance(self.sample, bool | torch.SymBool) else torch.float64 if is_real else torch.int64,
            (),
        )


class GrowingLists:
    """The lists that a turn adds to, and what the turn is given."""

    index: Dim
    kinds: Kinds

    def __init__(self, loop: Value, known: GrowingLists | None) -> None:
        self.loop, self.tracer = loop, loop.tracer
        self.lists: dict[object, Grown] = {} if known is None else known.added
        self._common: dict[object, HandedOn] = {} if known is None else known._common
        """The values that turns hand on for lists and counts, the same on all paths."""
        self._asked: set[object] = set() if known is None else known._asked
        """The lists whose last element turns read."""
        self.added: dict[object, Grown] = {}
        """The lists that grew in the last turn, with what was added."""
        self.carried: list[HandedOn] = []
        self.inputs: list[torch.fx.Node] = []
        self._free: dict[str, Dim] = {}
        """Sizes without a formula, in the turn that runs."""
        self._turned: list[list[Value]] = []
        self._ends: list[tuple[object, HandedOn]] = []
        """Last elements of lists that the turn took."""
        self._lengths: list[tuple[object, HandedOn]] = []
        """The numbers of what the turns before added to a list, where some add nothing."""
        self._slots: dict[object, list[ListPart]] = {}
        self.read_whole: set[object] = set()
        """The lists of which the turn reads more than the last element."""
        self.markers: frozenset[int] = frozenset()
        """Ids of what stands in lists for what former turns added."""

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

    def _stand_in(self, key: object, grown: Grown) -> None:
        """The list has what the turns before added, of which only the last element is at hand."""
        held = grown.holder if grown.place is None else [*grown.before]
        whole_item, info = grown.sample[-1], grown.infos[-1]
        item = flatten([whole_item])[0][-1].value
        is_tensor = isinstance(item, torch.Tensor)
        device = item.device if is_tensor else torch.device("cpu")
        if info is None:  # of a number, which may be one of a turn that is over
            is_real = isinstance(item, DataNumber)
            info = TensorInfo(item.tensor.dtype, ()) if is_real else tensor_info(self.loop.loops.as_tensor(item))
        start = list.__getitem__(held, -1) if list.__len__(held) else None
        given: list[torch.Tensor] = []

        def element(index: Value) -> torch.Tensor:
            if (
                index != -1
                or not is_tensor
                or item is not whole_item
                or axes_of(info)
                or id(start) in self.tracer.repeats
            ):
                return whole().select(0, index)
            if not given:
                if not isinstance(start, torch.Tensor) or self.kinds.info(start) != info:
                    self.loop.wants_first = True
                self._asked.add(key)
                carried = self._handed_on("end", key, info, item.device, start)
                self._ends.append((key, carried))
                given.append(carried.given)
            return given[0]

        def whole() -> torch.Tensor:
            if axes_of(info):
                raise self.loop.loops.refused("a turn takes all elements of a list whose sizes differ")
            if item is not whole_item:
                raise self.loop.loops.refused("a turn reads elements of a list of tuples or lists that turns fill")
            self.read_whole.add(key)
            dims = (self.loop.free_size(0, f"list {key}"), *info.dims)
            return self._handed_on("whole", key, replace(info, dims=dims), device, None).given  # type: ignore[no-any-return]

        dims = with_sizes(at_turn(info, self.index), {str(SIZE): 1}).dims
        marker = self.tracer.values.new_fake(dims, info.dtype)
        length = sym_int(self.tracer.sizes, (self.index - self.loop.first) * len(grown.sample))
        if not grown.is_kept:
            counted = self._handed_on("length", key, COUNT, torch.device("cpu"), 0, is_number=True)
            self._lengths.append((key, counted))
            length = counted.given
        if key in self._asked:
            element(-1)
        is_number = not is_tensor
        self.tracer.repeats[id(marker)] = Repeat(marker, length, whole, element, is_number=is_number)
        self.markers |= {id(marker)}
        list.append(held, marker)
        if type(held) is list:
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

    def longer(self, change: PlaceChange) -> Grown | None:
        """The list that takes the place of one, with further elements: ``out = out + [h]``."""
        is_list = type(change.before) is list and isinstance(change.after, list)
        return grown_list(change.after, change.before, self.markers, change.place) if is_list else None

    def _note_grown(self, grown: Grown) -> None:
        leaves, build = flatten([*grown.items])
        items, known = build([self._plain(leaf.value) for leaf in leaves]), self.lists.get(grown.identity)
        infos = tuple(self.kinds.info_of_item(leaf.value) for leaf in flatten(items)[0])
        if len(items) > 1 and (len({*map(str, infos)}) > 1 or axes_of(infos[0])):
            raise self.loop.loops.refused("a turn adds several things of different types to a list")
        is_kept = not self.loop.is_left_by_data or not self.loop.paths.has_several
        sample: Sequence[Value] = items
        if known is not None:
            is_kept &= known.is_kept and len(known.sample) == len(items)
            if len(known.sample) > len(items) and known.infos[: len(infos)] == infos:
                sample, infos = known.sample, known.infos
        self.added[grown.identity] = grown._replace(items=[*grown.items], infos=infos, is_kept=is_kept, sample=sample)

    def _plain(self, value: Value) -> Value:
        """The value, or a plain truth in the place of one that turns hand on as a tensor."""
        return False if any(value is one.given and isinstance(one.start, bool) for one in self.carried) else value

    def slots(self, grown: Grown) -> list[ListPart]:
        """The parts of what turns may add to a list."""
        found = self._slots.get(grown.identity)
        if found is None:
            samples, now = ([leaf.value for leaf in flatten([*part])[0]] for part in (grown.sample, grown.items))
            now += [None] * (len(samples) - len(now))
            is_several = len(grown.sample) > 1
            found = self._slots[grown.identity] = [
                ListPart(grown, number if is_several else 0, *each, number)
                for number, each in enumerate(zip(now, samples, grown.infos, strict=True))
            ]
        return found

    def pack(self, slot: ListPart, item: torch.Tensor | None) -> torch.Tensor | None:
        """Carry the elements of a list that differ in one size, all behind each other. Returns that size of this one."""
        info, axes = slot.info, axes_of(slot.info)
        assert info is not None
        if type(slot.sample) is Turns:
            raise self.loop.loops.refused("a list holds lists of different lengths")
        is_flat = len(axes) > 1
        rest = [] if is_flat else [size for size in info.dims if size != SIZE]
        first = None if item is None else item.reshape(-1) if is_flat else item.movedim(axes[0], 0)
        dims = (self._size_of_pack(slot, 0 if first is None else first.shape[0]), *rest)
        key = (slot.grown.identity, slot.number)
        carried = self._handed_on("pack", key, TensorInfo(info.dtype, dims), slot.sample.device, 0)
        slot.pack = carried, axes
        packed = carried.given
        if first is not None:
            packed = torch.cat([first, packed] if slot.grown.is_front else [packed, first])
        node = self.tracer.values.node_of(packed)
        carried.output = self.loop.exits.at_list(slot.grown.identity, len(slot.grown.items), carried, node)
        if item is None:
            return None
        sizes = [self.loop.loops.as_tensor(item.shape[axis]) for axis in axes]
        return torch.stack(sizes) if is_flat else sizes[0]

    def _size_of_pack(self, slot: ListPart, size: Value) -> DimLike:
        """The size of all that the turns before have added, where the elements are pieces one behind the other; else one without a
        formula.
        """
        begin = begin_of(at_turn(unwrap(size), TURN, self.index), TURN)
        is_steady = slot.grown.is_kept and not self.loop.exits.found and not self.loop.paths.has_several
        if begin is None or not is_steady:
            return self.loop.free_size(0, f"{slot.grown.identity} {slot.number}")  # type: ignore[no-any-return]
        return begin - simplest(at_turn(begin, self.loop.first), self.tracer.sizes)  # type: ignore[return-value]


def grow(
    loop: Value, one: Grown, slots: list[ListPart], found: Mapping[Hashable, torch.Tensor], before: Numbers
) -> None:
    """The list has what stands for all that the turns added."""
    parts = []
    for slot in slots:
        pack = (found[slot.pack[0]], slot.pack[1]) if slot.pack is not None else None
        parts.append(Added(slot.sample, found[slot.item_key], pack, slot.info))
    adds = [] if one.is_kept else [found[slot.adds_key] for slot in slots]
    if before:
        count = sym_int(loop.tracer.sizes, loop.counts[before])
        parts = [part._replace(each=part.each[:count]) for part in parts]
    if one.is_front:
        parts = [part._replace(each=part.each.flip(0)) for part in parts]
        adds = [each.flip(0) for each in adds]
    held, rebuild = one.before_loop(), flatten(one.sample)[1]
    is_several = len(one.sample) > 1
    if is_several:
        if len(one.sample) != len(parts) or len({part.is_number for part in parts}) > 1:
            raise loop.loops.refused("a turn adds several things to a list")
        parts = [parts[0]._replace(each=torch.stack([part.each for part in parts], 1).flatten(0, 1))]
        adds = [torch.stack(adds, 1).flatten(0, 1)] if adds else []
    if adds:
        places = adds[0].nonzero()[:, 0]
        parts = [part._replace(each=part.each.index_select(0, places)) for part in parts]
    marked = [part.marker(loop.loops) for part in parts]
    loop.loops.grow(held, marked if is_several else rebuild(marked), one.is_front)
    if one.place is not None:
        put(one.place, held)
