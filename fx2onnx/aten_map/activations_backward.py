"""Gradients of activations and of softmax that PyTorch has no decomposition for, or one that takes long to record."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from fx2onnx.aten_map.comparison import compare
from fx2onnx.aten_map.selection import where_self
from fx2onnx.aten_map.table.dtypes import in_opmath
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten


def _shrink_backward(
    op: Emit, self: ir.Value, lambd: float, grad_out: ir.Value | None = None, grad_output: ir.Value | None = None
) -> ir.Value:
    """The gradient where the input lies outside [-lambd, lambd]."""
    grad = grad_out if grad_out is not None else grad_output
    assert grad is not None
    inside = compare(op, "LessOrEqual", op.Abs(self), lambd)
    return op.Where(inside, op.const(0, op.dtype(grad)), grad)


register_shared(_shrink_backward, "Where", *overloads_of("hardshrink_backward softshrink_backward"))


@translates(aten.rrelu_with_noise_backward.default)
def rrelu_with_noise_backward(
    op: Emit,
    grad_output: ir.Value,
    self: ir.Value,
    noise: ir.Value,
    lower: float,
    upper: float,
    training: bool,
    self_is_result: bool,
) -> ir.Value:
    """rrelu_with_noise_backward(Tensor grad_output, Tensor self, Tensor noise, Scalar lower, Scalar upper, bool training, bool self_is_result) -> Tensor

    In training the noise has the slope of each element; else it is the mean of the bounds.
    """
    if training and upper - lower > 1e-6:
        return op.Mul(grad_output, noise)
    dtype = op.dtype(self)
    slope = op.const((lower + upper) / 2, dtype)
    return op.Where(op.Greater(self, op.const(0, dtype)), grad_output, op.Mul(grad_output, slope))


@translates(aten.threshold_backward.default)
def threshold_backward(op: Emit, grad_output: ir.Value, self: ir.Value, threshold: float) -> ir.Value:
    """threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor

    None where ``self`` is at most the threshold; ReLU's gradient, too.
    """
    return where_self(op, compare(op, "LessOrEqual", self, threshold), 0, grad_output)


@translates(aten.gelu_backward.default)
def gelu_backward(op: Emit, grad_output: ir.Value, self: ir.Value, approximate: str) -> ir.Value:
    """gelu_backward(Tensor grad_output, Tensor self, *, str approximate="none") -> Tensor

    ONNX:    grad * (cdf + x * pdf), with cdf = (1 + erf(x / sqrt(2))) / 2 and pdf = exp(-x^2 / 2) / sqrt(2 pi). With tanh,
             t = tanh(u), u = sqrt(2/pi) (x + 0.044715 x^3): grad * ((1 + t) + x (1 - t^2) u') / 2.
    Source:  torch/_decomp/decompositions.py.
    """
    return in_opmath(op, _gelu_gradient if approximate == "none" else _tanh_gelu_gradient, grad_output, self)


def _gelu_gradient(op: Emit, grad: ir.Value, x: ir.Value) -> ir.Value:
    dtype = op.dtype(x)
    half, one = op.const(0.5, dtype), op.const(1, dtype)
    cdf = op.Mul(op.Add(op.Erf(op.Mul(x, op.const(math.sqrt(0.5), dtype))), one), half)
    bell = op.Exp(op.Mul(op.Mul(x, x), op.const(-0.5, dtype)))
    pdf = op.Mul(bell, op.const(1 / math.sqrt(2 * math.pi), dtype))
    return op.Mul(grad, op.Add(cdf, op.Mul(x, pdf)))


def _tanh_gelu_gradient(op: Emit, grad: ir.Value, x: ir.Value) -> ir.Value:
    dtype = op.dtype(x)
    half, one, slope = (op.const(number, dtype) for number in (0.5, 1, math.sqrt(2 / math.pi)))
    square = op.Mul(x, x)
    inner = op.Mul(op.Add(x, op.Mul(op.Mul(square, x), op.const(0.044715, dtype))), slope)
    curve = op.Tanh(inner)
    steepness = op.Mul(op.Add(op.Mul(square, op.const(3 * 0.044715, dtype)), one), slope)
    bent = op.Mul(op.Mul(op.Mul(x, half), op.Sub(one, op.Mul(curve, curve))), steepness)
    return op.Mul(grad, op.Add(op.Mul(op.Add(curve, one), half), bent))


@translates(aten.logit_backward.default)
def logit_backward(op: Emit, grad_output: ir.Value, self: ir.Value, eps: float | None) -> ir.Value:
    """logit_backward(Tensor grad_output, Tensor self, float? eps=None) -> Tensor

    ONNX:    g / (x (1 - x)) within [eps, 1 - eps], else 0; without eps within [0, 1], else NaN. The product is never less than
             zero there, negative zero neither, as in PyTorch.
    """
    low, high = (0.0, 1.0) if eps is None else (eps, 1 - eps)
    beyond = math.nan if eps is None else 0.0

    def formula(op: Emit, grad: ir.Value, value: ir.Value) -> ir.Value:
        dtype = op.dtype(value)
        slope = op.Div(grad, op.Abs(op.Mul(value, op.Sub(op.const(1.0, dtype), value))))
        is_beyond = op.Or(op.Less(value, op.const(low, dtype)), op.Greater(value, op.const(high, dtype)))
        return op.Where(is_beyond, op.const(beyond, dtype), slope)

    return in_opmath(op, formula, grad_output, self)


def _total(op: Emit, value: ir.Value, dim: int) -> ir.Value:
    """The sum along ``dim``, the axis kept."""
    if op.rank(value) == 0:
        return value
    return op.ReduceSum(value, axes=[dim % op.rank(value)], keepdims=1)


@translates(aten._softmax_backward_data.default)
def _softmax_backward_data(
    op: Emit, grad_output: ir.Value, output: ir.Value, dim: int, input_dtype: torch.dtype
) -> ir.Value:
    """_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor

    (grad - sum(grad * output)) * output.
    """
    weighted = op.Mul(grad_output, output)
    return op.cast(op.Sub(weighted, op.Mul(output, _total(op, weighted, dim))), op.result_dtype())


@translates(aten._log_softmax_backward_data.default)
def _log_softmax_backward_data(
    op: Emit, grad_output: ir.Value, output: ir.Value, dim: int, input_dtype: torch.dtype
) -> ir.Value:
    """_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor

    grad - exp(output) * sum(grad).
    """
    total = _total(op, grad_output, dim)
    return op.cast(op.Sub(grad_output, op.Mul(op.Exp(output), total)), op.result_dtype())
