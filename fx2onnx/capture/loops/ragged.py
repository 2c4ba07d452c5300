"""Lists of a dynamic length, of tensors that are as large as each other or not, and what joins them: ``torch.cat``, ``pad_sequence``."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from fx2onnx.base.code_patch import THREAD, answers_for_caller
from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.loops import turns
from fx2onnx.capture.loops.turns import Index, Repeat, Turns, is_from_front, listed
from fx2onnx.capture.python.held import Value
from fx2onnx.capture.recording.values import dims_of
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.expr import Dim
from fx2onnx.torchcompat.operators import OpOverload

aten = torch.ops.aten
SIZE = Dim.symbol("size of an element")
"""A size that differs from element to element of a list."""


@dataclass(frozen=True, eq=False)
class Ragged(Repeat):
    """The stand-in for tensors that differ in one size."""

    packed: torch.Tensor = None  # type: ignore[assignment]
    """All of them behind each other along the first axis."""
    sizes: torch.Tensor = None  # type: ignore[assignment]
    """The size of each."""
    axis: int = 0
    """The axis of an element along which the sizes differ."""


def axes_of(info: TensorInfo | None) -> list[int]:
    """The axes of a type of elements along which their sizes differ."""
    return [] if info is None else [axis for axis, size in enumerate(info.dims) if size == SIZE]


def ragged(tracer: Value, packed: torch.Tensor, sizes: torch.Tensor, axis: int, whole: int = 0) -> torch.Tensor:
    """The stand-in for tensors of these sizes along an axis. ``packed``: all behind each other along the first axis; ``whole``: the size
    of all but the last one, where that is known.
    """
    rest = dims_of(packed)[1:]
    dims = (*rest[:axis], 1, *rest[axis:])
    marker: torch.Tensor = tracer.values.new_fake(dims, packed.dtype, packed.device)
    starts = sizes.cumsum(0) - sizes

    def element(index: Index) -> torch.Tensor:
        if whole and is_from_front(index):
            return packed[index * whole : (index + 1) * whole].movedim(0, axis)
        start, size = (_number(numbers.select(0, index)) for numbers in (starts, sizes))
        return packed.narrow(0, start, size).movedim(0, axis)

    def stacked() -> torch.Tensor:
        whole = packed.reshape(sizes.shape[0], _number(sizes.max()), *packed.shape[1:])  # raises where sizes differ
        return whole.movedim(1, axis + 1)

    tracer.repeats[id(marker)] = Ragged(marker, sizes.shape[0], stacked, element, packed=packed, sizes=sizes, axis=axis)
    return marker


def _number(tensor: torch.Tensor) -> int:
    return tensor.item()  # type: ignore[return-value]


class Added(NamedTuple):
    """A part of what all turns added to a list."""

    is_number: bool
    """True for numbers of Python's."""
    each: torch.Tensor
    """The part of each turn along a new first axis, or its size along the axis of ``pack``."""
    pack: tuple[torch.Tensor, int] | None
    """All parts behind each other, where they differ in a size, and the axis of that."""

    def marker(self, loops: Value) -> torch.Tensor:
        """The stand-in for all of them."""
        marker: torch.Tensor = (
            loops.repeat(self.each, self.is_number)
            if self.pack is None
            else ragged(loops.tracer, self.pack[0], self.each, self.pack[1])
        )
        return marker


def _stacked(parts: list[Value], dim: int = 0) -> torch.Tensor:
    pieces = [one.stacked() if isinstance(one, Repeat) else one.unsqueeze(0) for one in parts]
    whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces, 0)
    return whole.movedim(0, dim)


def _joined(parts: list[Value], dim: int = 0) -> torch.Tensor:
    pieces = []
    for one in parts:
        if isinstance(one, Repeat):
            axis = dim % one.marker.dim()
            if isinstance(one, Ragged) and one.axis == axis:
                one = one.packed.movedim(0, axis)
            else:
                one = one.stacked().movedim(0, axis).flatten(axis, axis + 1)
        pieces.append(one)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)


def _rank(parts: list[Value]) -> int:
    first = parts[0].marker if isinstance(parts[0], Repeat) else parts[0]
    return first.dim()


