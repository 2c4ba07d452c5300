"""Functions of one number that several parts write out: log(1 + x), exp(x) - 1, the error functions."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dtype_of

ERF_TOP = (
    9.60497373987051638749e0,
    9.00260197203842689217e1,
    2.23200534594684319226e3,
    7.00332514112805075473e3,
    5.55923013010394962768e4,
)
ERF_BOTTOM = (
    1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3, 2.26290000613890934246e4,
    4.92673942608635921086e4,
)  # fmt: skip
MIDDLE_TOP = (
    2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0, 4.86371970985681366614e1,
    1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
    5.57535335369399327526e2,
)  # fmt: skip
MIDDLE_BOTTOM = (
    1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
    1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2,
)  # fmt: skip
FAR_TOP = (
    2.97886665372100240670e0, 7.40974269950448939160e0, 6.16021097993053585195e0, 5.01905042251180477414e0,
    1.27536670759978104416e0, 5.64189583547755073984e-1,
)  # fmt: skip
FAR_BOTTOM = (
    3.36907645100081516050e0, 9.60896809063285878198e0, 1.70814450747565897222e1, 1.20489539808096656605e1,
    9.39603524938001434673e0, 2.26052863220117276590e0, 1.0,
)  # fmt: skip
"""Coefficients of a rational function of 1 / x. Source for all of them: Cephes, ndtr.c."""


def log1p(op: Emit, value: ir.Value) -> ir.Value:
    """log(1 + x) to the last place, also near zero.

    w = 1 + x, d = w - 1; log(w) + (x - d) / w corrects what the rounding of w lost; where d == x nothing was lost,
    which includes x = -1 and x = inf. Source: Kahan; Higham, Accuracy and Stability, problem 1.5.
    """
    near_one = op.Add(value, 1)
    rounded = op.Sub(near_one, 1)
    plain = op.Log(near_one)
    corrected = op.Add(plain, op.Div(op.Sub(value, rounded), near_one))
    return op.Where(op.Equal(rounded, value), plain, corrected)


def expm1(op: Emit, value: ir.Value) -> ir.Value:
    """exp(x) - 1 = tanh(x / 2) (exp(x) + 1), without cancellation near zero."""
    return op.Mul(op.Tanh(op.Mul(value, 0.5)), op.Add(op.Exp(value), 1))


def polynomial(op: Emit, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """Horner's rule, the highest power first."""
    total: ir.Value = op.const(coefficients[0], dtype_of(x))
    for coefficient in coefficients[1:]:
        total = op.Add(op.Mul(total, x), op.const(coefficient, dtype_of(x)))
    return total


def quotient(op: Emit, x: ir.Value, top: Sequence[float], bottom: Sequence[float]) -> ir.Value:
    """A rational function."""
    return op.Div(polynomial(op, x, top), polynomial(op, x, bottom))


def erf_near_zero(op: Emit, x: ir.Value) -> ir.Value:
    """erf(x) for |x| <= 1, in float64."""
    return op.Mul(x, quotient(op, op.Mul(x, x), ERF_TOP, ERF_BOTTOM))


def _scaled_tail(op: Emit, x: ir.Value) -> ir.Value:
    """exp(x^2) erfc(x) for x >= 1, in float64."""
    eight = op.const(8.0, dtype_of(x))
    inverse = op.Reciprocal(op.Max(x, eight))
    far = op.Mul(inverse, quotient(op, inverse, FAR_TOP, FAR_BOTTOM))
    return op.Where(op.Less(x, eight), quotient(op, op.Min(x, eight), MIDDLE_TOP, MIDDLE_BOTTOM), far)


def erfcx_positive(op: Emit, x: ir.Value) -> ir.Value:
    """exp(x^2) erfc(x) for x >= 0, in float64."""
    one = op.const(1.0, dtype_of(x))
    small = op.Min(x, one)
    near = op.Mul(op.Exp(op.Mul(small, small)), op.Sub(one, erf_near_zero(op, small)))
    return op.Where(op.Less(x, one), near, _scaled_tail(op, op.Max(x, one)))


def erfc(op: Emit, x: ir.Value) -> ir.Value:
    """1 - erf(x) in float64, the tail to full relative precision.

    Numerics: exp(-x^2) as exp(-m^2) exp(-(x - m) (x + m)), where m has a short mantissa, so that its square is not
    rounded.
    """
    one, size = op.const(1.0, dtype_of(x)), op.Abs(x)
    large = op.Max(op.Min(size, 30.0), one)
    short = op.Div(op.Round(op.Mul(large, 128.0)), 128.0)
    rest = op.Mul(op.Sub(large, short), op.Add(large, short))
    tail = op.Mul(op.Exp(op.Neg(op.Mul(short, short))), op.Exp(op.Neg(rest)))
    tail = op.Mul(tail, _scaled_tail(op, large))
    near = op.Sub(one, erf_near_zero(op, op.Min(size, one)))
    found = op.Where(op.Less(size, one), near, tail)
    return op.Where(op.Less(x, op.const(0.0, dtype_of(x))), op.Sub(op.const(2.0, dtype_of(x)), found), found)


FLOAT, FLOAT16, BFLOAT16 = ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16
