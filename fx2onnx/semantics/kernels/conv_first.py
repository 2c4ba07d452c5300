"""Convolution in memory laid out as [N, C, *dims]: any number of spatial axes and of groups.

Columns have a row for each weight and a column for each position of the window, so that they are copied along the last
axis; all groups are multiplied in one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.elementwise import Call, Outs
from fx2onnx.semantics.kernels.threads import are_several, product, spread, whole_product
from fx2onnx.semantics.kernels.windows import COLUMN_BLOCK_BYTES, Window, window_view
from fx2onnx.semantics.registry import Calls, Prepared, run_all
from fx2onnx.semantics.types import FLOAT32, Array, Spec

PLANE_BLOCK_BYTES = 1 << 18
"""Depthwise taps run over as many channels as fit: the planes, the sum and a product stay in the L2 cache."""

Finish = Callable[[Array, slice], list[Call]]
"""The calls that apply bias and activation to [N, channels, ...] in place; the slice says which channels."""


def nothing(y: Array, channels: slice) -> list[Call]:
    """No bias and no activation."""
    return []


def in_blocks(places: Sequence[tuple[int, int]], block: Callable[[int, int, bool], list[Call]]) -> list[Call]:
    """The calls of all blocks of (sample, start). On several threads, which cannot share scratch, each block has its own."""
    if len(places) > 1 and are_several():
        return [partial(spread, [partial(_run_block, block, place) for place in places])]
    return [call for place in places for call in block(*place, False)]


def _run_block(block: Callable[[int, int, bool], list[Call]], place: tuple[int, int]) -> None:
    run_all(block(*place, True))


def pad_into(padded: Array, x: Array, window: Window) -> list[Call]:
    """The calls that copy x into scratch with zeros around its spatial axes."""
    inner: tuple[slice, ...] = (slice(None), slice(None))
    calls: list[Call] = []
    for low, high, dim in zip(window.before, window.after, x.shape[2:], strict=True):
        edges = [slice(0, low)] if low else []
        edges += [slice(low + dim, None)] if high else []
        calls += [partial(padded[(*inner, edge)].fill, 0) for edge in edges]
        inner = (*inner, slice(low, low + dim))
    return [*calls, partial(np.copyto, padded[inner], x)]


def padded_shape(shape: Sequence[int], window: Window) -> tuple[int, ...]:
    """The shape [N, C, *dims] with its pads."""
    dims = zip(shape[2:], window.before, window.after, strict=True)
    return (*shape[:2], *(dim + low + high for dim, low, high in dims))


def block_of(shape: Sequence[int], window: Window, itemsize: int) -> tuple[int, int]:
    """The number of samples, and of positions along the first spatial axis, whose columns are made at a time."""
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
) -> list[Call]:
    """The calls of y = the convolution of x, which is padded already.

    Shapes:  x [N, C, *dims], weight [groups, outs, taps], y [N, groups * outs, *out] in C order, columns as ``column_shape``.
    """
    batch, (groups, outs, taps) = x.shape[0], weight.shape
    inner = math.prod(window.out[1:])
    target = y.reshape(batch, groups, outs, window.out[0] * inner)
    if math.prod(window.kernel) == math.prod(window.strides) == 1 and x.flags.c_contiguous:
        source = x.reshape(batch, groups, taps, math.prod(x.shape[2:]))
        return [product(*_matrices(weight, source, target)), *finish(y, slice(None))]
    n = len(window.out)
    arranged = window_view(x, window).transpose(0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n))
    samples, rows = block_of(x.shape, window, x.dtype.itemsize)
    if columns is None:
        columns = np.empty(column_shape(x.shape, window, x.dtype.itemsize), x.dtype)
    shared = columns.reshape(-1)

    def block(sample: int, start: int, is_own: bool) -> list[Call]:
        cut = arranged[sample : sample + samples][(slice(None),) * (2 + n) + (slice(start, start + rows),)]
        column = np.empty(cut.size, x.dtype) if is_own else shared[: cut.size]
        part = target[sample : sample + samples, :, :, start * inner : (start + rows) * inner]
        right = column.reshape(len(cut), groups, taps, math.prod(cut.shape[2 + n :]))
        whole = y[sample : sample + samples][(slice(None), slice(None), slice(start, start + rows))]
        copy = partial(np.copyto, column.reshape(cut.shape), cut)
        return [copy, whole_product(*_matrices(weight, right, part)), *finish(whole, slice(None))]

    places = [(sample, start) for sample in range(0, batch, samples) for start in range(0, window.out[0], rows)]
    return in_blocks(places, block)


def _matrices(weight: Array, right: Array, out: Array) -> tuple[Array, Array, Array]:
    """The operands [groups, *, *], [N, groups, *, *], [N, groups, *, *] as matrices where there is one of each."""
    return (weight[0], right[0, 0], out[0, 0]) if len(weight) == len(right) == 1 else (weight, right, out)


def prepare_products(shape: Sequence[int], weight: Array, window: Window, finish: Finish = nothing) -> Prepared:
    """``window_products`` with scratch that the plan provides."""
    scratch: list[Spec] = [(column_shape(shape, window), FLOAT32)]
    if window.is_padded:
        scratch.append((padded_shape(shape, window), FLOAT32))

    def calls(out: Outs, room: list[Array], x: Array, *_: Any) -> list[Call]:
        begin, source = (pad_into(room[1], x, window), room[1]) if window.is_padded else ([], x)
        return [*begin, *window_products(source, weight, window, out[0], room[0], finish)]

    return Prepared(Calls(calls), tuple(scratch), inplace=())


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
    phases, (*rows, last) = math.prod(strides), window.kernel
    if phases == 1 and math.prod(rows) >= LEAST_ROWS and last > 1:
        return _prepare_rows(shape, taps, window, line, length, finish)
    block_size = max(1, min(channels, PLANE_BLOCK_BYTES // (4 * max(length, 1))))
    scratch: tuple[Spec, ...] = (
        ((phases, batch, channels, *plane), FLOAT32),
        ((block_size, out[0] * line[0]), FLOAT32),
        ((block_size, length), FLOAT32),
    )
    valid = tuple(slice(0, dim) for dim in out)
    weights = np.ascontiguousarray(taps.T)[:, :, None]

    def calls(outs: Outs, room: list[Array], x: Array, *_: Any) -> list[Call]:
        planes, y, shared = room[0], outs[0], room[1]
        flat = planes.reshape(phases, batch, channels, math.prod(planes.shape[3:]))

        def block(sample: int, start: int, is_own: bool) -> list[Call]:
            count = min(block_size, channels - start)
            total = (np.empty_like(shared) if is_own else shared)[:count]
            product = (np.empty((count, length), FLOAT32) if is_own else room[2])[:count]
            sums, made = total[:, :length], []
            for number, (phase, offset) in enumerate(reads):
                source = flat[phase, sample, start : start + count, offset : offset + length]
                made.append(
                    partial(np.multiply, source, weights[number, start : start + count], product if number else sums)
                )
                if number:
                    made.append(partial(np.add, sums, product, sums))
            target = y[sample : sample + 1, start : start + count]
            valid_sums = total.reshape(count, out[0], *plane[1:])[(slice(None), *valid)]
            return [*made, partial(np.copyto, target[0], valid_sums), *finish(target, slice(start, start + count))]

        places = [(sample, start) for sample in range(batch) for start in range(0, channels, block_size)]
        return [*fill_phases(planes, x, window), *in_blocks(places, block)]

    return Prepared(Calls(calls), scratch, inplace=())


LEAST_ROWS = 3
"""Lines of taps from which their sums are products of matrices, which read every number once for a line and not once for a tap."""
MATRIX_BLOCK_BYTES = 1 << 19


def _prepare_rows(
    shape: Sequence[int], taps: Array, window: Window, line: Sequence[int], length: int, finish: Finish
) -> Prepared:
    """``prepare_taps`` without strides: of each channel, the columns of taps times the lines that lie below one another, then the
    results of the columns moved by their distance and added.
    """
    (batch, channels, *_), (*rows, last), step = shape, window.kernel, window.dilations[-1]
    full, wide, count_rows = padded_shape(shape, window)[2:], length + (last - 1) * step, math.prod(rows)
    weights = np.ascontiguousarray(taps.reshape(channels, count_rows, last).transpose(0, 2, 1))
    block_size = max(1, min(channels, MATRIX_BLOCK_BYTES // (4 * wide * (count_rows + last))))
    outer = tuple(4 * one * d for one, d in zip(line, window.dilations[:-1], strict=False))
    scratch: tuple[Spec, ...] = (
        ((1, batch, channels, *full), FLOAT32),
        ((block_size, window.out[0] * line[0]), FLOAT32),
        ((block_size, count_rows, wide), FLOAT32),
        ((block_size, last, wide), FLOAT32),
    )

    def calls(outs: Outs, room: list[Array], x: Array, *_: Any) -> list[Call]:
        planes, y = room[0][0], outs[0]
        strides = (*planes.strides[:2], *outer, 4)
        lines = np.lib.stride_tricks.as_strided(planes, (batch, channels, *rows, wide), strides, writeable=False)

        def block(sample: int, start: int, is_own: bool) -> list[Call]:
            count = min(block_size, channels - start)
            total, columns, moved = (np.empty_like(one) if is_own else one for one in room[1:])
            total, columns, moved = total[:count], columns[:count], moved[:count]
            sums, stop = total[:, :length], start + count
            parts = [moved[:, place, place * step : place * step + length] for place in range(last)]
            target = y[sample : sample + 1, start:stop]
            valid = total.reshape(count, window.out[0], *full[1:])[(slice(None), *map(slice, window.out))]
            return [
                partial(np.copyto, columns.reshape(count, *rows, wide), lines[sample, start:stop]),
                partial(np.matmul, weights[start:stop], columns, moved),
                partial(np.add, parts[0], parts[1], sums),
                *(partial(np.add, sums, part, sums) for part in parts[2:]),
                partial(np.copyto, target[0], valid),
                *finish(target, slice(start, stop)),
            ]

        places = [(sample, start) for sample in range(batch) for start in range(0, channels, block_size)]
        return [*fill_phases(room[0], x, window), *in_blocks(places, block)]

    return Prepared(Calls(calls), scratch, inplace=())


def fill_phases(planes: Array, x: Array, window: Window) -> list[Call]:
    """The calls of planes [phases, N, C, *plane] = x with zeros around it; plane (a, b) has the rows a, a + stride, ..., columns b, ..."""
    ragged = any(
        (dim + low + high) % s
        for dim, low, high, s in zip(x.shape[2:], window.before, window.after, window.strides, strict=True)
    )
    calls: list[Call] = [partial(planes.fill, 0)] if window.is_padded or ragged else []
    for number, phase in enumerate(np.ndindex(*window.strides)):
        source: list[slice] = []
        target: list[slice] = []
        for a, low, step, dim in zip(phase, window.before, window.strides, x.shape[2:], strict=True):
            first = (a - low) % step
            count = len(range(first, dim, step))
            source.append(slice(first, dim, step))
            target.append(slice((first + low) // step, (first + low) // step + count))
        inner = planes[number][(slice(None), slice(None), *target)]
        calls.append(partial(np.copyto, inner, x[(slice(None), slice(None), *source)]))
    return calls
