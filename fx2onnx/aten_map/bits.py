"""The bits of numbers, by arithmetic where ONNX does not show them (BitCast comes with opset 26)."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.powers import mantissa_and_exponent
from fx2onnx.aten_map.table.axes import axis_of
from fx2onnx.aten_map.table.dtypes import FLOATS
from fx2onnx.aten_map.table.registry import overloads_of, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.schema import has_op

aten = torch.ops.aten
D = ir.DataType
MANTISSA_BITS = {D.FLOAT: 23, D.DOUBLE: 52, D.FLOAT16: 10, D.BFLOAT16: 7}
BIAS, TOP = 1023, 2047
"""float64's exponents as they are stored."""


@translates(aten.nextafter.default)
def nextafter(op: Emit, self: ir.Value, other: ir.Value) -> ir.Value:
    """nextafter(Tensor self, Tensor other) -> Tensor

    ONNX:    BitCast-26 to integers, one up or down, and back; before 26 x plus or minus the gap that x's exponent gives.
    """
    dtype = op.result_dtype()
    if has_op("BitCast", op.opset) and dtype in (D.FLOAT, D.DOUBLE):
        found = _next_by_bits(op, op.cast(self, dtype), op.cast(other, dtype))
    else:
        found = op.cast(_next_by_gap(op, op.cast(self, D.DOUBLE), op.cast(other, D.DOUBLE), dtype), dtype)
    value, target = op.cast(self, dtype), op.cast(other, dtype)
    found = op.Where(op.Equal(value, target), target, found)
    nan = op.Or(op.IsNaN(value), op.IsNaN(target))
    return op.Where(nan, op.const(math.nan, dtype), found)


def _next_by_bits(op: Emit, value: ir.Value, target: ir.Value) -> ir.Value:
    dtype = op.dtype(value)
    bits = D.INT32 if dtype == D.FLOAT else D.INT64
    pattern = op.BitCast(value, to=bits, outputs=[(bits, op.dims(value))])
    grows = op.Equal(op.Greater(target, value), op.Greater(value, 0))
    moved = op.Add(pattern, op.Where(grows, op.const(1, bits), op.const(-1, bits)))
    found = op.BitCast(moved, to=dtype, outputs=[(dtype, op.dims(moved))])
    tiny = op.const(float(np.finfo(dtype.numpy()).smallest_subnormal), dtype)
    return op.Where(op.Equal(value, 0), op.Mul(op.Sign(target), tiny), found)


def _next_by_gap(op: Emit, value: ir.Value, target: ir.Value, dtype: ir.DataType) -> ir.Value:
    """x = m 2^e, 0.5 <= |m| < 1, has neighbours 2^(e - bits - 1) away; half of that below a power of two."""
    information = torch.finfo(_TORCH[dtype])
    mantissa, exponent = mantissa_and_exponent(op, value)
    inward = op.Less(op.Mul(op.Sub(target, value), op.Sign(value)), 0)
    edge = op.And(inward, op.Equal(op.Abs(mantissa), 0.5))
    place = op.Sub(
        exponent, op.Where(edge, _double(op, MANTISSA_BITS[dtype] + 2), _double(op, MANTISSA_BITS[dtype] + 1))
    )
    least = math.log2(information.smallest_normal) - MANTISSA_BITS[dtype]
    place = op.Where(op.Or(op.Less(place, least), op.Equal(value, 0)), _double(op, least), place)
    half = op.Floor(op.Mul(place, 0.5))
    two = _double(op, 2.0)
    gap = op.Mul(op.Pow(two, half), op.Pow(two, op.Sub(place, half)))
    found = op.Add(value, op.Mul(op.Sign(op.Sub(target, value)), gap))
    infinite = op.Equal(op.Abs(value), math.inf)
    return op.Where(infinite, op.Mul(op.Sign(value), _double(op, information.max)), found)


_TORCH = {
    D.FLOAT: torch.float32, D.DOUBLE: torch.float64, D.FLOAT16: torch.float16, D.BFLOAT16: torch.bfloat16,
}  # fmt: skip


def _double(op: Emit, number: float) -> ir.Value:
    return op.const(float(number), D.DOUBLE)


# -- hash_tensor ----------------------------------------------------------------------------------------------------------
def _pattern(op: Emit, value: ir.Value) -> ir.Value:
    """The 64 bits that PyTorch hashes, as int64: those of a float as float64, of an integer as it is."""
    if op.dtype(value) not in FLOATS:
        return op.cast(value, D.INT64)
    value = op.cast(value, D.DOUBLE)
    if has_op("BitCast", op.opset):
        return op.BitCast(value, to=D.INT64, outputs=[(D.INT64, op.dims(value))])
    mantissa, exponent = mantissa_and_exponent(op, value)
    size = op.Abs(mantissa)
    stored = op.Add(exponent, float(BIAS - 1))
    normal = op.Greater(stored, 0)
    fraction = op.Mul(op.Sub(op.Mul(size, 2.0), 1.0), 2.0**52)
    shifted = op.Mul(size, op.Pow(_double(op, 2.0), op.Add(op.Where(normal, _double(op, 0), stored), 52.0)))
    found = op.Add(
        op.Mul(op.cast(op.Where(normal, stored, _double(op, 0)), D.INT64), 1 << 52),
        op.cast(op.Where(normal, fraction, shifted), D.INT64),
    )
    found = op.Where(op.Equal(value, 0), op.const(0, D.INT64), found)
    found = op.Where(op.Equal(op.Abs(value), math.inf), op.const(TOP << 52, D.INT64), found)
    found = op.Where(op.IsNaN(value), op.const((TOP << 52) | (1 << 51), D.INT64), found)
    negative = op.Or(op.Less(value, 0), op.And(op.Equal(value, 0), op.Less(op.Reciprocal(value), 0)))
    return op.Where(negative, op.Add(found, -(1 << 63)), found)


@translates(*overloads_of("hash_tensor"))
def hash_tensor(op: Emit, self: ir.Value, dim: list[int], keepdim: bool, mode: int) -> ir.Value:
    """hash_tensor(Tensor self, int[1] dim=[], *, bool keepdim=False, int mode=0) -> Tensor

    The exclusive or of the bits of all numbers: bit by bit, the parity of how often it is set.

    ONNX:    BitShift and ReduceSum over 64 bits; a float's bits by BitCast-26, before by its exponent and mantissa.
    """
    if mode:
        raise UserError("E203", f"hash_tensor with mode {mode}", why="PyTorch defines mode 0 only")
    rank = op.rank(self)
    axes = sorted(axis_of(axis, rank) for axis in dim) if dim and rank else list(range(rank))
    bits = op.Unsqueeze(op.cast(_pattern(op, self), D.UINT64), axes=[rank])
    left = op.BitShift(bits, op.const(np.arange(63, -1, -1, dtype=np.uint64)), direction="LEFT")
    ones = op.cast(op.BitShift(left, op.const(63, D.UINT64), direction="RIGHT"), D.INT64)
    parity = op.Mod(op.ReduceSum(ones, axes=axes, keepdims=int(keepdim)) if axes else ones, 2)
    last = op.rank(parity) - 1
    halves = op.reshape(parity, (*op.dims(parity)[:-1], 2, 32))
    weights = op.const(np.int64(1) << np.arange(32, dtype=np.int64))
    sums = op.ReduceSum(op.Mul(halves, weights), axes=[last + 1], keepdims=0)  # onnxruntime sums int64 in float64
    low, high = (op.Gather(sums, op.const(np.int64(index)), axis=last) for index in range(2))
    return op.cast(op.Add(op.Mul(high, 1 << 32), low), op.result_dtype())