def _padded(
    parts: list[Value], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> torch.Tensor:
    if not any(isinstance(one, Ragged) for one in parts):
        return _stacked(parts, 0 if batch_first else 1)
    packed, sizes = _joined(parts), torch.cat([_sizes(one) for one in parts])
    count, most = sizes.shape[0], sizes.max()
    rows = torch.arange(count).repeat_interleave(sizes, output_size=packed.shape[0])
    columns = torch.arange(packed.shape[0]) - (sizes.cumsum(0) - sizes)[rows]
    if padding_side == "left":
        columns = columns + (most - sizes)[rows]
    whole = packed.new_full((count, _number(most), *packed.shape[1:]), padding_value)
    whole = whole.index_put((rows, columns), packed)
    return whole if batch_first else whole.transpose(0, 1)


def _sizes(one: Value) -> torch.Tensor:
    """The sizes of elements along their first axis."""
    if isinstance(one, Ragged) and one.axis == 0:
        return one.sizes
    whole = one.stacked() if isinstance(one, Repeat) else one.unsqueeze(0)
    return torch.full((whole.shape[0],), whole.shape[1])


JOINS: dict[OpOverload, Callable[..., torch.Tensor]] = {
    aten.stack.default: _stacked,
    aten.cat.default: _joined,
    aten.concat.default: _joined,
    aten.concatenate.default: _joined,
    aten.hstack.default: lambda parts: _joined(parts, 0 if _rank(parts) == 1 else 1),
    aten.vstack.default: lambda parts: _stacked(parts) if _rank(parts) == 1 else _joined(parts),
    aten.column_stack.default: lambda parts: _stacked(parts, 1) if _rank(parts) == 1 else _joined(parts, 1),
    aten.pad_sequence.default: _padded,
}


@answers_for_caller
def _sum(part: Value, start: Value = 0) -> Value:
    found = listed(part) if THREAD.captures else None
    if found is None:
        return sum(part, start)
    if type(found) is not Turns:
        return sum(found, start)
    total = (found.whole() if _may_be_empty(found, start) else found.some()).sum(0)
    return (total.item() if found.has_numbers() else total) + start


def _may_be_empty(found: Turns, start: Value) -> bool:
    """Return whether the sum of no elements, which is ``start``, is as large as that of some."""
    one = list.__getitem__(found, 0)
    if not isinstance(one, torch.Tensor) or not one.dim():
        return True
    is_of_start = isinstance(start, torch.Tensor) and start.dtype == torch.promote_types(start.dtype, one.dtype)
    return is_of_start and [*map(unwrap, one.shape)] == [*map(unwrap, start.shape)]


def _truth_of(name: str) -> Callable[..., Value]:
    """``any`` or ``all`` of as many truths as a size says, as a tensor; Python's own of anything else."""
    original = getattr(builtins, name)

    @answers_for_caller
    def joined(part: Value) -> Value:
        found = listed(part) if THREAD.captures else None
        if type(found) is not Turns:
            return original(part if found is None else found)
        whole = found.whole()
        if whole.dim() > 1:
            raise THREAD.tracer.plugin("loops").refused(f"{name} goes through tensors of several numbers")
        return getattr(torch, name)(whole)

    return joined


def _keys(found: Turns, key: Value) -> torch.Tensor:
    """The numbers by which Python compares elements of a list."""
    keys = (found if key is None else listed(turns.NAMES["map"](key, found))).whole()
    if keys.dim() != 1:
        raise THREAD.tracer.plugin("loops").refused("Python compares tensors of several numbers")
    return keys


def _extreme_of(name: str, find: Callable[[torch.Tensor], torch.Tensor], worst: float) -> Callable[..., Value]:
    """``min`` or ``max`` of as many elements as a size says: the first of those that no other is beyond; NaN is beyond nothing."""

    @answers_for_caller
    def extreme(*parts: Value, **keywords: Value) -> Value:
        found = listed(parts[0]) if THREAD.captures and len(parts) == 1 else None
        if type(found) is not Turns:
            return getattr(builtins, name)(*(parts if found is None else [found]), **keywords)
        if "default" in keywords:
            raise THREAD.tracer.plugin("loops").refused(f"{name} has a default for an empty list of a dynamic length")
        THREAD.tracer.plugin("loops").expects_some(found.length())
        keys = _keys(found, keywords.get("key"))
        if keys.is_floating_point():
            is_first = keys[0].isnan()
            keys = torch.where(keys.isnan(), worst, keys)
            return found.series().at(_number(torch.where(is_first, 0, find(keys))))
        return found.series().at(_number(find(keys)))

    return extreme


@answers_for_caller
def _sorted(part: Value, *, key: Value = None, reverse: bool = False) -> Value:
    found = listed(part) if THREAD.captures else None
    if type(found) is not Turns:
        return sorted(part if found is None else found, key=key, reverse=reverse)
    order = _keys(found, key).sort(stable=True, descending=reverse).indices
    loops = THREAD.tracer.plugin("loops")
    return loops.repeated(found.whole().index_select(0, order), is_number=found.has_numbers())


NAMES = {"sum": _sum, "any": _truth_of("any"), "all": _truth_of("all"), "sorted": _sorted}
NAMES |= {"max": _extreme_of("max", torch.argmax, -math.inf), "min": _extreme_of("min", torch.argmin, math.inf)}
"""The functions for the user's files."""
