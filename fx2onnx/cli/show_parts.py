"""A model by its modules: nodes with their origin, weights, which weights are tied. No data beside the file is read."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir

from fx2onnx.files.digest import digest_of
from fx2onnx.irx.names import scope_of, source_of
from fx2onnx.irx.values import dtype_name

LEAST_TIED_ELEMENTS = 16
"""Constants with fewer elements are axes, scales and the like, which have nothing to do with each other."""

_NO_PARAMETERS = ("bool", "int32", "int64", "string")
"""dtypes of indices, sizes and masks, which several modules may read without being tied."""


@dataclass(slots=True)
class ShownNode:
    """A node of a graph, of a graph inside a node or of a local function."""

    op_type: str
    scope: str
    name: str
    source: str
    results: list[str]
    """The outputs: name, and dtype and shape where the file says them."""
    reads: list[int] = field(default_factory=list)
    """The nodes that make what it takes."""


@dataclass(slots=True)
class ShownWeight:
    """An initializer."""

    name: str
    dtype: str
    shape: list[int]
    bytes: int
    place: tuple[str, ...]
    """The same for weights of one content: the place in another file, or a digest of what is inside."""
    modules: list[str] = field(default_factory=list)
    """The modules whose nodes read the weight."""

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(slots=True)
class Outline:
    """All nodes and weights of a model."""

    nodes: list[ShownNode] = field(default_factory=list)
    weights: list[ShownWeight] = field(default_factory=list)


def outline_of(proto: onnx.ModelProto) -> Outline:
    """Nodes in the order of the file; those inside a node come before it."""
    found = Outline()
    _take_graph(proto.graph, {}, {}, "", found)
    for function in proto.functions:
        types = {value.name: value for value in function.value_info}
        _take_nodes(function.node, types, {}, {}, f"{function.domain}::{function.name}", found)
    return found


def _take_graph(
    graph: onnx.GraphProto, made: Mapping[str, int], held: Mapping[str, ShownWeight], outside: str, found: Outline
) -> None:
    weights = {tensor.name: _weight(tensor) for tensor in graph.initializer}
    found.weights += weights.values()
    types = {value.name: value for value in (*graph.value_info, *graph.output)}
    inner = {name: number for name, number in made.items() if name not in weights}
    _take_nodes(graph.node, types, inner, {**held, **weights}, outside, found)


def _take_nodes(
    nodes: Iterable[onnx.NodeProto],
    types: Mapping[str, onnx.ValueInfoProto],
    made: dict[str, int],
    held: Mapping[str, ShownWeight],
    outside: str,
    found: Outline,
) -> None:
    """``made`` and ``held``: which node makes a value, and which weight it is, by name. ``outside`` is the scope of those
    that have none of their own.
    """
    for node in nodes:
        metadata = {entry.key: entry.value for entry in node.metadata_props}
        scope = scope_of(node.name, metadata) or outside
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                _take_graph(graph, made, held, scope, found)
        is_standard = node.domain in ("", "ai.onnx")
        operator = node.op_type if is_standard else f"{node.domain}::{node.op_type}"
        results = [_typed(name, types.get(name)) for name in node.output if name]
        reads = sorted({made[name] for name in node.input if name in made})
        for name in node.input:
            if name in held and scope not in held[name].modules:
                held[name].modules.append(scope)
        made.update(dict.fromkeys(filter(None, node.output), len(found.nodes)))
        found.nodes.append(ShownNode(operator, scope, node.name, source_of(metadata), results, reads))


def _typed(name: str, value: onnx.ValueInfoProto | None) -> str:
    if value is None or not value.type.HasField("tensor_type"):
        return name
    tensor = value.type.tensor_type
    dims = [str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim]
    shape = f"[{', '.join(dims)}]" if tensor.HasField("shape") else "[...]"
    return f"{name}: {dtype_name(tensor.elem_type)} {shape}"


def _weight(tensor: onnx.TensorProto) -> ShownWeight:
    shape = [max(dim, 0) for dim in tensor.dims]
    entries = {entry.key: entry.value for entry in tensor.external_data}
    kind = dtype_name(tensor.data_type)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        place: tuple[str, ...] = ("external", entries.get("location", ""), entries.get("offset", "0"))
    else:
        place = (_content(tensor) if math.prod(shape) >= LEAST_TIED_ELEMENTS else f"small: {tensor.name}",)
    return ShownWeight(tensor.name, kind, shape, length_of(tensor), (*place, kind))


def _content(tensor: onnx.TensorProto) -> str:
    """A digest; of weights that are one number over and over, the name: many are zeros or ones and are not tied."""
    data = tensor.raw_data
    if not data:
        bare = onnx.TensorProto()
        bare.CopyFrom(tensor)
        bare.ClearField("name")
        return digest_of(bare.SerializeToString(deterministic=True))
    width = max(1, len(data) // max(1, math.prod(tensor.dims)))
    is_uniform = data == data[:width] * (len(data) // width)
    return f"uniform: {tensor.name}" if is_uniform else digest_of(data)


def length_of(tensor: onnx.TensorProto) -> int:
    """The bytes that the numbers take, by shape and dtype."""
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    try:
        bits: int = ir.DataType(tensor.data_type).bitwidth
    except (ValueError, TypeError):  # undefined, or of a later version
        return len(tensor.raw_data)
    count: int = math.prod(max(dim, 0) for dim in tensor.dims)
    return -(-count * bits // 8)


def modules_of(outline: Outline) -> list[dict[str, Any]]:
    """The contents of each module and of those inside it, the outer ones first; the whole model under an empty name."""
    totals: dict[str, collections.Counter[str]] = {"": collections.Counter()}

    def add(module: str, **counts: int) -> None:
        for path in prefixes(module):
            totals.setdefault(path, collections.Counter()).update(counts)

    for node in outline.nodes:
        add(node.scope, nodes=1)
    known = set(totals)
    for weight in outline.weights:
        add(owner_of(weight, known), parameters=weight.elements, bytes=weight.bytes)
    return [
        {"module": path, **{key: totals[path][key] for key in ("nodes", "parameters", "bytes")}}
        for path in _outer_first(list(totals))
    ]


def owner_of(weight: ShownWeight, modules: set[str]) -> str:
    """The module of the weight's name, where there is such a one; else the first that reads it."""
    by_name = next((path for path in reversed(list(prefixes(weight.name))) if path and path in modules), "")
    return by_name or (weight.modules[0] if weight.modules else "")


