"""Reading elements by index or mask (gather, index_select, take, masked_select, nonzero, one_hot), and choosing them by a condition or by limits: where, masked_fill, clamp, nan_to_num."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.arithmetic import extremum
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
from fx2onnx.aten_map.table.dtypes import FLOATS, TORCH_DTYPES, Operand, as_dtype, opmath, takes, through
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


D = ir.DataType
UNSIGNED_INTEGERS = frozenset({D.UINT8, D.UINT16, D.UINT32, D.UINT64})


def where(op: Emit, condition: ir.Value, left: ir.Value, right: ir.Value) -> ir.Value:
    """ONNX's Where; bools are chosen with And and Or, dtypes without a kernel in a wider dtype."""
    dtype = op.dtype(left)
    if dtype == D.BOOL:
        return op.Or(op.And(condition, left), op.And(op.Not(condition), right))
    if takes("Where", op.opset, dtype):
        return op.Where(condition, left, right)
    wide = D.INT64 if dtype == D.UINT64 else D.FLOAT if dtype in FLOATS else D.INT32
    return op.cast(op.Where(condition, op.cast(left, wide), op.cast(right, wide)), dtype)


def where_self(op: Emit, condition: ir.Value, self: Operand, other: Operand) -> ir.Value:
    dtype = op.result_dtype()
    return where(op, op.cast(condition, D.BOOL), as_dtype(op, self, dtype), as_dtype(op, other, dtype))


def masked_fill_scalar(op: Emit, self: ir.Value, mask: ir.Value, value: Operand) -> ir.Value:
    dtype = op.result_dtype()
    return where(op, op.cast(mask, D.BOOL), as_dtype(op, value, dtype), op.cast(self, dtype))


def _clamp(op: Emit, self: ir.Value, min: Operand | None = None, max: Operand | None = None) -> ir.Value:
    """``self`` at least ``min`` and at most ``max``, in the result's dtype; Clip where both limits are numbers."""
    dtype = op.result_dtype()
    value = op.cast(self, dtype)
    if min is None and max is None:
        return value
    tensors = any(isinstance(limit, ir.Value | Dim) for limit in (min, max))
    if any(isinstance(limit, float) and math.isnan(limit) for limit in (min, max)):
        return op.expand(op.const(math.nan, dtype), op.dims(value))
    crossed = not tensors and min is not None and max is not None and min > max  # type: ignore[operator]
    crossed = crossed or (
        dtype in UNSIGNED_INTEGERS and any(isinstance(limit, int | float) and limit < 0 for limit in (min, max))
    )
    whole = min is not None and max is not None
    if whole and not tensors and not crossed and dtype != D.BOOL and (op.opset >= 12 or dtype in FLOATS):
        return _clip(op, value, _limit(op, min, dtype), _limit(op, max, dtype))
    for op_type, limit in (("Max", min), ("Min", max)):
        if limit is not None:
            bound = as_dtype(op, limit, dtype) if isinstance(limit, ir.Value | Dim) else _limit(op, limit, dtype)
            value = extremum(op, op_type, value, bound)
    return value


def _limit(op: Emit, limit: Any, dtype: ir.DataType) -> ir.Value:
    """A number as a constant of ``dtype``, held inside the range of integers; below 0 it wraps around for unsigned ones."""
    if dtype not in FLOATS and dtype != D.BOOL:
        info = np.iinfo(dtype.numpy())
        limit = int(limit) % (info.max + 1) if info.min == 0 and -info.max <= limit < 0 else limit
        limit = min(max(int(limit), info.min), info.max)
    return op.const(limit, dtype)


def _clip(op: Emit, value: ir.Value, low: ir.Value, high: ir.Value) -> ir.Value:
    dtype = op.dtype(value)
    wide = dtype if takes("Clip", op.opset, dtype) else opmath(dtype) if op.is_float(value) else D.INT32
    return op.cast(op.Clip(op.cast(value, wide), min=op.cast(low, wide), max=op.cast(high, wide)), dtype)


_CLAMPS = "clamp clamp.Tensor clip clip.Tensor clamp_min clamp_min.Tensor clamp_max clamp_max.Tensor"
_FORM = (
    "Clip; Max or Min of one limit (Clip's default limits are finite in onnxruntime), of tensors, of crossed limits "
)
_FORM += "(Greater, Less and Where of integers in opset 11)"
register_shared(_clamp, _FORM, *overloads_of(_CLAMPS))


@translates(aten.nan_to_num.default)
def nan_to_num(op: Emit, self: ir.Value, nan: float | None, posinf: float | None, neginf: float | None) -> ir.Value:
    """nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor

    ONNX:    Where(IsNaN); infinities by Clip to the dtype's range, or by Where where another number is given.
    """
    if not op.is_float(self):
        return self
    dtype = op.dtype(self)
    value = op.Where(through(op, "IsNaN", self), op.const(0.0 if nan is None else nan, dtype), self)
    for infinity, number in ((math.inf, posinf), (-math.inf, neginf)):
        if number is not None:
            value = op.Where(through(op, "Equal", value, op.const(infinity, dtype)), op.const(number, dtype), value)
    top = float(torch.finfo(TORCH_DTYPES[dtype]).max)
    low, high = op.const(-top, dtype), op.const(top, dtype)
    if posinf is None and neginf is None:
        return _clip(op, value, low, high)
    if neginf is None:
        return extremum(op, "Max", value, low)
    return extremum(op, "Min", value, high) if posinf is None else value


register_shared(
    where_self,
    "Where; bools by And and Or",
    *overloads_of("where.self where.ScalarOther where.ScalarSelf where.Scalar"),
)
register_shared(masked_fill_scalar, "Where", *overloads_of("masked_fill.Scalar masked_fill.Tensor"))
