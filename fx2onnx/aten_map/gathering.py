"""Reading elements by index or mask: gather, index_select, take, masked_select, nonzero, one_hot."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import (
    INT64,
    as_plain,
    axis_of,
    filled,
    flat,
    squeeze,
    transpose,
    unsqueeze,
)
from fx2onnx.aten_map.table.dtypes import takes
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes import broadcast_dims
from fx2onnx.sizes.expr import Dim, DimLike

aten = torch.ops.aten
BOOL = ir.DataType.BOOL


def at_least_vector(op: Emit, value: ir.Value) -> ir.Value:
    """A 0-d tensor as a vector of one."""
    return value if op.rank(value) else unsqueeze(op, value, 0)


@translates(aten.gather.default)
def gather(op: Emit, self: ir.Value, dim: int, index: ir.Value, sparse_grad: bool) -> ir.Value:
    """gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor"""
    axis = axis_of(dim, op.rank(self))
    scalar = op.rank(index) == 0
    found = op.GatherElements(at_least_vector(op, self), as_plain(op, at_least_vector(op, index)), axis=axis)
    return squeeze(op, found, 0) if scalar and op.rank(found) else found


@translates(aten.index_select.default)
def index_select(op: Emit, self: ir.Value, dim: int, index: ir.Value) -> ir.Value:
    """index_select(Tensor self, int dim, Tensor index) -> Tensor"""
    scalar = op.rank(self) == 0
    found = op.Gather(at_least_vector(op, self), at_least_vector(op, index), axis=axis_of(dim, op.rank(self)))
    return squeeze(op, found, 0) if scalar else found


@translates(aten.take.default)
def take(op: Emit, self: ir.Value, index: ir.Value) -> ir.Value:
    """take(Tensor self, Tensor index) -> Tensor"""
    return op.Gather(flat(op, self), index, axis=0)


@translates(aten.take_along_dim.default)
def take_along_dim(op: Emit, self: ir.Value, indices: ir.Value, dim: int | None) -> ir.Value:
    """take_along_dim(Tensor self, Tensor indices, int? dim=None) -> Tensor

    The other axes broadcast; without ``dim`` both are read flat.
    """
    if dim is None:
        return op.GatherElements(flat(op, self), flat(op, indices), axis=0)
    axis = axis_of(dim, op.rank(self))
    source, wanted = list(op.dims(self)), list(op.dims(indices))
    along = source[axis], wanted[axis]
    source[axis] = wanted[axis] = 1
    common = list(broadcast_dims(source, wanted))
    self = op.expand(self, [along[0] if place == axis else size for place, size in enumerate(common)])
    indices = op.expand(indices, [along[1] if place == axis else size for place, size in enumerate(common)])
    return op.GatherElements(self, indices, axis=axis)


@translates(aten.masked_select.default)
def masked_select(op: Emit, self: ir.Value, mask: ir.Value) -> ir.Value:
    """masked_select(Tensor self, Tensor mask) -> Tensor

    ONNX:  Compress over the flattened tensor.
    """
    common = broadcast_dims(op.dims(self), op.dims(mask))
    value, chosen = flat(op, op.expand(self, common)), flat(op, op.expand(op.cast(mask, BOOL), common))
    return op.Compress(value, chosen, axis=0, outputs=[op.result[0]])


def fresh_size(op: Emit, hint: str, source: ir.Value | None = None, axis: int = 0) -> Dim:
    """A new symbol for a size that depends on data; with ``source``, its number is that value's size along ``axis``."""
    dim = Dim.symbol(op.builder.unique(hint))
    if source is not None:
        op.builder.symbols[str(dim)] = (source, axis)
    return dim


def nonzero_rows(op: Emit, value: ir.Value, count: DimLike | None = None) -> ir.Value:
    """``NonZero``: [rank, count] int64, one column an element, in row-major order."""
    if not takes("NonZero", op.opset, op.dtype(value)):
        value = op.cast(value, BOOL)
    size = fresh_size(op, "nonzero") if count is None else count
    found = op.NonZero(value, outputs=[(INT64, (op.rank(value), size))])
    if isinstance(size, Dim) and count is None:
        op.builder.symbols[str(size)] = (found, 1)
    return found


def nonzero(op: Emit, self: ir.Value) -> ir.Value:
    count = op.result_dims()[0]
    if op.rank(self) == 0:
        once = op.Reshape(op.cast(op.cast(self, BOOL), INT64), op.const(np.array([1])))
        shape = op.Concat(once, op.const(np.array([0])), axis=0)
        empty = ir.tensor(np.zeros(1, dtype=np.int64))
        return op.ConstantOfShape(shape, value=empty, outputs=[op.result[0]])
    return transpose(op, nonzero_rows(op, self, count), (1, 0))


register_shared(nonzero, "NonZero and Transpose; a 0-d tensor gives [0 or 1, 0]", *overloads_of("nonzero argwhere"))


@translates(aten.nonzero_numpy.default)
def nonzero_numpy(op: Emit, self: ir.Value) -> tuple[ir.Value, ...]:
    """nonzero_numpy(Tensor self) -> Tensor[]"""
    rows = nonzero_rows(op, at_least_vector(op, self), op.result_dims()[0])
    return tuple(op.Gather(rows, op.const(axis), axis=0) for axis in range(max(op.rank(self), 1)))


@translates(aten.nonzero_static.default)
def nonzero_static(op: Emit, self: ir.Value, size: DimLike, fill_value: int) -> ir.Value:
    """nonzero_static(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor

    The places, then filler, cut to ``size``.
    """
    rank = op.rank(self)
    if rank == 0:
        return filled(op, op.result_dims(), fill_value, INT64)
    places = transpose(op, nonzero_rows(op, self), (1, 0))
    longer = op.Concat(places, filled(op, (size, rank), fill_value, INT64), axis=0)
    return op.Slice(longer, starts=op.sizes([0]), ends=op.sizes([size]), axes=[0], outputs=[(INT64, (size, rank))])


@translates(aten.one_hot.default)
def one_hot(op: Emit, self: ir.Value, num_classes: int) -> ir.Value:
    """one_hot(Tensor self, int num_classes=-1) -> Tensor

    ONNX:  OneHot; without ``num_classes``, the largest index + 1 of them.
    """
    values = op.const(np.array([0, 1]))
    if num_classes == -1:
        depth = op.Add(op.ReduceMax(self, keepdims=0), op.const(1))
    else:
        depth = op.const(num_classes)
    dtype, dims = op.result[0]
    if op.rank(self) == 0:
        return squeeze(op, op.OneHot(unsqueeze(op, self, 0), depth, values, outputs=[(dtype, (1, *dims))]), 0)
    return op.OneHot(self, depth, values, axis=-1, outputs=[(dtype, dims)])
