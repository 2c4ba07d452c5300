"""Gradients of sampling at grid points, of the image and of the points. Source: ATen/native/GridSampler.{h,cpp}."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fx2onnx.aten_map.scattering import scattered
from fx2onnx.aten_map.table.axes import INT64, filled, unsqueeze
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.base.dims import DimLike, product
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit

BILINEAR, NEAREST = 0, 1
ZEROS, BORDER, REFLECTION = 0, 1, 2


@dataclass(frozen=True)
class Coordinate:
    """Of each point along one axis of the image: its place, and by how much the place moves with the grid's number."""

    place: ir.Value
    slope: ir.Value
    size: ir.Value


def _coordinate(op: Emit, number: ir.Value, size: DimLike, padding: int, align_corners: bool) -> Coordinate:
    dtype = op.dtype(number)
    count = op.size(size, dtype)
    last, one, zero, half = op.Sub(count, 1), op.const(1, dtype), op.const(0, dtype), op.const(0.5, dtype)
    scale = op.Mul(last if align_corners else count, half)
    place = op.Mul(op.Add(number, one), scale)
    place = place if align_corners else op.Sub(place, half)
    slope = scale
    if padding == REFLECTION:
        low = zero if align_corners else op.const(-0.5, dtype)
        span = op.Max(last if align_corners else count, op.const(1e-30, dtype))
        shifted = op.Sub(place, low)
        sign = op.Where(op.Less(shifted, zero), op.const(-1, dtype), one)
        shifted = op.Abs(shifted)
        flips = op.Floor(op.Div(shifted, span))
        rest = op.Sub(shifted, op.Mul(flips, span))
        is_odd = op.Equal(op.Mod(op.cast(flips, INT64), op.const(np.int64(2))), op.const(np.int64(1)))
        place = op.Add(op.Where(is_odd, op.Sub(span, rest), rest), low)
        slope = op.Mul(slope, op.Where(is_odd, op.Neg(sign), sign))
    if padding != ZEROS:
        is_inside = op.And(op.Greater(place, zero), op.Less(place, last))
        place = op.Min(op.Max(place, zero), last)
        slope = op.Mul(slope, op.cast(is_inside, dtype))
    return Coordinate(place, slope, op.size(size))


def _flat_index(op: Emit, coordinates: Sequence[Coordinate], places: Sequence[ir.Value]) -> tuple[ir.Value, ir.Value]:
    """Where a corner lies in the flat image, 0 for those outside, and whether it is inside."""
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
) -> tuple[ir.Value | None, ir.Value | None]:
    if interpolation_mode not in (BILINEAR, NEAREST):
        raise UserError("E203", "bicubic grid_sample has no gradient in ONNX", next="use mode='bilinear'")
    spatial, dtype = op.rank(input) - 2, op.dtype(input)
    batch, channels, *sizes = op.dims(input)
    points, plane = product(list(op.dims(grid)[1:-1])), product(sizes)
    gradient = op.reshape(grad_output, (batch, channels, points))
    image = op.reshape(input, (batch, channels, plane))
    numbers = op.reshape(grid, (batch, points, spatial))
    coordinates = [
        _coordinate(
            op, op.Gather(numbers, op.const(np.int64(spatial - 1 - axis)), axis=2), size, padding_mode, align_corners
        )
        for axis, size in enumerate(sizes)
    ]
    of_image = filled(op, (batch, channels, plane), 0, dtype)
    slopes: list[ir.Value | None] = [None] * spatial
    near = [op.Floor(c.place) if interpolation_mode == BILINEAR else op.Round(c.place) for c in coordinates]
    corners = itertools.product((0, 1), repeat=spatial) if interpolation_mode == BILINEAR else [(0,) * spatial]
    for corner in corners:
        places = [
            op.Add(place, op.const(bit, dtype)) if bit else place for place, bit in zip(near, corner, strict=True)
        ]
        index, inside = _flat_index(op, coordinates, places)
        spread = op.expand(unsqueeze(op, index, 1), (batch, channels, points))
        shown = op.cast(inside, dtype)
        shares = [
            op.Sub(op.const(1, dtype), op.Abs(op.Sub(c.place, place))) if interpolation_mode == BILINEAR else None
            for c, place in zip(coordinates, places, strict=True)
        ]
        weight = _product(op, [shown, *(share for share in shares if share is not None)])
        if output_mask[0]:
            added = op.Mul(gradient, unsqueeze(op, weight, 1))
            of_image = scattered(op, of_image, 2, spread, added, "add")
        if output_mask[1] and interpolation_mode == BILINEAR:
            seen = op.ReduceSum(op.Mul(op.GatherElements(image, spread, axis=2), gradient), axes=[1], keepdims=0)
            for axis, bit in enumerate(corner):
                others = [share for place, share in enumerate(shares) if place != axis and share is not None]
                term = _product(op, [seen, shown, *others])
                before = slopes[axis]
                signed = term if bit else op.Neg(term)
                slopes[axis] = signed if before is None else op.Add(before, signed)
    of_grid = _of_grid(op, grid, coordinates, slopes) if output_mask[1] else None
    return op.reshape(of_image, op.dims(input)) if output_mask[0] else None, of_grid


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


def _product(op: Emit, factors: Sequence[ir.Value]) -> ir.Value:
    total = factors[0]
    for factor in factors[1:]:
        total = op.Mul(total, factor)
    return total


_NAMES = "grid_sampler_2d_backward grid_sampler_3d_backward"
register_shared(_grid_sampler_backward, "GatherElements, ScatterElements(add) at each corner", *overloads_of(_NAMES))
