"""``torch.ops.quantized_decomposed``: what PT2E quantization writes into exported programs."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
import torch.ao.quantization.fx._decomposed

from fx2onnx.aten_map.quantization import Parameter, dequantized, fake_quantized, quantized
from fx2onnx.aten_map.table.axes import axis_of, whole
from fx2onnx.aten_map.table.dtypes import onnx_dtype
from fx2onnx.aten_map.table.registry import register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit

decomposed = torch.ops.quantized_decomposed
D = ir.DataType


def _number(op: Emit, bound: Any) -> int:
    """A bound of the range. Raises UserError E203 for one that is computed while the model runs."""
    if not isinstance(bound, ir.Value):
        return int(bound)
    known = op.integers(bound)
    if known is None:
        raise UserError(
            "E203",
            "quant_min and quant_max must be numbers",
            why="ONNX QuantizeLinear saturates to the range of a dtype",
            next="pass them as Python ints",
        )
    return known[0]


def _quantize(
    op: Emit,
    input: ir.Value,
    scale: Parameter,
    zero_point: Parameter,
    quant_min: Any,
    quant_max: Any,
    dtype: torch.dtype,
    axis: int | None = None,
) -> ir.Value:
    low, high = _number(op, quant_min), _number(op, quant_max)
    return quantized(op, input, scale, zero_point, low, high, onnx_dtype(dtype), _place(op, input, axis))


def _place(op: Emit, value: ir.Value, axis: int | None) -> int | None:
    return None if axis is None else axis_of(axis, op.rank(value))


@translates(decomposed.quantize_per_token.default)
def quantize_per_token(
    op: Emit,
    input: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> ir.Value:
    """quantize_per_token(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType dtype) -> Tensor

    One scale for each vector of the last axis: ``scales`` broadcast as they are.
    """
    wide = op.cast(input, D.FLOAT)
    steps = op.Round(op.Div(wide, op.cast(scales, D.FLOAT)))
    steps = op.Add(steps, op.cast(zero_points, D.FLOAT))
    return op.cast(op.Clip(steps, min=op.const(float(quant_min)), max=op.const(float(quant_max))), onnx_dtype(dtype))


def _dequantize_per_token(op: Emit, input: ir.Value, scales: ir.Value, zero_points: ir.Value) -> ir.Value:
    centred = op.Sub(op.cast(input, D.FLOAT), op.cast(zero_points, D.FLOAT))
    return op.cast(op.Mul(centred, op.cast(scales, D.FLOAT)), op.result_dtype())


def _dequantize(
    op: Emit, input: ir.Value, scale: Parameter, zero_point: Parameter | None, axis: int | None = None
) -> ir.Value:
    return op.cast(dequantized(op, input, scale, zero_point, _place(op, input, axis)), op.result_dtype())


def _dequantize_per_channel_group(
    op: Emit, input: ir.Value, scales: ir.Value, zero_points: ir.Value | None, group_size: int
) -> ir.Value:
    """[rows, columns] in groups of columns."""
    rows, columns = op.dims(input)
    if op.opset >= 21 and op.dtype(input) in (D.INT8, D.UINT8, D.INT16, D.UINT16):
        zero = None if zero_points is None else op.cast(zero_points, op.dtype(input))
        outputs = [(D.FLOAT, op.dims(input))]
        found = op.DequantizeLinear(
            input, op.cast(scales, D.FLOAT), zero, axis=1, block_size=group_size, outputs=outputs
        )
        return op.cast(found, op.result_dtype())
    groups = whole(columns // group_size)
    steps = op.reshape(op.cast(input, D.FLOAT), (rows, groups, group_size))
    if zero_points is not None:
        steps = op.Sub(steps, op.Unsqueeze(op.cast(zero_points, D.FLOAT), axes=[2]))
    scaled = op.Mul(steps, op.Unsqueeze(op.cast(scales, D.FLOAT), axes=[2]))
    return op.cast(op.reshape(scaled, (rows, columns)), op.result_dtype())


register_shared(
    _quantize,
    "QuantizeLinear",
    decomposed.quantize_per_tensor.default,
    decomposed.quantize_per_tensor.tensor,
    decomposed.quantize_per_tensor.tensor2,
    decomposed.quantize_per_channel.default,
)
register_shared(
    _dequantize,
    "DequantizeLinear",
    decomposed.dequantize_per_tensor.default,
    decomposed.dequantize_per_tensor.tensor,
    decomposed.dequantize_per_tensor.tensor2,
    decomposed.dequantize_per_channel.default,
)
register_shared(_dequantize_per_token, "Sub, Mul", decomposed.dequantize_per_token.default)
register_shared(
    _dequantize_per_channel_group,
    "DequantizeLinear with block_size from opset 21 on",
    decomposed.dequantize_per_channel_group.default,
)


@translates(decomposed.quantize_per_channel_group.default)
def quantize_per_channel_group(
    op: Emit,
    input: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int,
) -> ir.Value:
    """quantize_per_channel_group(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType dtype, int group_size) -> Tensor"""
    rows, columns = op.dims(input)
    groups = whole(columns // group_size)
    grouped = op.reshape(op.cast(input, D.FLOAT), (rows, groups, group_size))
    steps = op.Round(op.Div(grouped, op.Unsqueeze(op.cast(scales, D.FLOAT), axes=[2])))
    steps = op.Add(steps, op.Unsqueeze(op.cast(zero_points, D.FLOAT), axes=[2]))
    codes = op.Clip(steps, min=op.const(float(quant_min)), max=op.const(float(quant_max)))
    return op.reshape(op.cast(codes, onnx_dtype(dtype)), (rows, columns))


register_shared(fake_quantized, "QuantizeLinear, DequantizeLinear", decomposed.fake_quant_per_channel.default)


@translates(decomposed.convert_element_type.no_fuse)
def convert_element_type(op: Emit, input: ir.Value, dtype: torch.dtype) -> ir.Value:
    """convert_element_type(Tensor input, ScalarType dtype) -> Tensor"""
    return op.cast(input, onnx_dtype(dtype))


@translates(decomposed.choose_qparams.tensor)
def choose_qparams_tensor(
    op: Emit, input: ir.Value, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[ir.Value, ir.Value]:
    """choose_qparams(Tensor input, int quant_min, int quant_max, float eps, ScalarType dtype) -> (Tensor, Tensor)

    Scale and zero point that hold the tensor's range and zero. Source: determine_qparams in torch.ao.
    """
    wide, none = op.cast(input, D.FLOAT), op.const(0.0)
    low = op.Min(op.ReduceMin(wide, keepdims=0), none)
    high = op.Max(op.ReduceMax(wide, keepdims=0), none)
    scale = op.Div(op.Sub(high, low), op.const(float(quant_max - quant_min)))
    scale = op.Max(scale, op.const(float(eps)))
    zero = op.Sub(op.const(float(quant_min)), op.Round(op.Div(low, scale)))
    zero = op.Clip(zero, min=op.const(float(quant_min)), max=op.const(float(quant_max)))
    return _shaped(op, scale, 0), _shaped(op, zero, 1)


def _shaped(op: Emit, value: ir.Value, index: int) -> ir.Value:
    dtype, dims = op.result[index]
    return op.reshape(op.cast(value, dtype), dims)
