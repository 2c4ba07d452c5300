"""A model as it is compared: nodes in an order in which they can run, constants among the weights, weights mapped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.targets import path_text
from fx2onnx.files.digest import digest_of
from fx2onnx.irx.names import scope_of, source_of
from fx2onnx.irx.values import dtype_name
from fx2onnx.semantics.check import open_file
from fx2onnx.semantics.reading.weights import WeightStore, dense_array

Tensor: TypeAlias = ir.TensorProtocol


@dataclass(slots=True, eq=False)
class GraphPart:
    """A graph, the body of a function, or a graph inside a node."""

    where: str
    """Empty for the main graph, else which function or node it is of."""
    inputs: list[ir.Value]
    outputs: list[ir.Value]
    nodes: list[ir.Node]
    """The nodes in an order in which they can run, without constants."""
    weights: dict[ir.Value, Tensor]
    """Initializers and constants: where a tensor stands makes no difference."""


@dataclass(slots=True, eq=False)
class OpenedModel:
    """A model and what its weights hold."""

    path: str
    model: ir.Model
    store: WeightStore
    places: dict[ir.Node, int] = field(default_factory=dict)
    """The index of each node in its graph in the file."""
    digests: dict[int, str] = field(default_factory=dict)
    parts: dict[int, GraphPart] = field(default_factory=dict)

    @property
    def opsets(self) -> dict[str, int]:
        """Versions by domain; that of ONNX itself is ``ai.onnx``."""
        return {domain or "ai.onnx": version for domain, version in self.model.opset_imports.items()}

    def part(self, graph: ir.Graph | ir.Function, where: str = "") -> GraphPart:
        """The graph as it is compared. Raises UserError E303 where it has a cycle."""
        found = self.parts.get(id(graph))
        if found is None:
            found = self.parts[id(graph)] = self._part(graph, where)
        return found

    def _part(self, graph: ir.Graph | ir.Function, where: str) -> GraphPart:
        self.places.update({node: place for place, node in enumerate(graph)})
        try:
            graph.sort()
        except ValueError as error:
            raise UserError("E303", f"'{self.path}' is not a valid ONNX model", why=str(error)[:200]) from error
        weights: dict[ir.Value, Tensor] = {}
        nodes = []
        if isinstance(graph, ir.Graph):
            values = graph.initializers.values()
            weights = {value: value.const_value for value in values if value.const_value is not None}
        for node in graph:
            constant = _constant(node)
            if constant is None:
                nodes.append(node)
            else:
                weights[node.outputs[0]] = constant
        return GraphPart(where, list(graph.inputs), list(graph.outputs), nodes, weights)

    def array(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """The numbers, mapped where they lie in another file. Raises UserError E302, E303, E404."""
        return self.store.held(tensor, f"'{self.path}': {tensor.name!r}")

    def digest(self, tensor: Tensor) -> str:
        """The same for the same numbers of one dtype in one order; the shape is no part of it."""
        key = id(tensor)
        if key not in self.digests:
            array = self.array(tensor)
            content = repr(array.tolist()).encode() if array.dtype.kind == "O" else _bytes_of(array).data
            self.digests[key] = digest_of(content)
        return self.digests[key]


def _bytes_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def open_model(path: str | os.PathLike[str]) -> OpenedModel:
    """Read a file's graph; the numbers of weights in other files stay there. Raises UserError E302, E303."""
    text = path_text(path, "the model")
    loaded = open_file(text)
    sparse = [(tensor.values.name, dense_array(tensor)) for tensor in loaded.proto.graph.sparse_initializer]
    try:
        model = ir.from_proto(loaded.proto)
        for name, array in sparse:
            model.graph.register_initializer(ir.Value(name=name, const_value=ir.tensor(array, name=name)))
    except Exception as error:  # onnx_ir has a class for each kind of damage
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise UserError("E303", f"'{text}' is not a valid ONNX model", why=why) from error
    return OpenedModel(text, model, WeightStore(loaded.folders))


def _constant(node: ir.Node) -> Tensor | None:
    """The tensor of a Constant; None for other nodes, and where a function's attribute gives the value."""
    if node.op_type != "Constant" or node.domain or len(node.outputs) != 1 or len(node.attributes) != 1:
        return None
    try:
        return ir.convenience.get_const_tensor(node.outputs[0])
    except ValueError:  # a sparse one, which is compared as an attribute
        return None


def nested(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """The graphs inside a node by attribute."""
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield name, attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from ((f"{name}[{index}]", graph) for index, graph in enumerate(attribute.as_graphs()))


def scope(node: ir.Node) -> str:
    """The module that the node belongs to."""
    return scope_of(node.name or "", node.metadata_props)


def source(node: ir.Node) -> str:
    """The line that the node comes from."""
    return source_of(node.metadata_props)


def operator(node: ir.Node) -> str:
    """``Conv``, or ``com.example::Magic``."""
    return f"{node.domain}::{node.op_type}" if node.domain else str(node.op_type)


def title(node: ir.Node) -> str:
    """The node's name, or what it makes where it has none."""
    outputs = [value.name or "_" for value in node.outputs]
    return node.name or f"{operator(node)} -> {', '.join(outputs)}"


def type_of(value: ir.Value) -> tuple[str | None, list[int | str | None] | None]:
    """dtype and shape, None where the file does not say."""
    shape = None
    if value.shape is not None:
        shape = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    kind: Any = value.type
    if kind is None:
        return None, shape
    if isinstance(kind, ir.TensorType):
        return dtype_name(kind.dtype), shape
    return str(kind), shape
