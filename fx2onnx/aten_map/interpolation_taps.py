"""Interpolation as weighted sums of elements an axis: with symbolic sizes, antialiased, and in fixed point for uint8.

Source: HelperInterpBase in ATen/native/cpu/UpSampleKernel.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fx2onnx.aten_map.table.axes import steps
from fx2onnx.aten_map.table.dtypes import opmath
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike

CUBIC_COEFFICIENT = -0.75
"""PyTorch's bicubic without antialias; with it, PIL's -0.5. Source: ATen/native/cpu/UpSampleKernel.cpp."""
Tap = tuple[ir.Value, ir.Value]
"""The index of an element along the axis, and its weight."""


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


def _keys_cubic(x: float, a: float = -0.5) -> float:
    """Keys' filter: a = -0.5 as PIL has it, -0.75 without antialias."""
    x = abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def _plain_cubic(x: float) -> float:
    return _keys_cubic(x, -0.75)


def _sinc(x: float) -> float:
    return 1.0 if x == 0 else math.sin(math.pi * x) / (math.pi * x)


def _lanczos(x: float) -> float:
    return _sinc(x) * _sinc(x / 3) if -3 <= x < 3 else 0.0


FILTERS: dict[str, tuple[Callable[[float], float], int]] = {
    "linear": (lambda x: max(0.0, 1.0 - abs(x)), 2),
    "cubic": (_keys_cubic, 4),
    "lanczos": (_lanczos, 6),
}
"""Mode -> filter and how many elements it reads without scaling."""


def _add_taps(row: npt.NDArray[np.float64], place: float, width: int, kernel: Callable[[float], float]) -> None:
    """The ``width`` elements around ``place``; those beyond an end count for the element at that end."""
    first = math.floor(place) - width // 2 + 1
    for tap in range(first, first + width):
        row[min(max(tap, 0), len(row) - 1)] += kernel(tap - place)


MAX_PRECISION_BITS, WEIGHT_LIMIT = 22, 1 << 15
"""uint8 is resampled with 16-bit weights of as many bits as fit."""


def resampling_matrix(
    size: int,
    count: int,
    mode: str,
    scale_factor: float | None,
    align_corners: bool,
    antialias: bool = True,
    delta: float = 0.0,
    skips_idle: bool = True,
) -> npt.NDArray[np.float64]:
    """[count, size]: how much of each input element goes into each output. ``delta`` is 0.5 for aligned uint8;
    ``skips_idle``: an axis that keeps its size is left as it is, whatever the factor.
    """
    if size == count and skips_idle and (antialias or mode != "cubic" or scale_factor is None):
        return np.eye(size)
    kernel, width = FILTERS[mode]
    if mode == "cubic" and not antialias:
        kernel = _plain_cubic
    if align_corners:
        scale = (size - 1) / (count - 1) if count > 1 else 0.0
    elif scale_factor is not None and scale_factor > 0:
        scale = 1.0 / scale_factor
    else:
        scale = size / count
    shrinks = antialias and scale >= 1
    support = width * 0.5 * (scale if shrinks else 1.0)
    matrix = np.zeros((count, size))
    for index in range(count):
        center = scale * (index + 0.5 - delta)
        if not antialias:
            _add_taps(matrix[index], center - 0.5 + delta, width, kernel)
            continue
        start = max(int(center - support + 0.5 + delta), 0)
        end = min(int(center + support + 0.5 + delta), size)
        places = np.arange(start, end)
        weights = np.array([kernel((place - center + 0.5 - delta) / (scale if shrinks else 1.0)) for place in places])
        total = weights.sum()
        matrix[index, start:end] = weights / total if total else weights
    return matrix


def fixed_point(matrix: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], int]:
    """Weights rounded to integers, and by how many bits they are scaled."""
    top, bits = matrix.max(), 0
    while bits < MAX_PRECISION_BITS and int(0.5 + top * (1 << (bits + 1))) < WEIGHT_LIMIT:
        bits += 1
    return np.trunc(matrix * (1 << bits) + np.where(matrix < 0, -0.5, 0.5)), bits


def symbolic_fixed_point(op: Emit, size: DimLike, count: DimLike, mode: str) -> ir.Value:
    """``fixed_point(resampling_matrix(...))`` of an antialiased ``linear`` or ``cubic`` axis with symbolic sizes, divided by its scale.

    Shapes:  -> float64 [count, size].
    """
    double, width = ir.DataType.DOUBLE, FILTERS[mode][1]
    half, one, zero = (op.const(number, double) for number in (0.5, 1.0, 0.0))
    scale = op.Div(op.size(size, double), op.size(count, double))
    shrink = op.Max(scale, one)
    support = op.Mul(shrink, op.const(width * 0.5, double))
    center = op.Reshape(op.Mul(op.Add(steps(op, count, double), half), scale), [-1, 1])
    place = op.Reshape(steps(op, size, double), [1, -1])
    start = op.Floor(op.Add(op.Sub(center, support), half))
    end = op.Floor(op.Add(op.Add(center, support), half))
    distance = op.Abs(op.Div(op.Add(op.Sub(place, center), half), shrink))
    if mode == "linear":
        weights = op.Max(op.Sub(one, distance), zero)
    else:
        a = op.const(-0.5, double)
        inner = op.Sub(op.Mul(distance, op.const(1.5, double)), op.const(2.5, double))
        inner = op.Add(op.Mul(op.Mul(inner, distance), distance), one)
        outer = op.Add(op.Mul(op.Sub(distance, op.const(5.0, double)), distance), op.const(8.0, double))
        outer = op.Mul(op.Sub(op.Mul(outer, distance), op.const(4.0, double)), a)
        weights = op.Where(
            op.Less(distance, one), inner, op.Where(op.Less(distance, op.const(2.0, double)), outer, zero)
        )
    is_outside = op.Or(op.Less(place, start), op.Not(op.Less(place, end)))
    weights = op.Where(is_outside, zero, weights)
    weights = op.Div(weights, op.ReduceSum(weights, axes=[1], keepdims=1))
    powers = op.const(2.0 ** np.arange(1, MAX_PRECISION_BITS + 1), double)
    largest = op.ReduceMax(weights, axes=[0, 1], keepdims=0)
    fits = op.Less(op.Floor(op.Add(op.Mul(largest, powers), half)), op.const(float(WEIGHT_LIMIT), double))
    scaled = op.ReduceMax(op.Where(fits, powers, one), axes=[0], keepdims=0)
    rounded = op.Floor(op.Add(op.Abs(op.Mul(weights, scaled)), half))
    return op.Div(op.Mul(rounded, op.Sign(weights)), scaled)
