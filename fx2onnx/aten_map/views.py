"""Reshaping and reordering: view, squeeze, transpose, expand and their kin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import (
    axes_of,
    axis_of,
    fixed,
    is_empty,
    move_permutation,
    squeeze,
    swap,
    transpose,
    unsqueeze,
    zeros,
)
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import product

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
