"""Activations in float64 by operators that onnxruntime has in float64: their own it computes in float32."""

from __future__ import annotations

import math

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.functions import erfc, expm1, log1p

DOUBLE = ir.DataType.DOUBLE


def gelu(op: Emit, x: ir.Value) -> ir.Value:
    """x erfc(-x / sqrt(2)) / 2, the lower tail to full relative precision."""
    return op.Mul(op.Mul(x, erfc(op, op.Mul(x, -math.sqrt(0.5)))), 0.5)


def softplus(op: Emit, x: ir.Value) -> ir.Value:
    """max(x, 0) + log(1 + exp(-|x|)): nothing overflows."""
    return op.Add(op.Max(x, op.const(0.0, DOUBLE)), log1p(op, op.Exp(op.Neg(op.Abs(x)))))


def elu(op: Emit, x: ir.Value, alpha: float) -> ir.Value:
    """x where it is positive, else alpha (exp(x) - 1)."""
    zero = op.const(0.0, DOUBLE)
    return op.Where(op.Greater(x, zero), x, op.Mul(expm1(op, op.Min(x, zero)), op.const(alpha, DOUBLE)))


def hard_sigmoid(op: Emit, x: ir.Value) -> ir.Value:
    """min(max(x + 3, 0), 6) / 6."""
    inside = op.Min(op.Max(op.Add(x, op.const(3.0, DOUBLE)), op.const(0.0, DOUBLE)), op.const(6.0, DOUBLE))
    return op.Div(inside, op.const(6.0, DOUBLE))
