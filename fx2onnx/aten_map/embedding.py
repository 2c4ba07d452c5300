"""Embedding look-up and bags of embeddings."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from fx2onnx.aten_map.embedding_backward import bag_of
from fx2onnx.aten_map.joining import joined
from fx2onnx.aten_map.normalization import norm_except
from fx2onnx.aten_map.table.axes import INT64, flat, sliced, steps, unsqueeze, whole, zeros
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten
SUM, MEAN, MAX = 0, 1, 2


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
