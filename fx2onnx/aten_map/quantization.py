"""Quantizing and dequantizing as QuantizeLinear and DequantizeLinear; fake quantization."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.activations import clipped
from fx2onnx.aten_map.table.dtypes import FLOATS, as_dtype
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten
D = ir.DataType
BYTES: dict[tuple[int, int], ir.DataType] = {(0, 255): D.UINT8, (-128, 127): D.INT8}
WORDS: dict[tuple[int, int], ir.DataType] = {(0, 65535): D.UINT16, (-32768, 32767): D.INT16}
"""Ranges that a storage dtype covers exactly; words are known to Q/DQ from opset 21 on."""
Parameter = ir.Value | float | int


def storage_of(op: Emit, low: int, high: int) -> ir.DataType | None:
    """The narrowest dtype that QuantizeLinear has in this opset and that holds the range; None for none."""
    candidates = BYTES | (WORDS if op.opset >= 21 else {})
    return next((dtype for (first, last), dtype in candidates.items() if first <= low and high <= last), None)


def _broadcast(op: Emit, value: ir.Value, parameter: Parameter, dtype: ir.DataType, axis: int | None) -> ir.Value:
    """A scale or zero point as ``dtype``, shaped to broadcast along ``axis`` (None: one for all)."""
    if not isinstance(parameter, ir.Value):
        return op.const(parameter, dtype)
    found = op.cast(parameter, dtype)
    if axis is None:
        return found if op.rank(found) == 0 else op.reshape(found, ())
    trailing = op.rank(value) - 1 - axis % op.rank(value)
    return op.reshape(found, (*op.dims(found), *(1 for _ in range(trailing)))) if trailing else found


def _vector(op: Emit, parameter: Parameter, dtype: ir.DataType, axis: int | None) -> ir.Value:
    """A scale or zero point as Q/DQ take it: a scalar, or a vector along ``axis``."""
    found = as_dtype(op, parameter, dtype)
    return op.reshape(found, ()) if axis is None and op.rank(found) else found


def quantized(
    op: Emit,
    value: ir.Value,
    scale: Parameter,
    zero_point: Parameter,
    low: int,
    high: int,
    dtype: ir.DataType,
    axis: int | None = None,
) -> ir.Value:
    """clip(round(value / scale) + zero_point, low, high) as ``dtype``.

    ONNX:  QuantizeLinear, and a Clip where the range is narrower than the dtype; plain nodes for other dtypes.
    """
    value = value if op.dtype(value) == D.FLOAT else op.cast(value, D.FLOAT)
    storage = storage_of(op, low, high)
    if storage == dtype and (axis is None or op.opset >= 13):
        attrs = {} if axis is None else {"axis": axis}
        code = op.QuantizeLinear(
            value, _vector(op, scale, D.FLOAT, axis), _vector(op, zero_point, dtype, axis), **attrs
        )
        return code if (low, high) in BYTES or (low, high) in WORDS else _clipped_code(op, code, low, high)
    steps = op.Round(op.Div(value, _broadcast(op, value, scale, D.FLOAT, axis)))
    if not (isinstance(zero_point, int) and zero_point == 0):
        steps = op.Add(steps, _broadcast(op, value, zero_point, D.FLOAT, axis))
    return op.cast(_float_clip(op, steps, low, high), dtype)


def _float_clip(op: Emit, steps: ir.Value, low: int, high: int) -> ir.Value:
    """Clipped to what float32 can say of the range without leaving it."""
    top = np.float32(high)
    if int(top) > high:
        top = np.nextafter(top, np.float32(0))
    return op.Clip(steps, min=op.const(np.float32(low)), max=op.const(top))


def _clipped_code(op: Emit, code: ir.Value, low: int, high: int) -> ir.Value:
    if op.opset >= 12 and op.dtype(code) in (D.UINT8, D.INT8):
        dtype = op.dtype(code)
        return op.Clip(code, min=op.const(low, dtype), max=op.const(high, dtype))
    return clipped(op, code, low, high)


def dequantized(
    op: Emit, value: ir.Value, scale: Parameter, zero_point: Parameter | None, axis: int | None = None
) -> ir.Value:
    """(value - zero_point) * scale in float32. ONNX: DequantizeLinear; plain nodes for dtypes it lacks."""
    dtype = op.dtype(value)
    known = {D.UINT8, D.INT8} | ({D.UINT16, D.INT16} if op.opset >= 21 else set())
    if zero_point is None:
        known |= {D.INT32}
    if dtype in known and (axis is None or op.opset >= 13):
        attrs = {} if axis is None else {"axis": axis}
        zero = None if zero_point is None else _vector(op, zero_point, dtype, axis)
        return op.DequantizeLinear(
            value, _vector(op, scale, D.FLOAT, axis), zero, outputs=[(D.FLOAT, op.dims(value))], **attrs
        )
    steps = op.cast(value, D.FLOAT)
    if zero_point is not None and not (isinstance(zero_point, int) and zero_point == 0):
        steps = op.Sub(steps, _broadcast(op, value, zero_point, D.FLOAT, axis))
    return op.Mul(steps, _broadcast(op, value, scale, D.FLOAT, axis))


def fake_quantized(
    op: Emit,
    value: ir.Value,
    scale: Parameter,
    zero_point: Parameter,
    quant_min: int,
    quant_max: int,
    axis: int | None = None,
) -> ir.Value:
    """Quantized and dequantized again, in ``value``'s dtype."""
    dtype = op.dtype(value)
    storage = storage_of(op, quant_min, quant_max)
    if storage is not None and (axis is None or op.opset >= 13) and dtype in FLOATS:
        code = quantized(op, value, scale, zero_point, quant_min, quant_max, storage, axis)
        return op.cast(dequantized(op, code, scale, zero_point, axis), dtype)
    wide = op.cast(value, D.FLOAT)
    factor = _broadcast(op, value, scale, D.FLOAT, axis)
    steps = op.Round(op.Div(wide, factor))
    if isinstance(zero_point, int):
        steps = _float_clip(op, steps, quant_min - zero_point, quant_max - zero_point)
    else:
        zero = _broadcast(op, value, zero_point, D.FLOAT, axis)
        steps = op.Sub(_float_clip(op, op.Add(steps, zero), quant_min, quant_max), zero)
    return op.cast(op.Mul(steps, factor), dtype)


