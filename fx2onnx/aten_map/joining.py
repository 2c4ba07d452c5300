"""Putting together: cat, stack and their kin."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.creation import counted
from fx2onnx.aten_map.table.axes import axis_of, fixed, flat, is_empty, unsqueeze, whole, zeros
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.aten_map.views import atleast_3d
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike, product

aten = torch.ops.aten


def joined(op: Emit, tensors: Sequence[ir.Value], axis: int) -> ir.Value:
    """``Concat`` of tensors of one dtype; of a single tensor, the tensor."""
    if len(tensors) == 1:
        return tensors[0]
    return op.Concat(*tensors, axis=axis)


def cat(op: Emit, tensors: Sequence[ir.Value], dim: int) -> ir.Value:
    """Vectors of no element join anything: PyTorch skips them, and so do we; other empty pieces as well."""
    dtype, dims = op.result[0]
    axis = axis_of(dim, len(dims))
    if is_empty(dims):
        return zeros(op, dims, dtype)
    kept = [tensor for tensor in tensors if not is_empty(op.dims(tensor))]
    return joined(op, [op.cast(tensor, dtype) for tensor in kept], axis)


def stack(op: Emit, tensors: Sequence[ir.Value], dim: int) -> ir.Value:
    """Joined along the axis before which the new one stands, then that axis split in two: 2 nodes instead of N + 1."""
    dtype, dims = op.result[0]
    axis = axis_of(dim, len(dims))
    cast = [op.cast(tensor, dtype) for tensor in tensors]
    if is_empty(dims):
        return zeros(op, dims, dtype)
    if len(cast) == 1:
        return unsqueeze(op, cast[0], axis)
    if axis == len(dims) - 1 or sum(isinstance(dim, Dim) for dim in dims[axis:]) > 1:
        return joined(op, [unsqueeze(op, tensor, axis) for tensor in cast], axis)
    return op.reshape(joined(op, cast, axis), dims)


@translates(aten.hstack.default)
def hstack(op: Emit, tensors: Sequence[ir.Value]) -> ir.Value:
    """hstack(Tensor[] tensors) -> Tensor"""
    raised = [tensor if op.rank(tensor) else unsqueeze(op, tensor, 0) for tensor in tensors]
    return cat(op, raised, 0 if op.rank(raised[0]) == 1 else 1)


def vstack(op: Emit, tensors: Sequence[ir.Value]) -> ir.Value:
    return cat(op, [unsqueeze(op, tensor, *range(2 - op.rank(tensor))) for tensor in tensors], 0)


@translates(aten.dstack.default)
def dstack(op: Emit, tensors: Sequence[ir.Value]) -> ir.Value:
    """dstack(Tensor[] tensors) -> Tensor"""
    return cat(op, [atleast_3d(op, tensor) for tensor in tensors], 2)


@translates(aten.column_stack.default)
def column_stack(op: Emit, tensors: Sequence[ir.Value]) -> ir.Value:
    """column_stack(Tensor[] tensors) -> Tensor"""
    columns = [
        tensor if op.rank(tensor) > 1 else op.reshape(tensor, (op.dims(tensor)[0] if op.rank(tensor) else 1, 1))
        for tensor in tensors
    ]
    return cat(op, columns, 1)


@translates(aten.block_diag.default)
def block_diag(op: Emit, tensors: Sequence[ir.Value]) -> ir.Value:
    """block_diag(Tensor[] tensors) -> Tensor

    Each block padded to the full width, then joined downwards.
    """
    dtype, dims = op.result[0]
    rows, start = [], 0
    for tensor in tensors:
        block = op.cast(op.reshape(tensor, (1,) * (2 - op.rank(tensor)) + op.dims(tensor)), dtype)
        height, width = op.dims(block)
        pads = [0, start, 0, dims[1] - start - width]
        start = start + width  # type: ignore[assignment]
        if height != 0 and not is_empty(dims):
            empty = width == 0
            rows.append(
                zeros(op, (height, dims[1]), dtype) if empty else op.Pad(block, pads=op.sizes(pads), mode="constant")
            )
    return joined(op, rows, 0) if rows else zeros(op, dims, dtype)


@translates(aten.cartesian_prod.default)
def cartesian_prod(op: Emit, tensors: Sequence[ir.Value]) -> ir.Value:
    """cartesian_prod(Tensor[] tensors) -> Tensor"""
    if len(tensors) == 1:
        return tensors[0]
    sizes = [op.dims(tensor)[0] for tensor in tensors]
    columns = []
    for place, tensor in enumerate(tensors):
        dims = [sizes[place] if axis == place else 1 for axis in range(len(sizes))]
        grid = op.expand(op.reshape(tensor, dims), sizes)
        columns.append(op.reshape(grid, (*op.result_dims()[:1], 1)))
    return joined(op, columns, 1)


@translates(aten.flatten_dense_tensors.default)
def flatten_dense_tensors(op: Emit, tensors: Sequence[ir.Value]) -> ir.Value:
    """flatten_dense_tensors(Tensor[] tensors) -> Tensor"""
    return cat(op, [flat(op, tensor) for tensor in tensors], 0)


@translates(aten._chunk_cat.default)
def _chunk_cat(op: Emit, tensors: Sequence[ir.Value], dim: int, num_chunks: int) -> ir.Value:
    """_chunk_cat(Tensor[] tensors, int dim, int num_chunks) -> Tensor

    Each tensor padded along ``dim`` to a multiple of the chunks, cut, its trailing axes flattened; chunks joined.
    """
    dtype = op.result_dtype()
    axis = axis_of(dim, op.rank(tensors[0]))
    parts = []
    for tensor in tensors:
        size = op.dims(tensor)
        length = whole(-(-size[axis] // num_chunks))
        missing = whole(length * num_chunks - size[axis])
        wide = op.cast(tensor, dtype)
        if missing != 0:
            after = zeros(op, (*size[:axis], missing, *size[axis + 1 :]), dtype)
            wide = op.Concat(wide, after, axis=axis)
        parts.append(op.reshape(wide, (*size[:axis], num_chunks, whole(length * product(list(size[axis + 1 :]))))))
    return joined(op, parts, axis + 1)


def pairs_of(op: Emit, count: DimLike, number: DimLike, with_itself: bool = False) -> ir.Value:
    """[2, number]: the pairs (i, j) of numbers below ``count`` with i < j, or i <= j ``with_itself``, in order."""
    places = counted(op, count, ir.DataType.INT64)
    rows, columns = op.Unsqueeze(places, axes=[1]), op.Unsqueeze(places, axes=[0])
    is_pair = op.Not(op.Less(columns, rows)) if with_itself else op.Less(rows, columns)
    return op.NonZero(is_pair, outputs=[(ir.DataType.INT64, (2, number))])


@translates(aten.combinations.default)
def combinations(op: Emit, self: ir.Value, r: int, with_replacement: bool) -> ir.Value:
    """combinations(Tensor self, int r=2, bool with_replacement=False) -> Tensor

    ONNX:    Gather by a constant table; pairs of a dynamic number by NonZero of a triangle.
    """
    count = op.dims(self)[0]
    if isinstance(count, Dim) and r == 2:
        pairs = pairs_of(op, count, op.result_dims()[0], with_replacement)
        return op.Gather(self, op.Transpose(pairs, perm=[1, 0]), axis=0)
    count = fixed(count, "the number of elements to combine")
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    table = np.array(list(choose(range(count), r)), dtype=np.int64).reshape(-1, r)
    return op.Gather(self, table, axis=0)


register_shared(cat, "Concat", *overloads_of("cat concat concatenate"))
register_shared(stack, "Concat, Reshape", *overloads_of("stack _stack"))
register_shared(vstack, "Unsqueeze, Concat", *overloads_of("vstack row_stack"))
