"""Depthwise ConvTranspose: a convolution of the image with zeros between its numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fx2onnx.runner.fast.compiled import f32
from fx2onnx.runner.fast.depthwise import MAX_TAPS, as_image, over_planes, planes_of
from fx2onnx.runner.fast.taps import STEP, SUMS
from fx2onnx.semantics.kernels.conv import transpose_geometry
from fx2onnx.semantics.kernels.windows import Window
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.types import FLOAT32, Array

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
