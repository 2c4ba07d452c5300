"""Interpolation of symbolic sizes as a weighted sum of elements an axis, where Resize has other coordinates or no float64."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from fx2onnx.aten_map.table.axes import steps
from fx2onnx.aten_map.table.dtype_support import opmath
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike

CUBIC_COEFFICIENT = -0.75
"""PyTorch's bicubic without antialias; with it, PIL's -0.5. Source: ATen/native/cpu/UpSampleKernel.cpp."""
Tap = tuple[ir.Value, ir.Value]
"""Where an element lies along the axis, and its weight."""


def by_taps(
    op: Emit, value: ir.Value, mode: str, scales: Sequence[float | None] | None, align_corners: bool
) -> ir.Value:
    """``linear`` or ``cubic``: every output is a sum of two or four elements along each axis, one axis after the other.

    Source: compute_indices_weights in ATen/native/cpu/UpSampleKernel.cpp, area_pixel_compute_scale in ATen/native/UpSample.h.
    """
    dtype, wide = op.dtype(value), opmath(op.dtype(value))
    value, target = op.cast(value, wide), op.result_dims()
    for axis in range(2, op.rank(value)):
        size, count = op.dims(value)[axis], target[axis]
        scale = scales[axis - 2] if scales is not None else None
        if size == count and (mode == "linear" or align_corners or scale in (None, 1)):
            continue
        step = _step(op, size, count, scale, align_corners, wide, mode == "linear")
        index = op.cast(steps(op, count), wide)
        half = op.const(0.5, wide)
        place = op.Mul(index, step) if align_corners else op.Sub(op.Mul(op.Add(index, half), step), half)
        taps = _linear(op, place, size, wide) if mode == "linear" else _cubic(op, place, size, wide)
        shape = [-1, *[1] * (op.rank(value) - axis - 1)]
        total: ir.Value | None = None
        for places, weight in taps:
            part = op.Mul(op.Gather(value, places, axis=axis), op.Reshape(weight, shape))
            total = part if total is None else op.Add(total, part)
        assert total is not None
        value = total
    return op.cast(value, dtype)


def _step(
    op: Emit, size: DimLike, count: DimLike, scale: float | None, align_corners: bool, wide: ir.DataType, idles: bool
) -> ir.Value:
    """The step between neighbours of the result, in elements of the operand. ``idles``: an axis that keeps its size has step 1."""
    if align_corners:
        last = op.Max(op.size(count - 1, wide), op.const(1.0, wide))
        return op.Where(
            op.Equal(op.size(count), op.const(1)), op.const(0.0, wide), op.Div(op.size(size - 1, wide), last)
        )
    if scale is None:
        return op.Div(op.size(size, wide), op.size(count, wide))
    own = op.const(1.0 / scale, wide)
    if not idles or not (isinstance(size, Dim) or isinstance(count, Dim)):
        return own
    return op.Where(op.Equal(op.size(count), op.size(size)), op.const(1.0, wide), own)


def _linear(op: Emit, place: ir.Value, size: DimLike, wide: ir.DataType) -> list[Tap]:
    place = op.Max(place, op.const(0.0, wide))
    low = op.Floor(place)
    upper = op.Sub(place, low)
    index = op.cast(low, ir.DataType.INT64)
    places = [_within(op, index, size), _within(op, op.Add(index, op.const(1)), size)]
    return list(zip(places, (op.Sub(op.const(1.0, wide), upper), upper), strict=True))


def _cubic(op: Emit, place: ir.Value, size: DimLike, wide: ir.DataType) -> list[Tap]:
    low = op.Floor(place)
    index = op.cast(low, ir.DataType.INT64)
    near = op.Sub(place, low)
    far = op.Sub(op.const(1.0, wide), near)
    one = op.const(1.0, wide)
    weights = [
        _outer(op, op.Add(near, one), wide),
        _inner(op, near, wide),
        _inner(op, far, wide),
        _outer(op, op.Add(far, one), wide),
    ]
    places = [_within(op, op.Add(index, op.const(shift)) if shift else index, size) for shift in (-1, 0, 1, 2)]
    return list(zip(places, weights, strict=True))


def _inner(op: Emit, x: ir.Value, wide: ir.DataType) -> ir.Value:
    """``((A + 2) x - (A + 3)) x x + 1``, of the two elements around."""
    a = CUBIC_COEFFICIENT
    inside = op.Sub(op.Mul(x, op.const(a + 2, wide)), op.const(a + 3, wide))
    return op.Add(op.Mul(op.Mul(inside, x), x), op.const(1.0, wide))


def _outer(op: Emit, x: ir.Value, wide: ir.DataType) -> ir.Value:
    """``((A x - 5 A) x + 8 A) x - 4 A``, of the next ones."""
    a = CUBIC_COEFFICIENT
    inside = op.Sub(op.Mul(x, op.const(a, wide)), op.const(5 * a, wide))
    inside = op.Add(op.Mul(inside, x), op.const(8 * a, wide))
    return op.Sub(op.Mul(inside, x), op.const(4 * a, wide))


def _within(op: Emit, index: ir.Value, size: DimLike) -> ir.Value:
    """The index of an element; of places beside the image, that of its border."""
    last = op.size(size - 1)
    index = op.Where(op.Greater(index, last), last, index)
    return op.Where(op.Less(index, op.const(0)), op.const(0), index)
