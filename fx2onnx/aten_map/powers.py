"""Powers and two-argument functions: pow, float_power, atan2, hypot, copysign, xlogy, gcd, frexp, ..."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.arithmetic import UNSIGNED, extremum, is_number
from fx2onnx.aten_map.creation import filled_with
from fx2onnx.aten_map.gathering import where
from fx2onnx.aten_map.reductions import any_true
from fx2onnx.aten_map.table.dtypes import FLOATS, Operand, as_dtype, in_opmath, opmath, through
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.functions import log1p

aten = torch.ops.aten
D = ir.DataType


def power(op: Emit, base: Operand, exponent: Operand, dtype: ir.DataType) -> ir.Value:
    """``base ** exponent``; squares, roots and reciprocals by their own operators.

    An integer 0 to a negative power is 0 in PyTorch: the exponent's magnitude is taken there. onnxruntime computes integer powers
    in float64, which holds those of 2.
    """
    left = as_dtype(op, base, dtype)
    if is_number(exponent, 1):
        return left
    if is_number(exponent, 0):
        return filled_with(op, op.dims(left), 1, dtype, left)
    if is_number(exponent, 2):
        return through(op, "Mul", left, left)
    if dtype not in FLOATS and isinstance(exponent, int) and 2 < exponent <= 4:
        square = through(op, "Mul", left, left)
        return through(op, "Mul", square, left if exponent == 3 else square)
    if dtype in FLOATS and is_number(exponent, 0.5):
        return through(op, "Sqrt", left)
    if dtype in FLOATS and is_number(exponent, -1):
        return through(op, "Reciprocal", left)
    if dtype in FLOATS and is_number(exponent, -0.5):
        return through(op, "Reciprocal", through(op, "Sqrt", left))
    if dtype == D.INT64 and not _is_power_of_two(base):
        return _whole_power(op, left, exponent)
    right = as_dtype(op, exponent, dtype)
    if dtype not in FLOATS and dtype not in UNSIGNED and isinstance(exponent, ir.Value):
        zero = through(op, "Equal", left, op.const(0, dtype))
        right = where(op, zero, through(op, "Abs", right), right)
    return through(op, "Pow", left, right)


def _is_power_of_two(base: Operand) -> bool:
    return isinstance(base, int) and base > 1 and base & (base - 1) == 0


def _whole_power(op: Emit, base: ir.Value, exponent: Operand) -> ir.Value:
    """An int64 to a power by squaring, exact where it fits. A negative power is 0 but of 1 and -1, whose powers alone fit beyond 63."""
    if isinstance(exponent, int):
        return _squared(op, base, exponent)
    right = as_dtype(op, exponent, D.INT64)
    size = op.Abs(right)
    last = op.Add(op.Mod(size, 2), 62)
    size = op.Where(op.Greater(size, 63), last, size)
    found, square = op.const(1, D.INT64), base
    for bit in range(6):
        is_set = op.Equal(op.Mod(op.Div(size, 1 << bit), 2), 1)
        found = op.Where(is_set, op.Mul(found, square), found)
        square = op.Mul(square, square)
    is_fraction = op.And(op.Less(right, 0), op.Not(op.Equal(op.Mul(base, base), 1)))
    return op.Where(is_fraction, op.const(0, D.INT64), found)


def _squared(op: Emit, base: ir.Value, exponent: int) -> ir.Value:
    """A product of squares for a plain exponent."""
    exponent = exponent if exponent < 64 else 62 + exponent % 2
    found, square = None, base
    while exponent:
        if exponent % 2:
            found = square if found is None else op.Mul(found, square)
        exponent //= 2
        square = op.Mul(square, square) if exponent else square
    assert found is not None
    return found


def _pow(op: Emit, self: Operand, exponent: Operand) -> ir.Value:
    dtype = op.result_dtype()
    if dtype == D.BOOL:
        return op.Or(as_dtype(op, self, dtype), op.Not(as_dtype(op, exponent, dtype)))
    return power(op, self, exponent, dtype)


_POWERS = "pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar"
register_shared(_pow, "Pow; Mul, Sqrt, Reciprocal for 2, 0.5, -1", *overloads_of(_POWERS))
register_shared(_pow, "Pow in float64", *overloads_of(_POWERS.replace("pow.", "float_power.")))


def negative(op: Emit, value: ir.Value) -> ir.Value:
    """Return whether the sign is minus, that of zero too."""
    return op.Or(op.Less(value, 0), op.Less(op.Reciprocal(value), 0))


def _copysign(op: Emit, magnitude: ir.Value, sign: ir.Value) -> ir.Value:
    size = op.Abs(magnitude)
    return op.Where(negative(op, sign), op.Neg(size), size)


def _hypot(op: Emit, left: ir.Value, right: ir.Value) -> ir.Value:
    """m sqrt(1 + (n / m)^2) with m >= n the magnitudes: no overflow on the way."""
    dtype = op.dtype(left)
    left, right = op.Abs(left), op.Abs(right)
    most, least = op.Max(left, right), op.Min(left, right)
    ratio = op.Div(least, op.Max(most, float(np.finfo(np.float32).tiny)))
    length = op.Mul(most, op.Sqrt(op.Add(op.Mul(ratio, ratio), 1)))
    infinite = op.Or(op.Equal(left, math.inf), op.Equal(right, math.inf))
    return op.Where(infinite, op.const(math.inf, dtype), length)


def arc_tangent(op: Emit, y: ir.Value, x: ir.Value) -> ir.Value:
    """The angle of (x, y) with every quadrant, signed zeros and infinities."""
    dtype = op.dtype(y)
    one = op.const(1, dtype)
    both_zero = op.And(op.Equal(x, 0), op.Equal(y, 0))
    both_infinite = op.And(op.Equal(op.Abs(x), math.inf), op.Equal(op.Abs(y), math.inf))
    ratio = op.Div(y, op.Where(both_zero, one, x))
    ratio = op.Where(both_infinite, op.Mul(op.Sign(y), op.Sign(x)), ratio)
    angle = op.Atan(ratio)
    x_negative, y_negative = negative(op, x), negative(op, y)
    angle = op.Where(op.And(both_zero, op.Not(x_negative)), y, angle)
    angle = op.Where(op.And(both_zero, x_negative), op.const(0, dtype), angle)
    turn = op.Where(y_negative, op.const(-math.pi, dtype), op.const(math.pi, dtype))
    return op.Where(x_negative, op.Add(angle, turn), angle)


def xlogy(op: Emit, x: ir.Value, y: ir.Value) -> ir.Value:
    """x log y; 0 where x is 0 and y is a number."""
    zero = op.And(op.Equal(x, 0), op.Not(op.IsNaN(y)))
    return op.Where(zero, op.const(0, op.dtype(x)), op.Mul(x, op.Log(y)))


def _xlog1py(op: Emit, x: ir.Value, y: ir.Value) -> ir.Value:
    zero = op.And(op.Equal(x, 0), op.Not(op.IsNaN(y)))
    return op.Where(zero, op.const(0, op.dtype(x)), op.Mul(x, log1p(op, y)))


def log_add_exp(op: Emit, left: ir.Value, right: ir.Value) -> ir.Value:
    """log(exp(a) + exp(b)) = max + log1p(exp(min - max)); equal infinities stay."""
    most, least = extremum(op, "Max", left, right), extremum(op, "Min", left, right)
    zero = op.const(0, op.dtype(left))
    gap = op.Where(op.Equal(most, least), zero, op.Sub(least, most))
    return op.Add(most, log1p(op, op.Exp(gap)))


def _log_add_exp2(op: Emit, left: ir.Value, right: ir.Value) -> ir.Value:
    scale = float(np.log(2))
    return op.Div(log_add_exp(op, op.Mul(left, scale), op.Mul(right, scale)), scale)


def _binary(formula: Callable[..., ir.Value]) -> Callable[..., ir.Value]:
    return lambda op, self, other: in_opmath(op, formula, self, other)


BINARY: dict[str, tuple[str, Callable[..., ir.Value]]] = {
    "copysign.Tensor copysign.Scalar": ("Where(sign bit, -|x|, |x|)", _copysign),
    "hypot": ("max sqrt(1 + (min / max)^2)", _hypot),
    "atan2 arctan2": ("Atan(y / x), quadrants by Where", arc_tangent),
    "xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self": ("Where(x == 0, 0, x Log(y))", xlogy),
    "special_xlogy special_xlogy.other_scalar special_xlogy.self_scalar": ("Where(x == 0, 0, x Log(y))", xlogy),
    "special_xlog1py special_xlog1py.other_scalar special_xlog1py.self_scalar": ("x log1p(y), 0 at 0", _xlog1py),
    "logaddexp": ("Max + log1p(Exp(Min - Max))", log_add_exp),
    "logaddexp2": ("Max + log1p(Exp(Min - Max)), scaled by log 2", _log_add_exp2),
    "ldexp.Tensor": ("x Pow(2, y)", lambda op, x, y: op.Mul(x, op.Pow(op.const(2.0, op.dtype(y)), y))),
}
for _names, (_form, _function) in BINARY.items():
    register_shared(_binary(_function), _form, *overloads_of(_names))


def _logit(op: Emit, self: ir.Value, eps: float | None) -> ir.Value:
    dtype = op.result_dtype()
    value = op.cast(self, opmath(dtype))
    if eps is not None:
        low, high = op.const(eps, op.dtype(value)), op.const(1 - eps, op.dtype(value))
        if 0 <= eps <= 0.5:
            value = op.Clip(value, min=low, max=high)
        else:  # the lower bound is the higher one, or NaN
            within = op.Where(op.Greater(value, high), high, value)
            value = op.Where(op.Less(value, low), low, within)
    return op.cast(op.Log(op.Div(value, op.Sub(op.const(1.0, op.dtype(value)), value))), dtype)


register_shared(_logit, "Log(x / (1 - x))", *overloads_of("logit special_logit"))


@translates(aten.heaviside.default)
def heaviside(op: Emit, self: ir.Value, values: ir.Value) -> ir.Value:
    """heaviside(Tensor self, Tensor values) -> Tensor

    ONNX:    Where(x == 0, values, x > 0).
    """
    dtype = op.result_dtype()
    value = op.cast(self, D.INT32) if dtype == D.BOOL else self
    zero = op.const(0, op.dtype(value))
    positive = op.cast(through(op, "Greater", value, zero), dtype)
    return where(op, through(op, "Equal", value, zero), op.cast(values, dtype), positive)


def _rounded(op: Emit, self: ir.Value, decimals: int) -> ir.Value:
    if not op.is_float(self):
        return self
    if decimals == 0:
        return through(op, "Round", self)
    value = op.cast(self, opmath(op.dtype(self)))
    scale = 10.0 ** abs(decimals)
    first, second = ("Mul", "Div") if decimals > 0 else ("Div", "Mul")
    return op.cast(op.node(second, op.Round(op.node(first, value, scale)), scale), op.dtype(self))


register_shared(_rounded, "Round of the scaled value", *overloads_of("round.decimals special_round"))


def _angle(op: Emit, self: ir.Value) -> ir.Value:
    dtype = op.result_dtype()
    value = op.cast(self, dtype)
    turned = where(op, op.Less(value, 0), op.const(math.pi, dtype), op.const(0, dtype))
    return where(op, through(op, "IsNaN", value), value, turned)


register_shared(_angle, "pi below 0, 0 above, NaN stays", aten.angle.default)


def greatest_common_divisor(op: Emit, left: ir.Value, right: ir.Value) -> ir.Value:
    """Euclid's algorithm in a Loop, until every remainder is 0; of magnitudes, in int64."""
    dims = op.result_dims()
    left = op.expand(op.Abs(op.cast(left, D.INT64)), dims)
    right = op.expand(op.Abs(op.cast(right, D.INT64)), dims)
    count, go_on = op.subgraph_input("iteration", D.INT64, ()), op.subgraph_input("go_on", D.BOOL, ())
    a, b = op.subgraph_input("a", D.INT64, dims), op.subgraph_input("b", D.INT64, dims)

    def body(inner: Emit) -> list[ir.Value]:
        done = inner.Equal(b, 0)
        rest = inner.Where(done, b, inner.Mod(a, inner.Where(done, inner.const(np.int64(1)), b)))
        more = any_true(inner, inner.Not(inner.Equal(rest, 0)))
        return [more, inner.Where(done, a, b), rest]

    graph = op.subgraph("euclid", [count, go_on, a, b], body)
    typed = [(D.INT64, dims), (D.INT64, dims)]
    found, _ = op.Loop(None, op.const(np.array(True)), left, right, body=graph, outputs=typed)
    return found  # type: ignore[no-any-return]


