"""Gather and Scatter families, OneHot, Compress, NonZero."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.elementwise import Outs
from fx2onnx.semantics.kernels.norm import check_axis
from fx2onnx.semantics.kernels.shape import ints
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import INT64, NARROW_FLOATS, Array, Spec, narrowed, widen


def wrapped(indices: Array, size: int, what: str = "indices") -> Array:
    """Indices from 0, negative ones counted from the end. Raises: IndexError out of range."""
    if indices.dtype.kind not in "iu":
        raise TypeError(f"{what} are {indices.dtype}, not integers")
    if indices.size:
        low, high = int(indices.min()), int(indices.max())
        if low < -size or high >= size:
            raise IndexError(f"{what} reach from {low} to {high}; the axis has {size}")
        if low < 0:
            return np.where(indices < 0, indices + size, indices)
    return indices


def _gather_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, indices = inputs
    axis = check_axis(attrs.get("axis", 0), x.ndim)
    return ((x.shape[:axis] + indices.shape + x.shape[axis + 1 :], x.dtype),)


@kernel("Gather", kind="into", infer=_gather_infer)
def gather(out: Outs, x: Array, indices: Array, *, axis: int = 0) -> None:
    """out[0] = the slices of x at ``indices`` along ``axis``."""
    axis = check_axis(axis, x.ndim)
    chosen = wrapped(indices, x.shape[axis])
    np.take(x, chosen, axis=axis, out=out[0], mode="clip")


@kernel("GatherElements", 11)
def gather_elements(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """y[i][j] = x[indices[i][j]][j] for axis 0, and so on."""
    axis = check_axis(axis, x.ndim)
    if indices.ndim != x.ndim:
        raise ValueError(f"indices have {indices.ndim} axes, the data {x.ndim}")
    grid = _element_index(x, wrapped(indices, x.shape[axis]), axis)
    if x.dtype.hasobject or not x.size:
        return x[grid]
    steps = np.cumprod([1, *x.shape[:0:-1]])[::-1].tolist()
    place = np.multiply(grid[axis], steps[axis], dtype=INT64)
    for line, step in enumerate(steps):
        if line != axis and grid[line].size > 1:
            np.add(place, grid[line] * step, out=place)
    result: Array = np.ascontiguousarray(x).reshape(-1).take(place, mode="clip")
    return result


def _element_index(x: Array, indices: Array, axis: int) -> tuple[Array, ...]:
    """The open grid over ``indices``' shape with ``indices`` on ``axis``."""
    for line, (dim, given) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if line != axis and given > dim:
            raise ValueError(f"indices have {given} on axis {line}, the data {dim}")
    grid = [
        np.arange(dim).reshape([-1 if i == line else 1 for i in range(x.ndim)])
        for line, dim in enumerate(indices.shape)
    ]
    grid[axis] = indices
    return tuple(grid)


def _nd_index(x: Array, indices: Array, batch_dims: int) -> tuple[Array, ...]:
    depth = indices.shape[-1]
    if not 0 <= batch_dims <= min(x.ndim, indices.ndim - 1) or depth > x.ndim - batch_dims:
        raise ValueError(f"indices of shape {list(indices.shape)} do not fit data of shape {list(x.shape)}")
    parts = []
    for line in range(batch_dims):
        shape = [1] * (indices.ndim - 1)
        shape[line] = -1
        parts.append(np.arange(x.shape[line]).reshape(shape))
    for position in range(depth):
        parts.append(wrapped(indices[..., position], x.shape[batch_dims + position]))
    return tuple(parts)


