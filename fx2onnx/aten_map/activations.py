"""Activation functions and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import axis_of, swap, unsqueeze
from fx2onnx.aten_map.table.dtypes import FLOATS, as_dtype, opmath
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.functions import erfc, expm1

aten = torch.ops.aten
DOUBLE, INT32 = ir.DataType.DOUBLE, ir.DataType.INT32
SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
"""Source: ATen/native/Activation.cpp."""
NARROW = frozenset([ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.INT16, ir.DataType.UINT16])


def clipped(op: Emit, value: ir.Value, low: float | None, high: float | None) -> ir.Value:
    """``value`` between bounds; Clip has the integers from opset 12 on, and not the narrow ones in onnxruntime."""
    dtype = op.dtype(value)
    if dtype in FLOATS and any(isinstance(bound, float) and math.isnan(bound) for bound in (low, high)):
        return op.expand(op.const(math.nan, dtype), op.dims(value))
    if dtype in NARROW:
        return op.cast(clipped(op, op.cast(value, INT32), low, high), dtype)
    if op.opset < 16 and dtype == ir.DataType.BFLOAT16:  # onnxruntime splits Clip into a Where, which has none below 16
        return op.cast(clipped(op, op.cast(value, ir.DataType.FLOAT), low, high), dtype)
    if op.opset < 12 and dtype != ir.DataType.FLOAT:
        if low is not None:
            value = op.Where(op.Less(value, op.const(low, dtype)), op.const(low, dtype), value)
        if high is not None:
            value = op.Where(op.Greater(value, op.const(high, dtype)), op.const(high, dtype), value)
        return value
    least, most = (None if bound is None else op.const(bound, dtype) for bound in (low, high))
    return op.Clip(value, min=least, max=most)


def at_most(op: Emit, value: ir.Value, bound: ir.Value) -> ir.Value:
    """``value <= bound``, False for NaN."""
    return op.LessOrEqual(value, bound) if op.opset >= 12 else op.Or(op.Less(value, bound), op.Equal(value, bound))


@translates(aten.relu.default)
def relu(op: Emit, self: ir.Value) -> ir.Value:
    """relu(Tensor self) -> Tensor"""
    if op.dtype(self) in FLOATS:
        return op.Relu(self)
    return clipped(op, self, 0, None)


register_shared(lambda op, self: clipped(op, self, 0, 6), "Clip", aten.relu6.default)
register_shared(clipped, "Clip", aten.hardtanh.default)


@translates(aten.leaky_relu.default)
def leaky_relu(op: Emit, self: ir.Value, negative_slope: Any) -> ir.Value:
    """leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor"""
    if not math.isfinite(negative_slope):  # 0 times infinity is NaN
        dtype = op.dtype(self)
        return op.Where(op.Greater(self, op.const(0, dtype)), self, op.Mul(self, op.const(negative_slope, dtype)))
    return op.LeakyRelu(self, alpha=float(negative_slope))


def _slopes(op: Emit, like: ir.Value, lower: float, upper: float) -> ir.Value:
    """Uniform between the bounds, in any order. onnxruntime ends the process where RandomUniformLike has bounds that are not finite,
    or that fall.
    """
    if math.isfinite(lower) and math.isfinite(upper):
        return op.RandomUniformLike(like, low=min(lower, upper), high=max(lower, upper))
    dtype = op.dtype(like)
    return op.Add(op.Mul(op.RandomUniformLike(like), op.const(upper - lower, dtype)), op.const(lower, dtype))


@translates(aten.rrelu.default)
def rrelu(op: Emit, self: ir.Value, lower: Any, upper: Any, training: bool) -> ir.Value:
    """rrelu(Tensor self, Scalar lower=0.125, Scalar upper=0.33333333333333331, bool training=False, Generator? generator=None) -> Tensor

    In eval mode the slope is the mean of its bounds; in training uniform between them, element by element.
    """
    if not training:
        return leaky_relu(op, self, (float(lower) + float(upper)) / 2)
    slope = _slopes(op, self, float(lower), float(upper))
    return op.Where(op.Greater(self, op.const(0, op.dtype(self))), self, op.Mul(self, slope))


@translates(aten.rrelu_with_noise_functional.default)
def rrelu_with_noise_functional(
    op: Emit, self: ir.Value, noise: ir.Value, lower: Any, upper: Any, training: bool
) -> tuple[ir.Value, ir.Value]:
    """rrelu_with_noise_functional(Tensor self, Tensor noise, Scalar lower=0.125, Scalar upper=0.33333333333333331, bool training=False, Generator? generator=None) -> (Tensor, Tensor noise_out)"""
    if not training:
        return rrelu(op, self, lower, upper, False), noise
    dtype = op.dtype(self)
    positive = op.Greater(self, op.const(0, dtype))
    drawn = _slopes(op, self, float(lower), float(upper))
    factor = op.Where(positive, op.const(1, dtype), drawn)
    return op.Mul(self, factor), factor


def prelu(op: Emit, self: ir.Value, weight: ir.Value) -> ir.Value:
    """One slope a channel (axis 1), or one for all."""
    rank = op.rank(self)
    if op.rank(weight) == 1 and op.dims(weight)[0] != 1 and rank > 2:
        weight = op.reshape(weight, (*op.dims(weight), *(1 for _ in range(rank - 2))))
    elif op.rank(weight) > rank:
        weight = op.reshape(weight, (1,) * rank)
    return op.PRelu(self, weight)


@translates(aten._prelu_kernel.default)
def _prelu_kernel(op: Emit, self: ir.Value, weight: ir.Value) -> ir.Value:
    """_prelu_kernel(Tensor self, Tensor weight) -> Tensor

    The slopes are broadcast as any operand, from the last axis on.
    """
    return op.PRelu(op.expand(self, op.result_dims()), weight)


register_shared(prelu, "PRelu", *overloads_of("prelu"))


MOST_ALPHA = 64.0
"""onnxruntime multiplies the difference of an exponential and 1 by alpha, and so its rounding."""


def _elu(op: Emit, value: ir.Value, alpha: float) -> ir.Value:
    return op.Elu(value) if alpha == 1 else op.Elu(value, alpha=alpha)


@translates(aten.elu.default)
def elu(op: Emit, self: ir.Value, alpha: Any, scale: Any, input_scale: Any) -> ir.Value:
    """elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor

    x < 0: scale * alpha * (exp(input_scale * x) - 1); else scale * x.
    """
    alpha, scale, input_scale = float(alpha), float(scale), float(input_scale)
    if input_scale == 1 and scale == 1 and abs(alpha) <= MOST_ALPHA:
        return _elu(op, self, alpha)
    dtype = opmath(op.dtype(self))
    value = op.cast(self, dtype)
    negative = op.Mul(expm1(op, op.Mul(value, op.const(input_scale, dtype))), op.const(alpha * scale, dtype))
    found = op.Where(op.Less(value, op.const(0, dtype)), negative, op.Mul(value, op.const(scale, dtype)))
    return op.cast(found, op.dtype(self))


@translates(aten.celu.default)
def celu(op: Emit, self: ir.Value, alpha: Any) -> ir.Value:
    """celu(Tensor self, Scalar alpha=1.) -> Tensor

    alpha * elu(x / alpha).
    """
    if float(alpha) == 1:
        return _elu(op, self, 1.0)
    if op.opset < 12 or op.dtype(self) == ir.DataType.DOUBLE or not 0 <= float(alpha) <= MOST_ALPHA:
        return elu(op, self, float(alpha), 1.0, 1 / float(alpha))
    return op.cast(op.Celu(op.cast(self, ir.DataType.FLOAT), alpha=float(alpha)), op.dtype(self))


@translates(aten.selu.default)
def selu(op: Emit, self: ir.Value) -> ir.Value:
    """selu(Tensor self) -> Tensor"""
    if op.dtype(self) == DOUBLE:
        return op.Selu(self, alpha=SELU_ALPHA, gamma=SELU_SCALE)  # the operator's own numbers are float32's
    return op.Selu(self)


def gelu_of(op: Emit, value: ir.Value, approximate: str) -> ir.Value:
    """Gelu-20, or its formula: x * (1 + erf(x / sqrt(2))) / 2; with tanh, x * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2."""
    dtype = op.dtype(value)
    if op.opset >= 20:
        return op.Gelu(value, approximate=None if approximate == "none" else approximate)
    one, half = op.const(1, dtype), op.const(0.5, dtype)
    if approximate == "none" and dtype == DOUBLE:
        return op.Mul(op.Mul(value, half), erfc(op, op.Mul(value, -math.sqrt(0.5))))
    if approximate == "none":
        curve = op.Erf(op.Div(value, op.const(math.sqrt(2), dtype)))
        return op.Mul(op.Mul(value, op.Add(curve, one)), half)
    cube = op.Mul(op.Mul(op.Mul(value, value), value), op.const(0.044715, dtype))
    curve = op.Tanh(op.Mul(op.Add(value, cube), op.const(math.sqrt(2 / math.pi), dtype)))
    return op.Mul(op.Mul(value, op.Add(curve, one)), half)


register_shared(gelu_of, "Gelu from opset 20 on, its formula below", aten.gelu.default)


@translates(aten.silu.default)
def silu(op: Emit, self: ir.Value) -> ir.Value:
    """silu(Tensor self) -> Tensor

    ONNX:  Swish from opset 24 on; x * sigmoid(x) below.
    """
    return op.Swish(self) if op.opset >= 24 else op.Mul(self, op.Sigmoid(self))


@translates(aten.mish.default)
def mish(op: Emit, self: ir.Value) -> ir.Value:
    """mish(Tensor self) -> Tensor

    ONNX:  Mish from opset 18 on; x * tanh(softplus(x)) below.
    """
    if op.opset >= 18:
        return op.Mish(self)
    return op.Mul(self, op.Tanh(op.Softplus(self)))


@translates(aten.hardsigmoid.default)
def hardsigmoid(op: Emit, self: ir.Value) -> ir.Value:
    """hardsigmoid(Tensor self) -> Tensor"""
    return op.HardSigmoid(self, alpha=1 / 6, beta=0.5)


@translates(aten.hardswish.default)
def hardswish(op: Emit, self: ir.Value) -> ir.Value:
    """hardswish(Tensor self) -> Tensor

    ONNX:  HardSwish from opset 14 on; x * hardsigmoid(x) below.
    """
    return op.HardSwish(self) if op.opset >= 14 else op.Mul(self, hardsigmoid(op, self))


@translates(aten.hardshrink.default)
def hardshrink(op: Emit, self: ir.Value, lambd: Any) -> ir.Value:
    """hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor

    0 between -lambd and lambd; NaN stays NaN, which ONNX Shrink does not promise.
    """
    dtype = op.dtype(self)
    inside = at_most(op, op.Abs(self), op.const(float(lambd), dtype))
    return op.Where(inside, op.const(0, dtype), self)


@translates(aten.softshrink.default)
def softshrink(op: Emit, self: ir.Value, lambd: Any) -> ir.Value:
    """softshrink(Tensor self, Scalar lambd=0.5) -> Tensor

    x - clip(x, -lambd, lambd): NaN stays NaN, which ONNX Shrink does not promise.
    """
    return op.Sub(self, clipped(op, self, -float(lambd), float(lambd)))


@translates(aten.threshold.default)
def threshold(op: Emit, self: ir.Value, threshold: Any, value: Any) -> ir.Value:
    """threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor

    x where x > threshold or x is NaN, else value.
    """
    bound, number = as_dtype(op, threshold, op.dtype(self)), as_dtype(op, value, op.dtype(self))
    return op.Where(at_most(op, self, bound), number, self)


@translates(aten.softplus.default)
def softplus(op: Emit, self: ir.Value, beta: Any, threshold: Any) -> ir.Value:
    """softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor

    log(1 + exp(beta x)) / beta; x itself where beta x > threshold, which from 20 on is the same in float32.
    """
    beta, threshold = float(beta), float(threshold)
    dtype = op.dtype(self)
    inner = self if beta == 1 else op.Mul(self, op.const(beta, dtype))
    curve = op.Softplus(inner)
    result = curve if beta == 1 else op.Div(curve, op.const(beta, dtype))
    if threshold < 20 or dtype == DOUBLE or not math.isfinite(beta):
        result = op.Where(op.Greater(inner, op.const(threshold, dtype)), self, result)
    return result


@translates(aten.log_sigmoid.default)
def log_sigmoid(op: Emit, self: ir.Value) -> ir.Value:
    """log_sigmoid(Tensor self) -> Tensor

    -softplus(-x).
    """
    return op.Neg(op.Softplus(op.Neg(self)))


@translates(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(op: Emit, self: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer)

    The buffer, exp(-|x|), is what CPU kernels keep for the backward pass.
    """
    buffer = op.Exp(op.Neg(op.Abs(self))) if op.dims(self) == op.result_dims(1) else None
    return log_sigmoid(op, self), buffer