@translates(aten.gcd.default)
def gcd(op: Emit, self: ir.Value, other: ir.Value) -> ir.Value:
    """gcd(Tensor self, Tensor other) -> Tensor

    ONNX:    Loop of Mod.
    """
    return op.cast(greatest_common_divisor(op, self, other), op.result_dtype())


@translates(aten.lcm.default)
def lcm(op: Emit, self: ir.Value, other: ir.Value) -> ir.Value:
    """lcm(Tensor self, Tensor other) -> Tensor

    ONNX:    |a / gcd * b|, 0 where both are 0.
    """
    dtype = op.result_dtype()
    divisor = greatest_common_divisor(op, self, other)
    zero = op.Equal(divisor, 0)
    share = op.Div(op.cast(self, D.INT64), op.Where(zero, op.const(np.int64(1)), divisor))
    product = op.cast(op.Mul(share, op.cast(other, D.INT64)), dtype)
    return product if dtype in UNSIGNED else through(op, "Abs", product)


def mantissa_and_exponent(op: Emit, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """x = m 2^e with 0.5 <= |m| < 1; (x, 0) for 0, infinities and NaN. e comes as a float.

    The logarithm's guess may be one off beside powers of two: one step of correction each way.
    """
    dtype = op.dtype(value)
    size = op.Abs(value)
    plain = op.Or(op.Equal(value, 0), op.Not(op.Less(size, math.inf)))
    safe = op.Where(plain, op.const(1.0, dtype), value)
    guess = op.Add(op.Floor(op.Div(op.Log(op.Abs(safe)), math.log(2))), 1)
    half = op.Floor(op.Mul(guess, 0.5))
    two = op.const(2.0, dtype)
    mantissa = op.Div(op.Div(safe, op.Pow(two, half)), op.Pow(two, op.Sub(guess, half)))
    too_big = op.Not(op.Less(op.Abs(mantissa), 1))
    too_small = op.Less(op.Abs(mantissa), 0.5)
    shift = op.Sub(op.cast(too_big, dtype), op.cast(too_small, dtype))
    mantissa = op.Div(mantissa, op.Pow(two, shift))
    zero = op.const(0.0, dtype)
    return op.Where(plain, value, mantissa), op.Where(plain, zero, op.Add(guess, shift))


@translates(aten.frexp.Tensor)
def frexp_tensor(op: Emit, self: ir.Value) -> tuple[ir.Value, ir.Value]:
    """frexp(Tensor self) -> (Tensor mantissa, Tensor exponent)

    ONNX:    Floor(Log(|x|) / log 2) + 1, corrected by one where the mantissa falls outside [0.5, 1).
    """
    dtype = op.dtype(self)
    mantissa, exponent = mantissa_and_exponent(op, op.cast(self, opmath(dtype)))
    return op.cast(mantissa, dtype), op.cast(exponent, D.INT32)
