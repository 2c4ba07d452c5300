"""Binary arithmetic: add, sub, mul, div and their kin, each in all overloads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.dtypes import FLOATS, SMALL_INTEGERS, Number, Operand, as_dtype, in_opmath, opmath, through
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.aten_map.unary import truncated
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, product

aten = torch.ops.aten
D = ir.DataType
Binary: TypeAlias = Callable[[Emit, ir.Value, ir.Value], ir.Value]

BOOL_FORMS = {"Add": "Or", "Mul": "And"}
UNSIGNED = frozenset({D.UINT8, D.UINT16, D.UINT32, D.UINT64})


def is_number(operand: Any, number: float) -> bool:
    """Return whether ``operand`` is the Python number ``number``."""
    return isinstance(operand, bool | int | float) and operand == number


def add(op: Emit, lhs: Operand, rhs: Operand, dtype: ir.DataType, op_type: str = "Add") -> ir.Value:
    """``lhs + rhs`` (or minus) in ``dtype``; bools are or-ed."""
    if dtype == D.FLOAT16 and op_type in ("Mul", "Div") and (_is_beyond_half(op, lhs) or _is_beyond_half(op, rhs)):
        return op.cast(add(op, lhs, rhs, D.FLOAT, op_type), dtype)  # PyTorch multiplies by the number itself
    left, right = as_dtype(op, lhs, dtype), as_dtype(op, rhs, dtype)
    if dtype == D.BOOL and op_type in BOOL_FORMS:
        return op.node(BOOL_FORMS[op_type], left, right)
    return through(op, op_type, left, right)


def _is_beyond_half(op: Emit, operand: Operand) -> bool:
    """Return whether a number, or a tensor of one in a wider dtype, may be no normal number of float16."""
    if isinstance(operand, ir.Value):
        if op.rank(operand) or op.dtype(operand) not in (D.FLOAT, D.DOUBLE):
            return False
        known = op.constant(operand, most=1)
        return known is None or _is_beyond_half(op, float(known.item()))
    size = abs(float(operand)) if isinstance(operand, int | float) else 1.0
    return math.isfinite(size) and not (size == 0 or _TINIEST <= size <= _LARGEST)


_TINIEST, _LARGEST = float(np.finfo(np.float16).tiny), float(np.finfo(np.float16).max)


def _scaled(op: Emit, operand: Operand, alpha: Number, dtype: ir.DataType) -> ir.Value:
    value = as_dtype(op, operand, dtype)
    return value if is_number(alpha, 1) else add(op, value, alpha, dtype, "Mul")


def add_tensor(op: Emit, self: ir.Value, other: Operand, alpha: Number) -> ir.Value:
    dtype = op.result_dtype()
    return add(op, self, _scaled(op, other, alpha, dtype), dtype)


def sub_tensor(op: Emit, self: ir.Value, other: Operand, alpha: Number) -> ir.Value:
    dtype = op.result_dtype()
    return add(op, self, _scaled(op, other, alpha, dtype), dtype, "Sub")


def rsub_tensor(op: Emit, self: ir.Value, other: Operand, alpha: Number) -> ir.Value:
    dtype = op.result_dtype()
    return add(op, other, _scaled(op, self, alpha, dtype), dtype, "Sub")


def mul_tensor(op: Emit, self: ir.Value, other: Operand) -> ir.Value:
    return add(op, self, other, op.result_dtype(), "Mul")


def div_tensor(op: Emit, self: ir.Value, other: Operand) -> ir.Value:
    return add(op, self, other, op.result_dtype(), "Div")


def div_tensor_mode(op: Emit, self: ir.Value, other: Operand, rounding_mode: str | None) -> ir.Value:
    if rounding_mode is None:
        return add(op, self, other, op.result_dtype(), "Div")
    return (floor_divide if rounding_mode == "floor" else trunc_divide)(op, self, other)


def _divisor(op: Emit, left: ir.Value, right: ir.Value) -> ir.Value:
    """The integers ``right``; 1 where data leaves ``left`` without elements: runtimes divide by no number 0, not even nothing."""
    dims = op.dims(left)
    is_number = not op.rank(right) and op.constant(right, most=1) is None
    if not is_number or not any(isinstance(dim, Dim) and dim.unbacked_symbols() for dim in dims):
        return right
    return op.Where(op.Equal(op.sizes([product(dims)]), 0), op.const(1, op.dtype(right)), right)


def trunc_divide(op: Emit, lhs: Operand, rhs: Operand) -> ir.Value:
    """The quotient rounded towards zero, in the result's dtype."""
    dtype = op.result_dtype()
    if dtype not in FLOATS:
        left = as_dtype(op, lhs, dtype)
        return add(op, left, _divisor(op, left, as_dtype(op, rhs, dtype)), dtype, "Div")
    return truncated(op, add(op, lhs, rhs, dtype, "Div"))


