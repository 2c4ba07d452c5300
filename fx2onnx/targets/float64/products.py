"""Products of float64 matrices with a constant factor beside them, which onnxruntime makes one node with a float32 attribute."""

from __future__ import annotations

import math

import onnx_ir as ir

from fx2onnx.irx.values import copied_type, known_array


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
