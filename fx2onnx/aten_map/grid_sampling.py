"""Sampling at grid points, affine grids, and the gradients. Source: ATen/native/GridSampler.{h,cpp}."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.scattering import scattered
from fx2onnx.aten_map.table.axes import INT64, filled, is_empty, steps, transpose, unsqueeze
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.functions import polynomial
from fx2onnx.sizes.expr import Dim, DimLike, product

aten = torch.ops.aten
MODES = ("bilinear", "nearest", "bicubic")
MODES_20 = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")
"""Names by PyTorch's numbers; opset 20 renamed the modes."""


def sampled(op: Emit, value: ir.Value, grid: ir.Value, mode: int, padding: int, align_corners: bool) -> ir.Value:
    """``GridSample``: opset 16 on, of volumes opset 20 on.

    Raises UserError E202 below that.
    """
    needed = 16 if op.rank(value) == 4 else 20
    if op.opset < needed:
        raise UserError(
            "E202",
            f"grid_sample of a {op.rank(value)}-D tensor needs opset {needed}, the export asks for {op.opset}",
            why=f"ONNX GridSample takes it from opset {needed} on",
            next=f"export with opset_version={needed} or newer",
        )
    attrs: dict[str, Any] = {"mode": (MODES_20 if op.opset >= 20 else MODES)[mode], "padding_mode": PADDINGS[padding]}
    if align_corners:
        attrs["align_corners"] = 1
    return op.GridSample(value, grid, outputs=[op.result[0]], **attrs)


register_shared(
    sampled,
    "GridSample from opset 16 on (5-D: from 20 on)",
    *overloads_of("grid_sampler grid_sampler_2d grid_sampler_3d"),
)


def base_points(sizes: Sequence[int], align_corners: bool) -> np.ndarray[Any, Any]:
    """[points, axes + 1]: every grid point in homogeneous coordinates, x first. Source: F.affine_grid."""
    lines = []
    for size in sizes:
        line = np.linspace(-1, 1, size) if size > 1 else np.zeros(size)
        lines.append(line if align_corners or size < 2 else line * (size - 1) / size)
    mesh = np.meshgrid(*lines, indexing="ij")
    columns = [axis.reshape(-1) for axis in reversed(mesh)]
    return np.stack([*columns, np.ones_like(columns[0])], axis=1)


def _points(op: Emit, sizes: Sequence[DimLike], align_corners: bool, dtype: ir.DataType) -> ir.Value:
    """``base_points`` of symbolic sizes: (2 * i - (n - 1)) divided by n, or by n - 1, where the corners are aligned."""
    columns = []
    for axis, size in enumerate(sizes):
        count = op.size(size, dtype)
        last = op.Sub(count, 1)
        below = op.Max(last, 1) if align_corners else count
        line = op.Div(op.Sub(op.Mul(steps(op, size, dtype), 2), last), below)
        others = [place for place in range(len(sizes)) if place != axis]
        columns.append(unsqueeze(op, op.expand(unsqueeze(op, line, *others), sizes), len(sizes)))
    columns = [*reversed(columns), filled(op, [*sizes, 1], 1, dtype)]
    return op.reshape(op.Concat(*columns, axis=len(sizes)), (product(list(sizes)), len(sizes) + 1))


@translates(aten.affine_grid_generator.default)
def affine_grid_generator(op: Emit, theta: ir.Value, size: Sequence[DimLike], align_corners: bool) -> ir.Value:
    """affine_grid_generator(Tensor theta, SymInt[] size, bool align_corners) -> Tensor

    ONNX:  a product with a grid of points, a constant where no size is symbolic. (AffineGrid differs where a size is 1.)
    """
    spatial = list(size[2:])
    if any(isinstance(number, Dim) for number in spatial):
        points = _points(op, spatial, align_corners, op.dtype(theta))
    else:
        points = op.const(base_points([int(number) for number in spatial], align_corners), op.dtype(theta))  # type: ignore[arg-type]
    grid = op.MatMul(points, transpose(op, theta, (0, 2, 1)))
    return op.reshape(grid, (op.dims(theta)[0], *spatial, len(spatial)))


BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


