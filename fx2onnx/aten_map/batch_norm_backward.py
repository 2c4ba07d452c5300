"""Gradients of batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

from fx2onnx.aten_map.batch_norm import FLOAT, HALF, affine, centred_by
from fx2onnx.aten_map.table.axes import filled
from fx2onnx.aten_map.table.registry import translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import product

aten = torch.ops.aten


@translates(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    op: Emit,
    grad_out: ir.Value,
    input: ir.Value,
    weight: ir.Value | None,
    running_mean: ir.Value | None,
    running_var: ir.Value | None,
    save_mean: ir.Value | None,
    save_invstd: ir.Value | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[ir.Value | None, ...]:
    """native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] output_mask) -> (Tensor, Tensor, Tensor)

    ONNX:     with c = input - mean, s = sum(grad), d = sum(grad * c) and a = weight * rstd, each by channel, the input's is
              a * (grad - c * rstd² * d / n - s / n): BatchNormalization as an affine map (1 / n as of a variance n²), Sub, and
              another. In eval a * grad.
    Numerics: in float32 at least.
    Source:   batch_norm_backward_cpu_template in ATen/native/Normalization.cpp.
    """
    rank, dtype = op.rank(input), op.dtype(input)
    inner = FLOAT if dtype in HALF else dtype
    axes = [axis for axis in range(rank) if axis != 1]
    gradient, wide = op.cast(grad_out, inner), op.cast(input, inner)
    stored = save_mean if train else running_mean
    assert stored is not None
    if train:
        assert save_invstd is not None
        rstd = op.cast(save_invstd, inner)
    else:
        assert running_var is not None
        rstd = op.Reciprocal(op.Sqrt(op.Add(op.cast(running_var, inner), op.const(float(eps), inner))))
    wants_input, wants_weight, wants_bias = output_mask
    of_input = of_weight = total = None
    if wants_bias or (wants_input and train):
        total = op.ReduceSum(gradient, axes=axes, keepdims=0)
    if wants_weight or (wants_input and train):
        centred = centred_by(op, wide, op.cast(stored, inner))
        along = op.ReduceSum(op.Mul(gradient, centred), axes=axes, keepdims=0)
        of_weight = op.Mul(along, rstd)
    if wants_input:
        slope = rstd if weight is None else op.Mul(op.cast(weight, inner), rstd)
        if train:
            assert of_weight is not None
            assert total is not None
            count = product([size for axis, size in enumerate(op.dims(input)) if axis != 1])
            along = op.Mul(of_weight, rstd)
            if isinstance(count, int):
                mean = op.Mul(total, op.const(1 / max(count, 1), inner))
                moved = affine(op, centred, along, mean, variance=max(count, 1) ** 2)
            else:
                share = op.Reciprocal(op.size(count, inner))
                moved = affine(op, centred, op.Mul(along, share), op.Mul(total, share))
            gradient = op.Sub(gradient, moved)
        of_input = affine(op, gradient, slope, filled(op, (op.dims(input)[1],), 0, inner))
        of_input = op.cast(of_input, dtype)
    found = zip((wants_weight, wants_bias), (of_weight, total), strict=True)
    own = dtype if weight is None else op.dtype(weight)
    return of_input, *(op.cast(value, own) if wanted and value is not None else None for wanted, value in found)
