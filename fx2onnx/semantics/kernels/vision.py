"""GridSample, AffineGrid, RoiAlign, NonMaxSuppression, DeformConv, ImageDecoder."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.semantics.kernels.windows import resolve_window
from fx2onnx.semantics.limits import check_bytes, check_shape
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import INT64, Array, narrowed, widen


def _pixel_positions(normalized: Array, dim: int, align_corners: int) -> Array:
    if align_corners:
        return np.asarray((normalized + 1) / 2 * (dim - 1))
    return np.asarray(((normalized + 1) * dim - 1) / 2)


def _reflected(position: Array, low: float, high: float) -> Array:
    span = high - low
    if span <= 0:
        return np.full_like(position, low)
    offset = np.abs(position - low)
    turns = np.floor(offset / span)
    rest = offset - turns * span
    return np.where(turns % 2 == 0, low + rest, high - rest)


def _taps(position: Array, mode: str) -> list[tuple[Array, Array]]:
    """(index, weight) pairs along one axis."""
    if mode == "nearest":
        return [(np.rint(position), np.ones_like(position))]
    base = np.floor(position)
    part = position - base
    if mode == "linear":
        return [(base, 1 - part), (base + 1, part)]
    a = -0.75

    def near(d: Array) -> Array:
        return np.asarray(((a + 2) * d - (a + 3)) * d * d + 1)

    def far(d: Array) -> Array:
        return np.asarray(((a * d - 5 * a) * d + 8 * a) * d - 4 * a)

    weights = (far(part + 1), near(part), near(1 - part), far(2 - part))
    return [(base + step, weight) for step, weight in zip((-1, 0, 1, 2), weights, strict=True)]


OFF_IMAGE = -100.0
"""The position of a tap whose own position is infinite or not a number, as PyTorch has it; its weight is not a number
either."""

_MODES = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic", "nearest": "nearest"}


@kernel("GridSample", 16)
def grid_sample(
    x: Array,
    grid: Array,
    *,
    mode: str = "",
    padding_mode: str = "zeros",
    align_corners: int = 0,
    version: int = 20,
) -> Array:
    """x read at the positions of ``grid``, which count from -1 to 1 over the image.

    Shapes: x [N, C, *dims], grid [N, *out, len(dims)] with the last axis first -> [N, C, *out].
    """
    if mode in (("linear", "cubic") if version < 20 else ("bilinear", "bicubic")):
        raise ValueError(f"mode {mode!r} is of another opset than GridSample-{version}")
    n_axes, mode = x.ndim - 2, mode or "linear"
    if grid.ndim != x.ndim or grid.shape[-1] != n_axes or grid.shape[0] != x.shape[0] or mode not in _MODES:
        raise ValueError(f"a grid of shape {list(grid.shape)} and mode {mode!r} do not fit {list(x.shape)}")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(f"padding_mode is {padding_mode!r}")
    compute = np.float64 if x.dtype == np.float64 else np.float32
    check_shape((*x.shape[:2], *grid.shape[1:-1]), np.dtype(compute), "the result of GridSample")
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1]), compute)
    source = x.astype(compute)
    for sample in range(x.shape[0]):
        lines = []
        for axis in range(n_axes):
            dim = x.shape[2 + axis]
            position = _pixel_positions(grid[sample, ..., n_axes - 1 - axis].astype(compute), dim, align_corners)
            low, high = (0.0, dim - 1.0) if align_corners else (-0.5, dim - 0.5)
            if padding_mode != "zeros" and _MODES[mode] != "cubic":  # a cubic's taps are moved inside one by one
                if padding_mode == "border":
                    position = np.clip(position, 0, dim - 1)
                else:
                    outside = (position < low) | (position > high)
                    position = np.clip(np.where(outside, _reflected(position, low, high), position), 0, dim - 1)
                position = np.where(np.isfinite(position), position, 0)
            taps = []
            for index, weight in _taps(position, _MODES[mode]):
                index = np.where(np.isfinite(index), index, OFF_IMAGE)
                inside = (index >= 0) & (index <= dim - 1)
                if _MODES[mode] == "cubic" and padding_mode != "zeros":
                    if padding_mode == "reflection":
                        index = np.where(inside, index, _reflected(index, low, high))
                    inside = np.ones_like(inside)
                taps.append((np.clip(index, 0, dim - 1).astype(np.int64), weight, inside))
            lines.append(taps)
        for choice in np.ndindex(*(len(taps) for taps in lines)):
            picked = [lines[axis][tap] for axis, tap in enumerate(choice)]
            weight = math.prod((item[1] for item in picked[1:]), start=picked[0][1])
            inside = np.logical_and.reduce([item[2] for item in picked])
            pixels = source[sample][(slice(None), *(item[0] for item in picked))]
            y[sample] += (pixels if inside.all() else np.where(inside, pixels, 0)) * weight
    return narrowed(y, x.dtype)


@kernel("AffineGrid", 20, shape_inputs=(1,))
def affine_grid(theta: Array, size: Array, *, align_corners: int = 0) -> Array:
    """Positions of an output image, turned by the matrices ``theta``. Shapes: [N, d, d + 1] -> [N, *dims, d]."""
    dims = [int(dim) for dim in size[2:]]
    if len(theta) != size[0]:
        raise ValueError(f"theta is for {len(theta)} images, and size says {size[0]}")
    check_shape((theta.shape[0], *dims, len(dims) + 1), np.dtype(np.float64), "the result of AffineGrid")
    wide = widen(theta)
    grid = np.empty((len(theta), *dims, len(dims)), wide.dtype)
    ends = [0 if align_corners and dim > 1 else 1 for dim in dims]
    lines = [(2 * np.arange(dim) + end) / (dim - 1 + end) - 1 for dim, end in zip(dims, ends, strict=True)]
    for row in range(len(dims)):
        *factors, total = np.moveaxis(wide[:, row].reshape(len(theta), -1, *(1,) * len(dims)), 1, 0)
        for number, (factor, line) in enumerate(zip(factors, lines[::-1], strict=True)):
            total = total + factor * line.astype(wide.dtype).reshape(-1, *(1,) * number)
        grid[..., row] = total
    return narrowed(grid, theta.dtype)


@kernel("RoiAlign", 10)
def roi_align(
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
) -> Array:
    """Each region cut into cells; the mean (or maximum) of bilinear samples in each cell."""
    half = coordinate_transformation_mode == "half_pixel" or (coordinate_transformation_mode is None and version >= 16)
    check_shape((len(rois), x.shape[1], output_height, output_width), x.dtype, "the result of RoiAlign")
    y = np.zeros((len(rois), x.shape[1], output_height, output_width), widen(x).dtype)
    if batch_indices.size and batch_indices.min() < 0:
        raise IndexError(f"the batch index {batch_indices.min()} is negative")
    images = widen(x)
    is_finite = bool(np.isfinite(images).all())  # a mean by a matrix product reads numbers that count 0
    for number, (roi, sample) in enumerate(zip(widen(rois), batch_indices.reshape(-1), strict=True)):
        left, top, right, bottom = (float(edge) * spatial_scale - (0.5 if half else 0.0) for edge in roi)
        wide, high = right - left, bottom - top
        if not half:
            wide, high = max(wide, 1.0), max(high, 1.0)
        if sampling_ratio <= 0 and min(wide, high) <= 0:
            continue  # an empty region has no samples
        cells = []
        for start, extent, count, dim in (
            (top, high, output_height, x.shape[2]),
            (left, wide, output_width, x.shape[3]),
        ):
            cell = extent / count
            samples = sampling_ratio if sampling_ratio > 0 else max(math.ceil(cell), 1)
            check_bytes(count * samples * 8, "the samples of RoiAlign")
            points = start + np.arange(count)[:, None] * cell + (np.arange(samples) + 0.5) * cell / samples
            cells.append(_bilinear_taps(points, dim))
        plane = images[int(sample)]
        if mode == "avg" and is_finite:
            rows, columns = (
                _mean_taps(*taps, dim).astype(y.dtype) for taps, dim in zip(cells, x.shape[2:], strict=True)
            )
            y[number] = np.matmul(np.matmul(rows, plane), columns.T)
        else:
            y[number] = _pooled(plane.transpose(1, 2, 0), cells[0], cells[1], mode)
    return narrowed(y, x.dtype)


def _mean_taps(low: Array, high: Array, of_low: Array, of_high: Array, dim: int) -> Array:
    """[cells, dim]: how much each line of the image counts in the mean of a cell's samples."""
    taps = np.zeros((len(low), dim))
    cell = np.arange(len(low))[:, None]
    np.add.at(taps, (cell, low), of_low)
    np.add.at(taps, (cell, high), of_high)
    taps /= max(low.shape[1], 1)
    return taps