@dataclass(frozen=True)
class Coordinate:
    """The coordinate of each point along one axis of the image, and its derivative by the grid's number."""

    place: ir.Value
    slope: ir.Value
    size: ir.Value


def _coordinate(op: Emit, number: ir.Value, size: DimLike, padding: int, align_corners: bool) -> Coordinate:
    dtype = op.dtype(number)
    count = op.size(size, dtype)
    one = op.const(1, dtype)
    scale = op.Mul(op.Sub(count, 1) if align_corners else count, op.const(0.5, dtype))
    place = op.Mul(op.Add(number, one), scale)
    place = place if align_corners else op.Sub(place, op.const(0.5, dtype))
    place, turned = _padded(op, place, size, padding, align_corners)
    return Coordinate(place, scale if turned is None else op.Mul(scale, turned), op.size(size))


def _padded(
    op: Emit, place: ir.Value, size: DimLike, padding: int, align_corners: bool
) -> tuple[ir.Value, ir.Value | None]:
    """A place after padding, and its derivative by the place before; None for a derivative of 1."""
    dtype = op.dtype(place)
    count = op.size(size, dtype)
    last, one, zero = op.Sub(count, 1), op.const(1, dtype), op.const(0, dtype)
    slope: ir.Value | None = None
    if padding == REFLECTION:
        low = zero if align_corners else op.const(-0.5, dtype)
        span = op.Max(last if align_corners else count, one)
        shifted = op.Sub(place, low)
        sign = op.Where(op.Less(shifted, zero), op.const(-1, dtype), one)
        shifted = op.Abs(shifted)
        flips = op.Floor(op.Div(shifted, span))
        rest = op.Sub(shifted, op.Mul(flips, span))
        is_odd = op.Equal(op.Mod(op.cast(flips, INT64), op.const(np.int64(2))), op.const(np.int64(1)))
        place = op.Add(op.Where(is_odd, op.Sub(span, rest), rest), low)
        slope = op.Where(is_odd, op.Neg(sign), sign)
    if padding != ZEROS:
        is_inside = op.cast(op.And(op.Greater(place, zero), op.Less(place, last)), dtype)
        place = op.Min(op.Max(place, zero), last)
        slope = is_inside if slope is None else op.Mul(slope, is_inside)
    return place, slope


def _flat_index(op: Emit, coordinates: Sequence[Coordinate], places: Sequence[ir.Value]) -> tuple[ir.Value, ir.Value]:
    """The index of a corner in the flat image, 0 for those outside, and a mask of the corners inside."""
    index: ir.Value | None = None
    inside: ir.Value | None = None
    for coordinate, place in zip(coordinates, places, strict=True):
        number = op.cast(place, INT64)
        here = op.And(op.Not(op.Less(number, 0)), op.Less(number, coordinate.size))
        inside = here if inside is None else op.And(inside, here)
        index = number if index is None else op.Add(op.Mul(index, coordinate.size), number)
    assert index is not None
    assert inside is not None
    return op.Where(inside, index, op.const(np.int64(0))), inside


