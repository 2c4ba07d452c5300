"""onnxruntime's operators on arrays in general: those that ONNX took over later, and small ones of single models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.contrib import MICROSOFT
from fx2onnx.semantics.kernels.conv import conv_transpose
from fx2onnx.semantics.kernels.gather import gather_nd
from fx2onnx.semantics.kernels.norm import check_axis
from fx2onnx.semantics.kernels.pool import pool_window
from fx2onnx.semantics.kernels.shape import ints, pad, slice_, trilu
from fx2onnx.semantics.kernels.vision import grid_sample
from fx2onnx.semantics.kernels.windows import pad_spatial, required_after, window_view
from fx2onnx.semantics.limits import check_shape, count_iteration
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import INT64, Array, narrowed, widen

kernel("GatherND", domain=MICROSOFT)(gather_nd)
kernel("Trilu", domain=MICROSOFT)(trilu)
kernel("DynamicSlice", kind="view", shape_inputs=(1, 2, 3))(slice_)


def _number(value: Array, name: str) -> Any:
    if value.size != 1:
        raise ValueError(f"{name} has the shape {list(value.shape)}; it must be one number")
    return value.reshape(())[()]


@kernel("Range", domain=MICROSOFT, shape_inputs=(0, 1, 2))
def range_of_microsoft(start: Array, limit: Array, delta: Array | None = None) -> Array:
    """start, start + delta and so on, up to ``limit``, which is not among them."""
    first, last = _number(start, "start"), _number(limit, "limit")
    step = start.dtype.type(1) if delta is None else _number(delta, "delta")
    if step == 0:
        raise ValueError("delta is 0")
    count = max(math.ceil((float(last) - float(first)) / float(step)), 0)
    check_shape((count,), start.dtype)
    return np.asarray(first + np.arange(count, dtype=start.dtype) * step, start.dtype)


@kernel("ExpandDims", domain=MICROSOFT, shape_inputs=(1,))
def expand_dims(x: Array, axis: Array) -> Array:
    """x with an axis of size 1 before ``axis``."""
    return np.expand_dims(x, check_axis(int(_number(axis, "axis")), x.ndim + 1)).copy()


@kernel("Pad", domain=MICROSOFT, shape_inputs=(1,))
def pad_of_microsoft(x: Array, pads: Array, value: Array | None = None, *, mode: str = "constant") -> Array:
    """Pad, whose ``pads`` may be a row and whose value a list of one."""
    fill = None if value is None else value.reshape(())
    return pad(x, pads.reshape(-1), fill, mode=mode)


@kernel("GridSample", domain=MICROSOFT)
def grid_sample_of_microsoft(
    x: Array, grid: Array, *, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: int = 0
) -> Array:
    """GridSample of opset 16."""
    return grid_sample(x, grid, mode=mode, padding_mode=padding_mode, align_corners=align_corners, version=16)


@kernel("Inverse", domain=MICROSOFT)
def inverse(x: Array) -> Array:
    """The inverse of the last two axes."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"an input of shape {list(x.shape)} holds no square matrices")
    return narrowed(np.linalg.inv(widen(x)), x.dtype)


@kernel("SampleOp", domain=MICROSOFT)
def sample_op(x: Array) -> Array:
    """x itself."""
    return x.copy()


@kernel("CDist", domain=MICROSOFT)
def cdist(a: Array, b: Array, *, metric: str = "sqeuclidean") -> Array:
    """The distance of each row of a to each row of b."""
    if metric not in ("sqeuclidean", "euclidean"):
        raise NotImplementedError(f"the metric {metric!r} is not computed, as in onnxruntime")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"rows of {list(a.shape)} and {list(b.shape)} do not fit")
    check_shape((len(a), len(b)), a.dtype)
    square = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * (a @ b.T)
    np.maximum(square, 0, out=square)
    return np.asarray(np.sqrt(square) if metric == "euclidean" else square)


@kernel("UnfoldTensor", domain=MICROSOFT)
def unfold_tensor(x: Array, *, size: int, dim: int = -1, step: int = 1) -> Array:
    """All slices of ``size`` along ``dim``, ``step`` apart, in a last axis."""
    axis = check_axis(dim, x.ndim)
    if not 0 < size <= x.shape[axis] or step < 1:
        raise ValueError(f"slices of {size}, {step} apart, of an axis of {x.shape[axis]}")
    windows = np.lib.stride_tricks.sliding_window_view(x, size, axis)
    cut = (slice(None),) * axis + (slice(None, None, step),)
    check_shape(windows[cut].shape, x.dtype)
    return np.array(windows[cut], order="C")


