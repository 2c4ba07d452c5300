"""Choosing elements by a condition or by limits: where, masked_fill, clamp, nan_to_num."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.arithmetic import extremum
from fx2onnx.aten_map.table.dtypes import FLOATS, TORCH_DTYPES, Operand, as_dtype, opmath, takes, through
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim

aten = torch.ops.aten
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
