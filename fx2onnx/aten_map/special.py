"""Special functions of the error and gamma families, in float64 inside, by series and rational approximations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map import special_tables as tables
from fx2onnx.aten_map.table.dtypes import Operand, as_dtype
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.functions import erfc, erfcx_positive, log1p

aten = torch.ops.aten
D = ir.DataType
WORK = D.DOUBLE
"""Alternating series and shifted recurrences cancel: float64 inside gives float32 results to the last place."""


def number(op: Emit, value: float) -> ir.Value:
    return op.const(float(value), WORK)


def polynomial(op: Emit, value: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """The sum of c[k] x^(n - k): Unsqueeze, Pow by 0..n, MatMul. Memory: n times the tensor."""
    powers = op.const(np.arange(len(coefficients) - 1, -1, -1, dtype=np.float64))
    return op.MatMul(
        op.Pow(op.Unsqueeze(value, axes=[op.rank(value)]), powers), op.const(np.array(coefficients, dtype=np.float64))
    )


def quotient(op: Emit, value: ir.Value, top: Sequence[float], bottom: Sequence[float]) -> ir.Value:
    """A rational function."""
    return op.Div(polynomial(op, value, top), polynomial(op, value, bottom))


def between(op: Emit, condition: ir.Value, yes: ir.Value | float, no: ir.Value | float) -> ir.Value:
    """ONNX's Where of float64 values and numbers."""
    left = yes if isinstance(yes, ir.Value) else number(op, yes)
    right = no if isinstance(no, ir.Value) else number(op, no)
    return op.Where(condition, left, right)


Function = Callable[..., ir.Value]


def unary(formula: Function) -> Function:
    """An entry that runs ``formula`` in float64."""
    return lambda op, self: op.cast(formula(op, op.cast(self, WORK)), op.result_dtype())


def binary(formula: Function) -> Function:
    """A translation as by ``unary``, with two operands."""

    def entry(op: Emit, self: Operand, other: Operand) -> ir.Value:
        return op.cast(formula(op, as_dtype(op, self, WORK), as_dtype(op, other, WORK)), op.result_dtype())

    return entry


def erfcx(op: Emit, x: ir.Value) -> ir.Value:
    size = op.Abs(x)
    scaled = erfcx_positive(op, size)
    negative = op.Sub(op.Mul(op.Exp(op.Mul(size, size)), 2.0), scaled)
    return between(op, op.Less(x, 0), negative, scaled)


def _log_ndtr(op: Emit, x: ir.Value) -> ir.Value:
    t = op.Mul(x, math.sqrt(0.5))
    far = op.Sub(op.Log(op.Mul(erfcx_positive(op, op.Abs(t)), 0.5)), op.Mul(t, t))
    near = log1p(op, op.Mul(erfc(op, t), -0.5))
    return between(op, op.Less(x, -1), far, near)


def ndtri(op: Emit, y: ir.Value) -> ir.Value:
    """The normal quantile. Source: Cephes, ndtri."""
    edge = math.exp(-2)
    upper = op.Greater(y, 1 - edge)
    low = between(op, upper, op.Sub(number(op, 1.0), y), y)
    middle = op.Sub(low, 0.5)
    square = op.Mul(middle, middle)
    inner = op.Mul(square, quotient(op, square, tables.NDTRI_P0, tables.NDTRI_Q0))
    center = op.Mul(op.Add(middle, op.Mul(middle, inner)), math.sqrt(2 * math.pi))
    x = op.Sqrt(op.Mul(op.Log(low), -2.0))
    z = op.Div(number(op, 1.0), x)
    first = quotient(op, z, tables.NDTRI_P1, tables.NDTRI_Q1)
    second = quotient(op, z, tables.NDTRI_P2, tables.NDTRI_Q2)
    tail = op.Mul(z, between(op, op.Less(x, 8.0), first, second))
    tail = op.Sub(op.Sub(x, op.Div(op.Log(x), x)), tail)
    tail = between(op, upper, tail, op.Neg(tail))
    found = between(op, op.Greater(low, edge), center, tail)
    found = between(op, op.Equal(y, 0), -math.inf, found)
    return between(op, op.Equal(y, 1), math.inf, found)


