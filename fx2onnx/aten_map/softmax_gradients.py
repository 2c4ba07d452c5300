"""The backward passes of softmax and log_softmax, from their outputs."""

from __future__ import annotations

import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.registry import translates
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten


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