@translates(aten.glu.default)
def glu(op: Emit, self: ir.Value, dim: int) -> ir.Value:
    """glu(Tensor self, int dim=-1) -> Tensor

    Half of the features times the sigmoid of the other half.
    """
    from fx2onnx.aten_map.slicing import pieces

    axis = axis_of(dim, op.rank(self))
    half = op.result_dims()[axis]
    first, second = pieces(op, self, axis, [half, half])
    return op.Mul(first, op.Sigmoid(second))


def softmax_of(op: Emit, value: ir.Value, dim: int, op_type: str = "Softmax") -> ir.Value:
    """``Softmax`` or ``LogSoftmax`` along any axis; below opset 13 they work on trailing axes, so the axis goes last."""
    rank = op.rank(value)
    if rank == 0:
        whole = softmax_of(op, unsqueeze(op, value, 0), 0, op_type)
        return op.Squeeze(whole, axes=[0])
    axis = axis_of(dim, rank)
    if op.opset >= 13 or axis == rank - 1:
        return op.node(op_type, value, axis=-1 if axis == rank - 1 else axis)
    return swap(op, op.node(op_type, swap(op, value, axis, rank - 1), axis=rank - 1), axis, rank - 1)


def _softmax(op_type: str) -> Callable[..., ir.Value]:
    return lambda op, self, dim: softmax_of(op, op.cast(self, op.result_dtype()), dim, op_type)


