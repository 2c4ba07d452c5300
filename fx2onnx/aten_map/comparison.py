"""Comparisons, logical and bitwise operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.arithmetic import UNSIGNED
from fx2onnx.aten_map.gathering import where
from fx2onnx.aten_map.table.dtypes import FLOATS, Operand, as_dtype, opmath, promoted, through
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.schema import has_op

aten = torch.ops.aten
D = ir.DataType

COMPARISONS: dict[str, str] = {
    "eq": "Equal", "ne not_equal": "NotEqual", "lt less": "Less", "le less_equal": "LessOrEqual",
    "gt greater": "Greater", "ge greater_equal": "GreaterOrEqual",
}  # fmt: skip
WITHOUT_OR_EQUAL = {"LessOrEqual": ("Less", "Equal"), "GreaterOrEqual": ("Greater", "Equal")}
"""Opset 11 has no ...OrEqual: two comparisons, since the negation of the other one is wrong for NaN."""


def compare(op: Emit, op_type: str, lhs: Operand, rhs: Operand) -> ir.Value:
    """``lhs op_type rhs`` in the dtype PyTorch compares in."""
    dtype = promoted(op, lhs, rhs)
    if isinstance(rhs, int) and dtype not in FLOATS and dtype != D.BOOL:
        rhs = _wrapped(rhs, dtype)
    left, right = as_dtype(op, lhs, dtype), as_dtype(op, rhs, dtype)
    if op_type == "NotEqual":
        if dtype == D.BOOL:
            return op.Xor(left, right)
        return op.Not(through(op, "Equal", left, right))
    if op_type in WITHOUT_OR_EQUAL and not has_op(op_type, op.opset):
        strict, equal = WITHOUT_OR_EQUAL[op_type]
        return op.Or(through(op, strict, left, right), through(op, equal, left, right))
    return through(op, op_type, left, right)


def _wrapped(number: int, dtype: ir.DataType) -> int:
    """The number that PyTorch's integers of the dtype have in its place."""
    limits = np.iinfo(dtype.numpy())
    least = int(limits.min)
    return (number - least) % (int(limits.max) - least + 1) + least


def _comparison(op_type: str) -> Callable[..., ir.Value]:
    return lambda op, self, other: compare(op, op_type, self, other)


for _names, _op_type in COMPARISONS.items():
    for _name in _names.split():
        register_shared(_comparison(_op_type), _op_type, *overloads_of(f"{_name}.Tensor {_name}.Scalar"))

LOGICAL = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}


def as_bool(op: Emit, operand: Operand) -> ir.Value:
    """Return whether not zero."""
    return as_dtype(op, operand, D.BOOL)


def _logical(op_type: str) -> Callable[..., ir.Value]:
    return lambda op, self, other: op.node(op_type, as_bool(op, self), as_bool(op, other))


for _name, _op_type in LOGICAL.items():
    register_shared(_logical(_op_type), _op_type, *overloads_of(_name))


@translates(aten.logical_not.default)
def logical_not(op: Emit, self: ir.Value) -> ir.Value:
    """logical_not(Tensor self) -> Tensor

    ONNX:    Not.
    """
    return op.Not(as_bool(op, self))


BITWISE: dict[str, tuple[str, str]] = {
    "bitwise_and": ("And", "BitwiseAnd"), "bitwise_or": ("Or", "BitwiseOr"), "bitwise_xor": ("Xor", "BitwiseXor"),
    "__and__": ("And", "BitwiseAnd"), "__or__": ("Or", "BitwiseOr"), "__xor__": ("Xor", "BitwiseXor"),
}  # fmt: skip


def bitwise(op: Emit, bool_type: str, op_type: str, lhs: Operand, rhs: Operand) -> ir.Value:
    """The bitwise operator; of bools the logical one; before opset 18 from 0/1 digits."""
    dtype = op.result_dtype()
    left, right = as_dtype(op, lhs, dtype), as_dtype(op, rhs, dtype)
    if dtype == D.BOOL:
        return op.node(bool_type, left, right)
    if has_op(op_type, op.opset):
        return through(op, op_type, left, right)
    return _by_digits(op, bool_type, left, right)


