"""Gradients of embeddings and of bags of them."""

from __future__ import annotations

import onnx_ir as ir
import torch

from fx2onnx.aten_map.scattering import written_nd
from fx2onnx.aten_map.table.axes import INT64, filled, steps, unsqueeze
from fx2onnx.aten_map.table.dtype_support import opmath
from fx2onnx.aten_map.table.registry import translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten
SUM, MEAN, MAX = 0, 1, 2


@translates(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    op: Emit,
    grad_output: ir.Value,
    indices: ir.Value,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> ir.Value:
    """embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq) -> Tensor

    Shapes:  grad_output [*, width], indices [*] -> [weights, width].
    ONNX:    rows added up by ScatterND, none where the index is ``padding_idx``; by frequency, each divided by the count of
             its index.
    """
    dtype = op.dtype(grad_output)
    inner = opmath(dtype)
    places = unsqueeze(op, op.cast(indices, INT64), op.rank(indices))
    rows = op.cast(grad_output, inner)
    if scale_grad_by_freq:
        ones = op.expand(op.const(1, inner), op.dims(indices))
        counts = written_nd(op, filled(op, (num_weights,), 0, inner), places, ones, "add")
        rows = op.Div(rows, op.Gather(counts, places, axis=0))
    if padding_idx >= 0:
        rows = op.Where(op.Equal(places, op.const(padding_idx)), op.const(0, inner), rows)
    none = filled(op, (num_weights, op.dims(grad_output)[-1]), 0, inner)
    return op.cast(written_nd(op, none, places, rows, "add"), dtype)


@translates(aten._embedding_bag_backward.default, since=16)
def _embedding_bag_backward(
    op: Emit,
    grad: ir.Value,
    indices: ir.Value,
    offsets: ir.Value,
    offset2bag: ir.Value,
    bag_size: ir.Value,
    maximum_indices: ir.Value,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: ir.Value | None,
    padding_idx: int,
) -> ir.Value:
    """_embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, Tensor offset2bag, Tensor bag_size, Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, int padding_idx=-1) -> Tensor

    Shapes:  grad [bags, width], indices [n], bag_size [bags], maximum_indices [bags, width] -> [weights, width].
    ONNX:    rows of grad, weighted, added up by ScatterND; of maxima single numbers, by ScatterElements.
    Source:  embedding_bag_dense_backward_cpu in ATen/native/EmbeddingBag.cpp.
    Refuses: scale_grad_by_freq (E203).
    """
    if scale_grad_by_freq:
        raise UserError(
            "E203",
            "the gradient of embedding_bag with scale_grad_by_freq=True has no form",
            why="eager PyTorch divides by the counts of other indices than those of the row",
            next="scale_grad_by_freq=False",
        )
    dtype, width = op.dtype(grad), op.dims(grad)[1]
    none = op.expand(op.const(0, dtype), (num_weights, width))
    sizes = op.cast(bag_size, dtype)
    if mode == MAX:
        kept = op.Mul(grad, unsqueeze(op, op.Sign(sizes), 1))
        return op.ScatterElements(none, op.cast(maximum_indices, INT64), kept, axis=0, reduction="add")
    places = op.cast(indices, INT64)
    bag = bag_of(op, places, offsets)  # PyTorch's kernels leave ``offset2bag`` out where they can
    rows, weight = op.Gather(grad, bag, axis=0), op.expand(op.const(1, dtype), op.dims(indices))
    if per_sample_weights is not None:
        weight = op.Mul(weight, per_sample_weights)
    if mode == MEAN:
        weight = op.Div(weight, op.Gather(op.Max(sizes, op.const(1, dtype)), bag, axis=0))
    if padding_idx >= 0:
        weight = op.Mul(weight, op.cast(op.Not(op.Equal(places, op.const(padding_idx))), dtype))
    return op.ScatterND(none, unsqueeze(op, places, 1), op.Mul(rows, unsqueeze(op, weight, 1)), reduction="add")


@translates(aten._embedding_bag_per_sample_weights_backward.default)
def _embedding_bag_per_sample_weights_backward(
    op: Emit,
    grad: ir.Value,
    weight: ir.Value,
    indices: ir.Value,
    offsets: ir.Value,
    offset2bag: ir.Value,
    mode: int,
    padding_idx: int,
) -> ir.Value:
    """_embedding_bag_per_sample_weights_backward(Tensor grad, Tensor weight, Tensor indices, Tensor offsets, Tensor offset2bag, int mode, int padding_idx=-1) -> Tensor

    The product of each looked-up row with the gradient of its bag, whose place follows from ``offsets``.
    """
    places = op.cast(indices, INT64)
    rows = op.Mul(op.Gather(grad, bag_of(op, places, offsets), axis=0), op.Gather(weight, places, axis=0))
    found = op.ReduceSum(rows, axes=[1], keepdims=0)
    if padding_idx < 0:
        return found
    return op.Where(op.Equal(places, op.const(padding_idx)), op.const(0, op.dtype(found)), found)


def bag_of(op: Emit, indices: ir.Value, offsets: ir.Value) -> ir.Value:
    """For each index the number of its bag: how many bags begin up to it, less one."""
    place, starts = steps(op, op.dims(indices)[0]), op.cast(offsets, INT64)
    begun = op.Not(op.Less(unsqueeze(op, place, 1), unsqueeze(op, starts, 0)))
    return op.Sub(op.ReduceSum(op.Cast(begun, to=INT64), axes=[1], keepdims=0), op.const(1))
