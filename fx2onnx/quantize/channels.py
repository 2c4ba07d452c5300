"""What products take is divided by what the columns of their weights were multiplied with: in the norm before, or by a Mul."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.edit import drop_initializer
from fx2onnx.irx.values import dims_of
from fx2onnx.optimize.weights import DerivedTensor
from fx2onnx.quantize.accuracy import operands_of
from fx2onnx.quantize.forms import Writer
from fx2onnx.quantize.places import DOMAIN, WeightPlace
from fx2onnx.quantize.schemes import Array

NORMS: dict[tuple[str, str], tuple[int, ...]] = {
    ("", "LayerNormalization"): (1, 2),
    ("", "RMSNormalization"): (1,),
    ("", "SimplifiedLayerNormalization"): (1,),
    (DOMAIN, "SkipLayerNormalization"): (2, 3),
    (DOMAIN, "SkipSimplifiedLayerNormalization"): (2,),
    ("", "Mul"): (0, 1),
}
"""Inputs that the first output is linear in, one number a column: dividing all of them divides it. Of Mul, the one that is a weight."""


@dataclass(eq=False)
class _Group:
    operand: ir.Value
    channels: Array
    readers: list[ir.Node] = field(default_factory=list)


def spread(writer: Writer, places: Sequence[WeightPlace]) -> None:
    """Divide the operands of weights that have ``channels``, in place."""
    groups: dict[tuple[int, int], _Group] = {}
    for place in places:
        channels = None if place.weight.given is None else place.weight.given.channels
        if channels is None:
            continue
        for node, operand in operands_of(place):
            group = groups.setdefault((id(operand), id(channels)), _Group(operand, channels))
            group.readers.append(node)
    for group in groups.values():
        if not _fold(writer, group):
            _insert(writer, group)


def _fold(writer: Writer, group: _Group) -> bool:
    """Divide the weights of the norm that makes the operand, where nothing else reads them or it."""
    made, readers = group.operand.producer(), set(group.readers)
    if made is None or group.operand.index() != 0 or group.operand.is_graph_output():
        return False
    if any(node not in readers for node, _ in group.operand.uses()):
        return False
    places = NORMS.get((made.domain, made.op_type))
    if places is None:
        return False
    given = [made.inputs[place] for place in places if place < len(made.inputs)]
    weights = [value for value in given if value is not None and value.const_value is not None]
    if not weights or len(weights) != (1 if made.op_type == "Mul" else sum(value is not None for value in given)):
        return False
    if any(_cannot_change(value, len(group.channels)) for value in weights):
        return False
    for value in weights:
        made.replace_input_with(made.inputs.index(value), writer.weight(_divided(value, group.channels)))
        drop_initializer(value)
    return True


def _cannot_change(value: ir.Value, columns: int) -> bool:
    assert value.const_value is not None
    sizes = value.const_value.shape.numpy()
    is_read_once = len(value.uses()) == 1 and not value.is_graph_output() and not value.is_graph_input()
    return (
        not is_read_once or value.const_value.size != columns or sizes[-1:] != (columns,) or not value.is_initializer()
    )


def _divided(value: ir.Value, channels: Array) -> DerivedTensor:
    tensor = value.const_value
    assert tensor is not None
    by = functools.partial(_quotient, channels)
    return DerivedTensor(by, (tensor,), tensor.dtype, tensor.shape.numpy(), f"{value.name}.divided")


def _quotient(channels: Array, array: Array) -> Array:
    return np.asarray((array.astype(np.float32) / channels).astype(array.dtype))


def _insert(writer: Writer, group: _Group) -> None:
    operand = group.operand
    dtype = operand.dtype
    assert dtype is not None
    by = writer.const(f"{operand.name}.channels", (1 / group.channels).astype(dtype.numpy()))
    readers = set(group.readers)
    graph = group.readers[0].graph
    assert graph is not None
    first = next(node for node in graph if node in readers)
    found = writer.node(first, "Mul", [operand, by], (dtype, dims_of(operand)))
    for node, place in list(operand.uses()):
        if node in readers:
            node.replace_input_with(place, found)