def floor_divide(op: Emit, lhs: Operand, rhs: Operand) -> ir.Value:
    """The quotient rounded down, in the result's dtype.

    Floats: as PyTorch (and C++'s fmod) has it, the exact quotient is wanted, not the floor of the rounded one: 1 // 0.1 is 9.
    """
    dtype = op.result_dtype()
    left, right = as_dtype(op, lhs, opmath(dtype)), as_dtype(op, rhs, opmath(dtype))
    if dtype not in FLOATS:
        right = _divisor(op, left, right)
        if dtype in UNSIGNED:
            return through(op, "Div", left, right)
        return _integer_floor(op, left, right)
    known = isinstance(rhs, int | float) and rhs != 0 and float(rhs).is_integer()
    quotient = op.Div(left, right)
    if known and abs(float(rhs)) == 2 ** round(np.log2(abs(float(rhs)))):  # type: ignore[arg-type]
        floored = op.Add(op.Floor(quotient), op.Mul(left, op.const(0, opmath(dtype))))  # NaN of infinities
        return op.cast(floored, dtype)
    part = op.Mod(left, right, fmod=1)
    wrong_sign = op.And(op.Less(op.Mul(op.Sign(part), op.Sign(right)), 0), op.Not(op.Equal(part, 0)))
    exact = op.Div(op.Sub(left, part), right)
    exact = op.Where(wrong_sign, op.Sub(exact, 1), exact)
    floored = op.Floor(op.Add(exact, 0.5))
    result = op.Where(op.Equal(right, 0), quotient, floored)
    return op.cast(result, dtype)


def _integer_floor(op: Emit, left: ir.Value, right: ir.Value) -> ir.Value:
    """The quotient rounded down. ``(a - a mod b) / b`` would leave the dtype where ``a`` is near its least number, so small
    integers are widened, and of wide ones the quotient rounded towards zero is lowered by 1 where the two remainders differ.
    """
    dtype = op.dtype(left)
    if dtype in SMALL_INTEGERS:
        left, right = op.cast(left, D.INT32), op.cast(right, D.INT32)
        return op.cast(op.Div(op.Sub(left, op.Mod(left, right)), right), dtype)
    quotient = op.Div(left, right)
    gap = op.Sub(op.Mod(left, right), op.Sub(left, op.Mul(quotient, right)))
    return op.Sub(quotient, op.Div(gap, right))


def remainder_tensor(op: Emit, self: Operand, other: Operand) -> ir.Value:
    dtype = op.result_dtype()
    left, right = as_dtype(op, self, dtype), as_dtype(op, other, dtype)
    if dtype not in FLOATS:
        return through(op, "Mod", left, _divisor(op, left, right))
    return in_opmath(op, _float_remainder, left, right)


def _float_remainder(op: Emit, left: ir.Value, right: ir.Value) -> ir.Value:
    part = op.Mod(left, right, fmod=1)
    return op.Where(op.Less(op.Mul(op.Sign(part), op.Sign(right)), 0), op.Add(part, right), part)


def fmod_tensor(op: Emit, self: ir.Value, other: Operand) -> ir.Value:
    dtype = op.result_dtype()
    left, right = as_dtype(op, self, dtype), as_dtype(op, other, dtype)
    if dtype not in FLOATS:
        right = _divisor(op, left, right)
    if dtype == D.INT64:  # onnxruntime computes this Mod in float64
        return op.Sub(left, op.Mul(op.Div(left, right), right))
    return through(op, "Mod", left, right, fmod=1)


@translates(aten.addcmul.default)
def addcmul(op: Emit, self: ir.Value, tensor1: ir.Value, tensor2: ir.Value, value: Number) -> ir.Value:
    """addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor

    ONNX:    Mul, Add.
    """
    dtype, wide = op.result_dtype(), opmath(op.result_dtype())
    return op.cast(add(op, self, _scaled(op, add(op, tensor1, tensor2, wide, "Mul"), value, wide), wide), dtype)


@translates(aten.addcdiv.default)
def addcdiv(op: Emit, self: ir.Value, tensor1: ir.Value, tensor2: ir.Value, value: Number) -> ir.Value:
    """addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor

    ONNX:    Div, Add. PyTorch refuses integer division here too.
    """
    dtype = op.result_dtype()
    if dtype not in FLOATS:
        raise UserError("E203", "addcdiv divides integers", why="PyTorch refuses it too", next="cast to float first")
    wide = opmath(dtype)
    return op.cast(add(op, self, _scaled(op, add(op, tensor1, tensor2, wide, "Div"), value, wide), wide), dtype)