def _bilinear_taps(points: Array, dim: int) -> tuple[Array, Array, Array, Array]:
    """Lower and upper index with their weights; zero where the point is off the image."""
    alive = (points >= -1) & (points <= dim)
    clipped = np.clip(points, 0, dim - 1)
    low = np.floor(clipped).astype(np.int64)
    high = np.minimum(low + 1, dim - 1)
    part = clipped - low
    return low, high, (1 - part) * alive, part * alive


def _pooled(plane: Array, rows: Any, columns: Any, mode: str) -> Array:
    """Shapes: plane [H, W, C], as neighbours in memory are read together -> [C, rows, columns]."""
    joined = np.maximum if mode == "max" else np.add
    total: Array | None = None
    for r, of_row in ((rows[0], rows[2]), (rows[1], rows[3])):
        lines = plane.take(r.reshape(-1), 0)
        for c, of_column in ((columns[0], columns[2]), (columns[1], columns[3])):
            weights = of_row.reshape(-1, 1) * of_column.reshape(-1)
            corner = lines.take(c.reshape(-1), 1)
            np.multiply(corner, weights.astype(plane.dtype)[:, :, None], out=corner)
            total = corner if total is None else joined(total, corner, out=total)
    assert total is not None
    samples = total.reshape(*rows[0].shape, *columns[0].shape, plane.shape[2])
    return np.asarray(samples.max(axis=(1, 3)) if mode == "max" else samples.mean(axis=(1, 3))).transpose(2, 0, 1)


