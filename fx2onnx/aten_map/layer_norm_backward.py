"""Gradients of layer normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

from fx2onnx.aten_map.batch_norm import FLOAT, HALF
from fx2onnx.aten_map.reductions import reduce
from fx2onnx.aten_map.table.registry import translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import DimLike

aten = torch.ops.aten


@translates(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    op: Emit,
    grad_out: ir.Value,
    input: ir.Value,
    normalized_shape: Sequence[DimLike],
    mean: ir.Value,
    rstd: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    output_mask: Sequence[bool],
) -> tuple[ir.Value | None, ...]:
    """native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)

    ONNX:     with y = (input - mean) * rstd and g = grad * weight, the input's is rstd * (g - mean(g) - y * mean(g * y)) over
              the normalised axes; the weight's sum(grad * y), the bias's sum(grad) over the others.
    Numerics: in float32 at least.
    Source:   layer_norm_backward_frame in ATen/native/cpu/layer_norm_kernel.cpp.
    """
    rank, dtype = op.rank(input), op.dtype(input)
    inner = FLOAT if dtype in HALF else dtype
    first = rank - len(normalized_shape)
    own, others = list(range(first, rank)), list(range(first))
    wants_input, wants_weight, wants_bias = output_mask
    gradient, scale = op.cast(grad_out, inner), op.cast(rstd, inner)
    of_input = of_weight = of_bias = None
    if wants_input or wants_weight:
        normal = op.Mul(op.Sub(op.cast(input, inner), op.cast(mean, inner)), scale)
    if wants_input:
        steep = gradient if weight is None else op.Mul(gradient, op.cast(weight, inner))
        along = op.Mul(normal, reduce(op, "ReduceMean", op.Mul(steep, normal), own, keepdim=True))
        level = reduce(op, "ReduceMean", steep, own, keepdim=True)
        of_input = op.cast(op.Mul(op.Sub(op.Sub(steep, level), along), scale), dtype)
    if wants_weight and weight is not None:
        of_weight = op.cast(_summed(op, op.Mul(gradient, normal), others), op.dtype(weight))
    if wants_bias and bias is not None:
        of_bias = op.cast(_summed(op, gradient, others), op.dtype(bias))
    return of_input, of_weight, of_bias


def _summed(op: Emit, value: ir.Value, axes: Sequence[int]) -> ir.Value:
    return reduce(op, "ReduceSum", value, list(axes)) if axes else value
