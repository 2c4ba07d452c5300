"""Nodes as the body of a function: what tells it from others, what it takes and gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from fx2onnx.irx.edit import nested_graphs
from fx2onnx.irx.values import MAX_KNOWN_INTS
from fx2onnx.optimize.weights import is_literal

A = ir.AttributeType
_PLAIN = frozenset({A.FLOAT, A.INT, A.STRING, A.FLOATS, A.INTS, A.STRINGS})
Slot = tuple[int, str]
"""An attribute: the place of its node, its name."""


@dataclass
class FunctionBody:
    """Nodes of one call. Bodies with equal keys differ in names, in what goes in, and in attributes."""

    nodes: Sequence[ir.Node]
    key: Any
    inputs: list[ir.Value]
    outputs: list[ir.Value]
    constants: list[ir.Value]
    """Small numbers from outside that are part of the key."""
    slots: dict[Slot, ir.Attr]

    def attribute(self, slot: Slot) -> ir.Attr:
        return self.slots[slot]


class _Reader:
    """A walk through nodes in order, which numbers what comes in."""

    def __init__(self, nodes: Sequence[ir.Node]) -> None:
        self.inner: dict[ir.Value, tuple[Any, ...]] = {}
        self.inputs: dict[ir.Value, int] = {}
        self.constants: dict[ir.Value, None] = {}
        self.slots: dict[Slot, ir.Attr] = {}
        self.count = 0
        self.key = tuple(self._node(node) for node in nodes)

    def _node(self, node: ir.Node) -> Any:
        place = self.count
        self.count += 1
        read = tuple(self._value(value) for value in node.inputs)
        attributes = tuple(self._attribute(place, attribute) for attribute in node.attributes.values())
        for index, value in enumerate(node.outputs):
            self.inner[value] = (place, index)
        return node.domain, node.op_type, read, attributes, tuple(value.dtype for value in node.outputs)

    def _value(self, value: ir.Value | None) -> Any:
        if value is None:
            return None
        if value in self.inner:
            return self.inner[value]
        tensor = value.const_value
        if value.is_initializer() and tensor is not None and is_literal(tensor) and tensor.size <= MAX_KNOWN_INTS:
            self.constants[value] = None
            return "constant", tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()
        return "input", self.inputs.setdefault(value, len(self.inputs)), value.dtype

    def _attribute(self, place: int, attribute: ir.Attr) -> Any:
        name, kind = attribute.name, attribute.type
        if kind == A.GRAPH:
            return name, self._graph(attribute.as_graph())
        if kind == A.GRAPHS:
            return name, tuple(map(self._graph, attribute.as_graphs()))
        if attribute.is_ref():
            return name, kind, "of the caller", attribute.ref_attr_name
        if kind in _PLAIN:
            self.slots[place, name] = attribute
            return name, kind
        if kind == A.TENSOR:
            tensor = attribute.as_tensor()
            return name, tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()
        return name, kind, id(attribute.value)

    def _graph(self, graph: ir.Graph) -> Any:
        place = self.count
        self.count += 1
        for index, value in enumerate(graph.inputs):
            self.inner[value] = (place, index)
        own = []
        for name, value in graph.initializers.items():
            tensor = value.const_value
            assert tensor is not None
            self.inner[value] = (place, name)
            own.append((tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()))
        nodes = tuple(self._node(node) for node in graph)
        return len(graph.inputs), tuple(own), nodes, tuple(self._value(value) for value in graph.outputs)


def body_of(nodes: Sequence[ir.Node]) -> FunctionBody:
    """The nodes, which are in an order in which they can run, as a body."""
    reader = _Reader(nodes)
    inside = {*nodes, *(each for node in nodes for graph in nested_graphs(node) for each in graph.all_nodes())}
    outputs = [
        value
        for node in nodes
        for value in node.outputs
        if value.is_graph_output() or any(user not in inside for user, _ in value.uses())
    ]
    key = reader.key, tuple(reader.inner[value] for value in outputs)
    return FunctionBody(nodes, key, list(reader.inputs), outputs, list(reader.constants), reader.slots)


def differing(bodies: Sequence[FunctionBody]) -> dict[Slot, str]:
    """The attributes that are not the same in all, each with a name for it."""
    found: dict[Slot, str] = {}
    for slot, attribute in bodies[0].slots.items():
        if any(_text(body.slots[slot]) != _text(attribute) for body in bodies[1:]):
            name = slot[1] if slot[1] not in found.values() else f"{slot[1]}_{slot[0]}"
            found[slot] = name
    return found


def _text(attribute: ir.Attr) -> str:
    """The value in words, which tell -0.0 from 0.0."""
    value = attribute.value
    return repr(tuple(value) if isinstance(value, list | tuple) else value)


def define(
    path: str, body: FunctionBody, domain: str, name: str, own: Mapping[Slot, str], opset_imports: Mapping[str, int]
) -> ir.Function:
    """The function, of the nodes themselves: they are in no graph any more."""
    reader_places = _places(body.nodes)
    for (place, text), parameter in own.items():
        node = reader_places[place]
        node.attributes[text] = ir.RefAttr(text, parameter, node.attributes[text].type)
    taken: dict[str, None] = {}
    inputs = []
    changes: dict[ir.Value, ir.Value] = {}
    for value in body.inputs:
        local = (value.name or "x").removeprefix(f"{path}.")
        while local in taken:
            local += "_"
        taken[local] = None
        changes[value] = ir.Value(name=local, type=value.type)
        inputs.append(changes[value])
    constants = []
    for value in body.constants:
        assert value.const_value is not None
        tensor = ir.Tensor(value.const_value.numpy(), dtype=value.const_value.dtype)
        local = (value.name or "constant").removeprefix(f"{path}.")
        while local in taken:
            local += "_"
        taken[local] = None
        made = ir.Node("", "Constant", (), [ir.AttrTensor("value", tensor)], name=f"{local}/Constant")
        made.outputs[0].name = local
        changes[value] = made.outputs[0]
        constants.append(made)
    for node in body.nodes:
        _read_instead(node, changes)
        for value in node.outputs:
            value.shape = None  # of one call: others may have other sizes
            while value.name in taken:
                value.name = f"{value.name}_"
            taken[value.name or ""] = None
    graph = ir.Graph(
        inputs, body.outputs, nodes=[*constants, *body.nodes], opset_imports=dict(opset_imports), name=name
    )
    attributes = [ir.Attr(text, reader_places[place].attributes[key].type, None) for (place, key), text in own.items()]
    return ir.Function(domain, name, graph=graph, attributes=attributes)


def _read_instead(node: ir.Node, changes: Mapping[ir.Value, ir.Value]) -> None:
    for index, value in enumerate(node.inputs):
        if value is not None and value in changes:
            node.replace_input_with(index, changes[value])
    for graph in nested_graphs(node):
        for each in graph:
            _read_instead(each, changes)
        for place, value in enumerate(graph.outputs):
            if value in changes:
                graph.outputs[place] = changes[value]


def _places(nodes: Sequence[ir.Node]) -> dict[int, ir.Node]:
    """Nodes by the number that they have in slots: those of bodies count, and each body itself."""
    found: dict[int, ir.Node] = {}
    count = 0

    def go(node: ir.Node) -> None:
        nonlocal count
        found[count] = node
        count += 1
        for attribute in node.attributes.values():
            graphs = [attribute.as_graph()] if attribute.type == A.GRAPH else []
            graphs = list(attribute.as_graphs()) if attribute.type == A.GRAPHS else graphs
            for graph in graphs:
                count += 1
                for each in graph:
                    go(each)

    for node in nodes:
        go(node)
    return found
