"""Regions of images: RoiAlign, MaxRoiPool and CropAndResize."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.runner.fast.compiled import compiled, f32, i32
from fx2onnx.semantics.kernels.contrib.arrays import crop_and_resize, cropped
from fx2onnx.semantics.kernels.pool import region_cells
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.types import FLOAT32, INT64, Array

MOST_SAMPLES = 1 << 12
"""Samples of all cells along an axis; of more, the kernel checks that they fit into memory."""


@compiled
def _taps(start: Any, cell: Any, samples: int, dim: int, places: Array, weights: Array) -> None:
    """The two lines of each point, and how much they count: nothing where the point is off the image.

    Shapes: places, weights [cells * samples, 2].
    """
    for n in range(places.shape[0]):
        point = start + (n // samples) * cell + (n % samples + 0.5) * cell / samples
        is_inside = -1 <= point <= dim
        clipped = min(max(point, 0.0), dim - 1.0)
        low = int(clipped)
        part = clipped - low
        places[n, 0], places[n, 1] = low, min(low + 1, dim - 1)
        weights[n, 0], weights[n, 1] = (f32(1 - part), f32(part)) if is_inside else (f32(0), f32(0))


@compiled
def _pooled(plane: Array, rows: Array, by_row: Array, columns: Array, by_column: Array, is_max: bool, y: Array) -> None:
    """Shapes: plane [H, W], rows, columns [cells * samples, 2], y [rows of cells, columns of cells]."""
    high, wide = rows.shape[0] // y.shape[0], columns.shape[0] // y.shape[1]
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            total = f32(-np.inf) if is_max else f32(0)
            for a in range(i * high, (i + 1) * high):
                for side in range(2):
                    line, share = plane[rows[a, side]], by_row[a, side]
                    for b in range(j * wide, (j + 1) * wide):
                        first = line[columns[b, 0]] * (share * by_column[b, 0])
                        second = line[columns[b, 1]] * (share * by_column[b, 1])
                        if is_max:
                            total = first if first > total or first != first else total
                            total = second if second > total or second != second else total
                        else:
                            total += first + second
            y[i, j] = total if is_max else total / f32(high * wide)


@compiled
def _aligned(x: Array, samples: Array, edges: Array, counts: Array, is_max: bool, y: Array) -> None:
    """Shapes: x [N, C, H, W], edges [regions, 4] top, left, height, width of a cell, counts [regions, 2], y [regions, C, oh, ow]."""
    oh, ow = y.shape[2:]
    for n in range(y.shape[0]):
        high, wide = counts[n, 0], counts[n, 1]
        rows, by_row = np.empty((oh * high, 2), np.int64), np.empty((oh * high, 2), np.float32)
        columns, by_column = np.empty((ow * wide, 2), np.int64), np.empty((ow * wide, 2), np.float32)
        _taps(edges[n, 0], edges[n, 2], high, x.shape[2], rows, by_row)
        _taps(edges[n, 1], edges[n, 3], wide, x.shape[3], columns, by_column)
        for c in range(x.shape[1]):
            _pooled(x[samples[n], c], rows, by_row, columns, by_column, is_max, y[n, c])


def call_RoiAlign(
    x: Array,
    rois: Array,
    batch_indices: Array,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    coordinate_transformation_mode: str | None = None,
    version: int = 16,
) -> Array | None:
    half = coordinate_transformation_mode == "half_pixel" or (coordinate_transformation_mode is None and version >= 16)
    samples, dims = batch_indices.reshape(-1), (output_height, output_width)
    if x.dtype != FLOAT32 or rois.dtype != FLOAT32 or x.ndim != 4 or not x.size or rois.shape != (len(samples), 4):
        return None
    if not samples.size or min(dims) < 1 or samples.min() < 0 or samples.max() >= len(x) or not np.isfinite(rois).all():
        return None
    check_shape((len(rois), x.shape[1], *dims), x.dtype, "the result of RoiAlign")
    corners = rois.astype(np.float64) * spatial_scale - (0.5 if half else 0.0)
    extent = corners[:, [3, 2]] - corners[:, [1, 0]]
    cells = (extent if half else np.maximum(extent, 1.0)) / np.array(dims)
    counts = np.maximum(np.ceil(cells), 1) if sampling_ratio <= 0 else np.full(cells.shape, float(sampling_ratio))
    if (counts * dims).max() > MOST_SAMPLES:
        return None
    y = np.empty((len(rois), x.shape[1], *dims), FLOAT32)
    edges = np.concatenate([corners[:, [1, 0]], cells], axis=1)
    image = np.require(x, FLOAT32, ["C", "W"])
    _aligned(image, samples.astype(INT64), edges, counts.astype(INT64), mode == "max", y)
    if sampling_ratio <= 0:
        y[(cells <= 0).any(axis=1)] = 0  # an empty region has no samples
    return y


@compiled
def _largest(x: Array, samples: Array, rows: Array, columns: Array, line: Array, y: Array) -> None:
    """Shapes: x [N, C, H, W], rows [regions, oh, 2], columns [regions, ow, 2], line [W], y [regions, C, oh, ow]. NaN wins over all."""
    for n in range(y.shape[0]):
        left, right = columns[n, 0, 0], columns[n, -1, 1]
        for c in range(x.shape[1]):
            plane = x[samples[n], c]
            for i in range(y.shape[2]):
                top, low = rows[n, i]
                for b in range(left, right):
                    line[b] = plane[top, b] if top < low else f32(0)
                for a in range(top + 1, low):
                    for b in range(left, right):
                        new = plane[a, b]
                        line[b] = new if new > line[b] or new != new else line[b]
                for j in range(y.shape[3]):
                    start, end = columns[n, j]
                    best = line[start] if start < end else f32(0)
                    for b in range(start + 1, end):
                        best = line[b] if line[b] > best or line[b] != line[b] else best
                    y[n, c, i, j] = best


def call_MaxRoiPool(x: Array, rois: Array, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0) -> Array | None:
    dims = tuple(pooled_shape)
    if (
        x.dtype != FLOAT32
        or rois.dtype != FLOAT32
        or x.ndim != 4
        or rois.ndim != 2
        or rois.shape[1] != 5
        or not rois.size
    ):
        return None
    if not x.size or min(dims) < 1 or math.prod(dims) > MOST_SAMPLES or not (np.abs(rois) < 1e6).all():
        return None
    samples = rois[:, 0].astype(INT64)
    if samples.min() < 0 or samples.max() >= len(x):
        return None
    check_shape((len(rois), x.shape[1], *dims), x.dtype)
    y = np.empty((len(rois), x.shape[1], *dims), FLOAT32)
    rows, columns = region_cells(rois[:, 1:], spatial_scale, dims, x.shape[2:])
    _largest(np.require(x, FLOAT32, ["C", "W"]), samples, rows, columns, np.empty(x.shape[3], FLOAT32), y)
    return y


@compiled
def _crop(x: Array, rows: Array, columns: Array, samples: Array, value: Any, places: Array, y: Array) -> None:
    """Bilinear. Shapes: x [N, C, H, W], rows [boxes, high], columns [boxes, wide], y [boxes, C, high, wide]; places [2, wide] is scratch."""
    tall, broad = x.shape[2] - 1, x.shape[3] - 1
    for box in range(len(y)):
        for j in range(y.shape[3]):
            u = columns[box, j]
            is_inside = u >= f32(0) and u <= f32(broad)
            places[0, j] = i32(np.floor(u)) if is_inside else i32(-1)
            places[1, j] = i32(np.ceil(u)) if is_inside else i32(-1)
        for c in range(y.shape[1]):
            image = x[samples[box], c]
            for i in range(y.shape[2]):
                v, line = rows[box, i], y[box, c, i]
                if not (v >= f32(0) and v <= f32(tall)):
                    line[:] = value
                    continue
                top, bottom = image[i32(np.floor(v))], image[i32(np.ceil(v))]
                down = v - np.floor(v)
                for j in range(line.size):
                    left, right = places[0, j], places[1, j]
                    if left < 0:
                        line[j] = value
                        continue
                    across = columns[box, j] - f32(left)
                    above = top[left] * (f32(1) - across) + top[right] * across
                    below = bottom[left] * (f32(1) - across) + bottom[right] * across
                    line[j] = above * (f32(1) - down) + below * down


def _crop_of(x: Array, rows: Array, columns: Array, samples: Array, value: float, mode: str) -> Array:
    if x.dtype != FLOAT32 or mode != "bilinear":
        return cropped(x, rows, columns, samples, value, mode)
    y, room = (
        np.empty((len(rows), x.shape[1], rows.shape[1], columns.shape[1]), FLOAT32),
        np.empty((2, columns.shape[1]), i32),
    )
    image, rows, columns = (np.require(one, FLOAT32, ["C", "W"]) for one in (x, rows, columns))
    _crop(image, rows, columns, np.require(samples, np.int32, ["C", "W"]), f32(value), room, y)
    return y


call_CropAndResize: Any = partial(crop_and_resize, crop=_crop_of)