def _grid_sampler_backward(
    op: Emit,
    grad_output: ir.Value,
    input: ir.Value,
    grid: ir.Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[ir.Value | None, ...]:
    if is_empty(op.dims(input)) or is_empty(op.dims(grid)):
        empty = (filled(op, op.dims(of), 0, op.dtype(of)) for of in (input, grid))
        return tuple(value if wanted else None for value, wanted in zip(empty, output_mask, strict=True))
    spatial, dtype = op.rank(input) - 2, op.dtype(input)
    batch, channels, *sizes = op.dims(input)
    points, plane = product(list(op.dims(grid)[1:-1])), product(sizes)
    gradient = op.reshape(grad_output, (batch, channels, points))
    image = op.reshape(input, (batch, channels, plane))
    numbers = op.reshape(grid, (batch, points, spatial))
    own_padding = ZEROS if interpolation_mode == BICUBIC else padding_mode  # there each tap is padded
    coordinates = [
        _coordinate(
            op, op.Gather(numbers, op.const(np.int64(spatial - 1 - axis)), axis=2), size, own_padding, align_corners
        )
        for axis, size in enumerate(sizes)
    ]
    taps = [TAPS[interpolation_mode](op, coordinate.place) for coordinate in coordinates]
    if interpolation_mode == BICUBIC:
        for axis, size in enumerate(sizes):
            taps[axis] = [
                tap._replace(place=_padded(op, tap.place, size, padding_mode, align_corners)[0]) for tap in taps[axis]
            ]
    of_image = filled(op, (batch, channels, plane), 0, dtype)
    slopes: list[ir.Value | None] = [None] * spatial
    for chosen in itertools.product(*taps):
        index, inside = _flat_index(op, coordinates, [tap.place for tap in chosen])
        spread = op.expand(unsqueeze(op, index, 1), (batch, channels, points))
        shown = op.cast(inside, dtype)
        shares = [tap.share for tap in chosen]
        if output_mask[0]:
            weight = reduce(op.Mul, [shown, *(share for share in shares if share is not None)])
            added = op.Mul(gradient, unsqueeze(op, weight, 1))
            of_image = scattered(op, of_image, 2, spread, added, "add")
        if output_mask[1] and interpolation_mode != NEAREST:
            seen = op.ReduceSum(op.Mul(op.GatherElements(image, spread, axis=2), gradient), axes=[1], keepdims=0)
            for axis, tap in enumerate(chosen):
                others = [share for place, share in enumerate(shares) if place != axis and share is not None]
                assert tap.slope is not None
                term = reduce(op.Mul, [seen, shown, tap.slope, *others])
                before = slopes[axis]
                slopes[axis] = term if before is None else op.Add(before, term)
    of_grid = _of_grid(op, grid, coordinates, slopes) if output_mask[1] else None
    return op.reshape(of_image, op.dims(input)) if output_mask[0] else None, of_grid


class Tap(NamedTuple):
    """One of the pixels that are read along an axis: where, its share, and how the share moves with the place."""

    place: ir.Value
    share: ir.Value | None
    slope: ir.Value | None


def _nearest(op: Emit, place: ir.Value) -> list[Tap]:
    return [Tap(op.Round(place), None, None)]


def _linear(op: Emit, place: ir.Value) -> list[Tap]:
    one, low = op.const(1, op.dtype(place)), op.Floor(place)
    part = op.Sub(place, low)
    return [Tap(low, op.Sub(one, part), op.Neg(one)), Tap(op.Add(low, one), part, one)]


def _cubic(op: Emit, place: ir.Value) -> list[Tap]:
    """Keys' kernel with a = -0.75: of a distance up to 1, and of one from 1 to 2."""
    dtype, a = op.dtype(place), -0.75
    low = op.Floor(place)
    part = op.Sub(place, low)
    near, far = (a + 2, -(a + 3), 0.0, 1.0), (a, -5 * a, 8 * a, -4 * a)
    found = []
    for step, powers in ((-1, far), (0, near), (1, near), (2, far)):
        distance = op.Sub(part, op.const(step, dtype)) if step < 1 else op.Sub(op.const(step, dtype), part)
        third, second, first, constant = powers
        slope = polynomial(op, distance, (3 * third, 2 * second, first))
        found.append(
            Tap(
                op.Add(low, op.const(step, dtype)),
                polynomial(op, distance, (third, second, first, constant)),
                slope if step < 1 else op.Neg(slope),
            )
        )
    return found


TAPS = {NEAREST: _nearest, BILINEAR: _linear, BICUBIC: _cubic}
"""The pixels along an axis, by interpolation mode."""


def _of_grid(
    op: Emit, grid: ir.Value, coordinates: Sequence[Coordinate], slopes: Sequence[ir.Value | None]
) -> ir.Value:
    """The grid names the image's last axis first; nothing comes from nearest neighbours."""
    columns = [
        unsqueeze(op, op.Mul(slope, coordinate.slope), 2)
        for coordinate, slope in zip(coordinates, slopes, strict=True)
        if slope is not None
    ]
    if not columns:
        return filled(op, op.dims(grid), 0, op.dtype(grid))
    return op.reshape(op.Concat(*reversed(columns), axis=2), op.dims(grid))


_NAMES = "grid_sampler_2d_backward grid_sampler_3d_backward"
register_shared(_grid_sampler_backward, "GatherElements, ScatterElements(add) at each corner", *overloads_of(_NAMES))
