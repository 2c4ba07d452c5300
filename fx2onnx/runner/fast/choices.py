"""Choices by numbers, and writes and sums along indices: NonMaxSuppression, TopK, GridSample, ScatterND, CumSum."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.runner.fast.compiled import compiled, f32, i32, ordered
from fx2onnx.semantics.kernels.contrib.arrays import dynamic_time_warping, ways_by_cell
from fx2onnx.semantics.kernels.vision import best_boxes
from fx2onnx.semantics.registry import find_kernel
from fx2onnx.semantics.types import FLOAT32, INT64, Array

BLOCK = 32
"""Boxes that a box is compared with before it is given up."""


@compiled
def _suppressed(edges: Array, overlap: Any, limit: int, chosen: Array, best: Array) -> int:
    """The first boxes, in order, of which none overlaps an earlier one by more; returns how many they are."""
    count = 0
    for box in range(edges.shape[1]):
        if count >= limit:
            break
        top, left, low, right, area = edges[0, box], edges[1, box], edges[2, box], edges[3, box], edges[4, box]
        start, hits = 0, i32(0)
        while start < count and hits == 0:
            end = min(start + BLOCK, count)
            for n in range(start, end):
                high = max(min(low, chosen[2, n]) - max(top, chosen[0, n]), f32(0))
                common = high * max(min(right, chosen[3, n]) - max(left, chosen[1, n]), f32(0))
                hits |= i32(common / (area + chosen[4, n] - common) > overlap)
            start = end
        if hits == 0:
            for side in range(5):
                chosen[side, count] = edges[side, box]
            best[count] = box
            count += 1
    return count


def _choose(edges: Array, overlap: float, limit: int) -> Array:
    size = min(limit, edges.shape[1])
    best, chosen = np.empty(size, INT64), np.empty((5, size), FLOAT32)
    return best[: _suppressed(np.ascontiguousarray(edges), f32(overlap), limit, chosen, best)]


def call_NonMaxSuppression(
    boxes: Array,
    scores: Array,
    max_boxes: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    *,
    center_point_box: int = 0,
) -> Array | None:
    overlap = 0.0 if iou_threshold is None else float(iou_threshold.reshape(()))
    if boxes.dtype != FLOAT32 or not overlap >= 0 or max_boxes is None or int(max_boxes.reshape(())) < 1:
        return None
    if not np.isfinite(boxes).all():
        return None
    return best_boxes(boxes, scores, max_boxes, iou_threshold, score_threshold, center_point_box, _choose)


@compiled
def _sift(heap: Array, size: int) -> None:
    """Put the least key first again after the first was replaced."""
    place, key = 0, heap[0]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = key


@compiled
def _top_k(x: Array, sign: Any, heap: Array, values: Array, places: Array) -> bool:
    """The largest of ``sign`` times each row, in order; of equals, the lower place. False where there is a NaN."""
    count, size = values.shape[1], x.shape[1]
    for r in range(x.shape[0]):
        least = np.int64(-9223372036854775807)
        heap[:count] = least
        for j in range(size):
            number = x[r, j]
            if number != number:
                return False
            bits = i32(0) if number == f32(0) else ordered(sign * number)  # of the two zeros, one
            key = (np.int64(bits) << np.int64(32)) | np.int64(0x7FFFFFFF - j)
            if key > least:
                heap[0] = key
                _sift(heap, count)
                least = heap[0]
        last = count
        while last > 0:
            last -= 1
            key = heap[0]
            j = 0x7FFFFFFF - (key & np.int64(0x7FFFFFFF))
            places[r, last] = j
            values[r, last] = x[r, j]
            heap[0] = heap[last]
            _sift(heap, last)
    return True


def call_TopK(
    x: Array, k: Array | int, *, axis: int = -1, largest: int = 1, sorted: int = 1, **_: Any
) -> tuple[Array, Array] | None:
    if x.dtype != FLOAT32 or not x.ndim or axis not in (-1, x.ndim - 1) or np.size(k) != 1 or not x.size:
        return None
    count, size = int(np.reshape(k, ())), x.shape[-1]
    if not 0 < count <= size or size >= 1 << 31:
        return None
    shape = (*x.shape[:-1], count)
    values, places = np.empty(shape, FLOAT32), np.empty(shape, INT64)
    rows = np.require(x, FLOAT32, ["C", "W"]).reshape(-1, size)
    given = f32(1 if largest else -1), np.empty(count, INT64), values.reshape(-1, count), places.reshape(-1, count)
    return (values, places) if _top_k(rows, *given) else None


_ways = compiled(ways_by_cell)


def _ways_of(costs: Array) -> Array:
    came = np.empty((len(costs) + 1, costs.shape[1] + 1), np.int8)
    _ways(np.require(costs, None, ["C", "W"]), np.empty(costs.shape[1] + 1, costs.dtype), came)
    return came


call_DynamicTimeWarping: Any = partial(dynamic_time_warping, ways=_ways_of)


FAR = 1e4
"""Positions from here on, in half images, and those that are no numbers, are the kernel's."""


