"""Functions of one number, activations and others that go element by element, in float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.functions import erf_near_zero, erfc, expm1, log1p, quotient
from fx2onnx.targets.float64.node import DOUBLE, Form, attribute, given, number, operand

ATAN_TOP = (
    -8.750608600031904122785e-1,
    -1.615753718733365076637e1,
    -7.500855792314704667340e1,
    -1.228866684490136173410e2,
    -6.485021904942025371773e1,
)
ATAN_BOTTOM = (
    1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2, 4.853903996359136964868e2,
    1.945506571482613964425e2,
)  # fmt: skip


def _odd(op: Emit, x: ir.Value, of_size: ir.Value) -> ir.Value:
    """``of_size`` with the sign of x. That of -0 shows in 1 / x; onnxruntime's Where would give 0 for it, Mul does not."""
    zero = number(op, 0)
    negative = op.Or(op.Less(x, zero), op.Less(op.Reciprocal(x), zero))
    return op.Mul(of_size, op.Where(negative, number(op, -1), number(op, 1)))


def atan(op: Emit, x: ir.Value) -> ir.Value:
    """atan(x) in three ranges of |x|. Source: Cephes, atan."""
    one, size = number(op, 1), op.Abs(x)
    far = op.Greater(size, number(op, math.tan(3 * math.pi / 8)))
    middle = op.Greater(size, number(op, 0.66))
    turned = op.Div(op.Sub(size, one), op.Add(size, one))
    turned = op.Where(far, op.Neg(op.Div(one, size)), op.Where(middle, turned, size))
    base = op.Where(far, number(op, math.pi / 2), op.Where(middle, number(op, math.pi / 4), number(op, 0)))
    lost = op.Where(far, number(op, 6.123233995736765886e-17), number(op, 0))
    lost = op.Where(far, lost, op.Where(middle, number(op, 3.061616997868382943e-17), number(op, 0)))
    square = op.Mul(turned, turned)
    bent = op.Mul(turned, op.Mul(square, quotient(op, square, ATAN_TOP, ATAN_BOTTOM)))
    return _odd(op, x, op.Add(base, op.Add(op.Add(bent, lost), turned)))


def asin(op: Emit, x: ir.Value) -> ir.Value:
    """atan(x / sqrt((1 - x) (1 + x)))."""
    one = number(op, 1)
    return atan(op, op.Div(x, op.Sqrt(op.Mul(op.Sub(one, x), op.Add(one, x)))))


def acos(op: Emit, x: ir.Value) -> ir.Value:
    """2 atan(sqrt((1 - x) / (1 + x)))."""
    one = number(op, 1)
    half = atan(op, op.Sqrt(op.Div(op.Sub(one, x), op.Add(one, x))))
    return op.Mul(half, number(op, 2))


def tan(op: Emit, x: ir.Value) -> ir.Value:
    """sin(r) / cos(r) or -cos(r) / sin(r) of what is left of |x| beside the nearest k pi / 2, up to 2^20; beyond, of |x|.

    Numerics: pi / 2 in three parts of 33 bits, so that no product with k is rounded. Source: fdlibm, e_rem_pio2.c.
    """
    size = op.Abs(x)
    near = op.Less(size, number(op, 2.0**20))
    count = op.Where(near, op.Round(op.Mul(size, number(op, 2 / math.pi))), number(op, 0))
    rest = size
    for part in (1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624879595063154e-21):
        rest = op.Sub(rest, op.Mul(count, number(op, part)))
    half = op.Mul(count, number(op, 0.5))
    sine, cosine = op.Sin(rest), op.Cos(rest)
    found = op.Where(op.Equal(op.Floor(half), half), op.Div(sine, cosine), op.Neg(op.Div(cosine, sine)))
    return _odd(op, x, found)


def cosh(op: Emit, x: ir.Value) -> ir.Value:
    """(e^|x| + e^-|x|) / 2 by e^(|x| / 2), which does not overflow earlier than the result."""
    root = op.Exp(op.Mul(op.Abs(x), number(op, 0.5)))
    half = number(op, 0.5)
    return op.Add(op.Mul(op.Mul(root, half), root), op.Div(op.Div(half, root), root))


