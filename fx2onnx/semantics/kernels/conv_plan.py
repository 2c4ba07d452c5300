"""Planned float32 convolution with constant weights. BatchNormalization is folded into the weights.

Images between convolutions lie in memory as [N, H, W, C]: a 1x1 convolution is one matrix product without a copy there, and
bias, activation and depthwise taps have long inner loops. What has groups, one or three spatial axes, or no convolution
before or after it stays as [N, C, *dims] (``conv_first.py``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.activation import relu, sigmoid
from fx2onnx.semantics.kernels.conv_first import Finish, in_blocks, pad_into, prepare_products, prepare_taps
from fx2onnx.semantics.kernels.conv_first import padded_shape as padded_first
from fx2onnx.semantics.kernels.elementwise import Call, Outs, each, reshaped
from fx2onnx.semantics.kernels.threads import product, whole_product
from fx2onnx.semantics.kernels.windows import COLUMN_BLOCK_BYTES, Window, conv_window, window_view
from fx2onnx.semantics.registry import Calls, Facts, Prepared, run_all
from fx2onnx.semantics.types import FLOAT32, Array, Spec, clip

ROW_BLOCK_BYTES = 1 << 18
"""Depthwise taps run over rows of about this size: two of them and the weights stay in the L2 cache."""

MANY_POSITIONS = 400
"""Depthwise images of fewer positions are turned to channels-last memory and back."""

SHORT_RUN = 32
"""Columns whose runs of ``kw * ins`` numbers are shorter are made from [N, C, H, W], where runs are lines of the output."""

Epilogue = Callable[[Array, Array], list[Call]]
"""The calls that apply bias and activation to a block [rows, C] in place; the second argument is scratch of its shape."""


def fold_batch_norm(w: Array, bias: Array | None, norm: Sequence[Array | None], epsilon: float) -> tuple[Array, Array]:
    """Weights and bias that include a BatchNormalization of the output channels; computed in float64."""
    channels = w.shape[0]
    shift = np.zeros(channels) if bias is None else bias.astype(np.float64)
    if norm[0] is None:
        return w, shift.astype(FLOAT32)
    scale, beta, mean, var = (np.asarray(item, np.float64) for item in norm)
    factor = scale / np.sqrt(var + epsilon)
    folded = w * factor.astype(FLOAT32).reshape(-1, *(1,) * (w.ndim - 1))
    return folded, ((shift - mean) * factor + beta).astype(FLOAT32)


HARD_SWISH = math.sqrt(1 / 6)
"""y * clip(y / 6 + 1 / 2, 0, 1) is s * clip(s + r / 2, 0, r) of s = y times this and r = 1 through this, so that what is
convolved with is scaled, and no output.
"""
_SHIFT, _NONE, _TOP = (np.asarray(number, FLOAT32) for number in (0.5 / HARD_SWISH, 0.0, 1 / HARD_SWISH))


def _scaled_hard_swish(y: Array, scratch: Array) -> list[Call]:
    return [
        each(np.add, scratch, y, _SHIFT),
        each(clip, scratch, scratch, _NONE, _TOP),
        each(np.multiply, y, y, scratch),
    ]


ACTIVATIONS: dict[str, Callable[[Array, Array], Sequence[Call]]] = {
    "Relu": lambda y, scratch: relu.bind([y], y),
    "HardSwish": _scaled_hard_swish,
    "Sigmoid": lambda y, scratch: sigmoid.bind([y], y),
}


def epilogue(bias: Array, activation: str, bounds: tuple[float, float] | None) -> Epilogue:
    """Bias, then the activation; Clip's bounds come as numbers."""
    has_bias = bool(bias.any())
    limits = [np.asarray(bound, FLOAT32) for bound in bounds or ()] if activation == "Clip" else []
    function = ACTIVATIONS.get(activation)

    def calls(y: Array, scratch: Array) -> list[Call]:
        made = [each(np.add, y, y, bias)] if has_bias else []
        made += [each(clip, y, y, *limits)] if limits else []
        return [*made, *function(y, scratch)] if function is not None else made

    return calls


