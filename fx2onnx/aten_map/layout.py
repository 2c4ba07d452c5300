"""Reshaping, reordering and putting together: view, transpose, expand, cat, stack and their kin."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.creation import counted
from fx2onnx.aten_map.table.axes import (
    axes_of,
    axis_of,
    fixed,
    flat,
    is_empty,
    move_permutation,
    squeeze,
    swap,
    transpose,
    unsqueeze,
    whole,
    zeros,
)
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike, product

aten = torch.ops.aten


def _to_result(op: Emit, value: ir.Value) -> ir.Value:
    """``value`` reshaped to what PyTorch gives."""
    dims = op.result_dims()
    if is_empty(dims) and op.dims(value) != dims:
        return zeros(op, dims, op.dtype(value))
    return op.reshape(value, dims)


_RESHAPES = "view _unsafe_view view_copy _reshape_copy _reshape_alias _reshape_alias_copy reshape view_as reshape_as "
_RESHAPES += "flatten.using_ints unflatten.int ravel"
register_shared(_to_result, "Reshape", *overloads_of(_RESHAPES))


def atleast(op: Emit, self: ir.Value) -> ir.Value:
    return unsqueeze(op, self, *range(len(op.result_dims()) - op.rank(self)))


@translates(aten.atleast_3d.default)
def atleast_3d(op: Emit, self: ir.Value) -> ir.Value:
    """atleast_3d(Tensor self) -> Tensor

    A vector becomes [1, N, 1], a matrix [M, N, 1].
    """
    return unsqueeze(op, self, *{0: (0, 1, 2), 1: (0, 2), 2: (2,)}.get(op.rank(self), ()))


def squeeze_default(op: Emit, self: ir.Value) -> ir.Value:
    return squeeze(op, self, *(axis for axis, size in enumerate(op.dims(self)) if size == 1))


def squeeze_dim(op: Emit, self: ir.Value, dim: int | Sequence[int]) -> ir.Value:
    dims = op.dims(self)
    return squeeze(op, self, *(axis for axis in sorted(axes_of(dim, len(dims))) if dims and dims[axis] == 1))


def unsqueeze_default(op: Emit, self: ir.Value, dim: int) -> ir.Value:
    return unsqueeze(op, self, axis_of(dim, op.rank(self) + 1))


def _swap(op: Emit, self: ir.Value, dim0: int, dim1: int) -> ir.Value:
    rank = op.rank(self)
    return swap(op, self, axis_of(dim0, rank), axis_of(dim1, rank))


register_shared(_swap, "Transpose", *overloads_of("transpose.int transpose_copy.int swapdims swapaxes"))


def t(op: Emit, self: ir.Value) -> ir.Value:
    return transpose(op, self, list(reversed(range(op.rank(self)))))


def mT(op: Emit, self: ir.Value) -> ir.Value:
    rank = op.rank(self)
    return swap(op, self, rank - 2, rank - 1)


def permute(op: Emit, self: ir.Value, dims: Sequence[int]) -> ir.Value:
    return transpose(op, self, axes_of(dims, op.rank(self)))


def movedim(op: Emit, self: ir.Value, source: int | Sequence[int], destination: int | Sequence[int]) -> ir.Value:
    rank = op.rank(self)
    return transpose(op, self, move_permutation(rank, axes_of(source, rank), axes_of(destination, rank)))


def _expand(op: Emit, self: ir.Value) -> ir.Value:
    return op.expand(self, op.result_dims())


register_shared(_expand, "Expand", *overloads_of("expand expand_copy broadcast_to expand_as"))


@translates(aten.broadcast_tensors.default)
def broadcast_tensors(op: Emit, tensors: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
    """broadcast_tensors(Tensor[] tensors) -> Tensor[]"""
    return tuple(op.expand(tensor, op.result_dims(index)) for index, tensor in enumerate(tensors))


def atleast_sequence(op: Emit, tensors: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
    return tuple(
        unsqueeze(op, tensor, *range(len(op.result_dims(index)) - op.rank(tensor)))
        for index, tensor in enumerate(tensors)
    )


@translates(aten.atleast_3d.Sequence)
def atleast_3d_sequence(op: Emit, tensors: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
    """atleast_3d(Tensor[] tensors) -> Tensor[]"""
    return tuple(atleast_3d(op, tensor) for tensor in tensors)


def _resize(op: Emit, self: ir.Value) -> ir.Value:
    """The first elements in a new shape; what is added is 0, where PyTorch leaves whatever was in memory."""
    dims = op.result_dims()
    old, new = fixed(product(op.dims(self)), "a size of resize"), fixed(product(dims), "a size of resize")
    flat = op.reshape(self, (old,))
    if new < old:
        flat = op.Slice(flat, starts=[0], ends=[new], axes=[0])
    elif new > old:
        flat = op.Pad(flat, pads=np.array([0, new - old]))
    return op.reshape(flat, dims)


register_shared(_resize, "Slice or Pad of the flat tensor, Reshape", *overloads_of("resize resize_as"))


register_shared(atleast, "Unsqueeze", *overloads_of("atleast_1d atleast_2d"))
register_shared(squeeze_default, "Squeeze", *overloads_of("squeeze squeeze_copy"))
register_shared(squeeze_dim, "Squeeze", *overloads_of("squeeze.dim squeeze.dims squeeze_copy.dim squeeze_copy.dims"))
register_shared(unsqueeze_default, "Unsqueeze", *overloads_of("unsqueeze unsqueeze_copy"))
register_shared(t, "Transpose", *overloads_of("t t_copy numpy_T numpy_T.a"))
register_shared(mT, "Transpose", *overloads_of("mT mT.a mH mH.a adjoint matrix_H matrix_H.a"))
register_shared(permute, "Transpose", *overloads_of("permute permute_copy"))
register_shared(movedim, "Transpose", *overloads_of("movedim.int movedim.intlist moveaxis.int moveaxis.intlist"))
register_shared(atleast_sequence, "Unsqueeze of each", *overloads_of("atleast_1d.Sequence atleast_2d.Sequence"))


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
