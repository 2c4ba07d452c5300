"""Gradients of distances and of normalised weights that PyTorch has no decomposition for."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import filled, fixed, unsqueeze
from fx2onnx.aten_map.table.registry import translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import product

aten = torch.ops.aten


@translates(aten._cdist_backward.default)
def _cdist_backward(op: Emit, grad: ir.Value, x1: ir.Value, x2: ir.Value, p: float, cdist: ir.Value) -> ir.Value:
    """_cdist_backward(Tensor grad, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor
    _cdist_backward(Tensor grad_output, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor

    Shapes: x1 and x2 broadcast in their batches; the result is of x1 as it is broadcast, grad and cdist are of the distances.
    Source: dist_calc in ATen/native/cpu/DistanceOpsKernel.cpp; nothing comes from a distance of 0.
    """
    dtype, rank = op.dtype(x1), max(op.rank(x1), op.rank(x2))
    if p == 0 or 0 in (*op.dims(x1), *op.dims(x2)):
        return filled(op, op.result_dims(), 0, dtype)
    difference = op.Sub(unsqueeze(op, x1, op.rank(x1) - 1), unsqueeze(op, x2, op.rank(x2) - 2))
    length, weight = unsqueeze(op, cdist, op.rank(cdist)), unsqueeze(op, grad, op.rank(grad))
    zero = op.const(0, dtype)
    sign = op.Sign(difference)
    if p == 1:
        return op.ReduceSum(op.Mul(sign, weight), axes=[rank - 1], keepdims=0)
    size = op.Abs(difference)
    if math.isinf(p):
        share = op.Mul(sign, op.cast(op.Equal(size, length), dtype))
        return op.ReduceSum(op.Mul(share, weight), axes=[rank - 1], keepdims=0)
    divisor = op.Where(op.Equal(length, zero), op.const(1, dtype), length)
    if p == 2:
        share = op.Div(difference, divisor)
    else:
        ratio = op.Div(size, divisor)
        no_size = op.Equal(size, zero)
        power = op.Pow(op.Where(no_size, op.const(1, dtype), ratio), op.const(p - 1, dtype))
        share = op.Mul(sign, op.Where(no_size, zero, power))
    return op.ReduceSum(op.Mul(share, weight), axes=[rank - 1], keepdims=0)


@translates(aten._pdist_backward.default)
def _pdist_backward(op: Emit, grad: ir.Value, self: ir.Value, p: float, pdist: ir.Value) -> ir.Value:
    """_pdist_backward(Tensor grad, Tensor self, float p, Tensor pdist) -> Tensor
    _pdist_backward(Tensor grad_output, Tensor self, float p, Tensor pdist) -> Tensor

    The gradient of ``cdist(self, self)`` where each pair has its distance and gradient once in either order.
    """
    if op.rank(self) != 2:
        raise UserError(
            "E203", f"_pdist_backward of {op.rank(self)} axes", why="its kernel reads rows and columns alone"
        )
    size = fixed(op.dims(self)[0], "the number of rows whose distances are differentiated")
    rows, columns = np.triu_indices(size, 1)
    places = op.const(np.concatenate([np.stack([rows, columns], 1), np.stack([columns, rows], 1)]).astype(np.int64))

    def square(pairs: ir.Value) -> ir.Value:
        none = op.expand(op.const(0, op.dtype(pairs)), (size, size))
        return op.ScatterND(none, places, op.Concat(pairs, pairs, axis=0))

    return _cdist_backward(op, square(grad), self, self, p, square(pdist))


@translates(aten._weight_norm_interface_backward.default)
def _weight_norm_interface_backward(
    op: Emit, grad_w: ir.Value, saved_v: ir.Value, saved_g: ir.Value, saved_norms: ir.Value, dim: int
) -> tuple[ir.Value, ir.Value]:
    """_weight_norm_interface_backward(Tensor grad_w, Tensor saved_v, Tensor saved_g, Tensor saved_norms, int dim) -> (Tensor, Tensor)

    Source: the formula above weight_norm_backward_first_dim_kernel in ATen/native/cuda/WeightNorm.cu.
    """
    rank, dtype = op.rank(saved_v), op.dtype(saved_v)
    axes = [axis for axis in range(rank) if axis != dim % rank]
    terms = op.Mul(saved_v, grad_w)
    total = op.ReduceSum(terms, axes=axes, keepdims=1) if axes else terms
    if product(op.dims(saved_g)) != product(op.dims(total)):
        raise UserError(
            "E203", "the gradient of weight normalisation with a gain of another number of elements than the norms"
        )
    norms, gain = (op.reshape(op.cast(value, dtype), op.dims(total)) for value in (saved_norms, saved_g))
    of_size = op.Div(total, norms)
    along = op.Mul(saved_v, op.Div(total, op.Mul(norms, norms)))
    gradient = op.Mul(op.Div(gain, norms), op.Sub(grad_w, along))
    return gradient, op.cast(op.reshape(of_size, op.dims(saved_g)), op.dtype(saved_g))