@kernel("Unique", domain=MICROSOFT, shape_inputs=None)
def unique_of_microsoft(x: Array) -> tuple[Array, Array, Array]:
    """The different values in the order in which they come, where each element is among them, and how often each comes."""
    if x.ndim != 1:
        raise ValueError(f"the input has {x.ndim} axes, it must have 1")
    values, first, where, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return values[order], rank[where.reshape(-1)].astype(INT64), counts[order].astype(INT64)


@kernel("NGramRepeatBlock", domain=MICROSOFT)
def ngram_repeat_block(input_ids: Array, scores: Array, *, ngram_size: int) -> Array:
    """scores, minus infinity for each token that would end an n-gram of its row a second time."""
    if input_ids.ndim != 2 or scores.ndim != 2 or len(input_ids) != len(scores) or ngram_size < 1:
        raise ValueError(
            f"ids {list(input_ids.shape)}, scores {list(scores.shape)} and n-grams of {ngram_size} do not fit"
        )
    y = scores.copy()
    length = input_ids.shape[1]
    if length + 1 < ngram_size:
        return y
    starts = length - ngram_size + 1
    is_end = np.ones((len(scores), starts), np.bool_)
    for place in range(ngram_size - 1):
        count_iteration()
        is_end &= input_ids[:, place : place + starts] == input_ids[:, starts + place, None]
    rows, ends = np.nonzero(is_end)
    tokens = input_ids[rows, ends + ngram_size - 1]
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < y.shape[1]:
        raise IndexError(f"the ids {tokens.min()} to {tokens.max()} are out of range for {y.shape[1]} scores")
    y[rows, tokens] = -np.inf
    return y


@kernel("BifurcationDetector", domain=MICROSOFT, shape_inputs=None)
def bifurcation_detector(
    source: Array,
    current: Array,
    before: Array,
    predicted: Array | None = None,
    *,
    min_ngram_size: int = 1,
    max_ngram_size: int = 3,
) -> tuple[Array, Array]:
    """``current`` with the predicted tokens up to where they leave the source; where its last n-gram is in the source."""
    tokens = current
    if predicted is not None:
        start = int(_number(before, "prev_suffix_match_idx"))
        n_source = len(source)
        if len(predicted) != n_source + 1 - start:
            raise ValueError(f"{len(predicted)} predicted tokens for {n_source} source tokens from {start} on")
        same = predicted[:-1] == source[start:]
        agreed = int(np.argmin(same)) if not same.all() else len(same)
        tokens = np.concatenate([current, predicted[: agreed + 1]])
    match = -1
    for size in range(min_ngram_size, max_ngram_size + 1):
        if size > len(tokens):
            break
        gram = tokens[len(tokens) - size :]
        if len(source) < size:
            match = -1
            continue
        hits = np.flatnonzero((np.lib.stride_tricks.sliding_window_view(source, size) == gram).all(1))
        if not len(hits):
            break
        match = int(hits[0]) + size if len(hits) == 1 else -1
        if match >= 0:
            break
    return tokens.copy(), np.asarray(match, INT64)


def ways_by_cell(costs: Array, total: Array, came: Array) -> None:
    """``_ways`` of one cell after the other.

    Shapes: costs [rows, columns]; total [columns + 1], minus the row that was last; came [rows + 1, columns + 1].
    """
    for j in range(total.size):
        total[j] = np.inf
    total[0] = 0
    for i in range(costs.shape[0]):
        across = total[0]
        total[0] = np.inf
        for j in range(costs.shape[1]):
            up, left = total[j + 1], total[j]
            way, least = 2, left
            if across < up and across < left:
                way, least = 0, across
            elif up < across and up < left:
                way, least = 1, up
            across = up
            total[j + 1] = costs[i, j] + least
            came[i + 1, j + 1] = way


def _ways(costs: Array) -> Array:
    """[rows + 1, columns + 1]: from where the cheapest path comes to each cell: across 0, from above 1, from the left 2, and that
    where the other two are alike.

    One diagonal at a time, so that all numbers that it needs are there.
    """
    rows, columns = costs.shape
    came = np.empty((rows + 1, columns + 1), np.int8)
    count_iteration(rows + columns)
    if np.isnan(costs).any():
        count_iteration(costs.size)
        ways_by_cell(costs, np.empty(columns + 1, costs.dtype), came)
        return came
    least, are_alike, infinite = np.empty(rows, costs.dtype), np.empty(rows, np.bool_), np.asarray(np.inf, costs.dtype)
    for may_tie in (False, True):
        totals = np.full((rows + columns + 1, rows + 1), np.inf, costs.dtype)
        _skewed(totals[2:, 1:], columns)[...] = costs
        totals[0, 0] = 0
        across, up, left = totals[:-2, :-1], totals[1:-1, :-1], totals[1:-1, 1:]
        for one, above, beside, new in zip(across, up, left, totals[2:, 1:], strict=True):
            np.minimum(one, above, out=least)
            if may_tie:
                np.copyto(least, infinite, where=np.equal(one, above, are_alike))
            np.add(new, np.minimum(least, beside, out=least), new)
        is_across, is_up = across < np.minimum(up, left), up < np.minimum(across, left)
        if not ((across == up) & (across < left)).any():
            break
    ways = np.int8(2) - is_up - np.int8(2) * is_across
    came[1:, 1:] = _skewed(ways, columns)
    return came


