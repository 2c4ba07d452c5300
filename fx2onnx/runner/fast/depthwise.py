"""Depthwise convolutions: all taps of an output in one expression."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.runner.fast.compiled import compiled, f32, i32, inlined, is_plain, operand
from fx2onnx.runner.fast.products import IS_THERE, LEAST_MULTIPLIES, across_planes, pad_last, prepare_image
from fx2onnx.runner.fast.small import MOST_NUMBERS, prepare_small, prepare_turned
from fx2onnx.runner.fast.taps import (
    CODES,
    LANES,
    MAXIMA,
    PIXELS,
    STEP,
    SUMS,
    activated_row,
    along_channels,
    along_line,
    shifted_row,
)
from fx2onnx.semantics.kernels.conv_plan import HARD_SWISH, Epilogue, epilogue, fold_batch_norm, nhwc, prepare_conv
from fx2onnx.semantics.kernels.elementwise import Call, Outs
from fx2onnx.semantics.kernels.windows import Window, conv_window
from fx2onnx.semantics.registry import Calls, Facts, Prepared
from fx2onnx.semantics.types import FLOAT32, Array

MAX_TAPS = 49
LEAST_ALONG = 24
"""Shorter lines of the output would leave most of a vector register empty."""
BOUNDS = {"": (-math.inf, math.inf), "Relu": (0.0, math.inf), "Clip": (0.0, 0.0), "HardSwish": (0.0, 1.0)}
"""The activations that are computed with the sums, and what they bound: the sum, or the gate of a HardSwish."""


@compiled
def fill_plane(x: Array, top: int, left: int, sh: int, sw: int, zero: Any, planes: Array) -> None:
    """Copy x [H, W] less ``zero`` into its phases [sh, sw, *], ``top`` and ``left`` from their start."""
    tall, wide = x.shape
    rows, full = planes.shape[2:]
    flat, read, source = planes.reshape(-1), planes.ctypes.data, x.ctypes.data
    for i in range(tall):
        if sw == 1:
            at = ((i + top) % sh * rows + (i + top) // sh) * full + left if sh > 1 else (i + top) * full + left
            shifted_row(1, x, source, zero, read + 4 * at, wide)
            source += wide * x.itemsize
            continue
        for phase in range(sw):
            first = (phase - left) % sw
            at = (((i + top) % sh * sw + phase) * rows + (i + top) // sh) * full + (first + left) // sw
            numbers = (wide - first + sw - 1) // sw
            if sw == 2:
                shifted_row(2, x, source + first * x.itemsize, zero, read + 4 * at, numbers)
                continue
            for n in range(numbers):
                flat[at + n] = x[i, first + n * sw] - zero
        source += wide * x.itemsize


@functools.cache
def over_planes(count: int, kind: int, is_hard_swish: int = 0) -> Callable[..., None]:
    """The loop over planes for a number of taps. A plane is padded and cut into its phases in scratch, so that every tap reads
    neighbours, and lines run on over the ends of its rows. Real sums are given to bias and activation.
    """

    @compiled
    def loop(
        x: Array, taps: Array, offsets: Array, top: int, left: int, sh: int, sw: int, planes: Array, line: Array,
        zero: Any, bias: Array, low: Any, high: Any, out: Array,
    ) -> None:  # fmt: skip
        channels, full, (oh, ow) = x.shape[0], planes.shape[3], out.shape[1:]
        planes.reshape(-1)[:] = f32(-np.inf) if kind == MAXIMA else f32(0)
        read, write, distances = planes.ctypes.data, line.ctypes.data, offsets.ctypes.data
        weights, target = taps.ctypes.data, out.ctypes.data
        for c in range(channels):
            fill_plane(x[c], top, left, sh, sw, zero, planes)
            along_line(
                count,
                kind,
                read,
                distances,
                weights + (0 if kind == MAXIMA else 4 * c * count),
                write,
                (oh - 1) * full + ow,
            )
            for i in range(oh):
                if kind != CODES:
                    activated_row(is_hard_swish, write + 4 * i * full, f32(bias[c]), low, high, target, ow)
                else:
                    shifted_row(1, line, write + 4 * i * full, i32(0), target, ow)
                target += 4 * ow

    made: Callable[..., None] = loop
    return made


@functools.cache
def _last(count: int, is_hard_swish: int) -> Callable[..., None]:
    """The loop over positions of channels-last memory, with bias and activation."""

    @compiled
    def loop(
        padded: Array, taps: Array, bias: Array, offsets: Array, sh: int, sw: int, low: Any, high: Any, out: Array
    ) -> None:
        oh, ow, channels = out.shape
        row, step = padded.shape[1] * channels * sh * 4, channels * sw
        distances, w, b = offsets.ctypes.data, taps.ctypes.data, bias.ctypes.data
        for i in range(oh):
            x, y, j = padded.ctypes.data + i * row, out[i].ctypes.data, 0
            while j + PIXELS <= ow:
                along_channels(count, is_hard_swish, 4, x, distances, w, b, y, step, channels, low, high)
                x, y, j = x + 4 * PIXELS * step, y + 4 * PIXELS * channels, j + PIXELS
            while j < ow:
                along_channels(count, is_hard_swish, 1, x, distances, w, b, y, step, channels, low, high)
                x, y, j = x + 4 * step, y + 4 * channels, j + 1

    made: Callable[..., None] = loop
    return made


@inlined
def _finished(x: Any, is_gated: bool, shift: Any, low: Any, high: Any) -> Any:
    """x within bounds, or times a bounded gate; NaN stays NaN."""
    z = x + shift if is_gated else x
    z = low if z < low else z
    z = high if z > high else z
    return x * z if is_gated else z


@compiled
def _finish_last(y: Array, bias: Array, is_gated: bool, shift: Any, low: Any, high: Any) -> None:
    """Bias and activation in place, where channels are the last axis."""
    for r in range(y.shape[0]):
        for c in range(y.shape[1]):
            y[r, c] = _finished(y[r, c] + bias[c], is_gated, shift, low, high)


@compiled
def _finish_first(y: Array, bias: Array, is_gated: bool, shift: Any, low: Any, high: Any) -> None:
    """Bias and activation in place, where channels are the first axis."""
    for c in range(y.shape[0]):
        for p in range(y.shape[1]):
            y[c, p] = _finished(y[c, p] + bias[c], is_gated, shift, low, high)


def _finisher(bias: Array, activation: str, bounds: tuple[float, float] | None) -> Epilogue:
    """``epilogue`` of NumPy in one pass. A HardSwish is of numbers that are scaled by ``HARD_SWISH``."""
    numpy_alone, is_gated = epilogue(bias, activation, bounds), activation == "HardSwish"
    low, high = bounds if activation == "Clip" and bounds else BOUNDS.get(activation, (0.0, 0.0))
    by = f32(0.5 / HARD_SWISH), f32(low), f32(high / HARD_SWISH if is_gated else high)
    shifts = np.array(bias, FLOAT32).reshape(-1)

    def calls(y: Array, scratch: Array) -> list[Call]:
        if activation not in BOUNDS or activation == "" or not y.flags.c_contiguous:
            return numpy_alone(y, scratch)
        if bias.ndim == 1 and y.ndim == 2:
            return [partial(_finish_last, y, shifts, is_gated, *by)]
        if bias.ndim == y.ndim - 1 and len(y) == 1:
            return [partial(_finish_first, y.reshape(len(shifts), -1), shifts, is_gated, *by)]
        return numpy_alone(y, scratch)

    return calls


def _prepare(facts: Facts) -> Prepared | None:
    made = _convolution(facts)
    return made if made is not None else prepare_conv(facts, _finisher)


def _convolution(facts: Facts) -> Prepared | None:
    """Float32 images or lines with constant weights: those with one kernel a channel, and those in channels-last memory."""
    spec, w = facts.inputs[0], facts.consts[1] if len(facts.consts) > 1 else None
    if spec is None or w is None or not is_plain(spec) or w.dtype != FLOAT32 or w.ndim not in (3, 4) or 0 in w.shape:
        return None
    extra, given, attrs = facts.consts[2:7], facts.inputs[2:7], facts.attrs
    group, is_last = attrs.get("group", 1), w.ndim == 4 and (facts.channels_last[0] or facts.wants_channels_last)
    is_depthwise = len(w) > 1 and group == len(w) == spec[0][1] and math.prod(w.shape[2:]) <= MAX_TAPS
    if not (is_depthwise or group == 1) or attrs.get("activation", "") not in BOUNDS:
        return None
    if any(one is not None and const is None for one, const in zip(given, extra, strict=True)):
        return None
    window = conv_window(spec[0], w.shape, attrs)
    if any(pad < 0 for pad in (*window.before, *window.after)) or 0 in window.out:
        return None
    if not is_depthwise:
        is_small = w.ndim == 4 and window.out[1] < LANES
        form = prepare_image if is_last else prepare_turned if is_small else _prepare_planes
        return form(facts, window, lambda: _folded(facts, w), _activation(facts))
    if is_last and len(w) >= LANES:
        return _prepare_last(facts, w, window)
    return _prepare_first(facts, w, window)


prepare_Conv = prepare_FusedConv = _prepare


def _folded(facts: Facts, w: Array) -> tuple[Array, Array]:
    """Weights [channels, taps] and bias with the BatchNormalization that follows."""
    extra = facts.consts[2:7]
    missing: list[Array | None] = [None] * (5 - len(extra))
    bias, *norm = [*extra, *missing]
    weights, shift = fold_batch_norm(w, bias, norm, facts.attrs.get("epsilon", 1e-5))
    return np.array(weights, FLOAT32).reshape(len(w), -1), shift


def _activation(facts: Facts) -> tuple[int, Any, Any]:
    name = facts.attrs.get("activation", "")
    low, high = facts.attrs["bounds"] if name == "Clip" else BOUNDS[name]
    return int(name == "HardSwish"), f32(low), f32(high)


def as_image(window: Window) -> Window:
    """The window over two axes, also of one along a line."""
    if len(window.out) == 2:
        return window
    (kernel,), (stride,), (dilation,) = window.kernel, window.strides, window.dilations
    before, after = (0, *window.before), (0, *window.after)
    return Window((1, kernel), (1, stride), (1, dilation), before, after, (1, *window.out))


def _prepare_first(facts: Facts, w: Array, window: Window) -> Prepared:
    spec = facts.inputs[0]
    assert spec is not None
    window = as_image(window)
    dims = spec[0][2:] if len(spec[0]) == 4 else (1, spec[0][2])
    batch, channels = spec[0][:2]
    taps, bias = facts.once("taps", (w, *facts.consts[2:7]), lambda: _folded(facts, w))
    planes, offsets = planes_of(dims, window)
    if window.out[1] < LANES <= channels and math.prod(planes) <= MOST_NUMBERS:
        return prepare_small(facts, dims, window, taps, bias, _activation(facts))
    is_hard_swish, low, high = _activation(facts)
    loop = over_planes(len(offsets), SUMS, is_hard_swish)

    def calls(out: Outs, room: list[Array], x: Array, *_: Any) -> list[Call]:
        source, made = operand(x, (batch, channels, *dims))
        y, phases = out[0].reshape(batch, channels, *window.out), room[0][: math.prod(planes)].reshape(planes)
        for sample in range(batch):
            given = (
                source[sample],
                taps,
                offsets,
                *window.before,
                *window.strides,
                phases,
                room[1],
                f32(0),
                bias,
                low,
                high,
            )
            made.append(partial(loop, *given, y[sample]))
        return made

    size = math.prod(planes) + STEP
    return Prepared(Calls(calls), (((size,), FLOAT32), ((size,), FLOAT32)), inplace=())


def _prepare_planes(
    facts: Facts, window: Window, folded: Callable[[], tuple[Array, Array]], bounds: tuple[int, Any, Any]
) -> Prepared | None:
    """A convolution whose positions lie next to one another in memory: some outputs of ``COLUMNS`` positions at a time."""
    spec, w, bias = facts.inputs[0], facts.consts[1], facts.consts[2:7]
    assert spec is not None
    assert w is not None
    window = as_image(window)
    dims = spec[0][2:] if len(spec[0]) == 4 else (1, spec[0][2])
    (batch, ins), outs, (oh, ow) = spec[0][:2], len(w), window.out
    planes, reads = planes_of(dims, window)
    size = math.prod(planes)
    multiplies = batch * w.size * oh * ow
    if not IS_THERE or ow < LEAST_ALONG or multiplies < LEAST_MULTIPLIES:
        return None
    weights, shift = facts.once("planes", (w, *bias), folded)
    offsets = (np.arange(ins)[:, None] * size + reads).reshape(-1)
    (top, left), (sh, sw) = window.before, window.strides

    def calls(out: Outs, room: list[Array], x: Array, *_: Any) -> list[Call]:
        source, made = operand(x, (batch, ins, *dims))
        y, phases = out[0].reshape(batch, outs, oh, ow), room[0][: ins * size].reshape(ins, *planes)
        for sample in range(batch):
            made.append(partial(_fill_planes, source[sample], top, left, sh, sw, f32(0), phases))
            made.append(partial(across_planes(bounds[0]), phases, offsets, weights, shift, *bounds[1:], y[sample]))
        return made

    return Prepared(Calls(calls), (((ins * size + STEP,), FLOAT32),), inplace=())


@compiled
def _fill_planes(x: Array, top: int, left: int, sh: int, sw: int, zero: Any, planes: Array) -> None:
    planes.reshape(-1)[:] = f32(0)
    for c in range(x.shape[0]):
        fill_plane(x[c], top, left, sh, sw, zero, planes[c])


def planes_of(dims: Sequence[int], window: Window) -> tuple[tuple[int, ...], Array]:
    """The shape of a padded plane by its phases [sh, sw, *], and how far from its start each tap reads."""
    padded = [dim + low + high for dim, low, high in zip(dims, window.before, window.after, strict=True)]
    phases = tuple(-(-dim // step) for dim, step in zip(padded, window.strides, strict=True))
    (sh, sw), reads = window.strides, []
    for place in np.ndindex(*window.kernel):
        i, j = (at * step for at, step in zip(place, window.dilations, strict=True))
        reads.append(((i % sh * sw + j % sw) * phases[0] + i // sh) * phases[1] + j // sw)
    return (sh, sw, *phases), np.array(reads, np.int64)


def _prepare_last(facts: Facts, w: Array, window: Window) -> Prepared:
    spec = facts.inputs[0]
    assert spec is not None
    batch, channels, *dims = spec[0]

    def arranged() -> tuple[Array, Array]:
        taps, bias = _folded(facts, w)
        return np.ascontiguousarray(taps.T), bias

    taps, bias = facts.once("taps last", (w, *facts.consts[2:7]), arranged)
    padded = tuple(dim + low + high for dim, low, high in zip(dims, window.before, window.after, strict=True))
    is_hard_swish, low, high = _activation(facts)
    loop = _last(len(taps), is_hard_swish)
    (dh, dw), width = window.dilations, padded[1]
    offsets = np.array([(i * dh * width + j * dw) * channels for i, j in np.ndindex(*window.kernel)], np.int64)

    def calls(out: Outs, room: list[Array], x: Array, *_: Any) -> list[Call]:
        source, made = operand(nhwc(x), (batch, *dims, channels))
        y = nhwc(out[0])
        for sample in range(batch):
            made.append(partial(pad_last, source[sample], window.before[0], window.before[1], room[0]))
            made.append(partial(loop, room[0], taps, bias, offsets, *window.strides, low, high, y[sample]))
        return made

    return Prepared(Calls(calls), (((*padded, channels), FLOAT32),), channels_last=True, inplace=())


def prepare_codes(
    facts: Facts, weights: Array, w_zero: Array, window: Window, zero: int, finish: Any
) -> Prepared | None:
    """A depthwise convolution of bytes; ``finish`` gives the call that makes the outputs of one sample from its sums."""
    spec = facts.inputs[0]
    if spec is None or math.prod(window.kernel) > MAX_TAPS:
        return None
    batch, channels = spec[0][:2]
    dims = spec[0][2:] if len(spec[0]) == 4 else (1, spec[0][2])
    planes, offsets = planes_of(dims, window)
    size, int32 = math.prod(planes) + STEP, np.dtype(np.int32)

    def arranged() -> Array:
        return weights.astype(int32).reshape(channels, -1) - w_zero.astype(int32).reshape(-1, 1)

    taps, loop = facts.once("taps", (weights, w_zero), arranged), over_planes(len(offsets), CODES)
    scratch = (((size,), int32), ((size,), int32), ((channels, *window.out), int32))

    none = np.zeros(0, FLOAT32)

    def of_sample(x: Array, given: Array | None, room: list[Array]) -> None:
        shift = i32(0 if given is None else given.item())
        phases = room[0][: math.prod(planes)].reshape(planes)
        loop(x, taps, offsets, *window.before, *window.strides, phases, room[1], shift, none, f32(0), f32(0), room[2])

    def calls(out: Outs, room: list[Array], *operands: Any) -> list[Call]:
        x, made = operand(operands[0], (batch, channels, *dims))
        given = operands[zero] if len(operands) > zero else None
        for sample in range(batch):
            made.append(partial(of_sample, x[sample], given, room))
            sums = room[2].reshape(channels, -1)
            made.append(finish(sums, out[0][sample].reshape(sums.shape), made, operands))
        return made

    return Prepared(Calls(calls), scratch, inplace=())
