"""Resize, Col2Im and GridSample in float64, by gathered elements."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dims_of, known_array, known_ints
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.targets.float64.node import (
    DOUBLE,
    INT64,
    attribute,
    channels_last,
    channels_second,
    given,
    number,
    operand,
    size_of,
)
from fx2onnx.targets.float64.windows import Axis, windows

CUBIC = -0.75
FLOAT = ir.DataType.FLOAT
EXACT = 1 << 24
"""Largest size of an axis whose indices float32 holds exactly."""


def resize(op: Emit, node: ir.Node) -> ir.Value | None:
    """Resize to the nearest elements: the indices of each axis are resized in float32, which holds them exactly, and gathered."""
    (x,), ((_, target),) = given(node, 1), op.result
    refused = any(attribute(node, name, usual) != usual for name, usual in REFUSED.items())
    if attribute(node, "mode", "nearest") != "nearest" or refused or op.opset < 11 or "axes" in node.attributes:
        return None
    scales, sizes = operand(node, 2), operand(node, 3)
    passed = {name: node.attributes[name].value for name in PASSED if name in node.attributes}
    factors = known_array(scales) if dims_of(x) != target and scales is not None and scales.name else None
    for axis, (size, count) in enumerate(zip(dims_of(x), target, strict=True)):
        is_kept = size == count and (axis < 2 or isinstance(size, int))
        if is_kept and (factors is None or len(factors) <= axis or factors[axis] == 1):
            continue
        if isinstance(size, int) and size >= EXACT:
            return None
        own = size_of(op, x, axis)
        line = op.node("Range", 0, op.size(own), 1, outputs=((INT64, (own,)),))
        line = op.node("Reshape", op.Cast(line, to=FLOAT), [1, 1, -1], outputs=((FLOAT, (1, 1, own)),))
        keywords: dict[str, Any] = dict(passed)
        for name, numbers, kind in (("scales", scales, np.float32), ("sizes", sizes, np.int64)):
            if numbers is not None and numbers.name and dims_of(numbers) != (0,):
                part = op.Slice(numbers, starts=[axis], ends=[axis + 1], axes=[0])
                # engines copy what keeps all its sizes, whatever the factor: a second row keeps them from it
                keywords[name] = op.Concat(op.const(np.array([1, 1 + is_kept], kind)), part, axis=0)
        if op.opset < 13:
            empty = op.const(np.zeros(0, np.float32))
            keywords.setdefault("scales", empty)
            keywords["roi"] = empty
        places = op.node("Resize", line, outputs=((FLOAT, (1, 1 + is_kept, count)),), **keywords)
        if is_kept:
            places = op.Slice(places, starts=[0], ends=[1], axes=[1])
        places = op.node("Reshape", op.Cast(places, to=INT64), [-1], outputs=((INT64, (count,)),))
        dims = dims_of(x)
        x = op.node("Gather", x, places, axis=axis, outputs=((DOUBLE, (*dims[:axis], count, *dims[axis + 1 :])),))
    return x


PASSED = ("mode", "coordinate_transformation_mode", "nearest_mode")
REFUSED = {"keep_aspect_ratio_policy": "stretch", "antialias": 0}


def col2im(op: Emit, node: ir.Node) -> ir.Value | None:
    """Each element gathers those of the blocks that reach it."""
    x, shape, block = given(node, 3)
    kernel, channels = known_ints(block), op.result[0][1][1]
    if kernel is None or not isinstance(channels, int):
        return None
    rank, places = len(kernel), int(np.prod(kernel))
    strides, dilations = attribute(node, "strides", [1] * rank), attribute(node, "dilations", [1] * rank)
    pads, known = attribute(node, "pads", [0] * 2 * rank), known_ints(shape)
    axes, blocks, image = [], [], []
    for index in range(rank):
        size: Any = known[index] if known is not None else Dim.symbol(f"{shape.name}/{index}")
        if known is None:
            single = op.Slice(shape, starts=[index], ends=[index + 1], axes=[0])
            op.builder.symbols[f"{shape.name}/{index}"] = (op.Squeeze(single, axes=[0]), None)
        reach = dilations[index] * (kernel[index] - 1) + 1
        count = (size + pads[index] + pads[index + rank] - reach) // strides[index] + 1
        offsets = -np.arange(kernel[index]) * dilations[index]
        axes.append(Axis(count, size, 1, offsets, pads[index], strides[index]))
        blocks.append(count)
        image.append(size)
    batch = size_of(op, x, 0)
    lines: DimLike = batch * channels  # type: ignore[assignment]
    split = op.node("Reshape", x, op.sizes([-1, places, *blocks]), outputs=((DOUBLE, (lines, places, *blocks)),))
    columns = windows(op, channels_last(op, split), 1, axes)
    own = op.const(np.eye(places, dtype=bool).reshape(*(side for size in kernel for side in (1, size)), places))
    taken = op.Where(own, columns, number(op, 0))
    y = op.ReduceSum(taken, axes=[*range(2, 2 + 2 * rank, 2), 1 + 2 * rank], keepdims=0)
    target = op.sizes([batch, channels, *image])
    summed: ir.Value = op.node("Reshape", y, target, outputs=((DOUBLE, (batch, channels, *image)),))
    return summed


def _inside(op: Emit, place: ir.Value, size: ir.Value, padding: str, is_aligned: bool) -> ir.Value:
    """A place outside the image, brought inside as the padding says."""
    zero, one = number(op, 0), number(op, 1)
    last = op.Sub(size, one)
    if padding == "reflection":
        low, span = (zero, op.Max(last, one)) if is_aligned else (number(op, -0.5), size)
        beyond = op.Abs(op.Sub(place, low))
        turns = op.Floor(op.Div(beyond, span))
        rest = op.Sub(beyond, op.Mul(turns, span))
        half = op.Mul(turns, number(op, 0.5))
        place = op.Add(op.Where(op.Equal(op.Floor(half), half), rest, op.Sub(span, rest)), low)
    return op.Max(op.Min(place, last), zero)


def _cubic_weights(op: Emit, part: ir.Value) -> list[ir.Value]:
    """Return the cubic weights of the elements at -1, 0, 1 and 2."""

    def near(t: ir.Value) -> ir.Value:
        inner = op.Sub(op.Mul(number(op, CUBIC + 2), t), number(op, CUBIC + 3))
        return op.Add(op.Mul(op.Mul(inner, t), t), number(op, 1))

    def far(t: ir.Value) -> ir.Value:
        inner = op.Sub(op.Mul(number(op, CUBIC), t), number(op, 5 * CUBIC))
        return op.Sub(op.Mul(op.Add(op.Mul(inner, t), number(op, 8 * CUBIC)), t), number(op, 4 * CUBIC))

    rest = op.Sub(number(op, 1), part)
    return [far(op.Add(part, number(op, 1))), near(part), near(rest), far(op.Add(rest, number(op, 1)))]


def _taps(
    op: Emit, place: ir.Value, size: ir.Value, mode: str, padding: str, is_aligned: bool
) -> list[tuple[ir.Value, ir.Value | None]]:
    """Indices along one axis, and their weights."""
    if padding != "zeros" and mode != "cubic":
        place = _inside(op, place, size, padding, is_aligned)
    weights: list[ir.Value | None] = [None]
    if mode == "nearest":
        places = [op.Round(place)]
    else:
        first = op.Floor(place)
        part = op.Sub(place, first)
        steps = (0, 1) if mode == "linear" else (-1, 0, 1, 2)
        places = [op.Add(first, number(op, step)) if step else first for step in steps]
        weights = [*([op.Sub(number(op, 1), part), part] if mode == "linear" else _cubic_weights(op, part))]
    found: list[tuple[ir.Value, ir.Value | None]] = []
    last = op.Cast(op.Sub(size, number(op, 1)), to=INT64)
    for each, weight in zip(places, weights, strict=True):
        if padding != "zeros" and mode == "cubic":
            each = _inside(op, each, size, padding, is_aligned)
        if padding == "zeros":
            valid = op.And(op.Greater(each, number(op, -1)), op.Less(each, size))
            weight = op.Where(valid, number(op, 1) if weight is None else weight, number(op, 0))
        index = op.Max(op.Min(op.Cast(each, to=INT64), last), op.const(0, INT64))
        found.append((index, weight))
    return found


def grid_sample(op: Emit, node: ir.Node) -> ir.Value | None:
    """The elements around each place, by GatherND, times their weights."""
    x, grid = given(node, 2)
    rank, points = len(dims_of(x)) - 2, dims_of(grid)[:-1]
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(
        attribute(node, "mode", "linear"), attribute(node, "mode", "")
    )
    mode, is_aligned = mode or "linear", bool(attribute(node, "align_corners", 0))
    grid = op.cast(grid, DOUBLE)
    axes = []
    for axis in range(rank):
        own = op.Slice(grid, starts=[rank - 1 - axis], ends=[rank - axis], axes=[rank + 1])
        size = op.size(size_of(op, x, 2 + axis), DOUBLE)
        one, half = number(op, 1), number(op, 0.5)
        shifted = op.Add(own, one)
        place = op.Mul(shifted, op.Mul(op.Sub(size, one), half)) if is_aligned else None
        place = op.Mul(op.Sub(op.Mul(shifted, size), one), half) if place is None else place
        axes.append(_taps(op, place, size, mode, attribute(node, "padding_mode", "zeros"), is_aligned))
    image, total = channels_last(op, x), None
    for taps in product(*axes):
        indices = op.Concat(*(index for index, _ in taps), axis=-1)
        typed = ((DOUBLE, (*points, dims_of(x)[1])),)
        value = op.node("GatherND", image, indices, batch_dims=1, outputs=typed)
        for _, weight in taps:
            value = value if weight is None else op.Mul(value, weight)
        total = value if total is None else op.Add(total, value)
    return None if total is None else channels_second(op, total)
