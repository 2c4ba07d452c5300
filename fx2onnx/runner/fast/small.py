"""Convolutions of small images, whose channels are brought side by side."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.runner.fast.compiled import compiled, f32, operand
from fx2onnx.runner.fast.products import prepare_image
from fx2onnx.runner.fast.taps import LANES, along_channels
from fx2onnx.semantics.kernels.elementwise import Call, Outs
from fx2onnx.semantics.kernels.windows import Window
from fx2onnx.semantics.registry import Calls, Facts, Prepared
from fx2onnx.semantics.types import FLOAT32, Array

MOST_NUMBERS, MOST_PIXELS = 512, 8
"""The numbers of a padded small image, and the positions of it that are computed at a time."""


@functools.cache
def _loop(count: int, pixels: int, is_hard_swish: int) -> Callable[..., None]:
    """The loop over ``LANES`` channels at a time, which scratch holds as the last axis: rows of small images fill no vector register.
    Shapes: taps [blocks, count, LANES], padded [H, W, LANES], turned [oh * ow, LANES]. ``pixels`` positions are computed at a time, the
    last of a row as often as is needed.
    """

    @compiled
    def loop(
        x: Array, taps: Array, bias: Array, offsets: Array, top: int, left: int, sh: int, sw: int, padded: Array,
        turned: Array, low: Any, high: Any, out: Array,
    ) -> None:  # fmt: skip
        (channels, tall, wide), (oh, ow), size = x.shape, out.shape[1:], 4 * LANES
        padded.reshape(-1)[:] = f32(0)
        read, write, distances = padded.ctypes.data, turned.ctypes.data, offsets.ctypes.data
        for block in range(taps.shape[0]):
            first = min(block * LANES, channels - LANES)
            for i in range(tall):
                for j in range(wide):
                    for c in range(LANES):
                        padded[i + top, j + left, c] = x[first + c, i, j]
            w, b = taps.ctypes.data + block * count * size, bias.ctypes.data + 4 * first
            for i in range(oh):
                for start in range(0, ow, pixels):
                    j = min(start, ow - pixels)
                    source, target = read + (i * sh * padded.shape[1] + j * sw) * size, write + (i * ow + j) * size
                    along_channels(count, is_hard_swish, pixels, source, distances, w, b, target, sw * LANES, LANES, low, high)  # fmt: skip
            for c in range(LANES):
                line = out[first + c].reshape(-1)
                for n in range(oh * ow):
                    line[n] = turned[n, c]

    made: Callable[..., None] = loop
    return made


def prepare_small(
    facts: Facts, dims: Sequence[int], window: Window, taps: Array, bias: Array, activation: tuple[int, Any, Any]
) -> Prepared:
    """A depthwise convolution by weights [channels, taps]."""
    spec = facts.inputs[0]
    assert spec is not None
    (batch, channels), (oh, ow), (dh, dw) = spec[0][:2], window.out, window.dilations
    firsts = [min(first, channels - LANES) for first in range(0, channels, LANES)]

    def arranged() -> Array:
        return np.ascontiguousarray([taps[first : first + LANES].T for first in firsts])

    blocks = facts.once("small", (taps,), arranged)
    padded = [dim + low + high for dim, low, high in zip(dims, window.before, window.after, strict=True)]
    offsets = np.array([(i * dh * padded[1] + j * dw) * LANES for i, j in np.ndindex(*window.kernel)], np.int64)
    is_hard_swish, low, high = activation
    loop = _loop(len(offsets), -(-ow // -(-ow // MOST_PIXELS)), is_hard_swish)

    def calls(out: Outs, room: list[Array], x: Array, *_: Any) -> list[Call]:
        source, made = operand(x, (batch, channels, *dims))
        y = out[0].reshape(batch, channels, oh, ow)
        for sample in range(batch):
            given = source[sample], blocks, bias, offsets, *window.before, *window.strides, *room, low, high
            made.append(partial(loop, *given, y[sample]))
        return made

    return Prepared(Calls(calls), (((*padded, LANES), FLOAT32), ((oh * ow, LANES), FLOAT32)), inplace=())


def prepare_turned(
    facts: Facts, window: Window, folded: Callable[[], tuple[Array, Array]], bounds: tuple[int, Any, Any]
) -> Prepared | None:
    """``prepare_image`` for images that lie plane by plane: it works on copies in channels-last memory."""
    made, spec, w = prepare_image(facts, window, folded, bounds), facts.inputs[0], facts.consts[1]
    if made is None or spec is None or w is None:
        return None
    (batch, ins, *dims), outs, inner = spec[0], len(w), made.fn
    assert isinstance(inner, Calls)

    def calls(out: Outs, room: list[Array], x: Array, *_: Any) -> list[Call]:
        image, result = (np.moveaxis(one, -1, 1) for one in room[-2:])
        work = inner.bind([result], room[:-2], image)
        return [partial(np.copyto, image, x), *work, partial(np.copyto, out[0], result)]

    turned = ((batch, *dims, ins), FLOAT32), ((batch, *window.out, outs), FLOAT32)
    return Prepared(Calls(calls), (*made.scratch, *turned), inplace=())
