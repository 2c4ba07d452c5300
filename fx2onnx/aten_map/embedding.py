"""Embedding look-up, bags of embeddings, and their gradients."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from fx2onnx.aten_map.layout import joined
from fx2onnx.aten_map.normalization import norm_except
from fx2onnx.aten_map.scans import cumulative_sum
from fx2onnx.aten_map.scattering import scattered, written_nd
from fx2onnx.aten_map.table.axes import INT64, filled, flat, sliced, steps, unsqueeze, whole, zeros
from fx2onnx.aten_map.table.dtypes import opmath
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import DimLike

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


@translates(aten._embedding_bag_backward.default)
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
    if mode == MAX:
        kept = op.Where(op.Equal(unsqueeze(op, bag_size, 1), op.const(0, op.dtype(bag_size))), op.const(0, dtype), grad)
        return scattered(op, none, 0, maximum_indices, kept, "add")
    places = op.cast(indices, INT64)
    bag = bag_of(op, places, offsets)  # PyTorch's kernels leave ``offset2bag`` out where they can
    rows, weight = op.Gather(grad, bag, axis=0), op.expand(op.const(1, dtype), op.dims(indices))
    if per_sample_weights is not None:
        weight = op.Mul(weight, per_sample_weights)
    if mode == MEAN:
        weight = op.Div(weight, op.Gather(op.Max(op.cast(bag_size, dtype), op.const(1, dtype)), bag, axis=0))
    rows, into = op.Mul(rows, unsqueeze(op, weight, 1)), unsqueeze(op, places, 1)
    if padding_idx >= 0:
        rows = op.Where(op.Equal(into, op.const(padding_idx)), op.const(0, dtype), rows)
    return written_nd(op, none, into, rows, "add")


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
    count = op.dims(indices)[0]
    starts, ones = unsqueeze(op, op.cast(offsets, INT64), 1), op.expand(op.const(1), op.dims(offsets))
    begun = written_nd(
        op, zeros(op, (whole(count + 1),), INT64), starts, ones, "add"
    )  # empty bags begin at the end, too
    return op.Sub(cumulative_sum(op, sliced(op, begun, 0, 0, count, count), 0), op.const(1))


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
    """Rows added up, or their maxima taken, in the place of their bag; memory grows with the indices, not with the bags.

    The outputs after the first serve the backward pass: for each index the number of its bag, the sizes of the bags, the indices
    of maxima.
    """
    count, size = op.dims(indices)[0], whole(op.dims(offsets)[0] - int(include_last_offset))
    bag, kept = bag_of(op, indices, sliced(op, offsets, 0, 0, size, size)), op.const(True)
    dtype, padding = op.dtype(weight), -1 if padding_idx is None else padding_idx
    if include_last_offset and mode == SUM and padding < 0 and dtype != ir.DataType.DOUBLE:
        last = op.cast(sliced(op, offsets, 0, size, whole(size + 1), 1), INT64)
        kept = op.Less(steps(op, count), last)  # the other kernels take what follows into the last bag
    if padding >= 0:
        kept = op.Not(op.Equal(indices, op.const(padding, op.dtype(indices))))
    kept, into = op.expand(kept, (count,)), unsqueeze(op, bag, 1)
    rows, is_kept = op.Gather(weight, indices, axis=0), unsqueeze(op, kept, 1)
    sizes = written_nd(op, zeros(op, (size,), INT64), into, op.cast(kept, INT64), "add")
    if mode == MAX:
        output, best = _maxima(op, rows, indices, bag, size, kept)
    else:
        if per_sample_weights is not None:
            rows = op.Mul(rows, unsqueeze(op, per_sample_weights, 1))
        rows = op.Where(is_kept, rows, op.const(0, dtype))
        output = written_nd(op, zeros(op, (size, op.dims(weight)[1]), dtype), into, rows, "add")
        if mode == MEAN:
            output = op.Div(output, unsqueeze(op, op.Max(op.cast(sizes, dtype), op.const(1, dtype)), 1))
        elif len(op.result) > 2:  # as in PyTorch, whose gradient of a sum reads none
            sizes = zeros(op, op.result_dims(2), INT64)
        best = sizes
    if len(op.result) == 1:
        return (output,)
    bag = zeros(op, op.result_dims(1), INT64) if 0 in op.result_dims(1) else bag
    return output, *(op.cast(value, op.result[1][0]) for value in (bag, sizes, best))


def _maxima(
    op: Emit, rows: ir.Value, indices: ir.Value, bag: ir.Value, size: DimLike, kept: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """The maxima of the kept rows of each bag, 0 of none, and the indices of the first rows that have them.

    As in PyTorch, NaN in the first row of a bag is its maximum, and any other is passed over.
    """
    count, dtype = op.dims(indices)[0], op.dtype(rows)
    place, into, is_kept = steps(op, count), unsqueeze(op, bag, 1), unsqueeze(op, kept, 1)
    beyond, low, high = op.size(count), op.const(-math.inf, dtype), op.const(math.inf, dtype)
    first = written_nd(op, op.expand(beyond, (size,)), into, op.Where(kept, place, beyond), "amin")
    is_first = unsqueeze(op, op.Equal(place, op.Gather(first, bag, axis=0)), 1)
    value = op.Where(op.IsNaN(rows), op.Where(is_first, high, low), rows)
    value = op.Where(is_kept, value, low)
    dims = (size, op.dims(rows)[1])
    top = op.Gather(written_nd(op, filled(op, dims, -math.inf, dtype), into, value, "amax"), bag, axis=0)
    is_best = op.And(is_kept, op.Equal(value, top))
    best = written_nd(op, op.expand(beyond, dims), into, op.Where(is_best, unsqueeze(op, place, 1), beyond), "amin")
    more = joined(op, [rows, zeros(op, (1, dims[1]), dtype)], 0)
    numbers = joined(op, [op.cast(indices, INT64), zeros(op, (1,), INT64)], 0)
    return op.GatherElements(more, best, axis=0), op.Gather(numbers, best, axis=0)


_BAGS = "embedding_bag embedding_bag.padding_idx _embedding_bag _embedding_bag_forward_only"
register_shared(_bagged, "ScatterND with the number of the bag", *overloads_of(_BAGS))


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