@kernel("NonMaxSuppression", 10, shape_inputs=None)
def non_max_suppression(
    boxes: Array,
    scores: Array,
    max_boxes: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    *,
    center_point_box: int = 0,
) -> Array:
    """(batch, class, box) of the best boxes, each overlapping no better one by more than the threshold."""
    return best_boxes(boxes, scores, max_boxes, iou_threshold, score_threshold, center_point_box, _suppressed)


def best_boxes(
    boxes: Array,
    scores: Array,
    max_boxes: Array | None,
    iou_threshold: Array | None,
    score_threshold: Array | None,
    center_point_box: int,
    suppressed: Callable[[Array, float, int], Sequence[int] | Array],
) -> Array:
    """NonMaxSuppression, where ``suppressed`` chooses among the boxes of one class, the best first, by their edges and areas."""
    if center_point_box not in (0, 1):
        raise ValueError(f"center_point_box is {center_point_box}, not 0 or 1")
    if boxes.shape[::2] != (scores.shape[0], 4) or boxes.shape[1] != scores.shape[2]:
        raise ValueError(f"boxes {list(boxes.shape)} do not fit scores {list(scores.shape)}")
    limit = 0 if max_boxes is None else int(max_boxes.reshape(()))
    overlap = 0.0 if iou_threshold is None else float(iou_threshold.reshape(()))
    if center_point_box:
        centre, extent = boxes[..., :2], boxes[..., 2:]
        corners = np.concatenate([centre - extent / 2, centre + extent / 2], axis=-1)
    else:
        corners = boxes
    edges = np.empty((5, *boxes.shape[:2]), corners.dtype)
    np.minimum(corners[..., 0], corners[..., 2], out=edges[0])
    np.minimum(corners[..., 1], corners[..., 3], out=edges[1])
    np.maximum(corners[..., 0], corners[..., 2], out=edges[2])
    np.maximum(corners[..., 1], corners[..., 3], out=edges[3])
    np.multiply(edges[2] - edges[0], edges[3] - edges[1], out=edges[4])
    least = None if score_threshold is None else float(score_threshold.reshape(()))
    chosen = []
    for batch in range(scores.shape[0]):
        for label in range(scores.shape[1]):
            values = scores[batch, label]
            order = np.arange(len(values)) if least is None else np.flatnonzero(values > least)
            order = order[np.argsort(-values[order], kind="stable")]
            best = order[suppressed(edges[:, batch].take(order, 1), overlap, limit)]
            rows = np.empty((len(best), 3), INT64)
            rows[:, 0], rows[:, 1], rows[:, 2] = batch, label, best
            chosen.append(rows)
    return np.concatenate(chosen) if chosen else np.empty((0, 3), INT64)


