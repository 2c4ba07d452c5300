"""Gradients of activations that PyTorch has no decomposition for."""

from __future__ import annotations

import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten


def _shrink_backward(
    op: Emit, self: ir.Value, lambd: float, grad_out: ir.Value | None = None, grad_output: ir.Value | None = None
) -> ir.Value:
    """The gradient where the input lies outside [-lambd, lambd]."""
    grad = grad_out if grad_out is not None else grad_output
    assert grad is not None
    dtype = op.dtype(self)
    inside = op.Not(op.Greater(op.Abs(self), op.const(lambd, dtype)))
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
