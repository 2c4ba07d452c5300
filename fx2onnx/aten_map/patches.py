"""Sliding blocks as columns and back (im2col, col2im), and channels as pixels and back (pixel_shuffle)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import (
    as_list,
    fixed,
    is_empty,
    reshaped_like,
    squeeze,
    steps,
    transpose,
    unsqueeze,
    whole,
    zeros,
)
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike

aten = torch.ops.aten
Ints = Sequence[int]


def _places(op: Emit, size: DimLike, kernel: int, dilation: int, stride: int) -> ir.Value:
    """[kernel, blocks]: which element of an axis each block reads."""
    blocks = whole((size - dilation * (kernel - 1) - 1) // stride + 1)
    within = np.arange(kernel)[:, None] * dilation
    if not isinstance(blocks, Dim):
        return op.const(within + np.arange(blocks) * stride)
    starts = op.Mul(steps(op, blocks), op.const(stride)) if stride != 1 else steps(op, blocks)
    return op.Add(op.const(within), starts)


@translates(aten.im2col.default)
def im2col(op: Emit, self: ir.Value, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints) -> ir.Value:
    """im2col(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor

    [N, C * kernel, blocks]. ONNX: Pad, a Gather along each spatial axis, Transpose, Reshape.

    Blocks that touch without overlap need no Gather: Reshape, Transpose, Reshape.
    """
    kernel, pads, strides = as_list(kernel_size, 2), as_list(padding, 2), as_list(stride, 2)
    dilations = as_list(dilation, 2)
    batched = op.rank(self) == 4
    value = self if batched else unsqueeze(op, self, 0)
    if any(pads):
        value = op.Pad(value, pads=[0, 0, *pads, 0, 0, *pads])
    batch, channels, height, width = op.dims(value)
    if strides == kernel and dilations == [1, 1] and height % kernel[0] == 0 and width % kernel[1] == 0:
        rows, columns = whole(height // kernel[0]), whole(width // kernel[1])
        split = op.reshape(value, (batch, channels, rows, kernel[0], columns, kernel[1]))
        blocks = transpose(op, split, (0, 1, 3, 5, 2, 4))
    else:
        value = op.Gather(value, _places(op, height, kernel[0], dilations[0], strides[0]), axis=2)
        value = op.Gather(value, _places(op, width, kernel[1], dilations[1], strides[1]), axis=4)
        blocks = transpose(op, value, (0, 1, 2, 4, 3, 5))
    shape = op.dims(blocks)
    count = whole(shape[4] * shape[5])
    columns_of = op.reshape(blocks, (batch, whole(channels * kernel[0] * kernel[1]), count))
    return columns_of if batched else squeeze(op, columns_of, 0)


@translates(aten.col2im.default)
def col2im(
    op: Emit,
    self: ir.Value,
    output_size: Sequence[DimLike],
    kernel_size: Ints,
    dilation: Ints,
    padding: Ints,
    stride: Ints,
) -> ir.Value:
    """col2im(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor

    Blocks added up where they overlap. ONNX: Col2Im from opset 18 on; below, a ConvTranspose with unit kernels.
    """
    kernel, pads, strides = as_list(kernel_size, 2), as_list(padding, 2), as_list(stride, 2)
    dilations = as_list(dilation, 2)
    batched = op.rank(self) == 3
    value = self if batched else unsqueeze(op, self, 0)
    batch, rows = op.dims(value)[:2]
    dtype = op.dtype(value)
    channels = whole(rows // (kernel[0] * kernel[1]))
    dims = (batch, channels, *output_size)
    if op.opset >= 18:
        result = op.Col2Im(
            value,
            op.sizes(output_size),
            op.sizes(kernel),
            dilations=dilations,
            pads=pads * 2,
            strides=strides,
            outputs=[(dtype, dims)],
        )
        return result if batched else squeeze(op, result, 0)
    what = "the size of col2im below opset 18"
    sizes = [fixed(size, what) for size in output_size]
    reach = [dilations[axis] * (kernel[axis] - 1) + 1 for axis in range(2)]
    blocks = [(sizes[axis] + 2 * pads[axis] - reach[axis]) // strides[axis] + 1 for axis in range(2)]
    rest = [(sizes[axis] + 2 * pads[axis] - reach[axis]) % strides[axis] for axis in range(2)]
    taps, number = kernel[0] * kernel[1], fixed(channels, what)
    unit = np.tile(np.eye(taps).reshape(taps, 1, *kernel), (number, 1, 1, 1))
    result = op.ConvTranspose(
        op.reshape(value, (batch, rows, *blocks)),
        op.const(unit, dtype),
        dilations=dilations,
        group=number,
        kernel_shape=kernel,
        output_padding=rest,
        pads=pads * 2,
        strides=strides,
        outputs=[(dtype, dims)],
    )
    return result if batched else squeeze(op, result, 0)


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
