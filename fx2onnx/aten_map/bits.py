"""The bits of numbers, by arithmetic where ONNX does not show them (BitCast comes with opset 26)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.powers import mantissa_and_exponent
from fx2onnx.aten_map.table.axes import axis_of, whole
from fx2onnx.aten_map.table.dtypes import FLOATS, INTEGERS
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.schema import has_op
from fx2onnx.irx.values import mark_complex
from fx2onnx.sizes.expr import DimLike

aten = torch.ops.aten
D = ir.DataType
MANTISSA_BITS = {D.FLOAT: 23, D.DOUBLE: 52, D.FLOAT16: 10, D.BFLOAT16: 7}


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


def _pattern(op: Emit, value: ir.Value, dtype: ir.DataType = D.DOUBLE) -> ir.Value:
    """The bits of floats in ``dtype``, as int64: of 64 with their sign, of fewer as a number of at least 0. NaN is the plain one."""
    value = op.cast(value, D.DOUBLE)
    if has_op("BitCast", op.opset) and dtype == D.DOUBLE:
        return op.BitCast(value, to=D.INT64, outputs=[(D.INT64, op.dims(value))])
    bits, bias = MANTISSA_BITS[dtype], _bias(dtype)
    top = 2 * bias + 1
    mantissa, exponent = mantissa_and_exponent(op, value)
    size = op.Abs(mantissa)
    stored = op.Add(exponent, float(bias - 1))
    normal = op.Greater(stored, 0)
    fraction = op.Mul(op.Sub(op.Mul(size, 2.0), 1.0), 2.0**bits)
    shifted = op.Mul(size, op.Pow(_double(op, 2.0), op.Add(op.Where(normal, _double(op, 0), stored), float(bits))))
    found = op.Add(
        op.Mul(op.cast(op.Where(normal, stored, _double(op, 0)), D.INT64), 1 << bits),
        op.cast(op.Where(normal, fraction, shifted), D.INT64),
    )
    found = op.Where(op.Equal(value, 0), op.const(0, D.INT64), found)
    found = op.Where(op.Equal(op.Abs(value), math.inf), op.const(top << bits, D.INT64), found)
    found = op.Where(op.IsNaN(value), op.const((top << bits) | (1 << (bits - 1)), D.INT64), found)
    negative = op.Or(op.Less(value, 0), op.And(op.Equal(value, 0), op.Less(op.Reciprocal(value), 0)))
    sign = -(1 << 63) if dtype == D.DOUBLE else 1 << (dtype.bitwidth - 1)
    return op.Where(negative, op.Add(found, sign), found)


def _bias(dtype: ir.DataType) -> int:
    """The bias of an exponent: the number added to it where it is stored."""
    return int((1 << (dtype.bitwidth - 2 - MANTISSA_BITS[dtype])) - 1)


def _bits_of(op: Emit, value: ir.Value) -> ir.Value:
    """The bits of each number as int64."""
    dtype = op.dtype(value)
    if dtype in MANTISSA_BITS:
        return _pattern(op, value, dtype)
    whole = op.cast(value, D.INT64)
    if dtype in (D.INT8, D.INT16, D.INT32):
        return op.Where(op.Less(whole, 0), op.Add(whole, 1 << dtype.bitwidth), whole)
    return whole


def _part(op: Emit, bits: ir.Value, first: ir.Value | int, count: int) -> ir.Value:
    """``count`` bits from the ``first`` on, as int64."""
    place = first if isinstance(first, ir.Value) else op.const(np.array(64 - count - first, np.uint64))
    left = op.BitShift(op.cast(bits, D.UINT64), place, direction="LEFT")
    return op.cast(op.BitShift(left, op.const(np.array(64 - count, np.uint64)), direction="RIGHT"), D.INT64)


def _number_of(op: Emit, bits: ir.Value, dtype: ir.DataType) -> ir.Value:
    """The numbers of ``dtype`` that have these bits."""
    if dtype not in MANTISSA_BITS:
        return op.cast(bits, dtype)
    count, bias = MANTISSA_BITS[dtype], _bias(dtype)
    width = dtype.bitwidth
    mantissa = op.cast(_part(op, bits, 0, count), D.DOUBLE)
    exponent = op.cast(_part(op, bits, count, width - 1 - count), D.DOUBLE)
    normal = op.Greater(exponent, 0)
    size = op.Where(normal, op.Add(mantissa, 2.0**count), mantissa)
    place = op.Sub(op.Where(normal, exponent, _double(op, 1)), float(bias + count))
    found = op.Mul(size, op.Pow(_double(op, 2.0), place))
    special = op.Where(op.Equal(mantissa, 0), _double(op, math.inf), _double(op, math.nan))
    found = op.Where(op.Equal(exponent, float(2 * bias + 1)), special, found)
    negative = op.cast(_part(op, bits, width - 1, 1), D.BOOL)
    return op.cast(op.Where(negative, op.Neg(found), found), dtype)


def view_dtype(op: Emit, self: ir.Value, dtype: torch.dtype) -> ir.Value:
    """The same bits as numbers of another dtype, which may be of another width: the last axis has more or fewer of them. Complex
    numbers are pairs of real ones.

    Refuses: float8 before opset 26.
    """
    target, dims = op.result[0]
    if target == op.dtype(self) and op.is_complex(self) == dtype.is_complex:
        return self
    if op.is_complex(self):
        self = op.reshape(self, _joined(op.dims(self)))
    if dtype.is_complex:
        dims = _joined(dims)
    found = op.reshape(_read_as(op, self, target, dims), op.result[0][1])
    return mark_complex(found) if dtype.is_complex else found


def _joined(dims: Sequence[DimLike]) -> Sequence[DimLike]:
    """The dims of pairs as those of twice as many numbers along the last axis."""
    return (*dims[:-2], whole(dims[-2] * 2)) if len(dims) > 1 else dims


def _read_as(op: Emit, value: ir.Value, target: ir.DataType, dims: Sequence[DimLike]) -> ir.Value:
    source = op.dtype(value)
    if target == source:
        return value
    width, wanted = source.bitwidth, target.bitwidth
    if width == wanted:
        if {target, source} <= INTEGERS:
            return op.cast(value, target)
        if has_op("BitCast", op.opset):
            return op.BitCast(value, to=target, outputs=[(target, op.dims(value))])
    for each in (source, target):
        if each not in MANTISSA_BITS and each not in INTEGERS and each != D.BOOL:
            raise UserError(
                "E203",
                f"view(dtype) reads {source.name} as {target.name}: ONNX has BitCast from opset 26 on",
                next="export with opset_version=26",
            )
    bits = _bits_of(op, value)
    if width > wanted:
        places = np.arange(64 - wanted, 63 - width, -wanted)[: width // wanted].astype(np.uint64)
        column = op.Unsqueeze(bits, axes=[op.rank(bits)])
        bits = op.reshape(_part(op, column, op.const(places), wanted), dims)
    elif width < wanted:
        rows = op.reshape(bits, (*dims, wanted // width))
        last = op.rank(rows) - 1
        parts = [op.Gather(rows, op.const(np.int64(place)), axis=last) for place in range(wanted // width)]
        bits = parts[0]
        for place, part in enumerate(parts[1:], 1):
            bits = op.Add(bits, op.Mul(part, 1 << (width * place)))
    return _number_of(op, bits, target)


for _is_complex in (False, True):
    register_shared(
        view_dtype,
        "BitCast-26; before it, and between widths, the bits by exponent and mantissa",
        *overloads_of("view.dtype view_copy.dtype"),
        is_complex=_is_complex,
    )


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
    pattern = _pattern(op, self) if op.dtype(self) in FLOATS else op.cast(self, D.INT64)
    bits = op.Unsqueeze(op.cast(pattern, D.UINT64), axes=[rank])
    left = op.BitShift(bits, op.const(np.arange(63, -1, -1, dtype=np.uint64)), direction="LEFT")
    ones = op.cast(op.BitShift(left, op.const(63, D.UINT64), direction="RIGHT"), D.INT64)
    parity = op.Mod(op.ReduceSum(ones, axes=axes, keepdims=int(keepdim)) if axes else ones, 2)
    last = op.rank(parity) - 1
    halves = op.reshape(parity, (*op.dims(parity)[:-1], 2, 32))
    weights = op.const(np.int64(1) << np.arange(32, dtype=np.int64))
    sums = op.ReduceSum(op.Mul(halves, weights), axes=[last + 1], keepdims=0)  # onnxruntime sums int64 in float64
    low, high = (op.Gather(sums, op.const(np.int64(index)), axis=last) for index in range(2))
    return op.cast(op.Add(op.Mul(high, 1 << 32), low), op.result_dtype())