def _by_digits(op: Emit, bool_type: str, left: ir.Value, right: ir.Value) -> ir.Value:
    """Digit by digit in a trailing axis: BitwiseAnd and its kin exist from opset 18 on only.

    The digits of v are v div 2^i mod 2, with the quotient rounded down, so that negative numbers read as two's
    complement; the top digit of a signed number weighs -2^(bits - 1). They are added by MatMul: onnxruntime's
    ReduceSum of int64 loses digits beyond 2^53.
    """
    dtype = op.dtype(left)
    bits = dtype.numpy().itemsize * 8
    powers = np.array([1 << i for i in range(63)] + [0] * (bits == 64), dtype=np.int64)[: min(bits, 64)]
    if bits == 64 and dtype in UNSIGNED:
        raise UserError("E203", "bitwise operators of uint64 need opset 18", next="export with opset_version=18")

    def digits(value: ir.Value) -> ir.Value:
        wide = op.Unsqueeze(op.cast(value, D.INT64), axes=[op.rank(value)])
        if bits < 64:
            return op.cast(op.Mod(_floor_div(op, wide, op.const(powers)), 2), D.BOOL)
        low = op.cast(op.Mod(_floor_div(op, wide, op.const(powers[:63])), 2), D.BOOL)
        return op.Concat(low, op.Less(wide, 0), axis=-1)

    both = op.cast(op.node(bool_type, digits(left), digits(right)), D.INT64)
    weights = np.array([1 << i for i in range(bits - 1)] + [-(1 << (bits - 1))], dtype=np.int64)
    if dtype in UNSIGNED:
        weights[-1] = 1 << (bits - 1)
    return op.cast(op.MatMul(both, op.const(weights)), dtype)


def _floor_div(op: Emit, left: ir.Value, right: ir.Value) -> ir.Value:
    return op.Div(op.Sub(left, op.Mod(left, right)), right)


def _bitwise(bool_type: str, op_type: str) -> Callable[..., ir.Value]:
    return lambda op, self, other: bitwise(op, bool_type, op_type, self, other)


for _name, (_bool_type, _op_type) in BITWISE.items():
    register_shared(
        _bitwise(_bool_type, _op_type),
        f"{_op_type}; {_bool_type} of bools; digits before 18",
        *overloads_of(f"{_name}.Tensor {_name}.Scalar {_name}.Scalar_Tensor"),
    )


@translates(aten.bitwise_not.default)
def bitwise_not(op: Emit, self: ir.Value) -> ir.Value:
    """bitwise_not(Tensor self) -> Tensor

    ONNX:    Not of bools; BitwiseNot-18; before it -1 - x, or max - x of unsigned numbers.
    """
    if op.is_bool(self):
        return op.Not(self)
    if has_op("BitwiseNot", op.opset):
        return through(op, "BitwiseNot", self)
    dtype = op.dtype(self)
    top = np.iinfo(dtype.numpy()).max if dtype in UNSIGNED else -1
    return through(op, "Sub", op.const(top, dtype), self)


def _shift(direction: str) -> Callable[..., ir.Value]:
    def entry(op: Emit, self: Operand, other: Operand) -> ir.Value:
        dtype = op.result_dtype()
        left, right = as_dtype(op, self, dtype), as_dtype(op, other, dtype)
        return (shift_left if direction == "LEFT" else shift_right)(op, left, right)

    return entry