def lerp_tensor(op: Emit, self: ir.Value, end: ir.Value, weight: Operand) -> ir.Value:
    return in_opmath(op, _between, self, end, weight)


def _between(op: Emit, start: ir.Value, end: ir.Value, weight: ir.Value) -> ir.Value:
    """``start + w (end - start)``; a number from 0.5 on is counted from the end, as in PyTorch. Source: ATen/native/Lerp.h."""
    gap = op.Sub(end, start)
    number = op.constant(weight, most=1)
    if number is not None and abs(number.item()) >= 0.5:
        return op.Sub(end, op.Mul(gap, op.const(1 - number.item(), op.dtype(gap))))
    found = op.Add(start, op.Mul(weight, gap))
    if number is not None:
        return found
    one, half = op.const(1, op.dtype(gap)), op.const(0.5, op.dtype(gap))
    from_end = op.Sub(end, op.Mul(gap, op.Sub(one, weight)))
    return op.Where(op.Less(op.Abs(weight), half), found, from_end)


def _minmax(op_type: str) -> Callable[[Emit, ir.Value, ir.Value], ir.Value]:
    def entry(op: Emit, self: ir.Value, other: ir.Value) -> ir.Value:
        dtype = op.result_dtype()
        return extremum(op, op_type, op.cast(self, dtype), op.cast(other, dtype))

    return entry


def extremum(op: Emit, op_type: str, left: ir.Value, right: ir.Value) -> ir.Value:
    """Max or Min of two values of one dtype; NaN where either is NaN."""
    dtype = op.dtype(left)
    if dtype == D.BOOL:
        return op.node("Or" if op_type == "Max" else "And", left, right)
    if op.opset < 12 and dtype not in FLOATS and dtype not in SMALL_INTEGERS:
        return op.Where(op.node("Greater" if op_type == "Max" else "Less", left, right), left, right)
    return through(op, op_type, left, right)


for _op_type, _overloads in {
    "Max": (aten.maximum.default, aten.max.other),
    "Min": (aten.minimum.default, aten.min.other),
}.items():
    register_shared(_minmax(_op_type), _op_type, *_overloads)


def _fminmax(op_type: str) -> Callable[[Emit, ir.Value, ir.Value], ir.Value]:
    def entry(op: Emit, self: ir.Value, other: ir.Value) -> ir.Value:
        dtype = op.result_dtype()
        left, right = op.cast(self, dtype), op.cast(other, dtype)
        both = extremum(op, op_type, left, right)
        if dtype not in FLOATS:
            return both
        return op.Where(op.IsNaN(left), right, op.Where(op.IsNaN(right), left, both))

    return entry


register_shared(_fminmax("Max"), "Max; the other operand where one is NaN", aten.fmax.default)
register_shared(_fminmax("Min"), "Min; the other operand where one is NaN", aten.fmin.default)


register_shared(add_tensor, "Add; Or of bools; ``other`` times alpha first", *overloads_of("add.Tensor add.Scalar"))
register_shared(
    sub_tensor,
    "Sub; ``other`` times alpha first",
    *overloads_of("sub.Tensor sub.Scalar subtract.Tensor subtract.Scalar"),
)
register_shared(rsub_tensor, "Sub(other, alpha * self)", *overloads_of("rsub.Tensor rsub.Scalar"))
register_shared(mul_tensor, "Mul; And of bools", *overloads_of("mul.Tensor mul.Scalar multiply.Tensor multiply.Scalar"))
register_shared(
    div_tensor,
    "Div of floats; integers are cast first",
    *overloads_of("div.Tensor div.Scalar divide.Tensor divide.Scalar true_divide.Tensor true_divide.Scalar"),
)
register_shared(
    div_tensor_mode,
    "Div, then Floor or the truncation; integers: ONNX's Div truncates",
    *overloads_of("div.Tensor_mode div.Scalar_mode divide.Tensor_mode divide.Scalar_mode"),
)
register_shared(
    floor_divide, 'as ``div`` with rounding_mode="floor"', *overloads_of("floor_divide floor_divide.Scalar")
)
register_shared(
    remainder_tensor,
    "Mod of integers, which takes the divisor's sign; floats: fmod, and the divisor added where signs differ",
    *overloads_of("remainder.Tensor remainder.Scalar remainder.Scalar_Tensor"),
)
register_shared(fmod_tensor, "Mod with fmod=1", *overloads_of("fmod.Tensor fmod.Scalar"))
register_shared(
    lerp_tensor,
    "self + weight * (end - self); from weight 0.5 on, PyTorch counts from the end, equal up to rounding",
    *overloads_of("lerp.Tensor lerp.Scalar"),
)
