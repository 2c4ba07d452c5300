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
from fx2onnx.base.dims import product
from fx2onnx.irx.emit import Emit

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


@translates(aten.atleast_1d.default, aten.atleast_2d.default)
def atleast(op: Emit, self: ir.Value) -> ir.Value:
    """atleast_1d(Tensor self) -> Tensor
    atleast_2d(Tensor self) -> Tensor
    """
    return unsqueeze(op, self, *range(len(op.result_dims()) - op.rank(self)))


@translates(aten.atleast_3d.default)
def atleast_3d(op: Emit, self: ir.Value) -> ir.Value:
    """atleast_3d(Tensor self) -> Tensor

    A vector becomes [1, N, 1], a matrix [M, N, 1].
    """
    return unsqueeze(op, self, *{0: (0, 1, 2), 1: (0, 2), 2: (2,)}.get(op.rank(self), ()))


@translates(aten.squeeze.default, aten.squeeze_copy.default)
def squeeze_default(op: Emit, self: ir.Value) -> ir.Value:
    """squeeze(Tensor(a) self) -> Tensor(a)
    squeeze_copy(Tensor self) -> Tensor
    """
    return squeeze(op, self, *(axis for axis, size in enumerate(op.dims(self)) if size == 1))


@translates(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze_copy.dim, aten.squeeze_copy.dims)
def squeeze_dim(op: Emit, self: ir.Value, dim: int | Sequence[int]) -> ir.Value:
    """squeeze(Tensor(a) self, int dim) -> Tensor(a)
    squeeze(Tensor(a) self, int[] dim) -> Tensor(a)
    squeeze_copy(Tensor self, int dim) -> Tensor
    squeeze_copy(Tensor self, int[] dim) -> Tensor
    """
    dims = op.dims(self)
    return squeeze(op, self, *(axis for axis in sorted(axes_of(dim, len(dims))) if dims and dims[axis] == 1))


@translates(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def unsqueeze_default(op: Emit, self: ir.Value, dim: int) -> ir.Value:
    """unsqueeze(Tensor(a) self, int dim) -> Tensor(a)
    unsqueeze_copy(Tensor self, int dim) -> Tensor
    """
    return unsqueeze(op, self, axis_of(dim, op.rank(self) + 1))


def _swap(op: Emit, self: ir.Value, dim0: int, dim1: int) -> ir.Value:
    rank = op.rank(self)
    return swap(op, self, axis_of(dim0, rank), axis_of(dim1, rank))


register_shared(_swap, "Transpose", *overloads_of("transpose.int transpose_copy.int swapdims swapaxes"))


@translates(
    aten.t.default,
    aten.t_copy.default,
    aten.numpy_T.default,
    aten.numpy_T.a,
)
def t(op: Emit, self: ir.Value) -> ir.Value:
    """t(Tensor(a) self) -> Tensor(a)
    t_copy(Tensor self) -> Tensor
    numpy_T(Tensor(a) self) -> Tensor(a)
    """
    return transpose(op, self, list(reversed(range(op.rank(self)))))


@translates(
    aten.mT.default,
    aten.mT.a,
    aten.mH.default,
    aten.mH.a,
    aten.adjoint.default,
    aten.matrix_H.default,
    aten.matrix_H.a,
)
def mT(op: Emit, self: ir.Value) -> ir.Value:
    """mT(Tensor(a) self) -> Tensor(a)
    mH(Tensor(a) self) -> Tensor(a)
    adjoint(Tensor(a) self) -> Tensor(a)
    matrix_H(Tensor(a) self) -> Tensor(a)
    """
    rank = op.rank(self)
    return swap(op, self, rank - 2, rank - 1)


@translates(aten.permute.default, aten.permute_copy.default)
def permute(op: Emit, self: ir.Value, dims: Sequence[int]) -> ir.Value:
    """permute(Tensor(a) self, int[] dims) -> Tensor(a)
    permute_copy(Tensor self, int[] dims) -> Tensor
    """
    return transpose(op, self, axes_of(dims, op.rank(self)))


@translates(aten.movedim.int, aten.movedim.intlist, aten.moveaxis.int, aten.moveaxis.intlist)
def movedim(op: Emit, self: ir.Value, source: int | Sequence[int], destination: int | Sequence[int]) -> ir.Value:
    """movedim(Tensor(a) self, int source, int destination) -> Tensor(a)
    movedim(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)
    moveaxis(Tensor(a) self, int source, int destination) -> Tensor(a)
    moveaxis(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)
    """
    rank = op.rank(self)
    return transpose(op, self, move_permutation(rank, axes_of(source, rank), axes_of(destination, rank)))


def _expand(op: Emit, self: ir.Value) -> ir.Value:
    return op.expand(self, op.result_dims())


register_shared(_expand, "Expand", *overloads_of("expand expand_copy broadcast_to expand_as"))


@translates(aten.broadcast_tensors.default)
def broadcast_tensors(op: Emit, tensors: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
    """broadcast_tensors(Tensor[] tensors) -> Tensor[]"""
    return tuple(op.expand(tensor, op.result_dims(index)) for index, tensor in enumerate(tensors))


@translates(aten.atleast_1d.Sequence, aten.atleast_2d.Sequence)
def atleast_sequence(op: Emit, tensors: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
    """atleast_1d(Tensor[] tensors) -> Tensor[]
    atleast_2d(Tensor[] tensors) -> Tensor[]
    """
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