def _skewed(diagonals: Array, columns: int) -> Array:
    """[rows, columns] of an array whose row i + j holds them at place i."""
    along, across = diagonals.strides
    return np.lib.stride_tricks.as_strided(diagonals, (diagonals.shape[1], columns), (along + across, along))


@kernel("DynamicTimeWarping", domain=MICROSOFT, shape_inputs=None)
def dynamic_time_warping(costs: Array, *, ways: Callable[[Array], Array] = _ways) -> Array:
    """[2, n]: the cheapest path from the first to the last cell of a matrix [M, N] of costs."""
    matrix = costs[0] if costs.ndim == 3 and len(costs) == 1 else costs
    if matrix.ndim != 2:
        raise ValueError(f"costs of shape {list(costs.shape)}; they must be [M, N] or [1, M, N]")
    rows, columns = matrix.shape
    came = ways(np.ascontiguousarray(matrix))
    path = []
    row, column = rows, columns
    while row > 0 and column > 0:
        path.append((row - 1, column - 1))
        way = came[row, column]
        row, column = row - (way != 2), column - (way != 1)
    return np.asarray(path[::-1], np.int32).reshape(-1, 2).T.copy()


def cropped(x: Array, rows: Array, columns: Array, batch_indices: Array, value: float, mode: str) -> Array:
    """The images at the positions of their boxes. Shapes: x [N, C, H, W], rows [boxes, high], columns [boxes, wide]."""
    rows, columns, limit = rows[:, :, None], columns[:, None], np.asarray(x.shape[2:]) - 1
    inside = (rows >= 0) & (rows <= limit[0]) & (columns >= 0) & (columns <= limit[1])
    rows, columns = (np.clip(np.nan_to_num(one), 0, most) for one, most in zip((rows, columns), limit, strict=True))
    images, sample = np.ascontiguousarray(x.transpose(0, 2, 3, 1)), batch_indices[:, None, None]
    if mode == "nearest":
        y = images[sample, (rows + 0.5).astype(int), (columns + 0.5).astype(int)]
    else:
        top, left, bottom, right = (f(one).astype(int) for f in (np.floor, np.ceil) for one in (rows, columns))
        down, across = (rows - top).astype(x.dtype)[..., None], (columns - left).astype(x.dtype)[..., None]
        pixels, start = images.reshape(-1, x.shape[1]), sample * math.prod(x.shape[2:])
        lines = []
        for line in (start + top * x.shape[3], start + bottom * x.shape[3]):
            near, far = (pixels.take(line + column, 0) for column in (left, right))
            near *= 1 - across
            far *= across
            lines.append(np.add(near, far, out=near))
        lines[0] *= 1 - down
        lines[1] *= down
        y = np.add(lines[0], lines[1], out=lines[0])
    y = np.where(inside[..., None], y, np.asarray(value, x.dtype))
    return np.ascontiguousarray(y.transpose(0, 3, 1, 2))


@kernel("CropAndResize", domain=MICROSOFT, shape_inputs=(3,))
def crop_and_resize(
    x: Array,
    rois: Array,
    batch_indices: Array,
    crop_size: Array,
    *,
    mode: str = "bilinear",
    extrapolation_value: float = 0.0,
    crop: Callable[..., Array] = cropped,
) -> Array:
    """Boxes [y1, x1, y2, x2] of images, in shares of their sizes, each resized to ``crop_size``."""
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 4 or batch_indices.shape != (len(rois),):
        raise ValueError(f"images {list(x.shape)}, boxes {list(rois.shape)} and {list(batch_indices.shape)} do not fit")
    if mode not in ("bilinear", "nearest"):
        raise ValueError(f"the mode is {mode!r}")
    high, wide = ints(crop_size)
    if high < 1 or wide < 1:
        raise ValueError(f"crop_size is {[high, wide]}")
    if len(rois) and not 0 <= batch_indices.min() <= batch_indices.max() < len(x):
        raise IndexError(f"batch_indices up to {batch_indices.max()} for {len(x)} images")
    check_shape((len(rois), x.shape[1], high, wide), x.dtype)
    if not x.size:
        return np.full((len(rois), x.shape[1], high, wide), extrapolation_value, x.dtype)
    edges = rois.astype(np.float32)
    rows = _places(edges[:, 0], edges[:, 2], high, x.shape[2])
    columns = _places(edges[:, 1], edges[:, 3], wide, x.shape[3])
    return crop(x, rows, columns, batch_indices, extrapolation_value, mode)


