"""Convolution in memory laid out as [N, C, *dims]: any number of spatial axes and of groups.

Columns have a row for each weight and a column for each position of the window, so that they are copied along the last
axis; all groups are multiplied in one call.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.elementwise import Outs
from fx2onnx.semantics.kernels.threads import are_several, multiply, spread
from fx2onnx.semantics.kernels.windows import COLUMN_BLOCK_BYTES, Window, window_view
from fx2onnx.semantics.registry import Prepared
from fx2onnx.semantics.types import FLOAT32, Array, Spec

PLANE_BLOCK_BYTES = 1 << 18
"""Depthwise taps run over as many channels as fit: the planes, the sum and a product stay in the L2 cache."""

Finish = Callable[[Array, slice], None]
"""Applies bias and activation to [N, channels, ...] in place; the slice says which channels."""


def nothing(y: Array, channels: slice) -> None:
    """No bias and no activation."""


def pad_into(padded: Array, x: Array, window: Window) -> Array:
    """x copied into scratch with zeros around its spatial axes."""
    inner: tuple[slice, ...] = (slice(None), slice(None))
    for low, high, dim in zip(window.before, window.after, x.shape[2:], strict=True):
        if low:
            padded[(*inner, slice(0, low))] = 0
        if high:
            padded[(*inner, slice(low + dim, None))] = 0
        inner = (*inner, slice(low, low + dim))
    padded[inner] = x
    return padded


def padded_shape(shape: Sequence[int], window: Window) -> tuple[int, ...]:
    """The shape [N, C, *dims] with its pads."""
    dims = zip(shape[2:], window.before, window.after, strict=True)
    return (*shape[:2], *(dim + low + high for dim, low, high in dims))


def block_of(shape: Sequence[int], window: Window, itemsize: int) -> tuple[int, int]:
    """How many samples, and how many positions along the first spatial axis, have their columns made at a time."""
    row_bytes = max(1, shape[1] * math.prod(window.kernel) * math.prod(window.out[1:]) * itemsize)
    rows = max(1, min(window.out[0], COLUMN_BLOCK_BYTES // row_bytes))
    samples = COLUMN_BLOCK_BYTES // (row_bytes * rows) if rows == window.out[0] else 1
    return max(1, min(samples, shape[0])), rows


def column_shape(shape: Sequence[int], window: Window, itemsize: int = 4) -> tuple[int, ...]:
    """The shape of the columns of one block."""
    samples, rows = block_of(shape, window, itemsize)
    return (samples, shape[1] * math.prod(window.kernel), rows * math.prod(window.out[1:]))


def window_products(
    x: Array, weight: Array, window: Window, y: Array, columns: Array | None = None, finish: Finish = nothing
) -> None:
    """y = the convolution of x, which is padded already.

    Shapes:  x [N, C, *dims], weight [groups, outs, taps], y [N, groups * outs, *out] in C order, columns as ``column_shape``.
    """
    batch, (groups, outs, taps) = x.shape[0], weight.shape
    inner = math.prod(window.out[1:])
    target = y.reshape(batch, groups, outs, window.out[0] * inner)
    if math.prod(window.kernel) == math.prod(window.strides) == 1 and x.flags.c_contiguous:
        multiply(weight, x.reshape(batch, groups, taps, math.prod(x.shape[2:])), target)
        finish(y, slice(None))
        return
    n = len(window.out)
    arranged = window_view(x, window).transpose(0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n))
    samples, rows = block_of(x.shape, window, x.dtype.itemsize)
    if columns is None or are_several():  # threads cannot share the columns of a block
        own: Array | None = None
    else:
        own = columns.reshape(-1)

    def do(sample: int, start: int) -> None:
        cut = arranged[sample : sample + samples][(slice(None),) * (2 + n) + (slice(start, start + rows),)]
        column = np.empty(cut.size, x.dtype) if own is None else own[: cut.size]
        np.copyto(column.reshape(cut.shape), cut)
        part = target[sample : sample + samples, :, :, start * inner : (start + rows) * inner]
        np.matmul(weight, column.reshape(len(cut), groups, taps, math.prod(cut.shape[2 + n :])), out=part)
        whole = y[sample : sample + samples]
        finish(whole[(slice(None), slice(None), slice(start, start + rows))], slice(None))

    if samples >= batch > 0 and rows >= window.out[0]:
        do(0, 0)
        return
    places = [(sample, start) for sample in range(0, batch, samples) for start in range(0, window.out[0], rows)]
    spread([functools.partial(do, *place) for place in places])


def prepare_products(shape: Sequence[int], weight: Array, window: Window, finish: Finish = nothing) -> Prepared:
    """``window_products`` with scratch that the plan provides."""
    scratch: list[Spec] = [(column_shape(shape, window), FLOAT32)]
    if window.is_padded:
        scratch.append((padded_shape(shape, window), FLOAT32))

    def call(out: Outs, room: list[Array], x: Array, *_: Any) -> None:
        source = pad_into(room[1], x, window) if window.is_padded else x
        window_products(source, weight, window, out[0], room[0], finish)

    return Prepared(call, tuple(scratch), inplace=())


def prepare_taps(shape: Sequence[int], taps: Array, window: Window, finish: Finish = nothing) -> Prepared:
    """One multiply-add a tap, over planes as long rows of numbers.

    The padded input is cut into planes, one for each position within a stride, so that every tap reads neighbours. Rows run
    on over the ends of the planes' lines; what is computed there is left out in the end.

    Shapes:  taps [C, number of taps].
    """
    batch, channels, *_ = shape
    strides, out = window.strides, window.out
    full = padded_shape(shape, window)[2:]
    plane = tuple(-(-dim // step) for dim, step in zip(full, strides, strict=True))
    line = [math.prod(plane[axis + 1 :]) for axis in range(len(plane))]
    length = sum((dim - 1) * step for dim, step in zip(out, line, strict=True)) + 1
    reads: list[tuple[int, int]] = []
    for place in np.ndindex(*window.kernel):
        at = [k * d for k, d in zip(place, window.dilations, strict=True)]
        phase = [a % s for a, s in zip(at, strides, strict=True)]
        offset = sum(a // s * step for a, s, step in zip(at, strides, line, strict=True))
        reads.append((int(np.ravel_multi_index(phase, strides)), offset))
    block = max(1, min(channels, PLANE_BLOCK_BYTES // (4 * max(length, 1))))
    phases = math.prod(strides)
    scratch: tuple[Spec, ...] = (
        ((phases, batch, channels, *plane), FLOAT32),
        ((block, out[0] * line[0]), FLOAT32),
        ((block, length), FLOAT32),
    )
    valid = tuple(slice(0, dim) for dim in out)
    weights = np.ascontiguousarray(taps.T)[:, :, None]

    def call(outs: Outs, room: list[Array], x: Array, *_: Any) -> None:
        planes, y, whole = room[0], outs[0], room[1]
        fill_phases(planes, x, window)
        flat = planes.reshape(phases, batch, channels, math.prod(planes.shape[3:]))
        own = are_several()  # threads cannot share the sums of a block

        def do(sample: int, start: int) -> None:
            count = min(block, channels - start)
            total = (np.empty_like(whole) if own else whole)[:count]
            product = (np.empty((count, length), FLOAT32) if own else room[2])[:count]
            for number, (phase, offset) in enumerate(reads):
                source = flat[phase, sample, start : start + count, offset : offset + length]
                weight = weights[number, start : start + count]
                if number:
                    np.multiply(source, weight, out=product)
                    np.add(total[:, :length], product, out=total[:, :length])
                else:
                    np.multiply(source, weight, out=total[:, :length])
            target = y[sample : sample + 1, start : start + count]
            np.copyto(target[0], total.reshape(count, out[0], *plane[1:])[(slice(None), *valid)])
            finish(target, slice(start, start + count))

        spread([functools.partial(do, sample, start) for sample in range(batch) for start in range(0, channels, block)])

    return Prepared(call, scratch, inplace=())


def fill_phases(planes: Array, x: Array, window: Window) -> None:
    """planes [phases, N, C, *plane] = x with zeros around it; plane (a, b) has the rows a, a + stride, ..., columns b, ..."""
    ragged = any(
        (dim + low + high) % s
        for dim, low, high, s in zip(x.shape[2:], window.before, window.after, window.strides, strict=True)
    )
    if window.is_padded or ragged:
        planes.fill(0)
    for number, phase in enumerate(np.ndindex(*window.strides)):
        source: list[slice] = []
        target: list[slice] = []
        for a, low, step, dim in zip(phase, window.before, window.strides, x.shape[2:], strict=True):
            first = (a - low) % step
            count = len(range(first, dim, step))
            source.append(slice(first, dim, step))
            target.append(slice((first + low) // step, (first + low) // step + count))
        np.copyto(planes[number][(slice(None), slice(None), *target)], x[(slice(None), slice(None), *source)])
