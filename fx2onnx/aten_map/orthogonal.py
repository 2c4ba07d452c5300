"""Orthogonal polynomials and the incomplete gamma functions: Loops over a recurrence."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.creation import filled_with
from fx2onnx.aten_map.reductions import any_true
from fx2onnx.aten_map.special import WORK, between, binary, lgamma, number
from fx2onnx.aten_map.table.dtypes import Operand, as_dtype
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims

aten = torch.ops.aten
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