def _erfinv(op: Emit, x: ir.Value) -> ir.Value:
    """ndtri((1 + |x|) / 2) / sqrt 2 with the sign of x; near 0, where the sum would lose digits, two terms of a series."""
    size = op.Abs(x)
    found = op.Mul(ndtri(op, op.Mul(op.Add(size, 1.0), 0.5)), math.sqrt(0.5))
    cube = op.Mul(op.Mul(size, size), math.pi / 12)
    small = op.Mul(op.Mul(size, math.sqrt(math.pi) / 2), op.Add(cube, 1.0))
    found = between(op, op.Less(size, 1e-4), small, found)
    return between(op, op.Less(x, 0), op.Neg(found), found)


LANCZOS_G = 7.0
LANCZOS = [
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
]  # fmt: skip
"""Source: Godfrey's coefficients for g = 7, n = 9; relative error below 1e-14 for x >= 1/2."""


def spread_sum(op: Emit, value: ir.Value, offsets: Sequence[float], formula: Function) -> ir.Value:
    """The sum over k of formula(x + offsets[k]) along a new last axis."""
    column = op.Unsqueeze(value, axes=[op.rank(value)])
    terms = formula(op, op.Add(column, op.const(np.array(offsets, dtype=np.float64))))
    return op.ReduceSum(terms, axes=[-1], keepdims=0)


def sine_of_pi(op: Emit, x: ir.Value) -> ir.Value:
    """sin(pi x), exactly 0 at whole numbers."""
    result = op.Sin(op.Mul(op.Mod(x, 2.0, fmod=1), math.pi))
    return between(op, op.Equal(op.Floor(x), x), 0.0, result)


def lgamma(op: Emit, x: ir.Value) -> ir.Value:
    """log |gamma(x)|: Lanczos from 1/2 on, the reflection log(pi / |sin pi x|) - lgamma(1 - x) below; exactly 0 at 1 and 2."""
    low = op.Less(x, 0.5)
    y = op.Sub(between(op, low, op.Sub(number(op, 1.0), x), x), 1.0)
    weights = op.const(np.array(LANCZOS[1:]))
    series = spread_sum(op, y, range(1, 9), lambda op, column: op.Div(weights, column))
    series = op.Add(series, LANCZOS[0])
    t = op.Add(y, LANCZOS_G + 0.5)
    power = op.Sub(op.Mul(op.Add(y, 0.5), op.Log(t)), t)
    found = op.Add(op.Add(power, op.Log(series)), 0.5 * math.log(2 * math.pi))
    found = between(op, op.Equal(y, math.inf), math.inf, found)
    reflected = op.Sub(op.Log(op.Div(number(op, math.pi), op.Abs(sine_of_pi(op, x)))), found)
    found = between(op, low, reflected, found)
    is_zero = op.Equal(op.Mul(op.Sub(x, 1.0), op.Sub(x, 2.0)), number(op, 0.0))
    found = between(op, is_zero, 0.0, found)
    return between(op, op.Equal(x, -math.inf), math.inf, found)


DIGAMMA_SHIFT = 10
BERNOULLI = [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6]
"""B2, B4, .. B14."""


PI_PARTS = (float.fromhex("0x1.921fb544p+1"), float.fromhex("0x1.0b4611a6p-33"), float.fromhex("0x1.3198a2e037073p-68"))
"""Their sum is pi to 120 bits; products of the first two with whole numbers up to 2^20 are exact."""


def _beside_pi(op: Emit, angle: ir.Value) -> ir.Value:
    """The distance of float64 angles to the nearest multiple of pi: beside it onnxruntime's Sin of float64 is off by 1e-16, which is all of the sine."""
    turns = op.Round(op.Div(angle, math.pi))
    for part in PI_PARTS:
        angle = op.Sub(angle, op.Mul(turns, part))
    return angle


