"""Writing whole slices: index_add, index_copy, index_fill, index_reduce, masked_scatter, slice_scatter, select_scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.gathering import at_least_vector, where
from fx2onnx.aten_map.layout import joined
from fx2onnx.aten_map.scattering import reduced_into, reducing_dtype, scattered, written_nd
from fx2onnx.aten_map.table.axes import (
    END,
    INT64,
    axis_of,
    flat,
    sliced,
    squeeze,
    steps,
    unsqueeze,
    whole,
    zeros,
)
from fx2onnx.aten_map.table.dtypes import as_dtype
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes import broadcast_dims
from fx2onnx.sizes.expr import Dim, DimLike, apply, product

aten = torch.ops.aten
BOOL = ir.DataType.BOOL


def _index_over(op: Emit, index: ir.Value, like: ir.Value, axis: int) -> ir.Value:
    """A vector of indices along ``axis``, repeated over the other axes of ``like``."""
    dims = op.dims(like)
    count = op.dims(index)[0]
    column = unsqueeze(op, op.cast(index, INT64), *range(1, len(dims) - axis))
    return op.expand(column, [count if place == axis else size for place, size in enumerate(dims)])


def _written(
    op: Emit, value: ir.Value, dim: int, index: ir.Value, source: ir.Value, reduce: str | None = None
) -> ir.Value:
    """``source``'s slices written to (or reduced into) ``value``'s slices ``index``. ONNX: ScatterND along axis 0."""
    scalar, axis = op.rank(value) == 0, axis_of(dim, op.rank(value))
    value, index, source = (at_least_vector(op, item) for item in (value, index, source))
    source = op.cast(source, op.dtype(value))
    if 0 in op.dims(index):
        found = value
    elif axis == 0:
        places = unsqueeze(op, op.cast(index, INT64), 1)
        found = written_nd(op, value, places, source, reduce)
    else:
        found = scattered(op, value, axis, _index_over(op, index, source, axis), source, reduce)
    return squeeze(op, found, 0) if scalar else found


@translates(aten.index_add.default)
def index_add(op: Emit, self: ir.Value, dim: int, index: ir.Value, source: ir.Value, alpha: Any) -> ir.Value:
    """index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor"""
    if isinstance(alpha, ir.Value) or alpha != 1:
        inner = reducing_dtype(op.dtype(source))
        source = op.cast(op.Mul(op.cast(source, inner), as_dtype(op, alpha, inner)), op.dtype(source))
    return _written(op, self, dim, index, source, "add")


register_shared(_written, "ScatterND along axis 0", aten.index_copy.default)


def index_fill(op: Emit, self: ir.Value, dim: int, index: ir.Value, value: Any) -> ir.Value:
    axis = axis_of(dim, op.rank(self))
    vector = at_least_vector(op, index)
    dims = list(op.dims(at_least_vector(op, self)))
    dims[axis] = op.dims(vector)[0]
    return _written(op, self, dim, vector, op.expand(as_dtype(op, value, op.dtype(self)), dims))


register_shared(index_fill, "ScatterND of the value", *overloads_of("index_fill.int_Scalar index_fill.int_Tensor"))


@translates(aten.index_reduce.default)
def index_reduce(
    op: Emit, self: ir.Value, dim: int, index: ir.Value, source: ir.Value, reduce: str, include_self: bool
) -> ir.Value:
    """index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True) -> Tensor"""
    scalar, axis = op.rank(self) == 0, axis_of(dim, op.rank(self))
    value, vector, rows = (at_least_vector(op, item) for item in (self, index, source))
    found = reduced_into(op, value, axis, _index_over(op, vector, rows, axis), rows, reduce, include_self)
    return squeeze(op, found, 0) if scalar else found


@translates(aten.masked_scatter.default)
def masked_scatter(op: Emit, self: ir.Value, mask: ir.Value, source: ir.Value) -> ir.Value:
    """masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor

    The n-th True takes the n-th element of ``source``: its number is a cumulative sum over the flat mask. A source that may
    be empty gets one element more: ONNX's Gather refuses every number in an empty axis, also those not taken.
    """
    common = broadcast_dims(op.dims(self), op.dims(mask))
    value, chosen = op.expand(self, common), op.expand(op.cast(mask, BOOL), common)
    if 0 in op.dims(source) or 0 in common:
        return value
    count = op.CumSum(op.cast(flat(op, chosen), INT64), op.const(0))
    number = op.Sub(count, op.const(1))
    given = flat(op, source)
    if not all(isinstance(size, int) for size in op.dims(source)):
        given = op.Concat(given, zeros(op, (1,), op.dtype(source)), axis=0)
    taken = op.Gather(given, op.reshape(number, common), axis=0)
    return where(op, chosen, taken, value)


@translates(aten.masked_scatter_backward.default)
def masked_scatter_backward(op: Emit, grad_output: ir.Value, mask: ir.Value, sizes: Sequence[DimLike]) -> ir.Value:
    """masked_scatter_backward(Tensor grad_output, Tensor mask, SymInt[] sizes) -> Tensor

    The gradient's elements under the mask, then zeros up to ``sizes``.
    """
    dtype, dims = op.result[0]
    chosen = op.Compress(
        flat(op, grad_output),
        flat(op, op.expand(op.cast(mask, BOOL), op.dims(grad_output))),
        axis=0,
        outputs=[(dtype, (Dim.symbol("kept"),))],
    )
    count = product(list(dims))
    longer = op.Concat(chosen, zeros(op, (count,), dtype), axis=0)
    cut = op.Slice(longer, starts=[0], ends=op.sizes([count]), axes=[0], outputs=[(dtype, (count,))])
    return op.reshape(cut, dims)


def _start_of(start: DimLike | None, end: DimLike | None, step: DimLike, size: DimLike, count: DimLike) -> DimLike:
    """The first element of a slice that has ``count`` elements, counted from the front and within range."""
    if start is None:
        return 0
    if isinstance(start, int) and start < 0:
        last = end if isinstance(end, int) and end < 0 else 0
        is_whole = step == 1 and count == last - start  # none falls before the front
        first = whole(size + start)
        return first if is_whole and isinstance(first, Dim) else whole(apply("max", first, 0))
    if isinstance(start, int) and isinstance(size, int):
        return max(0, min(start, size))
    return start


def slice_written(
    op: Emit,
    value: ir.Value,
    source: ir.Value,
    axis: int,
    start: DimLike | None,
    end: DimLike | None,
    step: DimLike,
) -> ir.Value:
    """``value`` with ``source`` in the place of the slice from ``start`` to ``end``.

    ONNX:  Concat of what stays and what is new; a step above 1 by Where over the axis, over a Range where sizes are dynamic.
    """
    size, count = op.dims(value)[axis], op.dims(source)[axis]
    source = op.cast(source, op.dtype(value))
    first = _start_of(start, end, step, size, count)
    if count == 0:
        return value
    if step == 1:
        if first == 0 and count == size:
            return source
        behind = whole(first + count)
        parts = []
        if first != 0:
            parts.append(sliced(op, value, axis, 0, first, first))
        parts.append(source)
        if behind != size:
            parts.append(sliced(op, value, axis, behind, END, whole(size - behind)))
        return joined(op, parts, axis)
    trailing = op.rank(value) - axis - 1
    if isinstance(size, Dim) or isinstance(first, Dim) or isinstance(count, Dim) or isinstance(step, Dim):
        places = op.Sub(steps(op, size), op.size(first))
        row = op.Div(places, op.size(step))
        is_on_step = op.Equal(op.Mul(row, op.size(step)), places)
        is_within = op.And(op.Less(row, op.size(count)), op.Not(op.Less(places, 0)))
        written = op.And(is_on_step, is_within)
        if isinstance(count, Dim):  # there is a row to take where the slice is empty, too
            source = op.Concat(source, sliced(op, value, axis, 0, 1, 1), axis=axis)
        taken = op.Gather(source, op.Where(written, row, op.const(0, INT64)), axis=axis)
        return where(op, unsqueeze(op, written, *range(1, trailing + 1)), taken, value)
    numbers = np.arange(size) - first
    inside = (numbers >= 0) & (numbers % step == 0) & (numbers // step < count)
    taken = op.Gather(source, op.const(np.where(inside, numbers // step, 0)), axis=axis)
    return where(op, op.const(inside.reshape(size, *(1,) * trailing)), taken, value)


@translates(aten.slice_scatter.default)
def slice_scatter(
    op: Emit, self: ir.Value, src: ir.Value, dim: int, start: DimLike | None, end: DimLike | None, step: DimLike
) -> ir.Value:
    """slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor"""
    return slice_written(op, self, src, axis_of(dim, op.rank(self)), start, end, step)


@translates(aten.slice_inverse.default)
def slice_inverse(
    op: Emit, self: ir.Value, src: ir.Value, dim: int, start: DimLike | None, end: DimLike | None, step: DimLike
) -> ir.Value:
    """slice_inverse(Tensor(a) self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)

    What ``slice`` was taken from: ``src`` with ``self`` in the slice's place.
    """
    return slice_written(op, src, self, axis_of(dim, op.rank(self)), start, end, step)


def select_written(op: Emit, value: ir.Value, source: ir.Value, axis: int, index: DimLike) -> ir.Value:
    """``value`` with ``source`` as its element ``index`` along ``axis``. ONNX: Where against a mask of the axis."""
    size = op.dims(value)[axis]
    row = unsqueeze(op, op.cast(source, op.dtype(value)), axis)
    if size == 1:
        return row
    trailing = op.rank(value) - axis - 1
    if isinstance(size, int) and isinstance(index, int):
        mask = np.zeros((size, *(1,) * trailing), dtype=bool)
        mask[index] = True
        return where(op, op.const(mask), row, value)
    wanted = whole(size + index) if isinstance(index, int) and index < 0 else index
    chosen = op.Equal(steps(op, size), op.size(wanted))
    return where(op, unsqueeze(op, chosen, *range(1, trailing + 1)), row, value)


@translates(aten.select_scatter.default)
def select_scatter(op: Emit, self: ir.Value, src: ir.Value, dim: int, index: DimLike) -> ir.Value:
    """select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor"""
    return select_written(op, self, src, axis_of(dim, op.rank(self)), index)


def _repeated(op: Emit, gradient: ir.Value, dims: Sequence[DimLike | None]) -> ir.Value:
    """``gradient`` as a copy into a place of ``dims`` repeats it: along axes of size 1 and axes that it lacks. None: a size that
    is the gradient's.
    """
    given = op.dims(gradient)
    given = (*(1 for _ in range(len(dims) - len(given))), *given)
    wanted = tuple(own if size is None else size for own, size in zip(given, dims, strict=True))
    is_repeated = any(own == 1 and size != 1 for own, size in zip(given, wanted, strict=True))
    return op.expand(gradient, wanted) if is_repeated or op.rank(gradient) != len(wanted) else gradient


@translates(aten.slice_backward.default)
def slice_backward(
    op: Emit, grad_output: ir.Value, input_sizes: Sequence[DimLike], dim: int, start: DimLike, end: DimLike, step: int
) -> ir.Value:
    """slice_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt start, SymInt end, SymInt step) -> Tensor"""
    dtype, dims = op.result[0]
    axis = axis_of(dim, len(dims))
    count: DimLike | None = None
    size = dims[axis]
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        count = len(range(size)[start:end:step])
        if count == 0:
            return zeros(op, dims, dtype)
    grad_output = _repeated(op, grad_output, (*dims[:axis], count, *dims[axis + 1 :]))
    if step != 1:
        return slice_written(op, zeros(op, dims, dtype), grad_output, axis, start, end, step)
    count = op.dims(grad_output)[axis]
    first = _start_of(start, end, step, dims[axis], count)
    after = dims[axis] - first - count
    if first == 0 and after == 0:
        return grad_output
    pads: list[Any] = [0] * (2 * len(dims))
    pads[axis], pads[len(dims) + axis] = first, after
    return op.Pad(grad_output, pads=op.sizes(pads), outputs=[(dtype, dims)])


@translates(aten.select_backward.default)
def select_backward(
    op: Emit, grad_output: ir.Value, input_sizes: Sequence[DimLike], dim: int, index: DimLike
) -> ir.Value:
    """select_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt index) -> Tensor"""
    dtype, dims = op.result[0]
    axis = axis_of(dim, len(dims))
    grad_output = _repeated(op, grad_output, (*dims[:axis], *dims[axis + 1 :]))
    return select_written(op, zeros(op, dims, dtype), grad_output, axis, index)
