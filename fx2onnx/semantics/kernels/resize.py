"""Resize, Upsample, CenterCropPad."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.norm import check_axis
from fx2onnx.semantics.kernels.shape import ints, pad_array
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import Array, widen

# Each takes the output positions, the scale, the output size as a real number, the input size and the crop.
_COORDINATES: dict[str, Callable[[Array, float, float, int, float, float], Array]] = {
    "half_pixel": lambda i, s, out, dim, lo, hi: (i + 0.5) / s - 0.5,
    "half_pixel_symmetric": lambda i, s, out, dim, lo, hi: dim / 2 * (1 - math.floor(out) / out) + (i + 0.5) / s - 0.5,
    "asymmetric": lambda i, s, out, dim, lo, hi: i / s,
    "align_corners": lambda i, s, out, dim, lo, hi: i * (dim - 1) / (out - 1) if out > 1 else i * 0,
    "pytorch_half_pixel": lambda i, s, out, dim, lo, hi: (i + 0.5) / s - 0.5 if out >= 2 else i * 0,
    "tf_half_pixel_for_nn": lambda i, s, out, dim, lo, hi: (i + 0.5) / s,
    "tf_crop_and_resize": lambda i, s, out, dim, lo, hi: (
        lo * (dim - 1) + i * (hi - lo) * (dim - 1) / (math.floor(out) - 1)
        if out >= 2
        else i * 0 + 0.5 * (lo + hi) * (dim - 1)
    ),
}
_NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _linear(distance: Array, a: float) -> Array:
    return np.asarray(np.maximum(1 - np.abs(distance), 0))


def _cubic(distance: Array, a: float) -> Array:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def axis_taps(
    position: Array, dim: int, scale: float, mode: str, nearest: str, cubic_a: float, antialias: bool, exclude: bool
) -> tuple[Array, Array]:
    """For each output position the input indices [out, taps] and their weights. No ``nearest``: up where the axis becomes shorter, else down."""
    if mode == "nearest":
        index = _NEAREST[nearest or ("ceil" if scale < 1 else "floor")](position)
        return np.clip(index, 0, dim - 1).astype(np.int64)[:, None], np.ones((position.size, 1))
    reach, function = (1, _linear) if mode == "linear" else (2, _cubic)
    squeeze = min(scale, 1.0) if antialias else 1.0
    radius = math.ceil(reach / squeeze)
    base = np.floor(position)
    taps = base[:, None] + np.arange(-radius + 1, radius + 1)
    weights = function((taps - position[:, None]) * squeeze, cubic_a)
    if antialias:
        weights = weights / weights.sum(1, keepdims=True)
    if exclude:
        weights = np.where((taps < 0) | (taps > dim - 1), 0, weights)
        weights = weights / weights.sum(1, keepdims=True)
    return np.clip(taps, 0, dim - 1).astype(np.int64), weights


def apply_taps(x: Array, axis: int, index: Array, weights: Array) -> Array:
    """The weighted sum of the taps along ``axis``."""
    shape = [-1 if line == axis else 1 for line in range(x.ndim)]
    total: Array | None = None
    for tap in range(index.shape[1]):
        part = np.take(x, index[:, tap], axis=axis) * weights[:, tap].astype(x.dtype).reshape(shape)
        total = part if total is None else np.add(total, part, out=total)
    return x if total is None else total


def _taps_of(
    coordinates: str, size: int, full: float, edges: tuple[float, float], dim: int, factor: float, mode: str, *rest: Any
) -> tuple[Array, Array, Array, int]:
    """The positions of an axis, its taps and their weights; and how often each element comes, 0 where that differs."""
    places = np.arange(size, dtype=np.float64)
    if mode == "nearest":  # which of two elements is nearest depends on the rounding: onnxruntime's and PyTorch's
        places, factor, full = places.astype(np.float32), np.float32(factor), np.float32(full)  # type: ignore[assignment]
    position = _COORDINATES[coordinates](places, factor, full, dim, *edges)
    index, weights = axis_taps(position, dim, factor, mode, *rest)
    times = size // max(dim, 1)
    is_even = 1 < times <= MAX_TIMES and np.array_equal(index[:, 0], np.arange(dim * times) // times)
    return position, index, weights, times if is_even else 0


_kept_taps = functools.lru_cache(maxsize=64)(_taps_of)
MOST_KEPT = 1 << 12
"""The length of an axis up to which its taps are kept: making them takes longer than small images."""


def _picked(x: Array, axis: int, index: Array, times: int) -> Array:
    """x at the indices along ``axis``. Where each element comes equally often, NumPy copies whole arrays in less time."""
    if not times:
        return np.take(x, index, axis=axis)
    dim = x.shape[axis]
    if times == 2 and axis == x.ndim - 1 and x.itemsize <= 4:  # two alike are one number of twice the width
        pairs = np.ascontiguousarray(x).view(f"u{x.itemsize}").astype(f"u{2 * x.itemsize}")
        pairs *= pairs.dtype.type((1 << 8 * x.itemsize) + 1)
        return pairs.view(x.dtype)
    lines = x.reshape(math.prod(x.shape[: axis + 1]), math.prod(x.shape[axis + 1 :]))
    y = np.empty((len(lines), times, lines.shape[1]), x.dtype)
    for part in range(times):
        y[:, part] = lines
    return y.reshape(*x.shape[:axis], dim * times, *x.shape[axis + 1 :])


MAX_TIMES = 8
FIXED = 1 << 22

_RATIOS: dict[str, Callable[..., float]] = {"not_larger": min, "not_smaller": max}


@kernel("Resize", 11, shape_inputs=(1, 2, 3))
def resize(
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    keep_aspect_ratio_policy: str = "stretch",
) -> Array:
    """x interpolated to other sizes, axis by axis.

    Numerics: whole numbers are cut, as in onnxruntime; with ``antialias`` they are rounded after each axis, the last one first, and
    weights have 22 bits.
    """
    if antialias and mode == "nearest":
        raise ValueError("antialias is for the modes linear and cubic")
    lines = _lines(axes, x.ndim)
    factors, target, real = _sizes([x.shape[axis] for axis in lines], scales, sizes, keep_aspect_ratio_policy)
    if any(factor <= 0 for factor in factors) and x.size:
        raise ValueError("a scale is not positive")
    changed = dict(zip(lines, target, strict=True))
    dims = [changed.get(axis, size) for axis, size in enumerate(x.shape)]
    check_shape(dims, widen(x).dtype, "the result of Resize")
    is_crop = coordinate_transformation_mode == "tf_crop_and_resize"
    if dims == list(x.shape) and not is_crop:  # as onnxruntime does, whatever the factors
        return x.copy()
    edges = None if roi is None or not roi.size else roi.astype(np.float64)
    y = widen(x)
    is_whole = mode != "nearest" and x.dtype.kind in "iu"
    if is_whole:
        y = y.astype(np.float32 if y.dtype.itemsize < 4 and not antialias else np.float64)
    outside: list[tuple[int, Array]] = []
    in_turn = list(enumerate(zip(lines, factors, target, real, strict=True)))
    for place, (axis, factor, size, full) in in_turn[:: -1 if mode == "nearest" or (is_whole and antialias) else 1]:
        low, high = (float(edges[place]), float(edges[place + len(lines)])) if edges is not None else (0.0, 1.0)
        if size == x.shape[axis] and (factor == 1 or antialias) and not is_crop:
            continue
        taps_of = _kept_taps if max(size, x.shape[axis]) <= MOST_KEPT else _taps_of
        rest = mode, nearest_mode, cubic_coeff_a, bool(antialias), bool(exclude_outside)
        position, index, weights, times = taps_of(
            coordinate_transformation_mode, size, full, (low, high), x.shape[axis], factor, *rest
        )
        if is_crop:
            outside.append((axis, (position < 0) | (position > x.shape[axis] - 1)))
        if is_whole and antialias:
            y = _within(np.floor(apply_taps(y, axis, index, np.rint(weights * FIXED) / FIXED) + 0.5), x.dtype)
        else:
            y = _picked(y, axis, index[:, 0], times) if mode == "nearest" else apply_taps(y, axis, index, weights)
    for axis, mask in outside:
        y[(slice(None),) * axis + (mask,)] = extrapolation_value
    if is_whole:
        y = _within(np.trunc(y), x.dtype)
    return np.array(y, dtype=x.dtype) if y is x else np.asarray(y, dtype=x.dtype)


def _within(y: Array, dtype: np.dtype[Any]) -> Array:
    """y, with numbers beyond those of ``dtype`` at its ends."""
    info = np.iinfo(dtype)
    return np.clip(y, info.min, info.max)


def _lines(axes: Sequence[int] | None, rank: int) -> list[int]:
    """The axes, counted from 0; all where none are named. Raises: ValueError out of range and for one named twice."""
    lines = list(range(rank)) if axes is None else [check_axis(axis, rank) for axis in axes]
    if len(set(lines)) < len(lines):
        raise ValueError(f"the axes {lines[:8]} name one twice")
    return lines


def _sizes(
    before: Sequence[int], scales: Array | None, sizes: Array | None, policy: str
) -> tuple[list[float], list[int], list[float]]:
    """The scale of each axis, the size of the result, and that size before it is rounded."""
    if scales is not None and scales.size and sizes is not None and sizes.size:
        raise ValueError("scales and sizes are both given")
    if scales is not None and scales.size:
        factors = [float(item) for item in scales]
        # in float32, as onnxruntime: 10 elements by 0.7 are 7
        real = [float(np.float32(size) * np.float32(factor)) for size, factor in zip(before, factors, strict=True)]
        return factors, [math.floor(size) for size in real], real
    if sizes is None or not sizes.size:
        raise ValueError("neither scales nor sizes are given")
    target = ints(sizes)
    factors = [size / max(old, 1) for old, size in zip(before, target, strict=True)]
    if policy in _RATIOS:
        ratio = _RATIOS[policy](factors)
        factors = [ratio] * len(factors)
        target = [math.floor(ratio * size + 0.5) for size in before]
    return factors, target, [factor * size for size, factor in zip(before, factors, strict=True)]


@kernel("Upsample", 9, shape_inputs=(1,))
@kernel("Resize", 10, shape_inputs=(1,))
def resize_10(x: Array, scales: Array, *, mode: str = "nearest") -> Array:
    """Resize of opset 10, and Upsample, its former name: no roi, asymmetric coordinates, the nearest as onnxruntime has it."""
    return resize(x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="")


@kernel("Upsample", (1, 7))
def upsample_7(
    x: Array,
    *,
    scales: Sequence[float] | None = None,
    height_scale: float = 1.0,
    width_scale: float = 1.0,
    mode: str = "nearest",
) -> Array:
    """Upsample of opsets 1-8: the scales are attributes."""
    factors = list(scales) if scales is not None else [1.0, 1.0, height_scale, width_scale]
    return resize_10(x, np.array(factors, np.float32), mode="linear" if mode == "bilinear" else mode)


@kernel("CenterCropPad", 18, shape_inputs=(1,))
def center_crop_pad(x: Array, shape: Array, *, axes: Sequence[int] | None = None) -> Array:
    """x cut or zero-padded around its centre to ``shape``."""
    lines = _lines(axes, x.ndim)
    before, after = [0] * x.ndim, [0] * x.ndim
    for axis, size in zip(lines, ints(shape), strict=True):
        change = size - x.shape[axis]
        low = change // 2 if change >= 0 else -(-change // 2)
        before[axis], after[axis] = low, change - low
    return pad_array(x, before, after, "constant", None)