def prefixes(path: str) -> Iterator[str]:
    """The root, and each module on the way to ``path``."""
    yield ""
    parts = path.split(".") if path else []
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


def _outer_first(paths: Sequence[str]) -> list[str]:
    """Each module behind the one around it, in the order in which they were found."""
    inside: dict[str, list[str]] = {}
    for path in paths:
        if path:
            inside.setdefault(path.rpartition(".")[0], []).append(path)
    order, pending = [], [""]
    while pending:
        path = pending.pop()
        order.append(path)
        pending += reversed(inside.get(path, []))
    return order


def tied_of(outline: Outline) -> list[dict[str, Any]]:
    """Weights of one content under several names, and those that several modules read."""
    groups: dict[tuple[str, ...], list[ShownWeight]] = {}
    for weight in outline.weights:
        if weight.elements >= LEAST_TIED_ELEMENTS and weight.dtype not in _NO_PARAMETERS:
            groups.setdefault(weight.place, []).append(weight)
    found = []
    for weights in groups.values():
        modules = list(dict.fromkeys(module for weight in weights for module in weight.modules))
        if len(weights) > 1 or len(modules) > 1:
            found.append({"weights": [w.name for w in weights], "modules": modules, "bytes": weights[0].bytes})
    return sorted(found, key=lambda row: -row["bytes"])


def sources_of(outline: Outline) -> list[dict[str, Any]]:
    """Lines of source code with the number of nodes that come from each, most first."""
    lines: collections.Counter[str] = collections.Counter()
    for node in outline.nodes:
        lines.update(filter(None, node.source.split("; ")))
    return [{"source": line, "nodes": count} for line, count in lines.most_common()]


def dims_of(values: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, list[str]]:
    """The axes of inputs and outputs at which each dynamic dim stands."""
    found: dict[str, list[str]] = {}
    for side, described in values.items():
        for value in described:
            for axis, dim in enumerate(value["shape"] or []):
                if isinstance(dim, str):
                    found.setdefault(dim, []).append(f"{side} {value['name']}, axis {axis}")
    return found
