"""Bessel and Airy functions by the approximations that PyTorch's own kernels use, in float64 inside; orthogonal polynomials and incomplete gamma
functions: Loops over a recurrence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
import torch
from numpy.polynomial import chebyshev

from fx2onnx.aten_map import special_tables as tables
from fx2onnx.aten_map.creation import filled_with
from fx2onnx.aten_map.reductions import any_true
from fx2onnx.aten_map.special import WORK, Function, between, binary, lgamma, number, polynomial, quotient, unary
from fx2onnx.aten_map.table.dtypes import Operand, as_dtype
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims

aten = torch.ops.aten


@lru_cache(maxsize=64)
def _monomials(coefficients: tuple[float, ...]) -> tuple[float, ...]:
    ascending = np.array(coefficients[::-1])
    ascending[0] /= 2
    return tuple(float(c) for c in chebyshev.cheb2poly(ascending)[::-1])


def chebyshev_sum(op: Emit, value: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """c0 / 2 + the sum of c[k] T_k(x / 2), coefficients highest first (Cephes' chbevl), as a polynomial in x / 2."""
    return polynomial(op, op.Mul(value, 0.5), _monomials(tuple(coefficients)))


def scaled_modified(op: Emit, x: ir.Value, near: Sequence[float], far: Sequence[float]) -> ir.Value:
    """exp(-|x|) times I0, or times I1 / |x| below 8 and I1 beyond: the Chebyshev sums of Cephes."""
    size = op.Abs(x)
    inner = chebyshev_sum(op, op.Sub(op.Mul(size, 0.5), 2.0), near)
    outer = chebyshev_sum(op, op.Sub(op.Div(number(op, 32.0), size), 2.0), far)
    outer = op.Div(outer, op.Sqrt(size))
    return between(op, op.Greater(size, 8.0), outer, inner)


def i0e(op: Emit, x: ir.Value) -> ir.Value:
    return scaled_modified(op, x, tables.I0_A, tables.I0_B)


def i1e(op: Emit, x: ir.Value) -> ir.Value:
    size = op.Abs(x)
    found = scaled_modified(op, x, tables.I1_A, tables.I1_B)
    found = between(op, op.Greater(size, 8.0), found, op.Mul(found, size))
    return between(op, op.Less(x, 0), op.Neg(found), found)


def i0(op: Emit, x: ir.Value) -> ir.Value:
    return op.Mul(op.Exp(op.Abs(x)), i0e(op, x))


def i1(op: Emit, x: ir.Value) -> ir.Value:
    return op.Mul(op.Exp(op.Abs(x)), i1e(op, x))


def _k(op: Emit, x: ir.Value, order: int, scaled: bool) -> ir.Value:
    """K0 or K1: a Chebyshev sum and log(x / 2) I up to 2, exp(-x) / sqrt(x) times another sum beyond."""
    near, far = (tables.K0_A, tables.K0_B) if order == 0 else (tables.K1_A, tables.K1_B)
    inner = chebyshev_sum(op, op.Sub(op.Mul(x, x), 2.0), near)
    logarithm = op.Log(op.Mul(x, 0.5))
    if order == 0:
        inner = op.Sub(inner, op.Mul(logarithm, i0(op, x)))
    else:
        inner = op.Add(op.Mul(logarithm, i1(op, x)), op.Div(inner, x))
    outer = op.Div(chebyshev_sum(op, op.Sub(op.Div(number(op, 8.0), x), 2.0), far), op.Sqrt(x))
    if scaled:
        inner = op.Mul(inner, op.Exp(x))
    else:
        outer = op.Mul(outer, op.Exp(op.Neg(x)))
    found = between(op, op.Greater(x, 2.0), outer, inner)
    found = between(op, op.Less(x, 0), math.nan, found)
    return between(op, op.Equal(x, 0), math.inf, found)


def _amplitudes(op: Emit, x: ir.Value, order: int) -> tuple[ir.Value, ir.Value]:
    """The two slowly varying factors of J and Y beyond 5, as rational functions of 25 / x^2."""
    w = op.Div(number(op, 5.0), x)
    square = op.Mul(w, w)
    if order == 0:
        return (
            quotient(op, square, tables.J0_PP, tables.J0_PQ),
            op.Mul(w, quotient(op, square, tables.J0_QP, tables.J0_QQ)),
        )
    return (
        quotient(op, square, tables.J1_PP, tables.J1_PQ),
        op.Mul(w, quotient(op, square, tables.J1_QP, tables.J1_QQ)),
    )


def _beyond(op: Emit, x: ir.Value, order: int, second: bool) -> ir.Value:
    p, q = _amplitudes(op, x, order)
    angle = op.Sub(x, (2 * order + 1) * math.pi / 4)
    cosine, sine = op.Cos(angle), op.Sin(angle)
    wave = op.Add(op.Mul(p, sine), op.Mul(q, cosine)) if second else op.Sub(op.Mul(p, cosine), op.Mul(q, sine))
    return op.Div(op.Mul(wave, math.sqrt(2 / math.pi)), op.Sqrt(x))


J0_ZEROS = (5.78318596294678452118e00, 3.04712623436620863991e01)
J1_ZEROS = (1.46819706421238932572e01, 4.92184563216946036703e01)
"""Squares of the first two zeros."""


def _roots(op: Emit, square: ir.Value, zeros: tuple[float, float]) -> ir.Value:
    return op.Mul(op.Sub(square, zeros[0]), op.Sub(square, zeros[1]))


def j0(op: Emit, x: ir.Value) -> ir.Value:
    size = op.Abs(x)
    square = op.Mul(size, size)
    inner = op.Mul(_roots(op, square, J0_ZEROS), quotient(op, square, tables.J0_RP, tables.J0_RQ))
    return between(op, op.Greater(size, 5.0), _beyond(op, size, 0, False), inner)


def j1(op: Emit, x: ir.Value) -> ir.Value:
    size = op.Abs(x)
    square = op.Mul(size, size)
    inner = op.Mul(op.Mul(size, _roots(op, square, J1_ZEROS)), quotient(op, square, tables.J1_RP, tables.J1_RQ))
    found = between(op, op.Greater(size, 5.0), _beyond(op, size, 1, False), inner)
    return between(op, op.Less(x, 0), op.Neg(found), found)


def _y(op: Emit, x: ir.Value, order: int) -> ir.Value:
    """Y0 or Y1: a rational function and (2 / pi) log(x) J up to 5, the wave beyond."""
    square = op.Mul(x, x)
    logarithm = op.Log(x)
    if order == 0:
        inner = quotient(op, square, tables.Y0_YP, tables.Y0_YQ)
        wave = op.Mul(logarithm, j0(op, x))
    else:
        inner = op.Mul(x, quotient(op, square, tables.Y1_YP, tables.Y1_YQ))
        wave = op.Sub(op.Mul(logarithm, j1(op, x)), op.Div(number(op, 1.0), x))
    inner = op.Add(inner, op.Mul(wave, 2 / math.pi))
    found = between(op, op.Greater(x, 5.0), _beyond(op, x, order, True), inner)
    found = between(op, op.Less(x, 0), math.nan, found)
    return between(op, op.Equal(x, 0), -math.inf, found)


def _spherical_j0(op: Emit, x: ir.Value) -> ir.Value:
    """sin(x) / x; six terms of its series below 1/2; 0 at infinity."""
    square = op.Mul(x, x)
    series = [(-1) ** k / math.factorial(2 * k + 1) for k in range(7)]
    near = op.Less(op.Abs(x), 0.5)
    found = between(op, near, polynomial(op, square, series[::-1]), op.Div(op.Sin(x), x))
    return between(op, op.Equal(op.Abs(x), math.inf), 0.0, found)


AIRY_EDGE = 2.09
AIRY_AT_ZERO = (0.355028053887817239260, 0.258819403792806798405)
"""Ai(0) and -Ai'(0)."""
AIRY_TERMS = 30


def _airy(op: Emit, x: ir.Value) -> ir.Value:
    """Maclaurin's two series up to 2.09 in magnitude; beyond, the asymptotic forms. Source: Cephes, airy."""
    size = op.Abs(x)
    phase = op.Div(op.Mul(op.Mul(size, op.Sqrt(size)), 2.0), 3.0)
    inverse = op.Div(number(op, 1.0), phase)
    square = op.Mul(inverse, inverse)
    root = op.Sqrt(op.Sqrt(size))
    first = op.Add(op.Mul(square, quotient(op, square, tables.AIRY_AFN, tables.AIRY_AFD)), 1.0)
    second = op.Mul(inverse, quotient(op, square, tables.AIRY_AGN, tables.AIRY_AGD))
    angle = op.Add(phase, math.pi / 4)
    wave = op.Sub(op.Mul(op.Sin(angle), first), op.Mul(op.Cos(angle), second))
    scale = 1 / math.sqrt(math.pi)
    negative = op.Div(op.Mul(wave, scale), root)
    decay = quotient(op, inverse, tables.AIRY_AN, tables.AIRY_AD)
    positive = op.Div(op.Mul(decay, scale / 2), op.Mul(root, op.Exp(phase)))
    f, g = [1.0], [1.0]
    for k in range(1, AIRY_TERMS):
        f.append(f[-1] / ((3 * k - 1) * (3 * k)))
        g.append(g[-1] / ((3 * k) * (3 * k + 1)))
    held = op.Max(op.Min(x, 3.0), -3.0) if op.opset >= 12 else between(op, op.Less(size, 3.0), x, 3.0)
    cube = op.Mul(op.Mul(held, held), held)
    even = op.Mul(polynomial(op, cube, f[::-1]), AIRY_AT_ZERO[0])
    odd = op.Mul(op.Mul(held, polynomial(op, cube, g[::-1])), AIRY_AT_ZERO[1])
    found = between(op, op.Less(x, -AIRY_EDGE), negative, op.Sub(even, odd))
    found = between(op, op.Greater(x, AIRY_EDGE), positive, found)
    found = between(op, op.Greater(x, 103.892), 0.0, found)
    return between(op, op.Equal(size, math.inf), math.nan, found)


UNARY: dict[str, tuple[str, Function]] = {
    "i0 special_i0 special_modified_bessel_i0": ("Chebyshev sums, Exp", i0),
    "special_i0e": ("Chebyshev sums", i0e),
    "special_i1 special_modified_bessel_i1": ("Chebyshev sums, Exp", i1),
    "special_i1e": ("Chebyshev sums", i1e),
    "special_bessel_j0": ("rational functions, Sin, Cos", j0),
    "special_bessel_j1": ("rational functions, Sin, Cos", j1),
    "special_bessel_y0": ("rational functions, Log, Sin, Cos", lambda op, x: _y(op, x, 0)),
    "special_bessel_y1": ("rational functions, Log, Sin, Cos", lambda op, x: _y(op, x, 1)),
    "special_modified_bessel_k0": ("Chebyshev sums, Log, Exp", lambda op, x: _k(op, x, 0, False)),
    "special_modified_bessel_k1": ("Chebyshev sums, Log, Exp", lambda op, x: _k(op, x, 1, False)),
    "special_scaled_modified_bessel_k0": ("Chebyshev sums, Log, Exp", lambda op, x: _k(op, x, 0, True)),
    "special_scaled_modified_bessel_k1": ("Chebyshev sums, Log, Exp", lambda op, x: _k(op, x, 1, True)),
    "special_spherical_bessel_j0": ("Sin(x) / x, a polynomial near 0", _spherical_j0),
    "special_airy_ai": ("Maclaurin series, rational functions", _airy),
}
for _names, (_form, _function) in UNARY.items():
    register_shared(unary(_function), _form, *overloads_of(_names))


D = ir.DataType
Recurrence: TypeAlias = Callable[[Emit, ir.Value, ir.Value, ir.Value, ir.Value], ir.Value]
"""(op, x, k, p[k], p[k - 1]) -> p[k + 1]."""


def _chebyshev(op: Emit, x: ir.Value, k: ir.Value, current: ir.Value, previous: ir.Value) -> ir.Value:
    return op.Sub(op.Mul(op.Add(x, x), current), previous)


def _hermite_h(op: Emit, x: ir.Value, k: ir.Value, current: ir.Value, previous: ir.Value) -> ir.Value:
    return op.Sub(op.Mul(op.Add(x, x), current), op.Mul(op.Add(k, k), previous))


def _hermite_he(op: Emit, x: ir.Value, k: ir.Value, current: ir.Value, previous: ir.Value) -> ir.Value:
    return op.Sub(op.Mul(x, current), op.Mul(k, previous))


def _laguerre(op: Emit, x: ir.Value, k: ir.Value, current: ir.Value, previous: ir.Value) -> ir.Value:
    factor = op.Sub(op.Add(op.Add(k, k), 1.0), x)
    return op.Div(op.Sub(op.Mul(factor, current), op.Mul(k, previous)), op.Add(k, 1.0))


def _legendre(op: Emit, x: ir.Value, k: ir.Value, current: ir.Value, previous: ir.Value) -> ir.Value:
    factor = op.Mul(op.Add(op.Add(k, k), 1.0), x)
    return op.Div(op.Sub(op.Mul(factor, current), op.Mul(k, previous)), op.Add(k, 1.0))


POLYNOMIALS: dict[str, tuple[float, float, bool, Recurrence]] = {
    "chebyshev_polynomial_t": (1, 0, False, _chebyshev),
    "chebyshev_polynomial_u": (2, 0, False, _chebyshev),
    "chebyshev_polynomial_v": (2, -1, False, _chebyshev),
    "chebyshev_polynomial_w": (2, 1, False, _chebyshev),
    "shifted_chebyshev_polynomial_t": (1, 0, True, _chebyshev),
    "shifted_chebyshev_polynomial_u": (2, 0, True, _chebyshev),
    "shifted_chebyshev_polynomial_v": (2, -1, True, _chebyshev),
    "shifted_chebyshev_polynomial_w": (2, 1, True, _chebyshev),
    "hermite_polynomial_h": (2, 0, False, _hermite_h),
    "hermite_polynomial_he": (1, 0, False, _hermite_he),
    "laguerre_polynomial_l": (-1, 1, False, _laguerre),
    "legendre_polynomial_p": (1, 0, False, _legendre),
}
"""Name -> p[1] = a x + b, whether x is first moved from [0, 1] to [-1, 1], and the recurrence."""


def _polynomial(slope: float, constant: float, shifted: bool, recurrence: Recurrence) -> Callable[..., ir.Value]:
    def entry(op: Emit, x: Operand, n: Operand) -> ir.Value:
        """p[0] = 1 where n = 0, 0 where n < 0; a Loop as long as the greatest n keeps p[n] where k reaches n."""
        dims = op.result_dims()
        value, wide = op.expand(as_dtype(op, x, WORK), dims), op.expand(as_dtype(op, n, WORK), dims)
        is_degree = op.And(op.Greater(wide, -1), op.Less(wide, 2.0**63))  # PyTorch casts any other to a negative one
        degree = op.cast(between(op, is_degree, wide, -1), D.INT64)
        if shifted:
            value = op.Sub(op.Add(value, value), 1.0)
        first = op.Mul(value, slope) if slope != 1 else value
        first = op.Add(first, float(constant)) if constant else first
        one = filled_with(op, dims, 1.0, WORK)
        start = between(op, op.Equal(degree, 0), 1.0, between(op, op.Less(degree, 0), 0.0, first))
        if 0 in dims:
            return op.cast(start, op.result_dtype())
        highest = op.ReduceMax(degree, keepdims=0)  # of no degrees it is the least integer
        index, go_on = op.subgraph_input("round", D.INT64, ()), op.subgraph_input("go_on", D.BOOL, ())
        states = [op.subgraph_input(name, WORK, dims) for name in ("current", "previous", "found")]

        def body(op: Emit) -> list[ir.Value]:
            current, previous, found = states
            k = op.Add(op.cast(index, WORK), 1.0)
            following = recurrence(op, value, k, current, previous)
            reached = op.Equal(degree, op.Add(index, 2))
            kept = op.Where(reached, following, found)
            return [op.Identity(go_on), following, op.Identity(current), kept]

        graph = op.subgraph("recurrence", [index, go_on, *states], body)
        typed = [(WORK, dims)] * 3
        rounds = op.Where(op.Less(highest, 1), op.const(np.int64(0)), op.Sub(highest, 1))
        _, _, found = op.Loop(rounds, op.const(np.array(True)), first, one, start, body=graph, outputs=typed)
        return op.cast(found, op.result_dtype())

    return entry


for _name, _spec in POLYNOMIALS.items():
    register_shared(
        _polynomial(*_spec),
        "Loop over the three-term recurrence",
        *overloads_of(f"special_{_name} special_{_name}.x_scalar special_{_name}.n_scalar"),
    )


MAX_ROUNDS = 2000
EPSILON = 1e-16
TINY = 1e-300


def _series(op: Emit, a: ir.Value, x: ir.Value, dims: Dims) -> ir.Value:
    """The sum of x^n / ((a + 1) .. (a + n)): a Loop until every term is below 1e-16 of its sum."""
    one = filled_with(op, dims, 1.0, WORK)
    index, go_on = op.subgraph_input("round", D.INT64, ()), op.subgraph_input("go_on", D.BOOL, ())
    term_in, total_in = (op.subgraph_input(name, WORK, dims) for name in ("term", "total"))

    def body(op: Emit) -> list[ir.Value]:
        divisor = op.Add(a, op.Add(op.cast(index, WORK), 1.0))
        term = op.Mul(term_in, op.Div(x, divisor))
        total = op.Add(total_in, term)
        open_ = op.Greater(op.Abs(term), op.Mul(op.Abs(total), EPSILON))
        return [any_true(op, open_), term, total]

    graph = op.subgraph("series", [index, go_on, term_in, total_in], body)
    typed = [(WORK, dims), (WORK, dims)]
    start = op.const(np.array(True))
    _, total = op.Loop(op.const(np.int64(MAX_ROUNDS)), start, one, one, body=graph, outputs=typed)
    return total  # type: ignore[no-any-return]


def _fraction(op: Emit, a: ir.Value, x: ir.Value, dims: Dims) -> ir.Value:
    """Lentz's continued fraction of Gamma(a, x) / (x^a exp(-x)): terms -k (k - a), steps of 2. Source: Numerical
    Recipes, gcf."""
    base = op.Add(op.Sub(x, a), 1.0)
    d_start = op.Div(number(op, 1.0), base)
    c_start = filled_with(op, dims, 1 / TINY, WORK)
    index, go_on = op.subgraph_input("round", D.INT64, ()), op.subgraph_input("go_on", D.BOOL, ())
    c_in, d_in, h_in = (op.subgraph_input(name, WORK, dims) for name in ("c", "d", "h"))

    def away(op: Emit, value: ir.Value) -> ir.Value:
        return between(op, op.Less(op.Abs(value), TINY), TINY, value)

    def body(op: Emit) -> list[ir.Value]:
        k = op.Add(op.cast(index, WORK), 1.0)
        numerator = op.Mul(k, op.Sub(a, k))
        step = op.Add(base, op.Add(k, k))
        d = op.Div(number(op, 1.0), away(op, op.Add(op.Mul(numerator, d_in), step)))
        c = away(op, op.Add(step, op.Div(numerator, c_in)))
        delta = op.Mul(d, c)
        open_ = op.Greater(op.Abs(op.Sub(delta, 1.0)), EPSILON * 10)
        return [any_true(op, open_), c, d, op.Mul(h_in, delta)]

    graph = op.subgraph("fraction", [index, go_on, c_in, d_in, h_in], body)
    start = op.const(np.array(True))
    typed = [(WORK, dims)] * 3
    rounds = op.const(np.int64(MAX_ROUNDS))
    _, _, h = op.Loop(rounds, start, c_start, d_start, d_start, body=graph, outputs=typed)
    return h  # type: ignore[no-any-return]


def _incomplete(upper: bool) -> Callable[..., ir.Value]:
    def formula(op: Emit, a: ir.Value, x: ir.Value) -> ir.Value:
        """P(a, x) by the series where x < a + 1, Q(a, x) by the fraction elsewhere; each is 1 less the other."""
        dims = op.result_dims()
        a, x = op.expand(a, dims), op.expand(x, dims)
        valid = op.And(op.Greater(a, 0), op.And(op.Greater(x, 0), op.Less(x, math.inf)))
        valid = op.And(valid, op.Less(a, math.inf))
        safe_a, safe_x = between(op, valid, a, 1.0), between(op, valid, x, 1.0)
        small = op.Less(safe_x, op.Add(safe_a, 1.0))
        power = op.Sub(op.Mul(safe_a, op.Log(safe_x)), safe_x)
        series_x = between(op, small, safe_x, 0.0)
        scale = op.Exp(op.Sub(power, lgamma(op, safe_a)))
        first = op.Exp(op.Sub(power, lgamma(op, op.Add(safe_a, 1.0)))) if upper else op.Div(scale, safe_a)
        lower = op.Mul(first, _series(op, safe_a, series_x, dims))
        fraction_x = op.Where(small, op.Add(safe_a, 1.0), safe_x)
        above = op.Mul(scale, _fraction(op, safe_a, fraction_x, dims))
        one = number(op, 1.0)
        at_zero, at_infinity = (1.0, 0.0) if upper else (0.0, 1.0)
        if upper:
            found = op.Where(small, op.Sub(one, lower), above)
        else:
            found = op.Where(small, lower, op.Sub(one, above))
        found = between(op, op.Or(op.IsNaN(a), op.IsNaN(x)), math.nan, found)
        # The last that holds decides, as in PyTorch, also beside NaN.
        found = between(op, op.Equal(x, math.inf), at_infinity, found)
        is_endless = op.Equal(a, math.inf)
        found = between(op, is_endless, at_zero, found)
        found = between(op, op.And(is_endless, op.Equal(x, math.inf)), math.nan, found)
        found = between(op, op.Equal(x, 0), at_zero, found)
        is_zero = op.Equal(a, 0)
        found = between(op, is_zero, math.nan, found)
        found = between(op, op.And(is_zero, op.Greater(x, 0)), at_infinity, found)
        return between(op, op.Or(op.Less(a, 0), op.Less(x, 0)), math.nan, found)

    return binary(formula)


register_shared(_incomplete(False), "Loops: series, continued fraction", *overloads_of("igamma special_gammainc"))
register_shared(_incomplete(True), "Loops: series, continued fraction", *overloads_of("igammac special_gammaincc"))