def digamma(op: Emit, x: ir.Value) -> ir.Value:
    """log z - 1 / 2z - sum of B2k / (2k z^2k) at z = x + 10, less the sum of 1 / (x + k); reflected below 1/2."""
    low = op.Less(x, 0.5)
    y = between(op, low, op.Sub(number(op, 1.0), x), x)
    z = op.Add(y, float(DIGAMMA_SHIFT))
    inverse = op.Div(number(op, 1.0), z)
    terms = [b / (2 * k) for k, b in enumerate(BERNOULLI, 1)]
    square = op.Mul(inverse, inverse)
    tail = op.Mul(square, polynomial(op, square, terms[::-1]))
    found = op.Sub(op.Sub(op.Log(z), op.Mul(inverse, 0.5)), tail)
    steps = spread_sum(op, y, range(DIGAMMA_SHIFT), lambda op, column: op.Reciprocal(column))
    found = op.Sub(found, steps)
    angle = _beside_pi(op, op.Mul(op.Mod(x, 1.0, fmod=1), math.pi))
    cotangent = op.Div(op.Cos(angle), op.Sin(angle))
    found = between(op, low, op.Sub(found, op.Mul(cotangent, math.pi)), found)
    whole = op.And(op.Less(x, 0), op.Equal(op.Floor(x), x))
    found = between(op, whole, math.nan, found)
    pole = op.Neg(op.Div(number(op, 1.0), x))
    found = between(op, op.Equal(x, 0), pole, found)
    return between(op, op.Equal(x, math.inf), math.inf, found)


ZETA_TERMS = 32
"""Terms summed one by one: arguments down to -24 come out beyond 8, where the rest converges; NaN below."""


def _positive_zeta(op: Emit, s: ir.Value, q: ir.Value) -> ir.Value:
    """Hurwitz for q > 0: 32 terms (q + k)^-s, then Euler-Maclaurin at a = q + 32.

    a^(1-s) / (s - 1) + a^-s / 2 + sum of B2j / (2j)! s (s + 1) .. (s + 2j - 2) a^(-s - 2j + 1).
    """
    column_s = op.Unsqueeze(s, axes=[op.rank(s)]) if op.rank(s) else s
    total = spread_sum(op, q, range(ZETA_TERMS), lambda op, column: op.Pow(column, op.Neg(column_s)))
    a = op.Add(q, float(ZETA_TERMS))
    power = op.Pow(a, op.Neg(s))
    total = op.Add(total, op.Div(op.Mul(power, a), op.Sub(s, 1.0)))
    total = op.Add(total, op.Mul(power, 0.5))
    factor = op.Div(op.Mul(power, s), a)
    square = op.Mul(a, a)
    for j, bernoulli in enumerate(BERNOULLI, 1):
        total = op.Add(total, op.Mul(factor, bernoulli / math.factorial(2 * j)))
        step = op.Mul(op.Add(s, 2.0 * j - 1), op.Add(s, 2.0 * j))
        factor = op.Div(op.Mul(factor, step), square)
    return total


def zeta(op: Emit, s: ir.Value, q: ir.Value) -> ir.Value:
    """Hurwitz. Below 0, where s has to be whole: with f = q - floor(q), the terms before the first positive one are
    (-1)^s of those of zeta(s, 1 - f) that zeta(s, 1 - q) lacks. All three are taken at once, along a new last axis.
    """
    s = between(
        op, op.And(op.Equal(s, math.inf), op.Not(op.Greater(q, 1.0))), 1e100, s
    )  # infinity times 0 would be NaN
    whole, positive, one = op.Equal(op.Floor(q), q), op.Greater(q, 0.0), number(op, 1.0)
    rest = between(op, positive, q, op.Sub(q, op.Floor(q)))
    starts = [
        rest,
        op.Sub(op.Ceil(q), q),
        op.Sub(one, between(op, positive, 0.0, q)),
    ]  # exact beside 0: 1 - rest is not
    last = op.rank(q)
    stacked = op.Concat(*(op.Unsqueeze(start, axes=[last]) for start in starts), axis=last)
    parts = _positive_zeta(op, op.Unsqueeze(s, axes=[op.rank(s)]), stacked)
    first, second, third = (op.Gather(parts, op.const(np.int64(index)), axis=-1) for index in range(3))
    gap = op.Sub(second, third)
    total = op.Add(first, between(op, op.Equal(op.Mod(s, 2.0, fmod=1), 0.0), gap, op.Neg(gap)))
    outside = between(op, op.Equal(op.Floor(s), s), total, math.nan)
    total = between(op, positive, first, between(op, whole, math.inf, outside))
    total = between(op, op.IsNaN(q), math.nan, total)
    total = between(op, op.Equal(s, 1.0), math.inf, total)
    return between(op, op.Less(s, 1.0), math.nan, total)


