"""Maxima and means of windows, and transposed convolutions: the loop of depthwise convolutions, with all weights 1."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.runner.fast.compiled import compiled, f32, is_plain, operand
from fx2onnx.runner.fast.depthwise import MAX_TAPS, as_image, over_planes, planes_of
from fx2onnx.runner.fast.taps import MAXIMA, STEP, SUMS
from fx2onnx.semantics.kernels.conv import transpose_geometry
from fx2onnx.semantics.kernels.elementwise import Call, Outs
from fx2onnx.semantics.kernels.integer_products import integer_range
from fx2onnx.semantics.kernels.pool import pool_window, window_counts
from fx2onnx.semantics.kernels.windows import Window, required_after
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import Calls, Facts, Prepared
from fx2onnx.semantics.types import FLOAT32, Array


def _prepare(kind: int, facts: Facts) -> Prepared | None:
    """Images or lines in float32, where nothing lies channels-last."""
    spec, attrs = facts.inputs[0], facts.attrs
    if spec is None or not is_plain(spec) or len(spec[0]) not in (3, 4) or len(facts.outputs) > 1:
        return None
    if any(facts.channels_last) or facts.wants_channels_last or math.prod(attrs["kernel_shape"]) > MAX_TAPS:
        return None
    found = pool_window(spec[0], attrs["kernel_shape"], attrs)
    if found.kernel == spec[0][2:]:
        return None
    window = as_image(dataclasses.replace(found, after=required_after(spec[0][2:], found)))
    if min((*window.before, *window.after)) < 0 or 0 in window.out:
        return None
    counts = window_counts(spec[0][2:], found, bool(attrs.get("count_include_pad", 0))).astype(FLOAT32).reshape(-1)
    dims = spec[0][2:] if len(spec[0]) == 4 else (1, spec[0][2])
    rows = math.prod(spec[0][:2])
    passes = [_Pass(rows, dims, window, kind)]
    if kind == MAXIMA and min(window.kernel) > 1 and math.prod(window.kernel) >= SEVERAL:
        across, down = ([pair[axis] for pair in dataclasses.astuple(window)] for axis in (1, 0))
        lines = Window(*((zero, one) for zero, one in zip((1, 1, 1, 0, 0, dims[0]), across, strict=True)))
        columns = Window(*((one, zero) for zero, one in zip((1, 1, 1, 0, 0, window.out[1]), down, strict=True)))
        passes = [_Pass(rows, dims, lines, kind), _Pass(rows, lines.out, columns, kind)]
    shape, between = (rows, *dims), (rows, *passes[0].window.out)
    size = max(one.size for one in passes)

    def calls(out: Outs, room: list[Array], x: Array) -> list[Call]:
        source, made = operand(x, shape)
        y = out[0].reshape(rows, *window.out)
        for number, one in enumerate(passes):
            target = y if number == len(passes) - 1 else room[2].reshape(between)
            made.append(one.call(source, room, target))
            source = target
        if kind == SUMS:
            flat = y.reshape(rows, -1)
            made.append(partial(np.divide, flat, counts, flat))
        return made

    held = between if len(passes) > 1 else (0,)
    return Prepared(Calls(calls), (((size,), FLOAT32), ((size,), FLOAT32), (held, FLOAT32)), inplace=())


SEVERAL = 16
"""Taps from which the maxima of lines, and then those of their columns, take less time than those of windows."""


class _Pass:
    """The loop over the planes of an image with one window."""

    def __init__(self, rows: int, dims: Sequence[int], window: Window, kind: int) -> None:
        self.window = window
        self.planes, self.offsets = planes_of(dims, window)
        self.size = math.prod(self.planes) + STEP
        self.loop = over_planes(len(self.offsets), kind)
        self.weights, self.bias = np.ones((rows, len(self.offsets)), FLOAT32), np.zeros(rows, FLOAT32)

    def call(self, source: Array, room: list[Array], y: Array) -> Call:
        """The call for y, [rows, *out]; ``room`` is for the planes of one row."""
        phases = room[0][: math.prod(self.planes)].reshape(self.planes)
        given = source, self.weights, self.offsets, *self.window.before, *self.window.strides, phases, room[1], f32(0)
        return partial(self.loop, *given, self.bias, f32(-math.inf), f32(math.inf), y)


prepare_AveragePool: Any = partial(_prepare, SUMS)
prepare_MaxPool: Any = partial(_prepare, MAXIMA)


@compiled
def _largest_codes(x: Array, kernel: Any, strides: Any, dilations: Any, before: Any, least: int, line: Array, y: Array) -> None:  # fmt: skip
    """Maxima of rows, then of columns. Shapes: x [N, H, W * C], line [W * C], y [N, rows, columns, C]; ``least`` is around x."""
    channels = y.shape[3]
    for n in range(y.shape[0]):
        for i in range(y.shape[1]):
            line[:] = least
            for a in range(kernel[0]):
                row = i * strides[0] - before[0] + a * dilations[0]
                if 0 <= row < x.shape[1]:
                    given = x[n, row]
                    for place in range(line.size):
                        line[place] = max(line[place], given[place])
            for j in range(y.shape[2]):
                best = y[n, i, j]
                best[:] = least
                for b in range(kernel[1]):
                    start = (j * strides[1] - before[1] + b * dilations[1]) * channels
                    if 0 <= start < line.size:
                        for c in range(channels):
                            best[c] = max(best[c], line[start + c])


def call_NhwcMaxPool(x: Array, *, kernel_shape: Sequence[int], **attrs: Any) -> Array | None:
    if x.ndim != 4 or not x.size or x.dtype.itemsize > 1:
        return None
    window = pool_window((len(x), x.shape[3], *x.shape[1:3]), kernel_shape, attrs, may_exceed=True)
    shape = (len(x), *window.out, x.shape[3])
    check_shape(shape, x.dtype)
    y, sizes = np.empty(shape, x.dtype), (window.kernel, window.strides, window.dilations, window.before)
    rows = np.require(x, None, ["C", "W"]).reshape(*x.shape[:2], -1)
    _largest_codes(rows, *sizes, integer_range(x.dtype)[0], np.empty(rows.shape[2], x.dtype), y)
    return y


MOST_ZEROS = 9
"""Numbers of the image with zeros for each of the image up to which the zeros cost less than columns and their sums."""


def call_ConvTranspose(x: Array, w: Array, bias: Array | None = None, *, group: int = 1, **attrs: Any) -> Array | None:
    if x.dtype != FLOAT32 or w.dtype != FLOAT32 or x.ndim not in (3, 4) or w.ndim != x.ndim or not x.size or not w.size:
        return None
    if not 1 < group == x.shape[1] == w.shape[0] or w.shape[1] != 1 or math.prod(w.shape[2:]) > MAX_TAPS:
        return None
    if bias is not None and (bias.dtype != FLOAT32 or bias.shape != (group,)):
        return None
    kernel = w.shape[2:]
    strides, dilations, before, out = transpose_geometry(x.shape[2:], kernel, attrs)
    reach = [(size - 1) * step for size, step in zip(kernel, dilations, strict=True)]
    starts = [far - edge for far, edge in zip(reach, before, strict=True)]
    dims = [dim + far for dim, far in zip(out, reach, strict=True)]
    ends = [start + (dim - 1) * step + 1 for start, dim, step in zip(starts, x.shape[2:], strides, strict=True)]
    if min(starts) < 0 or 0 in out or any(end > dim for end, dim in zip(ends, dims, strict=True)):
        return None
    if math.prod(strides) > MOST_ZEROS:
        return None
    check_shape((*x.shape[:2], *dims), FLOAT32, "the image of ConvTranspose")
    wide = np.zeros((*x.shape[:2], *dims), FLOAT32)
    parts: tuple[Any, ...] = tuple(map(slice, starts, ends, strides))
    wide[(..., *parts)] = x
    ones, none = (1,) * len(out), (0,) * len(out)
    window = as_image(Window(kernel, ones, dilations, none, none, out))
    planes, offsets = planes_of(dims if len(dims) == 2 else (1, *dims), window)
    taps = np.ascontiguousarray(w.reshape(group, -1)[:, ::-1])
    shift = np.zeros(group, FLOAT32) if bias is None else np.array(bias)
    room, loop = np.empty((2, math.prod(planes) + STEP), FLOAT32), over_planes(len(offsets), SUMS)
    y = np.empty((*x.shape[:2], *window.out), FLOAT32)
    phases = room[0][: math.prod(planes)].reshape(planes)
    for sample, target in zip(wide.reshape(len(x), group, *planes[2:]), y, strict=True):
        loop(sample, taps, offsets, 0, 0, 1, 1, phases, room[1], f32(0), shift, f32(-math.inf), f32(math.inf), target)
    return y.reshape(*x.shape[:2], *out)
