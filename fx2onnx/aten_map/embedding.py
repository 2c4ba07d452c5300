"""Embedding look-up, bags of embeddings, and their gradients."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from fx2onnx.aten_map.layout import joined
from fx2onnx.aten_map.normalization import norm_except
from fx2onnx.aten_map.scattering import written_nd
from fx2onnx.aten_map.table.axes import INT64, filled, flat, sliced, steps, unsqueeze, whole, zeros
from fx2onnx.aten_map.table.dtypes import opmath
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
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


@translates(aten.embedding.default)
def embedding(op: Emit, weight: ir.Value, indices: ir.Value, padding_idx: int) -> ir.Value:
    """embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor"""
    return op.Gather(weight, indices, axis=0)


def _bagged(
    op: Emit,
    weight: ir.Value,
    indices: ir.Value,
    offsets: ir.Value,
    mode: int,
    per_sample_weights: ir.Value | None,
    include_last_offset: bool,
    padding_idx: int | None = None,
) -> tuple[ir.Value, ...]:
    """A [bags, indices] mask of membership; sums and means are one product with it, maxima a masked reduction.

    The other outputs serve the backward pass.
    """
    count = op.dims(indices)[0]
    offsets = op.cast(offsets, INT64)
    size = op.dims(offsets)[0]
    if include_last_offset:
        starts = sliced(op, offsets, 0, 0, whole(size - 1), whole(size - 1))
        ends = sliced(op, offsets, 0, 1, size, whole(size - 1))
    else:
        last = op.reshape(op.size(count), (1,))
        starts, ends = offsets, joined(op, [sliced(op, offsets, 0, 1, size, whole(size - 1)), last], 0)
    place = steps(op, count)
    member = op.And(
        op.Not(op.Less(place, unsqueeze(op, starts, 1))),
        op.Less(place, unsqueeze(op, ends, 1)),
    )
    if padding_idx is not None and padding_idx >= 0:
        wanted = op.Not(op.Equal(indices, op.const(padding_idx, op.dtype(indices))))
        member = op.And(member, wanted)
    dtype = op.dtype(weight)
    rows = op.Gather(weight, indices, axis=0)
    sizes = op.ReduceSum(op.Cast(member, to=INT64), axes=[1], keepdims=0)
    if mode == MAX:
        shown = op.Where(unsqueeze(op, member, 2), rows, op.const(-math.inf, dtype))
        places = op.cast(indices, INT64)
        if not isinstance(count, int) or count == 0:  # there is no maximum of nothing
            none = op.expand(op.const(-math.inf, dtype), (op.dims(shown)[0], 1, op.dims(shown)[2]))
            shown, places = joined(op, [shown, none], 1), joined(op, [places, zeros(op, (1,), INT64)], 0)
        top = op.ReduceMax(shown, axes=[1], keepdims=0)
        empty = op.Equal(unsqueeze(op, sizes, 1), op.const(0))
        output = op.Where(empty, op.const(0, dtype), top)
        best = op.Gather(places, op.ArgMax(shown, axis=1, keepdims=0), axis=0)
        return _bag_results(op, output, indices, starts, sizes, op.Where(empty, op.const(0), best))
    else:
        share = op.Cast(member, to=dtype)
        if per_sample_weights is not None:
            share = op.Mul(share, per_sample_weights)
        output = op.MatMul(share, rows)
        if mode == MEAN:
            divisor = op.Max(op.Cast(sizes, to=dtype), op.const(1, dtype))
            output = op.Div(output, unsqueeze(op, divisor, 1))
    if mode != MEAN and len(op.result) > 2:  # as in PyTorch, whose gradient of a sum reads none
        sizes = zeros(op, op.result_dims(2), INT64)
    return _bag_results(op, output, indices, starts, sizes, sizes)


def _bag_results(
    op: Emit, output: ir.Value, indices: ir.Value, starts: ir.Value, sizes: ir.Value, best: ir.Value
) -> tuple[ir.Value, ...]:
    """The output, for each index the number of its bag, the sizes of the bags, and the indices of maxima."""
    if len(op.result) == 1:
        return (output,)
    dtype, dims = op.result[1]
    bags = zeros(op, dims, INT64) if 0 in dims else bag_of(op, indices, starts)
    return output, *(op.cast(value, dtype) for value in (bags, sizes, best))


_BAGS = "embedding_bag embedding_bag.padding_idx _embedding_bag _embedding_bag_forward_only"
register_shared(_bagged, "MatMul with a mask of membership, or ReduceMax", *overloads_of(_BAGS))


@translates(aten.embedding_renorm.default)
def embedding_renorm(op: Emit, self: ir.Value, indices: ir.Value, max_norm: float, norm_type: float) -> ir.Value:
    """embedding_renorm(Tensor self, Tensor indices, float max_norm, float norm_type) -> Tensor

    The rows that are looked up, scaled down to ``max_norm`` where they are longer.
    """
    dtype = op.dtype(self)
    if op.dtype(indices) not in (INT64, ir.DataType.INT32):
        raise UserError(
            "E203", f"embedding_renorm with indices of dtype {op.dtype(indices).name.lower()}", next="pass int64"
        )
    places = flat(op, op.cast(indices, INT64))
    rows = op.Gather(self, places, axis=0)
    if math.isinf(norm_type):
        norm = op.node("ReduceMax" if norm_type > 0 else "ReduceMin", op.Abs(rows), axes=[1], keepdims=1)
    else:
        norm = norm_except(op, rows, 0, norm_type)
    limit = op.const(max_norm, dtype)
    shorter = op.Mul(rows, op.Div(limit, op.Add(norm, op.const(1e-7, dtype))))
    kept = op.Where(op.Greater(norm, limit), shorter, rows)
    return op.ScatterND(self, unsqueeze(op, places, 1), kept)