def trigamma(op: Emit, x: ir.Value) -> ir.Value:
    """zeta(2, x), reflected below 1/2 as (pi / sin pi x)^2 - zeta(2, 1 - x).

    Numerics:  the sine of a float32 result is taken in float32, as PyTorch does: beside a pole its error is the result.
    """
    low = op.Less(x, 0.5)
    found = _positive_zeta(op, number(op, 2.0), between(op, low, op.Sub(number(op, 1.0), x), x))
    dtype = WORK if op.result_dtype() == WORK else D.FLOAT
    angle = op.Mul(op.cast(x, dtype), op.const(math.pi, dtype))
    sine = op.cast(op.Sin(_beside_pi(op, angle) if dtype == WORK else angle), WORK)
    ratio = op.Div(number(op, math.pi), sine)
    found = between(op, op.Equal(x, math.inf), 0.0, found)
    return between(op, low, op.Sub(op.Mul(ratio, ratio), found), found)


def _polygamma(op: Emit, n: int, self: ir.Value) -> ir.Value:
    value = op.cast(self, WORK)
    if n == 0:
        found = digamma(op, value)
    elif n == 1:
        found = trigamma(op, value)
    else:
        scale = (-1.0) ** (n + 1) * math.gamma(n + 1)
        found = op.Mul(zeta(op, number(op, n + 1), value), scale)
    return op.cast(found, op.result_dtype())


def _multigamma(op: Emit, self: ir.Value, p: int) -> ir.Value:
    """p (p - 1) / 4 log pi + the sum of lgamma(x - j / 2), j = 0 .. p - 1."""
    value = op.Unsqueeze(op.cast(self, WORK), axes=[op.rank(self)])
    terms = lgamma(op, op.Sub(value, op.const(np.arange(p) / 2.0)))
    total = op.ReduceSum(terms, axes=[op.rank(self)], keepdims=0)
    return op.cast(op.Add(total, p * (p - 1) / 4 * math.log(math.pi)), op.result_dtype())


UNARY: dict[str, tuple[str, Function]] = {
    "special_erfcx": ("a polynomial in 4 / (4 + z), Exp(z^2)", erfcx),
    "special_ndtr": ("erfc(-x / sqrt 2) / 2", lambda op, x: op.Mul(erfc(op, op.Mul(x, -math.sqrt(0.5))), 0.5)),
    "special_log_ndtr": ("Log of the tail or of its complement", _log_ndtr),
    "special_ndtri": ("rational functions in three ranges", ndtri),
    "erfinv special_erfinv": ("the normal quantile of (1 + x) / 2", _erfinv),
    "lgamma special_gammaln": ("Lanczos' sum, reflection", lgamma),
    "digamma special_digamma special_psi": ("recurrence and asymptotic series, reflection", digamma),
}
for _names, (_form, _function) in UNARY.items():
    register_shared(unary(_function), _form, *overloads_of(_names))
register_shared(
    binary(zeta),
    "32 terms and Euler-Maclaurin",
    *overloads_of("special_zeta special_zeta.other_scalar special_zeta.self_scalar"),
)
register_shared(_polygamma, "zeta(n + 1, x)", *overloads_of("polygamma special_polygamma"))
register_shared(_multigamma, "a sum of lgamma", *overloads_of("mvlgamma special_multigammaln"))