def nhwc(x: Array) -> Array:
    """[N, C, H, W] seen as [N, H, W, C]."""
    return x.transpose(0, 2, 3, 1)


Finisher = Callable[[Array, str, "tuple[float, float] | None"], Epilogue]
"""From bias, activation and Clip's bounds to the epilogue."""


def finish_first(
    bias: Array, activation: str, bounds: tuple[float, float] | None, ndim: int, finisher: Finisher = epilogue
) -> Finish:
    """The epilogue of an output [N, C, *dims], some channels at a time."""
    lines = bias.reshape(-1, *(1,) * (ndim - 2))

    def calls(y: Array, channels: slice) -> list[Call]:
        act = finisher(lines[channels], activation, bounds)
        if activation == "HardSwish":
            return [lambda: run_all(act(y, np.empty_like(y)))]
        return act(y, y)

    return calls


def prepare_conv(facts: Facts, finisher: Finisher = epilogue) -> Prepared | None:
    """A convolution where the weights never change; None for what it does not cover."""
    x, w = facts.inputs[0], facts.consts[1] if len(facts.consts) > 1 else None
    if x is None or w is None or x[1] != FLOAT32 or w.dtype != FLOAT32 or w.ndim < 3 or 0 in x[0] or 0 in w.shape:
        return None
    extra = facts.consts[2:7]
    given = facts.inputs[2:7]
    if any(spec is not None and const is None for spec, const in zip(given, extra, strict=True)):
        return None
    attrs = facts.attrs
    group = attrs.get("group", 1)
    window = conv_window(x[0], w.shape, attrs)
    if any(pad < 0 for pad in (*window.before, *window.after)) or 0 in window.out:
        return None
    padding: list[Array | None] = [None] * (5 - len(extra))
    bias, *norm = [*extra, *padding]
    is_depthwise = group != 1 and group == x[0][1] == w.shape[0]
    is_image = w.ndim == 4 and (group == 1 or is_depthwise)
    is_last = is_image and (facts.channels_last[0] or facts.wants_channels_last or (is_depthwise and is_small(window)))
    arrange, form = _last_form(x[0], window, is_depthwise) if is_last else first_form(window, is_depthwise)

    activation, bounds = attrs.get("activation", ""), attrs.get("bounds")

    def folded() -> tuple[Array, Array]:
        weights, shift = fold_batch_norm(w, bias, norm, attrs.get("epsilon", 1e-5))
        if activation == "HardSwish":
            weights, shift = weights * np.float32(HARD_SWISH), shift * np.float32(HARD_SWISH)
        return arrange(weights, group), shift

    weights, shift = facts.once(arrange.__name__, (w, bias, *norm), folded)
    if not is_last:
        return form(x[0], weights, window, finish_first(shift, activation, bounds, w.ndim, finisher))
    return form(x[0], weights, window, finisher(shift, activation, bounds))


def is_small(window: Window) -> bool:
    """Return whether lines of channels are longer than what a depthwise tap can run over in a plane of positions."""
    return window.strides != (1, 1) or math.prod(window.out) < MANY_POSITIONS


Arrange = Callable[[Array, int], Array]


def _last_form(shape: Sequence[int], window: Window, is_depthwise: bool) -> tuple[Arrange, Callable[..., Prepared]]:
    if is_depthwise:
        return taps_last, depthwise_last
    if window.kernel == (1, 1):
        return _matrix, _pointwise
    return (_rows, _few_channels) if shape[1] * window.kernel[1] <= SHORT_RUN else (_matrix, _columns)


def first_form(window: Window, is_depthwise: bool) -> tuple[Arrange, Callable[..., Prepared]]:
    are_few = math.prod(window.kernel) * 4 <= math.prod(window.out, start=64)
    return (_rows, prepare_taps) if is_depthwise and are_few else (_groups, prepare_products)