BLOCK_BOXES = 64
"""Boxes that are compared at a time, with those chosen before and with one another; fewer where few are still to be chosen."""


def _suppressed(edges: Array, overlap: float, limit: int) -> list[int]:
    """The first ``limit`` boxes, in order, of which none overlaps an earlier one by more than ``overlap``."""
    best: list[int] = []
    start, end = 0, edges.shape[1] if limit > 0 else 0
    while start < end and len(best) < limit:
        given = edges[:, start : start + min(BLOCK_BOXES, max(32, 2 * (limit - len(best))))]
        head = np.arange(start, start + given.shape[1])
        start += len(head)
        if best:
            free = np.flatnonzero(~_overlap(given, edges.take(best, 1), overlap).any(1))
            given, head = given.take(free, 1), head[free]
        pairs = _overlap(given, given, overlap)
        pairs &= _LATER[: len(head), : len(head)]
        is_open = np.ones(len(head), np.bool_)
        for number in np.flatnonzero(pairs.any(1)).tolist():
            if is_open[number]:
                np.greater(is_open, pairs[number], out=is_open)
        best.extend(head[is_open].tolist())
    return best[:limit]


_LATER = np.triu(np.ones((BLOCK_BOXES, BLOCK_BOXES), np.bool_), 1)


def _overlap(first: Array, second: Array, overlap: float) -> Array:
    """Return whether a box of the first shares more than ``overlap`` of its union with one of the second; both are edges and area."""
    if overlap < 0:
        return np.ones((first.shape[1], second.shape[1]), np.bool_)
    shared = np.minimum(first[2:4, :, None], second[2:4, None])
    start = np.maximum(first[:2, :, None], second[:2, None])
    np.subtract(shared, start, out=shared)
    start.fill(0)
    np.maximum(shared, start, out=shared)  # faster than with a number
    common, union = np.multiply(shared[0], shared[1], out=shared[0]), shared[1]
    np.add(first[4, :, None], second[4], out=union)
    np.subtract(union, common, out=union)
    with np.errstate(invalid="ignore", divide="ignore"):
        np.divide(common, union, out=common)
    return np.asarray(common > overlap)  # a share of nothing is not a number, and no overlap


