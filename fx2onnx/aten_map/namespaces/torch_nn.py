"""``torch.ops.torch_nn``: losses of a linear layer that PyTorch computes in chunks."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.class_losses import cross_entropy
from fx2onnx.aten_map.losses import MEAN, NONE, SUM
from fx2onnx.aten_map.matmul import linear
from fx2onnx.aten_map.table.registry import translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit

nn = torch.ops.torch_nn


@translates(nn._linear_cross_entropy_batch_chunked.default)
def _linear_cross_entropy_batch_chunked(
    op: Emit,
    input: ir.Value,
    linear_weight: ir.Value,
    target: ir.Value,
    linear_bias: ir.Value | None,
    weight: ir.Value | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: Any,
    allow_retain_graph: bool,
    compute_input_grad: bool,
    compute_linear_weight_grad: bool,
    compute_linear_bias_grad: bool,
) -> tuple[ir.Value | None, ...]:
    """_linear_cross_entropy_batch_chunked(Tensor input, Tensor linear_weight, Tensor target, Tensor? linear_bias, Tensor? weight, str reduction, SymInt ignore_index, float label_smoothing, SymInt batch_chunk_size, str acc_policy, ScalarType acc_dtype, bool allow_retain_graph, bool compute_input_grad, bool compute_linear_weight_grad, bool compute_linear_bias_grad) -> (Tensor, Tensor, Tensor, Tensor)

    ONNX:    Gemm and cross entropy, whole.
    Refuses: the gradients that it computes ahead.
    """
    if compute_input_grad or compute_linear_weight_grad or compute_linear_bias_grad:
        raise UserError(
            "E203",
            "linear_cross_entropy with gradients computed in the forward pass",
            next="export with requires_grad_(False), or write the linear layer and cross_entropy apart",
        )
    logits = linear(op, input, linear_weight, linear_bias)
    mode = {"none": NONE, "mean": MEAN, "sum": SUM}[reduction]
    return cross_entropy(op, logits, target, weight, mode, ignore_index, label_smoothing), None, None, None


@translates(nn._linear_cross_entropy_batch_chunked_no_reduction.default)
def _linear_cross_entropy_batch_chunked_no_reduction(
    op: Emit,
    input: ir.Value,
    linear_weight: ir.Value,
    target: ir.Value,
    linear_bias: ir.Value | None,
    weight: ir.Value | None,
    ignore_index: int,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: Any,
) -> ir.Value:
    """_linear_cross_entropy_batch_chunked_no_reduction(Tensor input, Tensor linear_weight, Tensor target, Tensor? linear_bias, Tensor? weight, SymInt ignore_index, SymInt batch_chunk_size, str acc_policy, ScalarType acc_dtype) -> Tensor

    ONNX:    Gemm and cross entropy, whole.
    """
    logits = linear(op, input, linear_weight, linear_bias)
    return cross_entropy(op, logits, target, weight, NONE, ignore_index, 0.0)