def shift_left(op: Emit, value: ir.Value, count: ir.Value) -> ir.Value:
    """``value << count``; 0 where count is the number of bits or more.

    ONNX:    BitShift takes unsigned numbers only: through uint64, whose low digits are the ones wanted.
    """
    dtype = op.dtype(value)
    bits = dtype.numpy().itemsize * 8
    shifted = op.BitShift(op.cast(value, D.UINT64), op.cast(count, D.UINT64), direction="LEFT")
    outside = op.Or(op.Less(op.cast(count, D.INT64), 0), op.Greater(op.cast(count, D.INT64), bits - 1))
    return where(op, outside, op.const(0, dtype), op.cast(shifted, dtype))


def shift_right(op: Emit, value: ir.Value, count: ir.Value) -> ir.Value:
    """``value >> count``, the sign kept: the quotient by 2^count rounded down.

    ONNX:    of x >= 0 a BitShift; of x < 0 the complement of the shifted complement. Counts beyond the width act as
             width - 1, as in PyTorch.
    """
    dtype = op.dtype(value)
    bits = dtype.numpy().itemsize * 8
    wide, steps = op.cast(value, D.INT64), op.cast(count, D.INT64)
    outside = op.Or(op.Less(steps, 0), op.Greater(steps, bits - 1))
    if dtype in UNSIGNED:
        shifted = op.BitShift(op.cast(value, D.UINT64), op.cast(steps, D.UINT64), direction="RIGHT")
        return where(op, outside, op.const(0, dtype), op.cast(shifted, dtype))
    steps = op.Where(outside, op.const(bits - 1, D.INT64), steps)
    negative = op.Less(wide, 0)
    magnitude = op.Where(negative, op.Sub(op.const(-1, D.INT64), wide), wide)
    shifted = op.BitShift(op.cast(magnitude, D.UINT64), op.cast(steps, D.UINT64), direction="RIGHT")
    back = op.cast(shifted, D.INT64)
    return op.cast(op.Where(negative, op.Sub(op.const(-1, D.INT64), back), back), dtype)


for _names, _direction in {
    "bitwise_left_shift __lshift__": "LEFT",
    "bitwise_right_shift __rshift__": "RIGHT",
}.items():
    for _name in _names.split():
        register_shared(
            _shift(_direction),
            f"BitShift {_direction} of uint64, 0 beyond the width",
            *overloads_of(f"{_name}.Tensor {_name}.Tensor_Scalar {_name}.Scalar_Tensor {_name}.Scalar"),
        )


@translates(aten.isclose.default)
def isclose(op: Emit, self: ir.Value, other: ir.Value, rtol: float, atol: float, equal_nan: bool) -> ir.Value:
    """isclose(Tensor self, Tensor other, float rtol=1.0000000000000001e-05, float atol=1e-08, bool equal_nan=False) -> Tensor

    ONNX:    a == b or (finite and |a - b| <= atol + rtol |b|); both NaN by ``equal_nan``.
    """
    dtype = promoted(op, self, other)
    if op.is_bool(self) and op.is_bool(other):
        return compare(op, "Equal", self, other)
    wide = opmath(dtype) if dtype in FLOATS else D.DOUBLE
    left, right = op.cast(self, wide), op.cast(other, wide)
    same = op.Equal(left, right)
    gap = op.Abs(op.Sub(left, right))
    allowed = op.Add(op.Mul(op.Abs(right), rtol), atol)
    near = op.And(compare(op, "LessOrEqual", gap, allowed), op.Less(gap, float("inf")))
    result = op.Or(same, near)
    if equal_nan and dtype in FLOATS:
        result = op.Or(result, op.And(op.IsNaN(left), op.IsNaN(right)))
    return result


@translates(aten.equal.default)
def equal(op: Emit, self: ir.Value, other: ir.Value) -> ir.Value:
    """equal(Tensor self, Tensor other) -> bool

    ONNX:    all of Equal, as a bool of rank 0; false where the shapes differ.
    """
    if op.dims(self) != op.dims(other):
        return op.const(np.array(False))
    same = op.cast(compare(op, "Equal", self, other), D.INT32)
    return op.cast(op.ReduceMin(same, keepdims=0), D.BOOL)
