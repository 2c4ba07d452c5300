"""Repeating, rolling and turning (repeat, tile, repeat_interleave, roll, flip, rot90); diagonals and triangles (diagonal, diag, diag_embed, diagonal_scatter, tril, triu)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.gathering import nonzero_rows, where
from fx2onnx.aten_map.table.axes import (
    END,
    INT64,
    axes_of,
    axis_of,
    fixed,
    flat,
    inverse,
    is_empty,
    move_permutation,
    moved,
    reshaped_like,
    sliced,
    steps,
    transpose,
    unsqueeze,
    whole,
    with_rank,
    zeros,
)
from fx2onnx.aten_map.table.dtypes import takes
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
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


def diagonal_of(op: Emit, value: ir.Value, offset: DimLike, dim1: int, dim2: int, count: DimLike) -> ir.Value:
    """The ``count`` elements of a diagonal as the last axis: every (columns + 1)-th of the flattened matrix."""
    rank = op.rank(value)
    value = moved(op, value, [axis_of(dim1, rank), axis_of(dim2, rank)], [rank - 2, rank - 1])
    dims = op.dims(value)
    if count == 0:
        return zeros(op, (*dims[:-2], 0), op.dtype(value))
    rows, columns = dims[-2:]
    start: Any = apply("max", offset, 0) + columns * apply("max", -offset, 0)
    step: Any = columns + 1
    merged = op.reshape(value, (*dims[:-2], whole(rows * columns)))
    return op.Slice(
        merged,
        starts=op.sizes([start]),
        ends=op.sizes([start + count * step]),
        axes=[rank - 2],
        steps=op.sizes([step]),
        outputs=[(op.dtype(value), (*dims[:-2], count))],
    )


def _diagonal(op: Emit, self: ir.Value, offset: DimLike, dim1: int, dim2: int) -> ir.Value:
    return diagonal_of(op, self, offset, dim1, dim2, op.result_dims()[-1])


_DIAGONALS = overloads_of("diagonal diagonal_copy linalg_diagonal")
register_shared(_diagonal, "Reshape and Slice with a step of columns + 1", *_DIAGONALS)


def _on_diagonal(op: Emit, rows: DimLike, columns: DimLike, offset: int) -> ir.Value:
    """[rows, columns] bools: True on the diagonal."""
    if not isinstance(rows, Dim) and not isinstance(columns, Dim):
        return op.const(np.eye(rows, columns, offset, dtype=bool))
    row = op.Add(steps(op, rows), op.const(offset)) if offset else steps(op, rows)
    return op.Equal(unsqueeze(op, row, 1), steps(op, columns))


def _on_rows(op: Emit, source: ir.Value, rows: DimLike, columns: DimLike, offset: int) -> ir.Value:
    """[..., rows, 1] or [..., 1, columns]: ``source`` so placed that it meets the diagonal when it broadcasts."""
    rank, count = op.rank(source), op.dims(source)[-1]
    along_rows = offset >= 0
    missing = whole((rows if along_rows else columns) - count)
    if missing != 0:
        pads: list[Any] = [0] * (2 * rank)
        pads[-1] = missing
        dtype = op.dtype(source)
        inner = dtype if takes("Pad", op.opset, dtype) else ir.DataType.INT32
        source = op.cast(op.Pad(op.cast(source, inner), pads=op.sizes(pads)), dtype)
    return unsqueeze(op, source, rank if along_rows else rank - 1)


def diagonal_written(op: Emit, value: ir.Value, source: ir.Value, offset: DimLike, dim1: int, dim2: int) -> ir.Value:
    """``value`` with ``source`` on a diagonal. ONNX: Where against a mask of the diagonal."""
    offset = fixed(offset, "the offset of a diagonal that is written to")
    rank = op.rank(value)
    perm = move_permutation(rank, [axis_of(dim1, rank), axis_of(dim2, rank)], [rank - 2, rank - 1])
    value = transpose(op, value, perm)
    rows, columns = op.dims(value)[-2:]
    source = op.cast(source, op.dtype(value))
    if op.dims(source)[-1] == 0:
        return transpose(op, value, inverse(perm))
    mask = _on_diagonal(op, rows, columns, offset)
    return transpose(op, where(op, mask, _on_rows(op, source, rows, columns, offset), value), inverse(perm))


register_shared(diagonal_written, "Where against a mask of the diagonal", aten.diagonal_scatter.default)


@translates(aten.diagonal_backward.default)
def diagonal_backward(
    op: Emit, grad_output: ir.Value, input_sizes: Sequence[DimLike], offset: int, dim1: int, dim2: int
) -> ir.Value:
    """diagonal_backward(Tensor grad_output, SymInt[] input_sizes, int offset, int dim1, int dim2) -> Tensor"""
    dtype, dims = op.result[0]
    return diagonal_written(op, zeros(op, dims, dtype), grad_output, offset, dim1, dim2)


def _embedded(op: Emit, source: ir.Value, offset: int, dim1: int, dim2: int) -> ir.Value:
    """A square matrix for each vector of the last axis, zero off the diagonal."""
    dims, dtype = op.result_dims(), op.dtype(source)
    if is_empty(dims):
        return zeros(op, dims, dtype)
    rank = len(dims)
    size = whole(op.dims(source)[-1] + abs(offset))
    mask = _on_diagonal(op, size, size, offset)
    square = where(op, mask, _on_rows(op, source, size, size, offset), op.const(0, dtype))
    if is_empty(op.dims(source)):
        return zeros(op, dims, dtype)
    return moved(op, square, [rank - 2, rank - 1], [axis_of(dim1, rank), axis_of(dim2, rank)])


@translates(aten.diag_embed.default)
def diag_embed(op: Emit, self: ir.Value, offset: int, dim1: int, dim2: int) -> ir.Value:
    """diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor

    ONNX:  Where against a constant mask.
    """
    rank = op.rank(self) + 1
    first, second = axis_of(dim1, rank), axis_of(dim2, rank)
    return _embedded(op, self, offset, first, second)


@translates(aten.diagflat.default)
def diagflat(op: Emit, self: ir.Value, offset: int) -> ir.Value:
    """diagflat(Tensor self, int offset=0) -> Tensor"""
    return _embedded(op, flat(op, self), offset, 0, 1)


@translates(aten.diag.default)
def diag(op: Emit, self: ir.Value, diagonal: int) -> ir.Value:
    """diag(Tensor self, int diagonal=0) -> Tensor"""
    if op.rank(self) == 1:
        return _embedded(op, self, diagonal, 0, 1)
    return diagonal_of(op, self, diagonal, 0, 1, op.result_dims()[-1])


def _triangle(upper: bool) -> Callable[..., ir.Value]:
    def entry(op: Emit, value: ir.Value, diagonal: DimLike) -> ir.Value:
        """``Trilu`` from opset 14 on; below, and for dtypes it lacks, Where against a mask."""
        dtype = op.dtype(value)
        if is_empty(op.dims(value)):
            return value
        if op.opset >= 14 and takes("Trilu", op.opset, dtype):
            shift = () if diagonal == 0 else (op.size(diagonal),)
            return op.Trilu(value, *shift, **({} if upper else {"upper": 0}))
        rows, columns = op.dims(value)[-2:]
        if not any(isinstance(size, Dim) for size in (rows, columns, diagonal)):
            gap_known = np.arange(int(columns)) - np.arange(int(rows))[:, None]  # type: ignore[arg-type]
            mask = op.const(gap_known >= int(diagonal) if upper else gap_known <= int(diagonal))  # type: ignore[arg-type]
        else:
            gap = op.Sub(steps(op, columns), unsqueeze(op, steps(op, rows), 1))
            bound = op.size(diagonal, INT64)
            mask = op.Not(op.Less(gap, bound) if upper else op.Greater(gap, bound))
        return where(op, mask, value, op.const(0, dtype))

    return entry


for _overload, _upper in ((aten.tril.default, False), (aten.triu.default, True)):
    register_shared(_triangle(_upper), "Trilu from opset 14 on; Where against a mask", _overload)
