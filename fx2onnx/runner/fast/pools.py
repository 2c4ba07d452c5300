"""Maxima and means of windows: the loop of depthwise convolutions, with all weights 1."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.runner.fast.compiled import f32, is_plain, operand
from fx2onnx.runner.fast.depthwise import MAX_TAPS, as_image, over_planes, planes_of
from fx2onnx.runner.fast.taps import MAXIMA, STEP, SUMS
from fx2onnx.semantics.kernels.elementwise import Call, Outs
from fx2onnx.semantics.kernels.pool import pool_window, window_counts
from fx2onnx.semantics.kernels.windows import required_after
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
    shape = (math.prod(spec[0][:2]), *dims)
    planes, offsets = planes_of(dims, window)
    size, loop, bias = math.prod(planes) + STEP, over_planes(len(offsets), kind), np.zeros(shape[0], FLOAT32)
    weights = np.ones((shape[0], len(offsets)), FLOAT32)

    def calls(out: Outs, room: list[Array], x: Array) -> list[Call]:
        source, made = operand(x, shape)
        phases, y = room[0][: math.prod(planes)].reshape(planes), out[0].reshape(shape[0], *window.out)
        given = source, weights, offsets, *window.before, *window.strides, phases, room[1], f32(0), bias
        made.append(partial(loop, *given, f32(-math.inf), f32(math.inf), y))
        if kind == SUMS:
            flat = y.reshape(shape[0], -1)
            made.append(partial(np.divide, flat, counts, flat))
        return made

    return Prepared(Calls(calls), (((size,), FLOAT32), ((size,), FLOAT32)), inplace=())


prepare_AveragePool: Any = partial(_prepare, SUMS)
prepare_MaxPool: Any = partial(_prepare, MAXIMA)
