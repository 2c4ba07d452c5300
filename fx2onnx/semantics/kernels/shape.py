"""Operators that move, cut and join elements without computing."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fx2onnx.semantics.kernels.elementwise import Outs
from fx2onnx.semantics.kernels.norm import as_matrix, check_axis
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import INT64, Array, Spec

Ints: TypeAlias = Array | Sequence[int]
"""An input of newer opsets that older ones have as an attribute."""


def ints(values: Ints | int | None) -> list[int]:
    """An integer input or attribute as a list."""
    return [] if values is None else [int(item) for item in np.asarray(values).reshape(-1).tolist()]


@kernel("Reshape", (1, 5), kind="view", shape_inputs=(1,))
def reshape(x: Array, shape: Ints, *, allowzero: int = 0, **_: Any) -> Array:
    """x in another shape; 0 keeps a dim (unless ``allowzero``), -1 is found from the rest."""
    wanted = ints(shape)
    dims = [x.shape[axis] if dim == 0 and allowzero != 1 and axis < x.ndim else dim for axis, dim in enumerate(wanted)]
    if any(dim < -1 for dim in dims) or dims.count(-1) > 1:
        raise ValueError(f"the shape {wanted} is not valid")
    return x.reshape(dims)


@kernel("Flatten", kind="view")
def flatten(x: Array, *, axis: int = 1, version: int = 11) -> Array:
    """x as 2-D: the axes before ``axis``, the axes from it on; before opset 11 counted from 0."""
    if axis < 0 and version < 11:
        raise ValueError(f"axis is {axis}; before opset 11 it may not be negative")
    return as_matrix(x, axis)


@kernel("Transpose", kind="view")
def transpose(x: Array, *, perm: Sequence[int] | None = None) -> Array:
    """The axes in the order ``perm``; reversed by default."""
    if perm is not None and min(perm, default=0) < 0:
        raise ValueError(f"perm is {list(perm)}; it may not be negative")
    return x.transpose(tuple(perm) if perm is not None else None)


@kernel("Squeeze", (1, 13), kind="view", shape_inputs=(1,))
def squeeze(x: Array, axes: Ints | None = None) -> Array:
    """x without the axes of size 1, all or those named."""
    return np.squeeze(x) if axes is None else np.squeeze(x, axis=tuple(ints(axes)))


@kernel("Unsqueeze", (1, 13), kind="view", shape_inputs=(1,))
def unsqueeze(x: Array, axes: Ints) -> Array:
    """x with axes of size 1 put in."""
    return np.expand_dims(x, tuple(ints(axes)))


@kernel("Identity", kind="view")
def identity(x: Any) -> Any:
    """x."""
    return x


@kernel("Expand", 8, kind="view", shape_inputs=(1,))
def expand(x: Array, shape: Array) -> Array:
    """x broadcast with ``shape``, as a view of stride 0."""
    dims = ints(shape)
    if any(dim < 0 for dim in dims):
        raise ValueError(f"the shape {dims} is not valid")
    target = np.broadcast_shapes(x.shape, tuple(dims))
    check_shape(target, x.dtype, "the result of Expand")
    return np.broadcast_to(x, target)


@kernel("Tile", 6, shape_inputs=(1,))
def tile(x: Array, repeats: Array) -> Array:
    """x repeated along each axis."""
    counts = ints(repeats)
    if len(counts) != x.ndim or any(count < 0 for count in counts):
        raise ValueError(f"repeats {counts} do not fit {x.ndim} axes")
    check_shape([dim * count for dim, count in zip(x.shape, counts, strict=True)], x.dtype, "the result of Tile")
    return np.tile(x, counts)


@kernel("Tile", 1)
def tile_1(x: Array, tiles: Array, axis: Array) -> Array:
    """Tile of opsets 1-5: one axis."""
    counts = [1] * x.ndim
    counts[check_axis(int(axis.reshape(())), x.ndim)] = int(tiles.reshape(()))
    return tile(x, np.array(counts))


def _concat_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    first = inputs[0]
    axis = check_axis(attrs.get("axis", 1), first.ndim)
    for array in inputs[1:]:
        if array.dtype != first.dtype:
            raise TypeError(f"operands have the dtypes {first.dtype} and {array.dtype}; they must be equal")
        if array.ndim != first.ndim or any(
            a != b for i, (a, b) in enumerate(zip(array.shape, first.shape, strict=True)) if i != axis
        ):
            raise ValueError(f"shapes {list(first.shape)} and {list(array.shape)} differ beside axis {axis}")
    dims = list(first.shape)
    dims[axis] = sum(array.shape[axis] for array in inputs)
    return ((tuple(dims), first.dtype),)


@kernel("Concat", kind="into", infer=_concat_infer, elementwise=True)
def concat(out: Outs, *arrays: Array, axis: int = 1) -> None:
    """out[0] = the arrays one after the other along ``axis``."""
    np.concatenate(arrays, axis=axis, out=out[0])


@kernel("Split", (1, 2, 13), kind="view", shape_inputs=(1,))
def split_13(
    x: Array, sizes: Array | None = None, *, axis: int = 0, split: Sequence[int] | None = None, n_outputs: int = 1
) -> tuple[Array, ...]:
    """Split of opsets 1-17: the sizes are ``split`` in opsets 1-12; without any the parts are equal."""
    given = sizes if split is None else split
    if given is not None:
        return _parts(x, ints(given), axis, n_outputs)
    length = x.shape[check_axis(axis, x.ndim)]
    if length % n_outputs:
        raise ValueError(f"{length} is no multiple of {n_outputs}, the number of outputs")
    return _parts(x, [length // n_outputs] * n_outputs, axis, n_outputs)


@kernel("Split", 18, kind="view", shape_inputs=(1,))
def split_(
    x: Array, sizes: Array | None = None, *, axis: int = 0, num_outputs: int | None = None, n_outputs: int = 1
) -> tuple[Array, ...]:
    """x cut along ``axis`` into parts of the given sizes, or into ``num_outputs`` of which the last may be smaller."""
    if (num_outputs is None) == (sizes is None):
        raise ValueError(f"sizes and num_outputs are {'both' if sizes is not None else 'not'} given")
    if num_outputs is None:
        return _parts(x, ints(sizes), axis, n_outputs)
    length = x.shape[check_axis(axis, x.ndim)]
    if num_outputs != n_outputs:
        raise ValueError(f"num_outputs is {num_outputs}, the node has {n_outputs} outputs")
    chunk = -(-length // n_outputs)
    last = length - chunk * (n_outputs - 1)  # may be nothing, as onnxruntime has it from 1.32 on
    if last < 0:
        raise ValueError(f"num_outputs is {num_outputs}, so many parts of {chunk} are more than the axis has: {length}")
    return _parts(x, [chunk] * (n_outputs - 1) + [last], axis, n_outputs)


def _parts(x: Array, parts: list[int], axis: int, n_outputs: int) -> tuple[Array, ...]:
    if len(parts) != n_outputs:
        raise ValueError(f"{len(parts)} parts are asked for, the node has {n_outputs} outputs")
    axis = check_axis(axis, x.ndim)
    if sum(parts) != x.shape[axis] or any(size < 0 for size in parts):
        raise ValueError(f"the parts {parts} do not add up to {x.shape[axis]}")
    head = (slice(None),) * axis
    return tuple(x[(*head, slice(low, high))] for low, high in itertools.pairwise([0, *itertools.accumulate(parts)]))


def slice_array(x: Array, starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> Array:
    """x cut by ONNX's rules, which are Python's except that a start before the first element is the first one, backwards too."""
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ValueError("starts, ends, axes and steps differ in length")
    axes = [check_axis(axis, x.ndim) for axis in axes]
    if len(set(axes)) < len(axes):
        raise ValueError(f"the axes {axes[:8]} name one twice")
    cuts = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise ValueError("a step is 0")
        dim = x.shape[axis]
        start = start + dim if start < 0 else start
        end = end + dim if end < 0 else end
        if step > 0:
            cuts[axis] = slice(min(max(start, 0), dim), min(max(end, 0), dim), step)
        else:
            low = min(max(end, -1), dim - 1)
            cuts[axis] = slice(min(max(start, 0), dim - 1), None if low < 0 else low, step)
    return x[tuple(cuts)]


@kernel("Slice", (1, 10), kind="view", shape_inputs=(1, 2, 3, 4))
def slice_(x: Array, starts: Ints, ends: Ints, axes: Ints | None = None, steps: Array | None = None) -> Array:
    """x cut along axes."""
    low = ints(starts)
    chosen = list(range(len(low))) if axes is None else ints(axes)
    return slice_array(x, low, ints(ends), chosen, [1] * len(low) if steps is None else ints(steps))


@kernel("Shape")
def shape_(x: Array, *, start: int = 0, end: int | None = None) -> Array:
    """The dims of x as int64, from ``start`` to ``end``."""
    return np.array(x.shape[slice(_clamped(start, x.ndim), _clamped(x.ndim if end is None else end, x.ndim))], INT64)


def _clamped(position: int, rank: int) -> int:
    return min(max(position + rank if position < 0 else position, 0), rank)


@kernel("Size")
def size(x: Array) -> Array:
    """The number of elements of x, int64."""
    return np.array(x.size, INT64)


_PAD_MODES = ("constant", "reflect", "edge", "wrap")


def pad_array(x: Array, before: Sequence[int], after: Sequence[int], mode: str, value: Any) -> Array:
    """x padded; negative pads cut."""
    if mode not in _PAD_MODES:
        raise ValueError(f"the mode {mode!r} is none of {', '.join(_PAD_MODES)}")
    widths = list(zip(before, after, strict=True))
    check_shape([d + b + a for d, (b, a) in zip(x.shape, widths, strict=True)], x.dtype, "the result of Pad")
    if mode == "constant":
        fill = np.zeros((), x.dtype) if value is None else np.asarray(value, x.dtype).reshape(())
        if x.dtype.kind == "O" and value is None:
            fill = np.array("", dtype=object)
        y = np.full([dim + low + high for dim, (low, high) in zip(x.shape, widths, strict=True)], fill[()], x.dtype)
        held = [
            (max(low, 0), max(min(low + dim, size), low, 0))  # a negative pad cuts what the other end adds, too
            for dim, size, low in zip(x.shape, y.shape, before, strict=True)
        ]
        source = tuple(slice(start - low, stop - low) for (start, stop), low in zip(held, before, strict=True))
        y[tuple(slice(*one) for one in held)] = x[source]
        return y
    cut = tuple(
        slice(max(-low, 0), max(dim + min(high, 0), 0)) for dim, (low, high) in zip(x.shape, widths, strict=True)
    )
    x = x[cut]
    grown = [(max(low, 0), max(high, 0)) for low, high in widths]
    if mode == "reflect" and any(max(grow) >= max(dim, 1) for dim, grow in zip(x.shape, grown, strict=True)):
        raise ValueError(f"pads {widths} reflect more than there is of {list(x.shape)}")
    if mode == "wrap" or not x.size:
        return np.pad(x, grown, mode=mode)  # type: ignore[call-overload, no-any-return]
    y = np.empty([dim + low + high for dim, (low, high) in zip(x.shape, grown, strict=True)], x.dtype)
    inner = tuple(slice(low, low + dim) for dim, (low, _) in zip(x.shape, grown, strict=True))
    y[inner] = x
    for axis in reversed(range(x.ndim)):
        _fill_ends(y[inner[:axis]], axis, inner[axis], mode == "reflect")
    return y


def _fill_ends(y: Array, axis: int, inner: slice, is_mirror: bool) -> None:
    """Fill y before and after ``inner`` of an axis with the neighbours there in reverse, or the outermost elements again."""
    lead, low, end = (slice(None),) * axis, inner.start, inner.stop
    high = y.shape[axis] - end
    before, after = slice(low, low + 1), slice(end - 1, end)
    if is_mirror:
        before, after = slice(2 * low, low, -1), slice(end - 2, end - 2 - high if end - 2 >= high else None, -1)
    if low:
        y[(*lead, slice(0, low))] = y[(*lead, before)]
    if high:
        y[(*lead, slice(end, None))] = y[(*lead, after)]


@kernel("Pad", 11, shape_inputs=(1, 3))
def pad(
    x: Array, pads: Array, value: Array | None = None, axes: Array | None = None, *, mode: str = "constant"
) -> Array:
    """x with elements added (or, for negative pads, removed) at both ends of its axes."""
    chosen = list(range(x.ndim)) if axes is None else [check_axis(axis, x.ndim) for axis in ints(axes)]
    if pads.ndim == 2 and len(pads) != 1:
        raise ValueError(f"pads have the shape {list(pads.shape)}")
    widths = ints(pads)
    if len(widths) != 2 * len(chosen):
        raise ValueError(f"{len(widths)} pads for {len(chosen)} axes")
    before, after = [0] * x.ndim, [0] * x.ndim
    for position, axis in enumerate(chosen):
        before[axis], after[axis] = widths[position], widths[position + len(chosen)]
    return pad_array(x, before, after, mode, None if value is None or value.size == 0 else value.reshape(-1)[0])


@kernel("Pad", (1, 2))
def pad_2(
    x: Array,
    *,
    pads: Sequence[int] | None = None,
    paddings: Sequence[int] | None = None,
    mode: str = "constant",
    value: float = 0.0,
) -> Array:
    """Pad of opsets 1-10: everything is an attribute."""
    widths = list(pads if pads is not None else paddings or ())
    return pad_array(x, widths[: x.ndim], widths[x.ndim :], mode, value)


@kernel("DepthToSpace", kind="view")
def depth_to_space(x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Channels become blocks of ``blocksize`` x ``blocksize`` pixels."""
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        return x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, c // (b * b), h * b, w * b)
    return x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // (b * b), h * b, w * b)


