"""``torch.ops.torch_nn``: losses of a linear layer that PyTorch computes in chunks."""

from __future__ import annotations

import onnx_ir as ir
import torch

from fx2onnx.aten_map.class_losses import cross_entropy
from fx2onnx.aten_map.losses import MEAN, NONE, SUM
from fx2onnx.aten_map.matmul import dense
from fx2onnx.aten_map.table.axes import zeros
from fx2onnx.aten_map.table.registry import register_shared
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit

_NAMES = ("_linear_cross_entropy_batch_chunked", "_linear_cross_entropy_batch_chunked_no_reduction")


def _linear_cross_entropy(
    op: Emit,
    input: ir.Value,
    linear_weight: ir.Value,
    target: ir.Value,
    linear_bias: ir.Value | None,
    weight: ir.Value | None,
    ignore_index: int,
    reduction: str = "none",
    label_smoothing: float = 0.0,
    compute_input_grad: bool = False,
    compute_linear_weight_grad: bool = False,
    compute_linear_bias_grad: bool = False,
) -> tuple[ir.Value, ...]:
    """The loss, whole, and empty gradients. Refuses those that it computes ahead."""
    if compute_input_grad or compute_linear_weight_grad or compute_linear_bias_grad:
        raise UserError(
            "E203",
            "linear_cross_entropy with gradients computed in the forward pass",
            next="export with requires_grad_(False), or write the linear layer and cross_entropy apart",
        )
    logits = dense(op, input, linear_weight, linear_bias)
    mode = {"none": NONE, "mean": MEAN, "sum": SUM}[reduction]
    loss = cross_entropy(op, logits, target, weight, mode, ignore_index, label_smoothing)
    others = range(1, len(op.result))
    return loss, *(zeros(op, op.result_dims(place), op.result_dtype(place)) for place in others)


register_shared(
    _linear_cross_entropy,
    "Gemm and cross entropy, whole",
    *(getattr(torch.ops.torch_nn, name).default for name in _NAMES if hasattr(torch.ops.torch_nn, name)),
)
