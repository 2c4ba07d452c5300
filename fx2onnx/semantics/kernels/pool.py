"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.windows import Window, pad_spatial, required_after, resolve_window, window_view
from fx2onnx.semantics.limits import check_shape, count_iteration
from fx2onnx.semantics.registry import Facts, Prepared, kernel
from fx2onnx.semantics.types import INT64, NARROW_FLOATS, Array, Shape, Spec, narrowed, widen


def pool_window(
    shape: Shape, kernel_shape: Sequence[int], attrs: Mapping[str, Any], may_exceed: bool = False
) -> Window:
    if len(shape) < 3:
        raise ValueError(f"the input has {len(shape)} axes, pooling needs 3 or more")
    window = resolve_window(
        shape[2:],
        kernel_shape,
        attrs.get("strides"),
        attrs.get("dilations"),
        attrs.get("pads"),
        attrs.get("auto_pad", "NOTSET"),
        attrs.get("ceil_mode", 0) == 1,
        may_exceed,
    )
    given = zip(window.kernel * 2, attrs.get("pads") or (), strict=False)
    if any(pad >= size for size, pad in given):
        raise ValueError(f"pads are {list(attrs['pads'])}; they must be smaller than the kernel, {list(window.kernel)}")
    return window


def _lowest(x: Array) -> Any:
    return -np.inf if x.dtype.kind == "f" or x.dtype in NARROW_FLOATS else np.iinfo(x.dtype).min


def over_windows(x: Array, window: Window, combine: np.ufunc, fill: Any) -> Array:
    """The elements of each window combined, axis by axis: k passes an axis instead of k * k."""
    y = pad_spatial(x, window.before, required_after(x.shape[2:], window), fill)
    axes = list(enumerate(zip(window.kernel, window.strides, window.dilations, window.out, strict=True), 2))
    is_flat = y.flags.c_contiguous
    for axis, (size, stride, dilation, _) in axes if is_flat else ():
        if stride == 1:
            y = _over_flat(y, size, dilation * math.prod(y.shape[axis + 1 :]), combine)
    for axis, (size, stride, dilation, out) in axes:
        head = (slice(None),) * axis
        if is_flat and stride == 1:
            y = y[(*head, slice(out))]
            continue
        total = y[(*head, slice(0, (out - 1) * stride + 1, stride))]
        for tap in range(1, size):
            count_iteration()
            part = y[(*head, slice(tap * dilation, tap * dilation + (out - 1) * stride + 1, stride))]
            total = combine(total, part, out=total) if tap > 1 else combine(total, part)
        y = total
    return y


def _over_flat(x: Array, size: int, step: int, combine: np.ufunc) -> Array:
    """Each element combined with the ``size`` - 1 that follow it ``step`` by ``step`` in memory, beyond the end of its line, too."""
    flat, reach = x.reshape(-1), 1
    total = flat if size == 1 else flat.copy()
    while reach < size:  # of maxima, twice as far each time
        count_iteration()
        source, moved = (total.copy(), min(reach, size - reach)) if combine is np.maximum else (flat, reach)
        end = max(flat.size - moved * step, 0)
        combine(total[:end], source[flat.size - end :], out=total[:end])
        reach += moved if combine is np.maximum else 1
    return total.reshape(x.shape)


def _prepare_max_pool(facts: Facts) -> Prepared | None:
    """Separable maxima in channels-last memory, where the input lies so."""
    spec = facts.inputs[0]
    if (
        spec is None
        or not facts.channels_last[0]
        or len(spec[0]) != 4
        or len(facts.outputs) != 1
        or spec[1] == np.float16
    ):
        return None
    shape, dtype = spec
    attrs = facts.attrs
    window = pool_window(shape, attrs["kernel_shape"], attrs)
    top, left = window.before
    bottom, right = required_after(shape[2:], window)
    if min(top, left, bottom, right) < 0 or 0 in shape:
        return None
    (kh, kw), (sh, sw), (dh, dw), (oh, ow) = window.kernel, window.strides, window.dilations, window.out
    height, width = shape[2], shape[3]
    padded_shape = (shape[0], height + top + bottom, width + left + right, shape[1])
    low = _lowest(np.zeros((), dtype))

    def call(out: list[Array], scratch: list[Array], x: Array) -> None:
        padded, lines = scratch
        padded[:, :top], padded[:, top + height :] = low, low
        padded[:, :, :left], padded[:, :, left + width :] = low, low
        np.copyto(padded[:, top : top + height, left : left + width], x.transpose(0, 2, 3, 1))
        y = out[0].transpose(0, 2, 3, 1)
        _maxima([padded[:, i * dh : i * dh + (oh - 1) * sh + 1 : sh] for i in range(kh)], lines)
        _maxima([lines[:, :, j * dw : j * dw + (ow - 1) * sw + 1 : sw] for j in range(kw)], y)

    rows = (shape[0], oh, padded_shape[2], shape[1])
    return Prepared(call, ((padded_shape, dtype), (rows, dtype)), channels_last=True)