def sinh(op: Emit, x: ir.Value) -> ir.Value:
    """tanh(x / 2) (cosh(x) + 1), without cancellation near 0."""
    return op.Mul(op.Tanh(op.Mul(x, number(op, 0.5))), op.Add(cosh(op, x), number(op, 1)))


def asinh(op: Emit, x: ir.Value) -> ir.Value:
    """log1p(|x| + x^2 / (1 + sqrt(1 + x^2))), far out log(|x|) + log(2). Source: fdlibm, s_asinh.c."""
    one, size = number(op, 1), op.Abs(x)
    square = op.Mul(size, size)
    near = log1p(op, op.Add(size, op.Div(square, op.Add(one, op.Sqrt(op.Add(one, square))))))
    far = op.Add(op.Log(size), number(op, math.log(2)))
    return _odd(op, x, op.Where(op.Greater(size, number(op, 2.0**28)), far, near))


def acosh(op: Emit, x: ir.Value) -> ir.Value:
    """log1p(t + sqrt(t) sqrt(t + 2)) with t = x - 1, far out log(x) + log(2)."""
    over = op.Sub(x, number(op, 1))
    near = log1p(op, op.Add(over, op.Mul(op.Sqrt(over), op.Sqrt(op.Add(over, number(op, 2))))))
    far = op.Add(op.Log(x), number(op, math.log(2)))
    return op.Where(op.Greater(x, number(op, 2.0**28)), far, near)


def atanh(op: Emit, x: ir.Value) -> ir.Value:
    """log1p(2 |x| / (1 - |x|)) / 2 with the sign of x."""
    size = op.Abs(x)
    ratio = op.Div(op.Add(size, size), op.Sub(number(op, 1), size))
    return _odd(op, x, op.Mul(log1p(op, ratio), number(op, 0.5)))


def erf(op: Emit, x: ir.Value) -> ir.Value:
    """Near 0 by itself, beyond as 1 - erfc(|x|)."""
    one, size = number(op, 1), op.Abs(x)
    near = erf_near_zero(op, op.Min(size, one))
    return _odd(op, x, op.Where(op.Less(size, one), near, op.Sub(one, erfc(op, op.Max(size, one)))))


def _below(op: Emit, x: ir.Value, low: ir.Value) -> ir.Value:
    """x where it is positive, ``low`` elsewhere."""
    return op.Where(op.Greater(x, number(op, 0)), x, low)


def _exponential(op: Emit, x: ir.Value, alpha: float) -> ir.Value:
    """alpha (e^x - 1) of what is negative."""
    return op.Mul(expm1(op, op.Min(x, number(op, 0))), number(op, alpha))


def _softplus(op: Emit, x: ir.Value) -> ir.Value:
    """max(x, 0) + log(1 + exp(-|x|)): nothing overflows."""
    return op.Add(op.Max(x, number(op, 0)), log1p(op, op.Exp(op.Neg(op.Abs(x)))))


def _clipped_line(op: Emit, x: ir.Value, alpha: float, beta: float) -> ir.Value:
    line = op.Add(op.Mul(x, number(op, alpha)), number(op, beta))
    return op.Min(op.Max(line, number(op, 0)), number(op, 1))


def _gelu(op: Emit, node: ir.Node) -> ir.Value:
    """x erfc(-x / sqrt(2)) / 2, the lower tail to full relative precision; or its approximation by tanh."""
    (x,) = given(node, 1)
    half = op.Mul(x, number(op, 0.5))
    if attribute(node, "approximate", "none") == "none":
        return op.Mul(half, erfc(op, op.Mul(x, number(op, -math.sqrt(0.5)))))
    cube = op.Mul(op.Mul(op.Mul(x, x), x), number(op, 0.044715))
    curve = op.Tanh(op.Mul(op.Add(x, cube), number(op, math.sqrt(2 / math.pi))))
    return op.Mul(half, op.Add(curve, number(op, 1)))


def _prelu(op: Emit, node: ir.Node) -> ir.Value:
    x, slope = given(node, 2)
    return _below(op, x, op.Mul(x, slope))