register_shared(_softmax("Softmax"), "Softmax", *overloads_of("softmax.int special_softmax _softmax"))
register_shared(_softmax("LogSoftmax"), "LogSoftmax", *overloads_of("log_softmax.int special_log_softmax _log_softmax"))


@translates(aten._safe_softmax.default)
def _safe_softmax(op: Emit, self: ir.Value, dim: int, dtype: torch.dtype | None) -> ir.Value:
    """_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor

    A softmax that gives 0 where every element is minus infinity.
    """
    return safe_softmax(op, op.cast(self, op.result_dtype()), dim)


def safe_softmax(op: Emit, value: ir.Value, dim: int) -> ir.Value:
    top = op.ReduceMax(value, axes=[dim], keepdims=1) if op.rank(value) else value
    masked = op.Equal(top, op.const(-math.inf, op.dtype(value)))
    return op.Where(masked, op.const(0, op.dtype(value)), softmax_of(op, value, dim))


@translates(aten._masked_softmax.default)
def _masked_softmax(op: Emit, self: ir.Value, mask: ir.Value, dim: int | None, mask_type: int | None) -> ir.Value:
    """_masked_softmax(Tensor self, Tensor mask, int? dim=None, int? mask_type=None) -> Tensor

    True masks out. mask_type 1: [batch, keys] over [batch, heads, queries, keys].
    """
    chosen = op.cast(mask, ir.DataType.BOOL)
    chosen = unsqueeze(op, chosen, 1, 2) if mask_type == 1 and op.rank(self) == 4 and op.rank(mask) == 2 else chosen
    shown = op.Where(chosen, op.const(-math.inf, op.dtype(self)), self)
    return softmax_of(op, shown, -1 if dim is None else dim)