def _places(low: Array, top: Array, count: int, size: int) -> Array:
    """[boxes, count]: the positions on an axis of the points of each box, in float32; the first and the last are the box's own ends."""
    if count == 1:
        return np.asarray(0.5 * (low + top) * (size - 1), np.float32)[:, None]
    most = np.float32(size - 1)
    step = (top - low) * most / np.float32(count - 1)
    places = (low * most)[:, None] + np.arange(count, dtype=np.float32) * step[:, None]
    places[:, 0], places[:, -1] = low * most, top * most
    return np.asarray(places)


@kernel("MaxpoolWithMask", domain=MICROSOFT)
def maxpool_with_mask(x: Array, mask: Array, **attrs: Any) -> Array:
    """The maximum of each window; a row of it ends before the first element where the mask is 0, as in onnxruntime.

    Shapes: x [N, C, *dims], mask broadcastable to it; the first element of a plane counts whatever its mask.
    """
    window = pool_window(x.shape, attrs["kernel_shape"], attrs)
    check_shape((*x.shape[:2], *window.out, *window.kernel), x.dtype)
    allowed = np.broadcast_to(mask != 0, x.shape).copy()
    allowed.reshape(*x.shape[:2], -1)[..., :1] = True
    after = required_after(x.shape[2:], window)
    alive = window_view(pad_spatial(allowed, window.before, after, True), window)
    lowest = np.finfo(x.dtype).min
    seen = window_view(pad_spatial(x, window.before, after, lowest), window)
    kept = np.where(np.logical_and.accumulate(alive, axis=-1), seen, lowest)
    return np.asarray(kept.max(axis=tuple(range(2 + len(window.out), kept.ndim))))


@kernel("ConvTransposeWithDynamicPads", domain=MICROSOFT, shape_inputs=(2,))
def conv_transpose_with_dynamic_pads(
    x: Array, w: Array, pads: Array | None = None, bias: Array | None = None, **attrs: Any
) -> Array:
    """ConvTranspose, whose pads are an input."""
    given: dict[str, Any] = {} if pads is None else {"pads": ints(pads)}
    return conv_transpose(x, w, bias, **attrs, **given)


@kernel("Affine")
def affine(x: Array, *, alpha: float = 1.0, beta: float = 0.0) -> Array:
    """alpha * x + beta, of ONNX before opset 7."""
    return narrowed(widen(x) * np.float32(alpha) + np.float32(beta), x.dtype)


@kernel("Scale")
def scale(x: Array, *, scale: float = 1.0) -> Array:
    """scale * x, of ONNX before opset 7."""
    return narrowed(widen(x) * np.float32(scale), x.dtype)


@kernel("ScaledTanh")
def scaled_tanh(x: Array, *, alpha: float = 1.0, beta: float = 1.0) -> Array:
    """alpha * tanh(beta * x), of ONNX before opset 7."""
    return narrowed(np.float32(alpha) * np.tanh(np.float32(beta) * widen(x)), x.dtype)


@kernel("ParametricSoftplus")
def parametric_softplus(x: Array, *, alpha: float = 1.0, beta: float = 1.0) -> Array:
    """alpha * log(1 + exp(beta * x)), of ONNX before opset 7."""
    return narrowed(np.float32(alpha) * np.logaddexp(0, np.float32(beta) * widen(x)), x.dtype)


@kernel("ImageScaler")
def image_scaler(x: Array, *, scale: float = 1.0, bias: Sequence[float] = ()) -> Array:
    """scale * x + bias of each channel, of ONNX before opset 7."""
    if x.ndim != 4 or len(bias) != x.shape[1]:
        raise ValueError(f"an input of shape {list(x.shape)} and {len(bias)} numbers in bias")
    shift = np.asarray(bias, np.float32).reshape(-1, 1, 1)
    return narrowed(widen(x) * np.float32(scale) + shift, x.dtype)


@kernel("Crop")
def crop(x: Array, *, border: Sequence[int], scale: Sequence[int] | None = None) -> Array:
    """Images without a border (left, top, right, bottom), or ``scale`` (height, width) from its corner; of ONNX before opset 7."""
    if x.ndim != 4 or len(border) != 4 or min(border) < 0 or (scale is not None and len(scale) != 2):
        raise ValueError(f"an input of shape {list(x.shape)}, border {list(border)}")
    left, top, right, bottom = border
    stops = (x.shape[2] - bottom, x.shape[3] - right) if scale is None else (top + scale[0], left + scale[1])
    if not (top <= stops[0] <= x.shape[2] and left <= stops[1] <= x.shape[3]):
        raise ValueError(f"border {list(border)} and scale {scale} do not fit {list(x.shape)}")
    return x[:, :, top : stops[0], left : stops[1]].copy()
