"""Repeating, rolling and turning: repeat, tile, repeat_interleave, roll, flip, rot90."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.gathering import nonzero_rows
from fx2onnx.aten_map.table.axes import (
    END,
    INT64,
    axes_of,
    axis_of,
    flat,
    is_empty,
    reshaped_like,
    sliced,
    transpose,
    unsqueeze,
    whole,
    with_rank,
    zeros,
)
from fx2onnx.aten_map.table.registry import register_shared, translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike, apply

aten = torch.ops.aten
MAX_ROLLED_INDICES = 4096
"""The largest axis that is rolled by one Gather with constant indices; larger ones by two Slices and a Concat."""


def _repeated(op: Emit, value: ir.Value, repeats: Sequence[DimLike]) -> ir.Value:
    """``Expand`` where only axes of size 1 are repeated, else ``Tile``."""
    dims = op.result_dims()
    if is_empty(dims):
        return zeros(op, dims, op.dtype(value))
    source = (*(1 for _ in range(len(dims) - op.rank(value))), *op.dims(value))
    if all(size == 1 or times == 1 for size, times in zip(source, repeats, strict=True)):
        return op.expand(value, dims)
    return op.Tile(with_rank(op, value, len(dims)), op.sizes(repeats), outputs=[(op.dtype(value), dims)])


register_shared(_repeated, "Tile, or Expand where it is enough", aten.repeat.default)


@translates(aten.tile.default)
def tile(op: Emit, self: ir.Value, dims: Sequence[DimLike]) -> ir.Value:
    """tile(Tensor self, SymInt[] dims) -> Tensor"""
    return _repeated(op, self, [1] * (op.rank(self) - len(dims)) + list(dims))


@translates(aten.repeat_interleave.self_int)
def repeat_interleave_self_int(
    op: Emit, self: ir.Value, repeats: DimLike, dim: int | None, output_size: DimLike | None
) -> ir.Value:
    """repeat_interleave(Tensor self, SymInt repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor

    A new axis after ``dim``, expanded and merged with it.
    """
    value = flat(op, self) if dim is None or op.rank(self) == 0 else self
    axis = 0 if dim is None else axis_of(dim, op.rank(value))
    dims = op.result_dims()
    if repeats == 1:
        return value
    if is_empty(dims):
        return zeros(op, dims, op.dtype(self))
    source = op.dims(value)
    spread = op.expand(unsqueeze(op, value, axis + 1), (*source[: axis + 1], repeats, *source[axis + 1 :]))
    return op.reshape(spread, (*source[:axis], whole(source[axis] * repeats), *source[axis + 1 :]))


def _interleaving(op: Emit, repeats: ir.Value, count: DimLike) -> ir.Value:
    """Each place k, repeats[k] times: the row numbers of the mask ``column < repeats``."""
    times = op.cast(repeats, INT64)
    longest = op.ReduceMax(times, keepdims=0)
    size = Dim.symbol(op.builder.unique("longest"))
    columns = op.Range(op.const(0), longest, op.const(1), outputs=[(INT64, (size,))])
    rows = nonzero_rows(op, op.Less(columns, unsqueeze(op, times, 1)), count)
    return op.Gather(rows, op.const(0), axis=0)


@translates(aten.repeat_interleave.Tensor)
def repeat_interleave_Tensor(op: Emit, repeats: ir.Value, output_size: DimLike | None) -> ir.Value:
    """repeat_interleave(Tensor repeats, *, SymInt? output_size=None) -> Tensor"""
    return op.cast(_interleaving(op, repeats, op.result_dims()[0]), op.result_dtype())


@translates(aten.repeat_interleave.self_Tensor)
def repeat_interleave_self_Tensor(
    op: Emit, self: ir.Value, repeats: ir.Value, dim: int | None, output_size: DimLike | None
) -> ir.Value:
    """repeat_interleave(Tensor self, Tensor repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor"""
    value = flat(op, self) if dim is None or op.rank(self) == 0 else self
    axis = 0 if dim is None else axis_of(dim, op.rank(value))
    times = op.expand(repeats, (op.dims(value)[axis],))
    return op.Gather(value, _interleaving(op, times, op.result_dims()[axis]), axis=axis, outputs=[op.result[0]])


def _rolled(op: Emit, value: ir.Value, axis: int, shift: DimLike) -> ir.Value:
    """``value`` moved by ``shift`` along ``axis``, what falls out coming in at the other end."""
    size = op.dims(value)[axis]
    if not isinstance(size, Dim) and not isinstance(shift, Dim):
        if size == 0 or shift % size == 0:
            return value
        if size <= MAX_ROLLED_INDICES and (axis < op.rank(value) - 1 or size <= 64):
            return op.Gather(value, op.const((np.arange(size) - shift) % size), axis=axis)
    cut = whole((size - shift) % apply("max", size, 1))
    tail = sliced(op, value, axis, cut, END, whole(size - cut))
    head = sliced(op, value, axis, 0, cut, cut)
    return op.Concat(tail, head, axis=axis, outputs=[(op.dtype(value), op.dims(value))])


@translates(aten.roll.default)
def roll(op: Emit, self: ir.Value, shifts: DimLike | Sequence[DimLike], dims: int | Sequence[int]) -> ir.Value:
    """roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor"""
    moves = [shifts] if isinstance(shifts, int | Dim) else list(shifts)
    if op.rank(self) == 0:
        return self
    axes = axes_of(dims, op.rank(self))
    if not axes:
        return reshaped_like(op, _rolled(op, flat(op, self), 0, moves[0]), self)
    for axis, shift in zip(axes, moves, strict=True):
        self = _rolled(op, self, axis, shift)
    return self


def flipped(op: Emit, value: ir.Value, axes: Sequence[int]) -> ir.Value:
    """``value`` backwards along ``axes``: one Slice."""
    if not axes or is_empty(op.dims(value)):
        return value
    count = len(axes)
    return op.Slice(
        value,
        starts=[-1] * count,
        ends=[-END] * count,
        axes=list(axes),
        steps=[-1] * count,
        outputs=[(op.dtype(value), op.dims(value))],
    )


@translates(aten.flip.default)
def flip(op: Emit, self: ir.Value, dims: Sequence[int]) -> ir.Value:
    """flip(Tensor self, int[] dims) -> Tensor"""
    return flipped(op, self, axes_of(dims, op.rank(self)) if op.rank(self) else [])


register_shared(lambda op, self: flipped(op, self, [1]), "Slice", aten.fliplr.default)
register_shared(lambda op, self: flipped(op, self, [0]), "Slice", aten.flipud.default)


@translates(aten.rot90.default)
def rot90(op: Emit, self: ir.Value, k: int, dims: Sequence[int]) -> ir.Value:
    """rot90(Tensor self, int k=1, int[] dims=[0, 1]) -> Tensor"""
    rank = op.rank(self)
    first, second = axes_of(dims, rank)
    if k % 4 == 0:
        return self
    if k % 4 == 2:
        return flipped(op, self, [first, second])
    perm = list(range(rank))
    perm[first], perm[second] = perm[second], perm[first]
    return flipped(op, transpose(op, self, perm), [first if k % 4 == 1 else second])