def _maxima(parts: list[Array], out: Array) -> None:
    np.copyto(out, parts[0])
    for part in parts[1:]:
        np.maximum(out, part, out=out)


def pool_infer(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x = inputs[0]
    shape = (*x.shape[:2], *pool_window(x.shape, attrs["kernel_shape"], attrs).out)
    return ((shape, x.dtype), (shape, INT64))[: max(attrs.get("n_outputs", 1), 1)]


@kernel("MaxPool", kind="into", infer=pool_infer, prepare=_prepare_max_pool)
def max_pool(
    out: list[Array], x: Array, *, kernel_shape: Sequence[int], storage_order: int = 0, n_outputs: int = 1, **attrs: Any
) -> None:
    """out[0] = the maximum of each window; out[1] = where it was, an index into the flat input."""
    window = pool_window(x.shape, kernel_shape, attrs)
    if n_outputs == 1:
        out[0][...] = over_windows(x, window, np.maximum, _lowest(x))
        return
    padded = pad_spatial(x, window.before, required_after(x.shape[2:], window), _lowest(x))
    n = len(window.out)
    flat = window_view(padded, window).reshape(*x.shape[:2], *window.out, math.prod(window.kernel))
    if not storage_order:
        numbers = np.arange(x.size, dtype=INT64).reshape(x.shape)
    else:
        planes = np.arange(math.prod(x.shape[2:]), dtype=INT64).reshape(x.shape[2:], order="F")
        numbers = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * n) * planes.size + planes
    labels = pad_spatial(numbers, window.before, required_after(x.shape[2:], window), -1)
    label = window_view(labels, window).reshape(flat.shape)
    masked = np.where(label >= 0, flat, np.asarray(_lowest(x)).astype(x.dtype))
    best = np.argmax(widen(masked), axis=-1)[..., None]
    is_pad = np.take_along_axis(label, best, -1) < 0
    if is_pad.any():  # every element is the dtype's lowest
        best = np.where(is_pad, np.argmax(label >= 0, axis=-1)[..., None], best)
    out[0][...] = np.take_along_axis(masked, best, -1)[..., 0]
    out[1][...] = np.take_along_axis(label, best, -1)[..., 0]


