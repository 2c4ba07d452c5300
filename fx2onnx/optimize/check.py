"""The check that a model is whole: the properties that every edit must leave intact. Shares no code with the driver."""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.base.errors import Fx2OnnxError, InternalError
from fx2onnx.irx.schema import schema_of


def check_model(model: ir.Model, when: str) -> None:
    """Raises InternalError E900 where a value is read before it exists, a name is taken twice, a use is not recorded,
    an operator does not exist in the model's opset, or a value lost its dtype or rank.
    """
    names: dict[str, ir.Value] = {}
    _check_graph(model.graph, set(), names, model.graph.opset_imports, when)


def _fault(when: str, what: str) -> InternalError:
    return InternalError("E900", f"the graph is broken {when}", why=what)


def _check_graph(
    graph: ir.Graph, outer: set[ir.Value], names: dict[str, ir.Value], opsets: dict[str, int], when: str
) -> None:
    known = outer | set(graph.inputs) | set(graph.initializers.values())
    for key, value in graph.initializers.items():
        if key != value.name:
            raise _fault(when, f"the weight {value.name} is registered as {key}")
    for value in {*graph.inputs, *graph.initializers.values()}:
        _take_name(value, names, when)
    for node in graph:
        _check_node(node, known, opsets, when)
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                _check_graph(attribute.as_graph(), known, names, opsets, when)
        for value in node.outputs:
            known.add(value)
            if value.name:
                _take_name(value, names, when)
    for value in graph.outputs:
        if value not in known:
            raise _fault(when, f"the output {value.name} is made by no node")
        if not value.name:
            raise _fault(when, "an output has no name")


def _take_name(value: ir.Value, names: dict[str, ir.Value], when: str) -> None:
    if not value.name:
        raise _fault(when, "an input or weight has no name")
    if names.setdefault(value.name, value) is not value:
        raise _fault(when, f"two values are named {value.name}")


def _check_node(node: ir.Node, known: set[ir.Value], opsets: dict[str, int], when: str) -> None:
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        if value not in known:
            raise _fault(when, f"{node.name} reads {value.name} before it exists")
        if (node, index) not in {(user, place) for user, place in value.uses()}:
            raise _fault(when, f"the use of {value.name} by {node.name} is not recorded")
    if not node.domain:
        try:
            schema = schema_of(node.op_type, opsets[""])
        except Fx2OnnxError as error:
            raise _fault(when, error.what) from error
        if not schema.is_variadic and len(node.inputs) > len(schema.input_names):
            raise _fault(when, f"{node.name} has {len(node.inputs)} inputs, {node.op_type} takes fewer")
        unknown = sorted(set(node.attributes) - set(schema.attribute_types))
        if unknown:
            raise _fault(when, f"{node.op_type} has no attribute {unknown[0]}")
    for value in node.outputs:
        if value.uses() and not value.name:
            raise _fault(when, f"an output of {node.name} is read and has no name")
        if value.meta.get("fx2onnx.dims") is not None and (value.dtype is None or value.shape is None):
            raise _fault(when, f"{value.name} lost its dtype or dims")
