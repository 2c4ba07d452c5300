"""Channels to pixels and back: pixel_shuffle, pixel_unshuffle, channel_shuffle."""

from __future__ import annotations

import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import is_empty, reshaped_like, transpose, whole, zeros
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import DimLike

aten = torch.ops.aten


@translates(aten.pixel_shuffle.default)
def pixel_shuffle(op: Emit, self: ir.Value, upscale_factor: int) -> ir.Value:
    """pixel_shuffle(Tensor self, int upscale_factor) -> Tensor

    ONNX:  DepthToSpace in its CRD order for 4-D tensors; Reshape, Transpose, Reshape for others.
    """
    dims, r = op.dims(self), upscale_factor
    if is_empty(op.result_dims()):
        return zeros(op, op.result_dims(), op.dtype(self))
    if op.rank(self) == 4 and op.dtype(self) in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return op.DepthToSpace(self, blocksize=r, mode="CRD")
    lead, (channels, height, width) = dims[:-3], dims[-3:]
    count = len(lead)
    split = op.reshape(self, (*lead, whole(channels // (r * r)), r, r, height, width))
    perm = [*range(count), count, count + 3, count + 1, count + 4, count + 2]
    return op.reshape(transpose(op, split, perm), op.result_dims())


@translates(aten.pixel_unshuffle.default)
def pixel_unshuffle(op: Emit, self: ir.Value, downscale_factor: int) -> ir.Value:
    """pixel_unshuffle(Tensor self, int downscale_factor) -> Tensor

    ONNX:  SpaceToDepth for one channel (its order of channels is another); else Reshape, Transpose, Reshape.
    """
    dims, r = op.dims(self), downscale_factor
    if is_empty(op.result_dims()):
        return zeros(op, op.result_dims(), op.dtype(self))
    lead, (channels, height, width) = dims[:-3], dims[-3:]
    if op.rank(self) == 4 and channels == 1 and op.dtype(self) in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return op.SpaceToDepth(self, blocksize=r)
    count = len(lead)
    split = op.reshape(self, (*lead, channels, whole(height // r), r, whole(width // r), r))
    perm = [*range(count), count, count + 2, count + 4, count + 1, count + 3]
    return op.reshape(transpose(op, split, perm), op.result_dims())


def channel_shuffle(op: Emit, self: ir.Value, groups: DimLike) -> ir.Value:
    dims = op.dims(self)
    if is_empty(dims):
        return self
    split = op.reshape(self, (dims[0], groups, whole(dims[1] // groups), *dims[2:]))
    swapped = transpose(op, split, [0, 2, 1, *range(3, op.rank(split))])
    return reshaped_like(op, swapped, self)


register_shared(channel_shuffle, "Reshape, Transpose, Reshape", *overloads_of("channel_shuffle native_channel_shuffle"))