def _gemm(op: Emit, node: ir.Node) -> ir.Value:
    """alpha A B + beta C."""
    a, b = given(node, 2)
    left, right = (
        op.Transpose(value, perm=[1, 0]) if attribute(node, name, 0) else value
        for value, name in ((a, "transA"), (b, "transB"))
    )
    c, beta = operand(node, 2), attribute(node, "beta", 1.0)
    y = op.Mul(op.MatMul(left, right), number(op, attribute(node, "alpha", 1.0)))
    return y if c is None else op.Add(y, op.Mul(c, number(op, beta)))


def _mean(op: Emit, node: ir.Node) -> ir.Value:
    values = given(node, len(node.inputs))
    total = functools.reduce(op.Add, values)
    return op.Div(total, number(op, len(values)))


def _non_zero(op: Emit, node: ir.Node) -> ir.Value:
    """NonZero by way of the boolean mask of the elements."""
    (x,) = given(node, 1)
    ((_, dims),) = op.result
    return op.node("NonZero", op.Not(op.Equal(x, number(op, 0))), outputs=((ir.DataType.INT64, dims),))


def _one_hot(op: Emit, node: ir.Node) -> ir.Value | None:
    """OneHot with integer ones and zeros, then Where with the two float64 values."""
    indices, depth, values = given(node, 3)
    if values.dtype != DOUBLE or indices.dtype == DOUBLE or depth.dtype == DOUBLE:
        return None
    off, on = (op.Squeeze(op.Slice(values, starts=[i], ends=[i + 1]), axes=[0]) for i in (0, 1))
    ((_, dims),) = op.result
    axis = attribute(node, "axis", -1)
    hot = op.node(
        "OneHot",
        op.cast(indices, ir.DataType.INT64),
        op.cast(depth, ir.DataType.INT64),
        op.const(np.array([0, 1])),
        axis=axis,
        outputs=((ir.DataType.INT64, dims),),
    )
    return op.Where(op.Equal(hot, op.const(1, ir.DataType.INT64)), on, off)


def _of_one(function: Callable[[Emit, ir.Value], ir.Value]) -> Form:
    return lambda op, node: function(op, *given(node, 1))


def _with(function: Callable[..., ir.Value], **usual: float) -> Form:
    """Return the form of an activation whose attributes have these defaults."""
    return lambda op, node: function(op, *given(node, 1), *(attribute(node, name, usual[name]) for name in usual))


FORMS: dict[str, Form] = {
    "Acos": _of_one(acos),
    "Acosh": _of_one(acosh),
    "Asin": _of_one(asin),
    "Asinh": _of_one(asinh),
    "Atan": _of_one(atan),
    "Atanh": _of_one(atanh),
    "Cosh": _of_one(cosh),
    "Elu": _with(lambda op, x, alpha: _below(op, x, _exponential(op, x, alpha)), alpha=1.0),
    "Erf": _of_one(erf),
    "Gelu": _gelu,
    "Gemm": _gemm,
    "HardSigmoid": _with(_clipped_line, alpha=0.2, beta=0.5),
    "HardSwish": _of_one(lambda op, x: op.Mul(x, _clipped_line(op, x, 1 / 6, 0.5))),
    "LeakyRelu": _with(lambda op, x, alpha: _below(op, x, op.Mul(x, number(op, alpha))), alpha=0.01),
    "Mean": _mean,
    "Mish": _of_one(lambda op, x: op.Mul(x, op.Tanh(_softplus(op, x)))),
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "PRelu": _prelu,
    "Selu": _with(
        lambda op, x, alpha, gamma: op.Mul(_below(op, x, _exponential(op, x, alpha)), number(op, gamma)),
        alpha=1.67326319217681884765625,
        gamma=1.05070102214813232421875,
    ),
    "Sinh": _of_one(sinh),
    "Softplus": _of_one(_softplus),
    "Softsign": _of_one(lambda op, x: op.Div(x, op.Add(op.Abs(x), number(op, 1)))),
    "Tan": _of_one(tan),
    "ThresholdedRelu": _with(
        lambda op, x, alpha: op.Where(op.Greater(x, number(op, alpha)), x, number(op, 0)), alpha=1.0
    ),
}