@kernel("GatherND", 11)
def gather_nd(x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    """The slices of x at the index tuples in the last axis of ``indices``."""
    if indices.ndim:
        check_shape(indices.shape[:-1] + x.shape[batch_dims + indices.shape[-1] :], x.dtype, "the result of GatherND")
    return np.asarray(x[_nd_index(x, indices, batch_dims)])


_COMBINE: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _scatter(y: Array, index: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    if reduction == "none":
        y[index] = updates
        return y
    if reduction not in _COMBINE:
        raise ValueError(f"the reduction {reduction!r} is none of none, {', '.join(_COMBINE)}")
    if y.dtype in NARROW_FLOATS:
        return narrowed(_scatter(y.astype(np.float32), index, updates.astype(np.float32), reduction), y.dtype)
    if y.size and updates.size:  # by one index a number NumPy takes a fifth of the time that it takes by several
        row = math.prod(y.shape[len(index) :])
        place = (
            np.ravel_multi_index(np.broadcast_arrays(*index), y.shape[: len(index)]).reshape(-1, 1)
            if index
            else np.zeros((updates.size // row, 1), INT64)
        )
        _COMBINE[reduction].at(y.reshape(-1), (place * row + np.arange(row)).reshape(-1), updates.reshape(-1))
    return y


@kernel("Scatter", 9)
@kernel("ScatterElements", 11)
def scatter_elements(x: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none") -> Array:
    """A copy of x with ``updates`` written (or added, ...) at ``indices`` along ``axis``."""
    axis = check_axis(axis, x.ndim)
    if indices.shape != updates.shape or indices.ndim != x.ndim:
        raise ValueError("indices and updates differ in shape, or in rank from the data")
    return _scatter(x.copy(), _element_index(x, wrapped(indices, x.shape[axis]), axis), updates, reduction)


@kernel("ScatterND", 11)
def scatter_nd(x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    """A copy of x with slices ``updates`` written (or added, ...) at the index tuples."""
    index = _nd_index(x, indices, 0)
    wanted = indices.shape[:-1] + x.shape[indices.shape[-1] :]
    if updates.shape != wanted:
        raise ValueError(f"updates have the shape {list(updates.shape)}, not {list(wanted)}")
    return _scatter(x.copy(), index, updates, reduction)


@kernel("TensorScatter", 24)
def tensor_scatter(
    cache: Array, update: Array, write_indices: Array | None = None, *, axis: int = -2, mode: str = "linear"
) -> Array:
    """A copy of ``cache`` with ``update`` written from ``write_indices[batch]`` on along ``axis``."""
    if mode not in ("linear", "circular"):
        raise ValueError(f"mode is {mode!r}, not linear or circular")
    axis = check_axis(axis, cache.ndim)
    if write_indices is not None and write_indices.shape != cache.shape[:1]:
        raise ValueError(f"write_indices have the shape {list(write_indices.shape)}, not {[len(cache)]}")
    if update.ndim != cache.ndim or any(
        mine != own for at, (mine, own) in enumerate(zip(update.shape, cache.shape, strict=True)) if at != axis
    ):
        raise ValueError(f"an update of {list(update.shape)} does not fit a cache of {list(cache.shape)}")
    y = cache.copy()
    length, room = update.shape[axis], cache.shape[axis]
    starts = [0] * cache.shape[0] if write_indices is None else write_indices.reshape(-1).tolist()
    for row, start in enumerate(starts):
        places = np.arange(start, start + length)
        if mode == "circular":
            places %= room
        elif start < 0 or start + length > room:
            raise IndexError(f"writing {length} from {start} leaves the cache of {room}")
        target = np.moveaxis(y[row], axis - 1, 0)
        target[places] = np.moveaxis(update[row], axis - 1, 0)
    return y


@kernel("OneHot", 9, shape_inputs=(1,))
def one_hot(indices: Array, depth: Array, values: Array, *, axis: int = -1) -> Array:
    """values[1] at the index along a new axis of size ``depth``, values[0] elsewhere."""
    size = int(depth.reshape(()))
    if size < 0:
        raise ValueError(f"depth is {size}")
    if values.shape != (2,):
        raise ValueError(f"values has the shape {list(values.shape)}, not [2]")
    axis = check_axis(axis, indices.ndim + 1)
    check_shape((*indices.shape, size), values.dtype, "the result of OneHot")
    whole = indices.astype(INT64)
    whole = np.where(whole < 0, whole + size, whole)
    line = np.arange(size).reshape([-1 if i == axis else 1 for i in range(indices.ndim + 1)])
    return narrowed(np.where(np.expand_dims(whole, axis) == line, values[1], values[0]), values.dtype)


@kernel("Compress", 9, shape_inputs=None)
def compress(x: Array, condition: Array, *, axis: int | None = None) -> Array:
    """The slices along ``axis`` (elements of flat x without one) where ``condition`` holds."""
    return np.compress(condition, x, axis=axis)


@kernel("NonZero", 9, shape_inputs=None)
def non_zero(x: Array) -> Array:
    """The indices of the non-zero elements, one column each."""
    if x.ndim == 0:
        return np.zeros((0, int(bool(x))), INT64)
    return np.array(np.nonzero(x), INT64).reshape(x.ndim, -1)


@kernel("TopK", (1, 10), shape_inputs=(1,))
def top_k(x: Array, k: Array | int, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Array, Array]:
    """The ``k`` largest (or smallest) elements along ``axis`` and their indices; ties go to the lower index.

    ``k`` is an attribute in opsets 1-9.
    """
    axis = check_axis(axis, x.ndim)
    (count,) = ints(k)
    if not 0 <= count <= x.shape[axis]:
        raise ValueError(f"k is {count}, the axis has {x.shape[axis]}")
    wide = widen(x)
    lines = np.ascontiguousarray(np.moveaxis(wide, axis, -1))
    chosen = None
    if lines.size and count and not (lines.dtype.kind == "f" and np.isnan(lines).any()):
        chosen = _few_of_many(lines, count, bool(largest))
        if chosen is None:
            chosen = _by_keys(lines, count, bool(largest))
    if chosen is not None:
        chosen = np.moveaxis(chosen, -1, axis)
        return np.take_along_axis(x, chosen, axis), chosen
    if largest:
        flipped = np.flip(wide, axis)
        order = x.shape[axis] - 1 - np.flip(np.argsort(flipped, axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(wide, axis=axis, kind="stable")
    chosen = np.take(order, np.arange(count), axis=axis).astype(INT64)
    return np.take_along_axis(x, chosen, axis), chosen


def _few_of_many(x: Array, count: int, largest: bool) -> Array | None:
    """The indices of the ``count`` first along the last axis, where few elements can be among them; None otherwise.

    The axis is cut into more parts than are asked for: the count-th of the parts' best is a bound, which few elements pass.
    """
    size, parts = x.shape[-1], 8 * count
    if size < 4 * parts:
        return None
    rows = x.reshape(-1, size)
    whole = size // parts * parts
    reduce = np.maximum.reduce if largest else np.minimum.reduce
    best = reduce(rows[:, :whole].reshape(len(rows), -1, parts), axis=1)
    best.partition(parts - count if largest else count - 1, axis=-1)
    bound = best[:, parts - count if largest else count - 1, None]
    places = np.flatnonzero(rows >= bound if largest else rows <= bound)
    if places.size * 8 > x.size:
        return None
    row, index = np.divmod(places, size)
    values = rows.reshape(-1)[places]
    if largest:
        values = np.invert(values) if values.dtype.kind in "iu" else np.negative(values)
    order = np.lexsort((values, row))  # stable: of equals, the lower index
    starts = np.searchsorted(row, np.arange(len(rows)))
    chosen: Array = index[order[starts[:, None] + np.arange(count)]].astype(INT64)
    return chosen.reshape(*x.shape[:-1], count)


def _by_keys(x: Array, count: int, largest: bool) -> Array | None:
    """The indices of the ``count`` first along the last axis, by keys of 64 bits: the value, then the index.

    None where values have more than 32 bits.
    """
    size = x.shape[-1]
    if size >= 1 << 31:
        return None
    if x.dtype == np.float32:
        bits = np.add(x, np.float32(0), order="C").view(np.int32)  # of the two zeros, one
        ordered = bits ^ (bits >> 31 & np.int32(0x7FFFFFFF))
    elif (x.dtype.kind in "iu" and x.dtype.itemsize <= 2) or x.dtype == np.int32:
        ordered = x.astype(np.int32)
    else:
        return None
    keys = (np.invert(ordered) if largest else ordered).astype(INT64)
    np.left_shift(keys, 32, out=keys)
    np.bitwise_or(keys, np.arange(size, dtype=INT64), out=keys)
    if count < size:
        keys.partition(count - 1, axis=-1)
        keys = np.ascontiguousarray(keys[..., :count])
    keys.sort(axis=-1)
    return np.bitwise_and(keys, 0xFFFFFFFF, out=keys)


@kernel("Unique", 11, shape_inputs=None)
def unique(x: Array, *, axis: int | None = None, sorted: int = 1) -> tuple[Array, ...]:
    """Distinct elements (or slices), first positions, inverse, counts."""
    values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        values = np.take(values, order, axis=0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], rank[inverse]
    return values, first.astype(INT64), inverse.astype(INT64), counts.astype(INT64)
