"""Numbers that count positions, steps and sizes. Of these float16 holds 2,048 and bfloat16 256 without gaps: a sample is often
shorter, and shows nothing of what comes behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from fx2onnx.irx.edit import graphs_of
from fx2onnx.irx.schema import GRAPH_BEARING
from fx2onnx.precision.draft import LEAST_NUMBERS

WHY = "it is computed of positions or sizes, which 16 bits do not hold beyond {}"
END = {"float16": "2,048", "bfloat16": "256"}


def counting(model: ir.Model, largest: Callable[[ir.Value], float]) -> Iterator[ir.Node]:
    """Nodes whose floats come of integers and constants alone, up to where they meet the model's own numbers. ``largest``: of a
    value on the sample; integers of 0 and 1 are masks, and count nothing.
    """
    counts: set[ir.Value] = set()
    for graph in graphs_of(model):
        for node in graph:
            if node.op_type not in GRAPH_BEARING and _counts(node, counts, largest):
                yield node
                counts.update(value for value in node.outputs if _is_float(value))


def _counts(node: ir.Node, counts: set[ir.Value], largest: Callable[[ir.Value], float]) -> bool:
    first = node.inputs[0] if node.inputs else None
    if node.op_type == "Cast" and first is not None and first.dtype is not None and first.dtype.is_integer():
        return _is_float(node.outputs[0]) and largest(node.outputs[0]) > 1
    operands = [value for value in node.inputs if _is_float(value)]
    if node.op_type == "Range" and operands:
        return True
    return not counts.isdisjoint(operands) and all(value in counts or _is_constant(value) for value in operands)


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()


def _is_constant(value: ir.Value | None) -> bool:
    if value is None:
        return True
    producer, tensor = value.producer(), value.const_value
    if producer is not None:
        return producer.op_type in ("Constant", "ConstantOfShape")
    return tensor is not None and tensor.size < LEAST_NUMBERS