def window_counts(dims: Sequence[int], window: Window, include_pads: bool) -> Array:
    """The number of elements that each window covers; pads count where asked, elements that ceil mode adds never. At least 1."""
    total = np.ones((), np.float64)
    n = len(dims)
    for axis in range(n):
        starts = np.arange(window.out[axis]) * window.strides[axis] - window.before[axis]
        taps = starts[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
        low, high = (-window.before[axis], dims[axis] + window.after[axis]) if include_pads else (0, dims[axis])
        count = ((taps >= low) & (taps < high)).sum(1)
        total = total * count.reshape([-1 if line == axis else 1 for line in range(n)])
    return np.asarray(np.maximum(total, 1))


@kernel("AveragePool", kind="into", infer=pool_infer)
def average_pool(
    out: list[Array], x: Array, *, kernel_shape: Sequence[int], count_include_pad: int = 0, **attrs: Any
) -> None:
    """out[0] = the mean of each window."""
    window = pool_window(x.shape, kernel_shape, attrs)
    if window.kernel == x.shape[2:] and not window.is_padded:
        out[0][...] = global_average_pool(x)
        return
    total = over_windows(widen(x), window, np.add, 0)
    counts = window_counts(x.shape[2:], window, bool(count_include_pad)).astype(total.dtype)
    if total.dtype == x.dtype:
        np.divide(total, counts, out=out[0])
    else:
        out[0][...] = narrowed(total / counts, x.dtype)


@kernel("LpPool")
def lp_pool(x: Array, *, kernel_shape: Sequence[int], p: float = 2, **attrs: Any) -> Array:
    """(sum of |x| ** p over each window) ** (1 / p)."""
    if not p:
        raise ValueError("p is 0, of which there is no root")
    window = pool_window(x.shape, kernel_shape, attrs)
    check_shape((*x.shape[:2], *window.out), x.dtype)
    wide = widen(x)
    return narrowed((over_windows(np.abs(wide) ** p, window, np.add, 0) ** (1 / p)), x.dtype)


def _flat(x: Array) -> Array:
    if x.ndim < 3:
        raise ValueError(f"the input has {x.ndim} axes, pooling needs 3 or more")
    return widen(x).reshape(*x.shape[:2], math.prod(x.shape[2:]))


def _global(x: Array, values: Array) -> Array:
    return narrowed(values.reshape(*x.shape[:2], *(1,) * (x.ndim - 2)), x.dtype)


@kernel("GlobalAveragePool")
def global_average_pool(x: Array) -> Array:
    """The mean over all spatial axes: a product with ones, which takes both memory layouts without a slow inner loop."""
    flat = _flat(x)
    total = np.matmul(flat, np.ones(flat.shape[-1], flat.dtype))
    return _global(x, np.divide(total, np.asarray(flat.shape[-1], total.dtype)))


@kernel("GlobalMaxPool")
def global_max_pool(x: Array) -> Array:
    """The maximum over all spatial axes."""
    return _global(x, _flat(x).max(axis=-1))


@kernel("GlobalLpPool")
def global_lp_pool(x: Array, *, p: float = 2) -> Array:
    """(sum of |x| ** p over all spatial axes) ** (1 / p)."""
    return _global(x, (np.abs(_flat(x)) ** p).sum(-1) ** (1 / p))


@kernel("MaxUnpool", 9)
def max_unpool(
    x: Array,
    indices: Array,
    output_shape: Array | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """x written to where MaxPool found it, zeros elsewhere."""
    n = x.ndim - 2
    steps, edges = strides or (1,) * n, pads or (0,) * 2 * n
    dims = [
        (d - 1) * s - edges[i] - edges[n + i] + k
        for i, (d, s, k) in enumerate(zip(x.shape[2:], steps, kernel_shape, strict=True))
    ]
    source = (*x.shape[:2], *dims)
    shape = source if output_shape is None else tuple(output_shape.tolist())
    if shape[:2] != x.shape[:2]:
        raise ValueError(f"output_shape {list(shape)} has other images or channels than {list(x.shape)}")
    check_shape(shape, x.dtype, "the result of MaxUnpool")
    check_shape(source, x.dtype, "the result of MaxUnpool")
    if indices.shape != x.shape:
        raise ValueError(f"indices of {list(indices.shape)} do not fit {list(x.shape)}")
    if indices.size and indices.min() < 0:
        raise IndexError(f"the index {indices.min()} is negative")
    if output_shape is None or math.prod(shape) == math.prod(source):
        y = np.zeros(math.prod(shape), x.dtype)
        y[indices.reshape(-1)] = x.reshape(-1)
        return y.reshape(shape)
    small = np.zeros(math.prod(source), x.dtype)
    small[indices.reshape(-1)] = x.reshape(-1)
    y = np.zeros(shape, x.dtype)
    y[tuple(slice(0, dim) for dim in source)] = small.reshape(source)
    return y


@kernel("MaxRoiPool")
def max_roi_pool(x: Array, rois: Array, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0) -> Array:
    """The maximum of each cell of each region, whose edges are rounded with halves away from zero, in float32."""
    high, wide = pooled_shape
    if high < 1 or wide < 1:
        raise ValueError(f"pooled_shape is {list(pooled_shape)}, both must be 1 or more")
    check_shape((len(rois), x.shape[1], high, wide), x.dtype)
    y = np.zeros((len(rois), x.shape[1], high, wide), x.dtype)
    if not y.size:
        return y  # one of the two may be huge where the other is 0
    images = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    check_shape((high, *images.shape[2:]), x.dtype, "the lines of MaxRoiPool")
    lines = np.empty((high, *images.shape[2:]), x.dtype)
    for _ in range(high + wide if len(rois) else 0):
        count_iteration()  # the model says how many cells there are
    cells = region_cells(rois[:, 1:5], spatial_scale, (high, wide), x.shape[2:])
    for number, (roi, rows, columns) in enumerate(zip(rois, *cells, strict=True)):
        image = images[int(roi[0])]
        lines.fill(0)
        for line, (first, end) in zip(lines, rows, strict=True):
            if first < end:
                np.maximum.reduce(image[first:end], 0, out=line)
        for column, (first, end) in enumerate(columns):
            if first < end:
                y[number, :, :, column] = np.maximum.reduce(lines[:, first:end], 1).T
    return y


def region_cells(edges: Array, scale: float, counts: Sequence[int], dims: Sequence[int]) -> tuple[Array, Array]:
    """The starts and ends of the cells of each region: rows [regions, counts[0], 2], and columns.

    Shapes: edges [regions, 4], left, top, right, bottom.
    """
    scaled = edges.astype(np.float32) * np.float32(scale)
    whole = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled).astype(INT64)
    made = []
    for axis, (count, dim) in enumerate(zip(counts, dims, strict=True)):
        start, end = whole[:, 1 - axis], whole[:, 3 - axis]
        size = np.maximum(end - start + 1, 1).astype(np.float32) / np.float32(count)
        number = np.arange(count + 1, dtype=np.float32) * size[:, None]
        lines = np.floor(number[:, :-1]), np.ceil(number[:, 1:])
        made.append(
            np.stack([np.clip(start[:, None] + one.astype(np.float64), 0, dim) for one in lines], -1).astype(INT64)
        )
    return made[0], made[1]