def _in_range(
    op: Emit, value: ir.Value, scale: Parameter, zero_point: Parameter, low: int, high: int, axis: int | None
) -> ir.Value:
    """A mask of the elements that are neither clipped nor NaN."""
    steps = op.Round(op.Div(op.cast(value, D.FLOAT), _broadcast(op, value, scale, D.FLOAT, axis)))
    steps = op.Add(steps, _broadcast(op, value, zero_point, D.FLOAT, axis))
    return op.And(op.Less(op.const(float(low) - 1), steps), op.Less(steps, op.const(float(high) + 1)))


_FAKE = (
    "fake_quantize_per_tensor_affine fake_quantize_per_tensor_affine.tensor_qparams fake_quantize_per_channel_affine"
)
_FORM = "QuantizeLinear and DequantizeLinear; plain nodes for ranges that no dtype holds"
register_shared(fake_quantized, _FORM, *overloads_of(_FAKE))


def _with_mask(
    op: Emit,
    self: ir.Value,
    scale: Parameter,
    zero_point: Parameter,
    quant_min: int,
    quant_max: int,
    axis: int | None = None,
) -> tuple[ir.Value, ir.Value]:
    mask = _in_range(op, self, scale, zero_point, quant_min, quant_max, axis)
    return fake_quantized(op, self, scale, zero_point, quant_min, quant_max, axis), mask


_MASKED = "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask"
register_shared(_with_mask, "QuantizeLinear, DequantizeLinear; where nothing is clipped", *overloads_of(_MASKED))


@translates(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def _fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
    op: Emit,
    self: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value,
    fake_quant_enabled: ir.Value,
    quant_min: int,
    quant_max: int,
) -> tuple[ir.Value, ir.Value]:
    """_fake_quantize_per_tensor_affine_cachemask_tensor_qparams(Tensor self, Tensor scale, Tensor zero_point, Tensor fake_quant_enabled, int quant_min, int quant_max) -> (Tensor output, Tensor mask)"""
    enabled = op.reshape(op.cast(fake_quant_enabled, D.BOOL), ())
    output = op.Where(enabled, fake_quantized(op, self, scale, zero_point, quant_min, quant_max), self)
    mask = op.Or(op.Not(enabled), _in_range(op, self, scale, zero_point, quant_min, quant_max, None))
    return output, mask
