"""Windows, blocks, diagonals and pads whose numbers are sizes: torch's schemas mostly have plain numbers there, which calls from
``shapes/size_arguments.py`` go past.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fx2onnx.capture.overloads.common import Size, record_sized
from fx2onnx.capture.recording.meta_rules import window_count
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import axis_of, dims_of
from fx2onnx.capture.registry import Call, Kind, register
from fx2onnx.capture.shapes.symnode import sym_int, unwrap
from fx2onnx.sizes.expr import Dim, Scalar, apply
from fx2onnx.torchcompat.fake_tensors import fake_view

aten = torch.ops.aten


def _view(tracer: Tracer, call: Call, sizes: Sequence[Scalar], strides: Sequence[Scalar], offset: Scalar) -> object:
    tensor, env = call.args[0], tracer.sizes
    sym_sizes, sym_strides = ([sym_int(env, number) for number in group] for group in (sizes, strides))
    made = fake_view(
        tracer.values.fake_mode, tracer.values.fake_of(tensor), sym_sizes, sym_strides, sym_int(env, offset)
    )
    return tracer.finish(call.func, call.args, tracer.values.to_nodes(call.args, call.kwargs), made)


@register(Kind.RECORD, aten.unfold.default)
def _unfold(tracer: Tracer, call: Call, self: torch.Tensor, dimension: int, size: Size, step: Size) -> object:
    """unfold(self, dimension, size, step): (length - size) // step + 1 windows, which become the last axis."""
    window, apart, env = unwrap(size), unwrap(step), tracer.sizes
    if not isinstance(window, Dim) and not isinstance(apart, Dim):
        return NotImplemented
    axis = axis_of(self.dim(), dimension)
    length = dims_of(self)[axis]
    env.expect("ge", apart, 1)
    env.expect("le", window, length)
    same = window == apart
    count = apply("floordiv", length, window) if same else apply("floordiv", length - window, apart) + 1
    fake = tracer.values.fake_of(self)
    sizes: list[Scalar] = [*dims_of(fake), window]
    strides: list[Scalar] = list(map(unwrap, fake.stride()))
    strides.append(strides[axis])
    sizes[axis], strides[axis] = count, strides[axis] * apart
    return _view(tracer, call, sizes, strides, unwrap(fake.storage_offset()))


@register(Kind.RECORD, aten.diagonal.default)
def _diagonal(tracer: Tracer, call: Call, self: torch.Tensor, offset: Size, dim1: int, dim2: int) -> object:
    """diagonal(self, offset=0, dim1=0, dim2=1): from the first row at ``offset``, or from the first column below it."""
    number = unwrap(offset)
    if not isinstance(number, Dim):
        return NotImplemented
    rows, columns = axis_of(self.dim(), dim1), axis_of(self.dim(), dim2)
    fake = tracer.values.fake_of(self)
    dims, strides = dims_of(fake), list(map(unwrap, fake.stride()))
    right, down = apply("max", number, 0), apply("max", -number, 0)
    count = apply("max", apply("min", dims[rows] - down, dims[columns] - right), 0)
    kept = [axis for axis in range(self.dim()) if axis not in (rows, columns)]
    begin = unwrap(fake.storage_offset()) + right * strides[columns] + down * strides[rows]
    sizes = [*(dims[axis] for axis in kept), count]
    steps = [*(strides[axis] for axis in kept), strides[rows] + strides[columns]]
    return _view(tracer, call, sizes, steps, begin)


@register(Kind.RECORD, *(getattr(aten, f"adaptive_max_pool{spatial}d").default for spatial in (1, 2, 3)))
def _adaptive_max(tracer: Tracer, call: Call, self: torch.Tensor, output_size: Sequence[Size]) -> object:
    """adaptive_max_pool(self, output_size): the largest of each window, and where it is."""
    counts = list(map(unwrap, output_size))
    if not any(isinstance(count, Dim) for count in counts):
        return NotImplemented
    tracer.sizes.check_some(dims_of(self)[1:])
    for count in counts:
        tracer.sizes.expect("ge", count, 0)
    sizes = [*dims_of(self)[: self.dim() - len(counts)], *counts]
    return record_sized(tracer, call, [(self.dtype, sizes), (torch.int64, sizes)])


@register(Kind.RECORD, aten.fractional_max_pool2d.default, aten.fractional_max_pool3d.default)
def _fractional(
    tracer: Tracer, call: Call, self: torch.Tensor, kernel_size: Sequence[int], output_size: Sequence[Size]
) -> object:
    """fractional_max_pool(self, kernel_size, output_size, random_samples): the largest of each window, and where it is."""
    counts = list(map(unwrap, output_size))
    if not any(isinstance(count, Dim) for count in counts):
        return NotImplemented
    sizes = dims_of(self)
    for size, kernel, count in zip(sizes[-len(counts) :], kernel_size, counts, strict=True):
        tracer.sizes.expect("le", count + kernel - 1, size)
        tracer.sizes.expect("ge", count, 0)
    made = [*sizes[: self.dim() - len(counts)], *counts]
    return record_sized(tracer, call, [(self.dtype, made), (torch.int64, made)])


@register(Kind.RECORD, aten.col2im.default)
def _col2im(
    tracer: Tracer,
    call: Call,
    self: torch.Tensor,
    output_size: Sequence[Size],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> object:
    """col2im(self, output_size, kernel_size, dilation, padding, stride): [.., C * kernel, blocks] -> [.., C, *output_size], as
    many blocks as fit.
    """
    sizes, env = list(map(unwrap, output_size)), tracer.sizes
    if not any(isinstance(size, Dim) and size.symbols() & env.unbacked for size in sizes):
        return NotImplemented
    *lead, rows, blocks = dims_of(self)
    high, wide = (window_count(*axis) for axis in zip(sizes, kernel_size, stride, padding, dilation, strict=True))
    env.expect_equal(blocks, high * wide)
    made: list[Scalar] = [*lead, apply("floordiv", rows, kernel_size[0] * kernel_size[1]), *sizes]
    return record_sized(tracer, call, [(self.dtype, made)])


@register(Kind.RECORD, aten.pad.default)
def _pad(tracer: Tracer, call: Call, self: torch.Tensor, pad: Sequence[Size], mode: str) -> object:
    """pad: no more is cropped than there is, before anything is put beside it; what is repeated is repeated once, and copies of elements
    are some.
    """
    env, numbers, sizes = tracer.sizes, list(map(unwrap, pad)), list(dims_of(self))
    for axis, before, after in zip(range(-1, -self.dim() - 1, -1), numbers[::2], numbers[1::2], strict=False):
        size = sizes[axis]
        left = size + apply("min", before, 0) + apply("min", after, 0)
        if mode == "circular":
            env.expect("le", before, size)
            env.expect("le", after, size)
        elif mode in ("reflect", "replicate") and left != size:
            env.check_some([size + before + after])
        elif mode == "constant" and left != size:
            env.expect("ge", left, 0)
        sizes[axis] = size + before + after
    if mode == "circular" and any(isinstance(each, Dim) and each.symbols() & env.unbacked for each in numbers):
        for number in numbers:
            env.expect("ge", number, 0)
        return record_sized(tracer, call, [(self.dtype, sizes)])
    return NotImplemented