@compiled
def _bilinear(x: Array, grid: Array, scale: Any, shift: Any, y: Array) -> None:
    """Shapes: x [C, H, W], grid [positions, 2], y [C, positions]; a position is ((g + 1) * size * scale) - shift, as both alignments have it."""
    channels, high, wide = x.shape
    for p in range(grid.shape[0]):
        u = (grid[p, 0] + f32(1)) * f32(0.5) * (f32(wide) - scale) - shift
        v = (grid[p, 1] + f32(1)) * f32(0.5) * (f32(high) - scale) - shift
        left, top = np.floor(u), np.floor(v)
        a, b = u - left, v - top
        j, i = i32(left), i32(top)
        is_left, is_right, is_top, is_low = 0 <= j < wide, -1 <= j < wide - 1, 0 <= i < high, -1 <= i < high - 1
        for c in range(channels):
            total = f32(0)
            if is_top and is_left:
                total += x[c, i, j] * ((f32(1) - a) * (f32(1) - b))
            if is_top and is_right:
                total += x[c, i, j + 1] * (a * (f32(1) - b))
            if is_low and is_left:
                total += x[c, i + 1, j] * ((f32(1) - a) * b)
            if is_low and is_right:
                total += x[c, i + 1, j + 1] * (a * b)
            y[c, p] = total


def call_GridSample(
    x: Array, grid: Array, *, mode: str = "", padding_mode: str = "zeros", align_corners: int = 0, version: int = 20
) -> Array | None:
    if x.dtype != FLOAT32 or grid.dtype != FLOAT32 or x.ndim != 4 or grid.ndim != 4 or padding_mode != "zeros":
        return None
    if (
        mode not in ("", "bilinear" if version < 20 else "linear")
        or grid.shape[-1] != 2
        or len(grid) != len(x)
        or not x.size
    ):
        return None
    if not (np.abs(grid) < FAR).all():
        return None
    y = np.empty((*x.shape[:2], *grid.shape[1:3]), FLOAT32)
    image, places = np.require(x, FLOAT32, ["C", "W"]), np.require(grid, FLOAT32, ["C", "W"])
    scale, shift = (f32(1), f32(0)) if align_corners else (f32(0), f32(0.5))
    flat = places.reshape(len(x), math.prod(grid.shape[1:3]), 2)
    for sample in range(len(x)):
        _bilinear(image[sample], flat[sample], scale, shift, y[sample].reshape(x.shape[1], -1))
    return y


ADD, MUL, MAX, MIN = range(4)
_KINDS = {"add": ADD, "mul": MUL, "max": MAX, "min": MIN}
_TYPES = frozenset((FLOAT32, INT64, np.dtype(np.float64), np.dtype(np.int32)))


@compiled
def _places(indices: Array, dims: Array, places: Array) -> bool:
    """The rows of the index tuples; False where one is out of range."""
    for i in range(indices.shape[0]):
        place = 0
        for axis in range(indices.shape[1]):
            index, size = indices[i, axis], dims[axis]
            if index < -size or index >= size:
                return False
            place = place * size + (index + size if index < 0 else index)
        places[i] = place
    return True


@compiled
def _reduced(y: Array, places: Array, updates: Array, kind: int) -> None:
    """Shapes: y [rows, numbers], updates [places, numbers]. NaN wins over all."""
    for i in range(updates.shape[0]):
        target, given = y[places[i]], updates[i]
        for j in range(given.size):
            now, new = target[j], given[j]
            if kind == ADD:
                target[j] = now + new
            elif kind == MUL:
                target[j] = now * new
            elif kind == MAX:
                target[j] = new if new > now or new != new else now
            else:
                target[j] = new if new < now or new != new else now


def call_ScatterND(x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array | None:
    if reduction not in _KINDS or x.dtype not in _TYPES or updates.dtype != x.dtype or indices.dtype != INT64:
        return None
    depth = indices.shape[-1] if indices.ndim else 0
    if (
        not 0 < depth <= x.ndim
        or updates.shape != indices.shape[:-1] + x.shape[depth:]
        or not updates.size
        or not x.size
    ):
        return None
    row, places = math.prod(x.shape[depth:]), np.empty(math.prod(indices.shape[:-1]), INT64)
    tuples = np.require(indices, None, ["C", "W"]).reshape(-1, depth)
    if not _places(tuples, np.array(x.shape[:depth], INT64), places):
        return None
    y, given = np.array(x, order="C"), np.require(updates, None, ["C", "W"])
    _reduced(y.reshape(-1, row), places, given.reshape(-1, row), _KINDS[reduction])
    return y


@compiled
def _running_sums(y: Array) -> None:
    """Shapes: y [lines, count, numbers], summed along the second axis in place."""
    for n in range(y.shape[0]):
        for i in range(1, y.shape[1]):
            last, line = y[n, i - 1], y[n, i]
            for j in range(line.size):
                line[j] += last[j]


def _accumulated(ufunc: Any, x: Array, axis: int) -> Array:
    y = np.array(x, order="C")
    if y.dtype not in (np.float32, np.int64):
        return np.asarray(ufunc.accumulate(y, axis=axis, dtype=y.dtype))
    _running_sums(y.reshape(math.prod(y.shape[:axis]), y.shape[axis], math.prod(y.shape[axis + 1 :])))
    return y


def call_CumSum(x: Array, axis: Array, **attrs: Any) -> Array:
    kernel = find_kernel("", "CumSum", 14)
    assert kernel is not None
    y: Array = kernel.fn(x, axis, accumulate=_accumulated, **attrs)
    return y
