"""``torch.ops.torchao``: affine quantization in blocks, as torchao writes it into programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.quantization import dequantized, quantized
from fx2onnx.aten_map.table.axes import fixed
from fx2onnx.aten_map.table.dtypes import onnx_dtype
from fx2onnx.aten_map.table.registry import translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import DimLike

torchao = torch.ops.torchao
D = ir.DataType
_MOST_LOOKED_AT = 64
CODES = (D.INT8, D.UINT8, D.INT16, D.UINT16)


def _axis_of_blocks(op: Emit, value: ir.Value, block_size: Sequence[DimLike]) -> int | None:
    """-1 for one block of all, the axis where each of its indices is a block, None for any other blocks."""
    split = [axis for axis, size in enumerate(op.dims(value)) if block_size[axis] != size]
    if not split:
        return -1
    return split[0] if len(split) == 1 and block_size[split[0]] == 1 else None


def _in_blocks(op: Emit, value: ir.Value, block_size: Sequence[DimLike]) -> tuple[ir.Value, list[DimLike]]:
    """(the value as [blocks, inside, blocks, inside, ..], the shape of scales beside it)."""
    shape: list[DimLike] = []
    scales: list[DimLike] = []
    for axis, size in enumerate(op.dims(value)):
        inside = fixed(block_size[axis], "a block's size")
        blocks = size // inside
        shape += [blocks, inside]  # type: ignore[list-item]
        scales += [blocks, 1]  # type: ignore[list-item]
    return op.reshape(value, shape), scales


def _bounds(dtype: torch.dtype, low: Any, high: Any) -> tuple[int, int]:
    limits = torch.iinfo(dtype)
    return int(limits.min if low is None else low), int(limits.max if high is None else high)


def _is_of_inputs(op: Emit, value: ir.Value) -> bool:
    """Return whether the value depends on the numbers of an input, not on its sizes alone."""
    open_values = [value]
    seen: set[ir.Value] = set()
    while open_values and len(seen) < _MOST_LOOKED_AT:
        value = open_values.pop()
        node = op.producer(value)
        if value in seen or (node is not None and node.op_type in ("Shape", "Size")):
            continue
        seen.add(value)
        if node is None and not op.is_constant(value):
            return True
        open_values += [each for each in node.inputs if each is not None] if node is not None else []
    return bool(open_values)


@translates(torchao.quantize_affine.default)
def quantize_affine(
    op: Emit,
    input: ir.Value,
    block_size: Sequence[DimLike],
    scale: ir.Value,
    zero_point: ir.Value | None,
    output_dtype: torch.dtype,
    quant_min: Any,
    quant_max: Any,
) -> ir.Value:
    """quantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, ScalarType output_dtype, Scalar? quant_min=None, Scalar? quant_max=None) -> Tensor

    ONNX:    QuantizeLinear for one block and for one a channel; else Reciprocal, Mul, Round, Add, Clip over the blocks, as PyTorch
    does. So also where the scale is of the numbers themselves: the largest is 127.5 steps there, and which way it rounds
    is the same only by the same operations.
    """
    low, high = _bounds(output_dtype, quant_min, quant_max)
    target, axis = onnx_dtype(output_dtype), _axis_of_blocks(op, input, block_size)
    if axis is not None and target in CODES and not _is_of_inputs(op, scale):
        shape = () if axis < 0 else (op.dims(input)[axis],)
        zeros = op.expand(op.const(0, D.INT64), shape) if zero_point is None else op.reshape(zero_point, shape)
        return quantized(op, input, op.reshape(scale, shape), zeros, low, high, target, *([axis] if axis >= 0 else []))
    wide, scales = _in_blocks(op, op.cast(input, D.FLOAT), block_size)
    steps = op.Round(op.Mul(wide, op.Reciprocal(op.reshape(op.cast(scale, D.FLOAT), scales))))
    if zero_point is not None:
        steps = op.Add(steps, op.reshape(op.cast(zero_point, D.FLOAT), scales))
    codes = op.Clip(steps, min=op.const(float(low)), max=op.const(float(high)))
    return op.reshape(op.cast(codes, target), op.dims(input))


@translates(torchao.dequantize_affine.default)
def dequantize_affine(
    op: Emit,
    input: ir.Value,
    block_size: Sequence[DimLike],
    scale: ir.Value,
    zero_point: ir.Value | None,
    input_dtype: torch.dtype,
    quant_min: Any,
    quant_max: Any,
    output_dtype: torch.dtype,
) -> ir.Value:
    """dequantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, ScalarType input_dtype, Scalar? quant_min=None, Scalar? quant_max=None, ScalarType output_dtype=6) -> Tensor

    ONNX:    DequantizeLinear for one block, for one a channel, and from opset 21 on for blocks along one axis; else Cast,
        Sub and Mul over the blocks.
    """
    axis, target = _axis_of_blocks(op, input, block_size), op.result_dtype()
    if axis is not None and op.dtype(input) in CODES:
        shape = () if axis < 0 else (op.dims(input)[axis],)
        zeros = None if zero_point is None else op.reshape(zero_point, shape)
        return op.cast(dequantized(op, input, op.reshape(scale, shape), zeros, *([axis] if axis >= 0 else [])), target)
    blocked = [place for place, size in enumerate(block_size) if size != 1]
    if op.opset >= 21 and len(blocked) == 1 and op.dtype(input) in CODES:
        groups = [
            size // fixed(inside, "a block's size") for size, inside in zip(op.dims(input), block_size, strict=True)
        ]
        zeros = None if zero_point is None else op.reshape(op.cast(zero_point, op.dtype(input)), groups)  # type: ignore[arg-type]
        found = op.DequantizeLinear(
            input,
            op.reshape(op.cast(scale, D.FLOAT), groups),  # type: ignore[arg-type]
            zeros,
            axis=blocked[0],
            block_size=fixed(block_size[blocked[0]], "a block's size"),
            outputs=[(D.FLOAT, op.dims(input))],
        )
        return op.cast(found, target)
    wide, scales = _in_blocks(op, op.cast(input, D.FLOAT), block_size)
    if zero_point is not None:
        wide = op.Sub(wide, op.reshape(op.cast(zero_point, D.FLOAT), scales))
    found = op.Mul(wide, op.reshape(op.cast(scale, D.FLOAT), scales))
    return op.reshape(op.cast(found, target), op.dims(input))
