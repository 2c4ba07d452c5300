"""Normalizations, reductions of whole images, and products with a constant factor beside them, in float64."""

from __future__ import annotations

import math

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import copied_type, dims_of, known_array
from fx2onnx.targets.float64.node import (
    DOUBLE,
    attribute,
    channels_last,
    channels_second,
    given,
    image_axes,
    number,
    operand,
    reshaped,
)


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