@kernel("DeformConv", 19)
def deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """A 2-D convolution whose taps are moved by ``offset`` and weighted by ``mask``."""
    if x.ndim != 4 or x.shape[1] != w.shape[1] * group or x.shape[1] % offset_group or w.shape[0] % group:
        raise ValueError(f"input {list(x.shape)}, weight {list(w.shape)} and groups {group}, {offset_group} do not fit")
    window = resolve_window(x.shape[2:], w.shape[2:], strides, dilations, pads, "NOTSET")
    if offset.shape[2:] != window.out or (kernel_shape and tuple(kernel_shape) != w.shape[2:]):
        raise ValueError(f"offsets {list(offset.shape)} and kernel_shape do not fit an output of {list(window.out)}")
    batch, channels = x.shape[:2]
    outs, kh, kw = w.shape[0], w.shape[2], w.shape[3]
    (dh, dw), (sh, sw) = dilations or (1, 1), strides or (1, 1)
    edges = pads or (0, 0, 0, 0)
    oh, ow = offset.shape[2:]
    moves = offset.reshape(batch, offset_group, kh, kw, 2, oh, ow)
    share = np.ones((batch, offset_group, kh, kw, oh, ow), x.dtype) if mask is None else mask
    share = share.reshape(batch, offset_group, kh, kw, oh, ow)
    taps_h, taps_w = np.arange(kh)[:, None, None, None] * dh, np.arange(kw)[None, :, None, None] * dw
    rows = moves[:, :, :, :, 0] + taps_h + (np.arange(oh) * sh - edges[0])[:, None]
    columns = moves[:, :, :, :, 1] + taps_w + (np.arange(ow) * sw - edges[1])
    per = channels // offset_group
    check_shape((batch, channels, kh, kw, oh, ow), x.dtype, "the columns of DeformConv")
    sampled = np.empty((batch, channels, kh, kw, oh, ow), x.dtype)
    for sample in range(batch):
        for part in range(offset_group):
            plane = x[sample, part * per : (part + 1) * per]
            sampled[sample, part * per : (part + 1) * per] = _bilinear(plane, rows[sample, part], columns[sample, part])
    sampled *= np.repeat(share, per, axis=1)
    columns_flat = sampled.reshape(batch, group, channels // group * kh * kw, oh * ow)
    y = np.matmul(w.reshape(group, outs // group, -1), columns_flat).reshape(batch, outs, oh, ow)
    return np.asarray(y if bias is None else y + bias.reshape(-1, 1, 1))


def _bilinear(plane: Array, rows: Array, columns: Array) -> Array:
    """plane [C, H, W] at real positions; zero outside."""
    (channels, high, wide), r0, c0 = plane.shape, np.floor(rows), np.floor(columns)
    pixels, total = plane.reshape(channels, high * wide), np.zeros((channels, rows.size), plane.dtype)
    for r, wr in ((r0, 1 - (rows - r0)), (r0 + 1, rows - r0)):
        for c, wc in ((c0, 1 - (columns - c0)), (c0 + 1, columns - c0)):
            inside = (r >= 0) & (r < high) & (c >= 0) & (c < wide)
            place = np.where(inside, r * wide + c, 0).astype(np.int64).reshape(-1)
            part = pixels.take(place, axis=1)
            part *= np.where(inside, wr * wc, 0).astype(plane.dtype).reshape(-1)
            total += part
    return total.reshape(channels, *rows.shape)


@kernel("ImageDecoder", 20, shape_inputs=None)
def image_decoder(encoded: Array, *, pixel_format: str = "RGB") -> Array:
    """The image [H, W, C] in an encoded file; empty where it cannot be decoded. Needs Pillow."""
    try:
        import PIL.Image
    except ImportError as error:
        raise UserError("E602", "ImageDecoder needs Pillow", next="pip install pillow") from error
    if pixel_format not in ("RGB", "BGR", "Grayscale"):
        raise ValueError(f"pixel_format is {pixel_format!r}")
    try:
        image = PIL.Image.open(io.BytesIO(encoded.tobytes()))
        check_bytes(image.width * image.height * 4, "the decoded image")
        pixels = np.array(image.convert("L" if pixel_format == "Grayscale" else "RGB"))
    except (OSError, ValueError, SyntaxError):
        return np.zeros((0, 0, 1 if pixel_format == "Grayscale" else 3), np.uint8)
    if pixel_format == "Grayscale":
        return pixels[:, :, None]
    return np.ascontiguousarray(pixels[:, :, ::-1]) if pixel_format == "BGR" else pixels