def _groups(w: Array, group: int) -> Array:
    """[outs, ins, *kernel] as [groups, outs of one, taps]."""
    return np.ascontiguousarray(w.reshape(group, w.shape[0] // group, -1))


def _rows(w: Array, group: int) -> Array:
    """[outs, ins, *kernel] as [outs, taps]."""
    return np.ascontiguousarray(w.reshape(len(w), -1))


def _matrix(w: Array, group: int) -> Array:
    """[outs, ins, kh, kw] as [kh * kw * ins, outs]."""
    outs, ins, kh, kw = w.shape
    return np.ascontiguousarray(w.transpose(2, 3, 1, 0).reshape(kh * kw * ins, outs))


def taps_last(w: Array, group: int) -> Array:
    """[channels, 1, kh, kw] as [kh, kw, channels]."""
    return np.ascontiguousarray(w[:, 0].transpose(1, 2, 0))


def _padded_shape(shape: Sequence[int], window: Window) -> tuple[int, int, int, int]:
    n, c, h, w = shape
    return (n, h + window.before[0] + window.after[0], w + window.before[1] + window.after[1], c)


def _fill_padded(padded: Array, x: Array, window: Window) -> list[Call]:
    """The calls that copy x into channels-last scratch with zeros around it."""
    return pad_into(padded.transpose(0, 3, 1, 2), x, window)


def _pointwise(shape: Sequence[int], weights: Array, window: Window, finish: Epilogue) -> Prepared:
    ins, outs = weights.shape
    points = shape[0] * math.prod(window.out)
    step_h, step_w = window.strides
    is_plain = window.strides == (1, 1) and not window.is_padded
    scratch: list[Spec] = [((points, outs), FLOAT32)]
    if not is_plain:
        scratch.append((_padded_shape(shape, window), FLOAT32))
        scratch.append(((points, ins), FLOAT32))

    def calls(out: Outs, room: list[Array], x: Array, *_: Any) -> list[Call]:
        y = nhwc(out[0]).reshape(points, outs)
        if is_plain:
            rows, made = reshaped(nhwc(x), (points, ins))
        else:
            made = _fill_padded(room[1], x, window) if window.is_padded else []
            source = room[1] if window.is_padded else nhwc(x)
            cut = source[:, ::step_h, ::step_w][:, : window.out[0], : window.out[1]]
            rows = room[2]
            made.append(partial(np.copyto, rows.reshape(cut.shape), cut))
        return [*made, product(rows, weights, y), *finish(y, room[0])]

    return Prepared(Calls(calls), tuple(scratch), channels_last=True, inplace=())


def _columns(shape: Sequence[int], weights: Array, window: Window, finish: Epilogue) -> Prepared:
    """Blocks of output rows: their columns side by side, one matrix product a block."""
    (kh, kw), ins, outs = window.kernel, shape[1], weights.shape[1]
    (sh, sw), (dh, dw), (oh, ow) = window.strides, window.dilations, window.out
    row_bytes = ow * kh * kw * ins * 4
    block = max(1, min(oh, COLUMN_BLOCK_BYTES // row_bytes))
    padded_shape = _padded_shape(shape, window)
    scratch: tuple[Spec, ...] = (
        (padded_shape, FLOAT32),
        ((block * ow, kh * kw * ins), FLOAT32),
        ((block * ow, outs), FLOAT32),
    )

    def calls(out: Outs, room: list[Array], x: Array, *_: Any) -> list[Call]:
        padded, columns, spare = room
        sn, sy, sx, sc = padded.strides
        view = np.lib.stride_tricks.as_strided(
            padded, (shape[0], oh, ow, kh, kw, ins), (sn, sy * sh, sx * sw, sy * dh, sx * dw, sc), writeable=False
        )
        target = nhwc(out[0])

        def one(sample: int, start: int, is_own: bool) -> list[Call]:
            stop = min(start + block, oh)
            rows = (stop - start) * ow
            part = np.empty_like(columns[:rows]) if is_own else columns[:rows]
            y = target[sample, start:stop].reshape(rows, outs)
            copy = partial(np.copyto, part.reshape(stop - start, ow, kh, kw, ins), view[sample, start:stop])
            return [copy, whole_product(part, weights, y), *finish(y, np.empty_like(y) if is_own else spare[:rows])]

        places = [(sample, start) for sample in range(shape[0]) for start in range(0, oh, block)]
        return [*_fill_padded(padded, x, window), *in_blocks(places, one)]

    return Prepared(Calls(calls), scratch, channels_last=True, inplace=())


def _few_channels(shape: Sequence[int], weights: Array, window: Window, finish: Epilogue) -> Prepared:
    """Columns of few channels, a row for each weight: what is copied are lines of the output."""
    (oh, ow), (outs, taps) = window.out, weights.shape
    block = max(1, min(oh, COLUMN_BLOCK_BYTES // (ow * taps * 4)))
    scratch: tuple[Spec, ...] = (
        (padded_first(shape, window), FLOAT32),
        ((taps, block * ow), FLOAT32),
        ((block * ow, outs), FLOAT32),
    )
    transposed = weights.T

    def calls(out: Outs, room: list[Array], x: Array, *_: Any) -> list[Call]:
        arranged = window_view(room[0], window).transpose(0, 1, 4, 5, 2, 3)
        target = nhwc(out[0])

        def one(sample: int, start: int, is_own: bool) -> list[Call]:
            cut = arranged[sample, :, :, :, start : start + block]
            rows = cut.shape[-2] * ow
            columns = np.empty(taps * rows, FLOAT32) if is_own else room[1].reshape(-1)[: taps * rows]
            y = target[sample, start : start + block].reshape(rows, outs)
            copy = partial(np.copyto, columns.reshape(cut.shape), cut)
            multiply = whole_product(columns.reshape(taps, rows).T, transposed, y)
            return [copy, multiply, *finish(y, np.empty_like(y) if is_own else room[2][:rows])]

        places = [(sample, start) for sample in range(shape[0]) for start in range(0, oh, block)]
        return [*pad_into(room[0], x, window), *in_blocks(places, one)]

    return Prepared(Calls(calls), scratch, channels_last=True, inplace=())


def depthwise_last(shape: Sequence[int], taps: Array, window: Window, finish: Epilogue) -> Prepared:
    """One multiply-add a tap over rows of W * C elements; strided windows by einsum."""
    kh, kw, channels = taps.shape
    (sh, sw), (dh, dw), (oh, ow) = window.strides, window.dilations, window.out
    tiled = np.ascontiguousarray(np.broadcast_to(taps[:, :, None, :], (kh, kw, ow, channels)))
    block = max(1, min(oh, ROW_BLOCK_BYTES // (ow * channels * 4)))
    by_rows = sw == 1 and dw == 1 and oh >= 20 and channels <= 256
    padded_shape = _padded_shape(shape, window)
    scratch: tuple[Spec, ...] = ((padded_shape, FLOAT32), ((block * ow, channels), FLOAT32))

    def rows_of(padded: Array, sample: int, start: int, stop: int, y: Array, room: Array) -> list[Call]:
        spare = room[: y.shape[0] * ow].reshape(y.shape)
        made: list[Call] = []
        for i, j in np.ndindex(kh, kw):
            lines = padded[sample, start * sh + i * dh : (stop - 1) * sh + i * dh + 1 : sh]
            made.append(partial(np.multiply, lines[:, j : j + ow], tiled[i, j], spare if i or j else y))
            if i or j:
                made.append(partial(np.add, y, spare, y))
        return made

    def calls(out: Outs, room: list[Array], x: Array, *_: Any) -> list[Call]:
        padded, made = room[0], _fill_padded(room[0], x, window)
        target = nhwc(out[0])
        sn, sy, sx, sc = padded.strides
        view = np.lib.stride_tricks.as_strided(
            padded, (shape[0], oh, ow, kh, kw, channels), (sn, sy * sh, sx * sw, sy * dh, sx * dw, sc), writeable=False
        )
        for sample, start in itertools.product(range(shape[0]), range(0, oh, block)):
            stop = min(start + block, oh)
            y = target[sample, start:stop]
            if by_rows:
                made += rows_of(padded, sample, start, stop, y, room[1])
            else:
                made.append(partial(np.einsum, "hwijc,ijc->hwc", view[sample, start:stop], taps, out=y))
            rows = (stop - start) * ow
            made += finish(y.reshape(rows, channels), room[1][:rows])
        return made

    return Prepared(Calls(calls), scratch, channels_last=True, inplace=())
