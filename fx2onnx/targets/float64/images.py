"""Float64 forms of images and norms: Resize, Col2Im and GridSample by gathered elements; normalizations, reductions of whole images, and products with a constant factor beside them."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import copied_type, dims_of, known_array, known_ints
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.targets.float64.node import (
    DOUBLE,
    INT64,
    attribute,
    channels_last,
    channels_second,
    given,
    image_axes,
    number,
    operand,
    reshaped,
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


def global_average_pool(op: Emit, node: ir.Node) -> ir.Value | None:
    (x,) = given(node, 1)
    return op.ReduceMean(x, axes=image_axes(x), keepdims=1)


def global_max_pool(op: Emit, node: ir.Node) -> ir.Value | None:
    (x,) = given(node, 1)
    return op.ReduceMax(x, axes=image_axes(x), keepdims=1)


def _deviation(op: Emit, centred: ir.Value, axes: list[int], epsilon: float) -> ir.Value:
    """The root of the mean square and epsilon."""
    square = op.ReduceMean(op.Mul(centred, centred), axes=axes, keepdims=1)
    return op.Sqrt(op.Add(square, number(op, epsilon)))


def _standardized(op: Emit, x: ir.Value, axes: list[int], epsilon: float) -> ir.Value:
    centred = op.Sub(x, op.ReduceMean(x, axes=axes, keepdims=1))
    return op.Div(centred, _deviation(op, centred, axes, epsilon))


def _over_image(op: Emit, channels: ir.Value, x: ir.Value) -> ir.Value:
    """A number for each channel, to be broadcast over the image."""
    axes = [*range(1, 1 + len(image_axes(x)))]
    wide = op.cast(channels, DOUBLE)
    return op.Unsqueeze(wide, axes=axes) if axes else wide


def instance_normalization(op: Emit, node: ir.Node) -> ir.Value | None:
    x, scale, bias = given(node, 3)
    y = _standardized(op, x, image_axes(x), attribute(node, "epsilon", 1e-5))
    return op.Add(op.Mul(y, _over_image(op, scale, x)), _over_image(op, bias, x))


def batch_normalization(op: Emit, node: ir.Node) -> ir.Value | None:
    """The normalization by the statistics that the node is given."""
    x, *vectors = given(node, 5)
    if (
        attribute(node, "training_mode", 0)
        or len(node.outputs) > 1
        or x.dtype != DOUBLE
        or not attribute(node, "spatial", 1)
    ):
        return None
    scale, bias, mean, variance = (_over_image(op, each, x) for each in vectors)
    root = op.Sqrt(op.Add(variance, number(op, attribute(node, "epsilon", 1e-5))))
    return op.Add(op.Mul(op.Div(op.Sub(x, mean), root), scale), bias)


def layer_normalization(op: Emit, node: ir.Node) -> tuple[ir.Value, ...] | None:
    """With the mean and 1 / deviation behind it."""
    x, scale = given(node, 2)
    bias, rank = operand(node, 2), len(dims_of(x))
    axes = [*range(attribute(node, "axis", -1) % rank, rank)]
    mean = op.ReduceMean(x, axes=axes, keepdims=1)
    centred = op.Sub(x, mean)
    deviation = _deviation(op, centred, axes, attribute(node, "epsilon", 1e-5))
    y = op.Mul(op.Div(centred, deviation), scale)
    y = y if bias is None else op.Add(y, bias)
    return (y, mean, op.Reciprocal(deviation)) if len(node.outputs) > 1 else (y,)


def rms_normalization(op: Emit, node: ir.Node) -> ir.Value | None:
    x, scale = given(node, 2)
    rank = len(dims_of(x))
    axes = [*range(attribute(node, "axis", -1) % rank, rank)]
    return op.Mul(op.Div(x, _deviation(op, x, axes, attribute(node, "epsilon", 1e-5))), scale)


def group_normalization(op: Emit, node: ir.Node) -> ir.Value | None:
    """With a scale for each group below opset 21, for each channel from then on."""
    x, scale, bias = given(node, 3)
    channels, groups, rank = dims_of(x)[1], attribute(node, "num_groups", 1), len(dims_of(x))
    if not isinstance(channels, int):
        return None
    split = reshaped(op, channels_last(op, x), rank - 1, [groups, channels // groups])
    y = _standardized(op, split, [*range(1, rank - 1), rank], attribute(node, "epsilon", 1e-5))
    size = [groups, 1 if op.opset < 21 else channels // groups]
    y = op.Add(op.Mul(y, reshaped(op, scale, 0, size)), reshaped(op, bias, 0, size))
    return channels_second(op, reshaped(op, y, rank - 1, [channels]))


def _scales(node: ir.Node | None) -> bool:
    """Return whether a node multiplies or divides by one constant that is no power of two."""
    if node is None or node.domain or node.op_type not in ("Mul", "Div"):
        return False
    constants = [known_array(value) for value in node.inputs[node.op_type == "Div" :]]
    return any(each is not None and each.size == 1 and abs(math.frexp(each.item())[0]) != 0.5 for each in constants)


def scaled(node: ir.Node) -> list[ir.Value]:
    """Return the scaled operands and result of a float64 MatMul, which onnxruntime would fuse into FusedMatMul."""
    if node.op_type != "MatMul" or node.domain or node.outputs[0].dtype != ir.DataType.DOUBLE:
        return []
    found = []
    for value in node.inputs:
        producer = None if value is None else value.producer()
        while producer is not None and producer.op_type == "Transpose" and producer.inputs[0] is not None:
            producer = producer.inputs[0].producer()
        if value is not None and _scales(producer):
            found.append(value)
    result = node.outputs[0]
    return [*found, result] if any(_scales(use.node) for use in result.uses()) else found


def keep_apart(node: ir.Node) -> None:
    """A Max of one tensor between them, which changes nothing."""
    for value in scaled(node):
        reader = None if value is node.outputs[0] else node
        producer = value.producer()
        assert producer is not None
        assert isinstance(producer.graph, ir.Graph)
        copy = copied_type(value, f"{value.name}/apart_{node.outputs[0].name}")
        apart = ir.Node("", "Max", [value], outputs=[copy], name=f"{copy.name}/Max")
        apart.metadata_props.update(node.metadata_props)
        for use in list(value.uses()):
            if use.node is not apart and (use.node is reader or (reader is None and _scales(use.node))):
                use.node.replace_input_with(use.idx, copy)
        producer.graph.insert_after(producer, apart)
