"""Lists of a dynamic length, of tensors that are as large as each other or not, and what joins them: ``torch.cat``, ``pad_sequence``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.loops.elements import Index, Repeat, current_loops
from fx2onnx.capture.loops.turns import Turns, has_numbers, is_from_front
from fx2onnx.capture.python.held import Value
from fx2onnx.capture.recording.values import dims_of
from fx2onnx.capture.shapes.symnode import sym_int
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
    axis: int | None = 0
    """The axis of an element along which the sizes differ; None where they differ along several, and the elements lie flat."""


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


def of_several_sizes(
    tracer: Value, packed: torch.Tensor, sizes: torch.Tensor, axes: Sequence[int], info: TensorInfo
) -> torch.Tensor:
    """The stand-in for tensors that differ along several axes. ``packed``: the numbers of all behind each other; ``sizes``: a row for each,
    a column for each axis; ``info``: their type.
    """
    rest = [size for size in info.dims if size != SIZE]
    counts = sizes.prod(1)
    for size in rest:
        counts = counts * sym_int(tracer.sizes, size)
    starts = counts.cumsum(0) - counts

    def element(index: Index) -> torch.Tensor:
        start, count = (_number(numbers.select(0, index)) for numbers in (starts, counts))
        row = sizes.select(0, index)
        dims = [
            sym_int(tracer.sizes, size) if size != SIZE else _number(row[axes.index(axis)])
            for axis, size in enumerate(info.dims)
        ]
        return packed.narrow(0, start, count).reshape(dims)

    def stacked() -> torch.Tensor:
        raise current_loops().refused("a list holds tensors that differ in more than one size")

    dims = tuple(1 if size == SIZE else size for size in info.dims)
    marker: torch.Tensor = tracer.values.new_fake(dims, packed.dtype, packed.device)
    one = Ragged(marker, sizes.shape[0], stacked, element, packed=packed, sizes=sizes, axis=None)
    tracer.repeats[id(marker)] = one
    return marker


def _number(tensor: torch.Tensor) -> int:
    return tensor.item()  # type: ignore[return-value]


class Added(NamedTuple):
    """A part of what all turns added to a list."""

    sample: Value
    """One of them."""
    each: torch.Tensor
    """The part of each turn along a new first axis, or its sizes along the axes of ``pack``."""
    pack: tuple[torch.Tensor, list[int]] | None
    """All parts behind each other, where they differ in sizes, and the axes of these."""
    info: TensorInfo | None

    @property
    def is_number(self) -> bool:
        """True for numbers of Python's, and lists of such."""
        return has_numbers(self.sample if type(self.sample) is Turns else [self.sample])

    def marker(self, loops: Value) -> torch.Tensor:
        """The stand-in for all of them."""
        if self.pack is None:
            return loops.repeat(self.each, self.is_number, type(self.sample) is Turns)  # type: ignore[no-any-return]
        packed, axes = self.pack
        if len(axes) > 1 and self.info is not None:
            return of_several_sizes(loops.tracer, packed, self.each, axes, self.info)
        return ragged(loops.tracer, packed, self.each, axes[0])


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