@kernel("SpaceToDepth", kind="view")
def space_to_depth(x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Blocks of ``blocksize`` x ``blocksize`` pixels become channels."""
    n, c, h, w = x.shape
    b = blocksize
    blocks = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.transpose(order).reshape(n, c * b * b, h // b, w // b)


@kernel("Trilu", 14)
def trilu(x: Array, k: Array | None = None, *, upper: int = 1) -> Array:
    """The upper or lower triangle of the last two axes, zeros elsewhere."""
    if x.ndim < 2:
        raise ValueError(f"the input has {x.ndim} axes, it must have 2 or more")
    offset = 0 if k is None else int(k.reshape(()))
    offset = max(min(offset, x.shape[-1] + 1), -x.shape[-2] - 1)
    mask = np.tri(x.shape[-2], x.shape[-1], offset - 1 if upper else offset, dtype=np.bool_)
    mask = ~mask if upper else mask
    if x.dtype.hasobject or x.itemsize not in (1, 2, 4, 8):
        return np.where(mask, x, np.zeros((), x.dtype))
    bits = np.dtype(f"i{x.itemsize}")  # all of them are kept, or none
    return np.asarray(x.view(bits) & -mask.astype(bits)).view(x.dtype)


@kernel("ReverseSequence", 10)
def reverse_sequence(x: Array, lengths: Array, *, batch_axis: int = 1, time_axis: int = 0) -> Array:
    """The first ``lengths[b]`` time steps of each batch entry in reverse order."""
    if {batch_axis, time_axis} != {0, 1}:
        raise ValueError(f"batch_axis {batch_axis} and time_axis {time_axis} are not 0 and 1")
    moved = np.moveaxis(x, (batch_axis, time_axis), (0, 1))
    if (lengths < 0).any() or (lengths > moved.shape[1]).any() or lengths.shape != (moved.shape[0],):
        raise ValueError("sequence_lens do not fit the input")
    y = moved.copy()
    for row, length in enumerate(lengths.tolist()):
        y[row, :length] = moved[row, :length][::-1]
    return np.ascontiguousarray(np.moveaxis(y, (0, 1), (batch_axis, time_axis)))
