"""Small harmful edits of ONNX files, each with the nodes that a search for the fault has to name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper


@dataclass(frozen=True)
class Mutant:
    """``guilty``: names of the nodes that were changed, and of those that read what these give (or the changed weight)."""

    kind: str
    what: str
    proto: onnx.ModelProto
    guilty: frozenset[str]


class Graph:
    """A model that is about to be changed."""

    def __init__(self, proto: onnx.ModelProto, shapes: dict[str, tuple[int, ...]]) -> None:
        self.proto = onnx.ModelProto()
        self.proto.CopyFrom(proto)
        self.nodes = list(self.proto.graph.node)
        self.weights = {each.name: each for each in self.proto.graph.initializer}
        self.shapes = shapes

    def readers(self, name: str) -> list[onnx.NodeProto]:
        return [node for node in self.nodes if name in node.input]

    def around(self, *nodes: onnx.NodeProto) -> frozenset[str]:
        """The nodes and their direct consumers."""
        consumers = [reader.name for node in nodes for name in node.output for reader in self.readers(name)]
        return frozenset([*(node.name for node in nodes), *consumers])

    def edit(self, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
        tensor = self.weights[name]
        array = change(numpy_helper.to_array(tensor).copy())
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), name))


def _float_weight(graph: Graph, rng: random.Random, rank: int = 1) -> str | None:
    names = [
        name
        for name, tensor in graph.weights.items()
        if tensor.data_type == 1 and len(tensor.dims) >= rank and np.prod(tensor.dims) > 1
    ]
    return rng.choice(names) if names else None


def _weight_edit(change: Callable[[np.ndarray, random.Random], np.ndarray | None], rank: int = 1):
    def mutate(graph: Graph, rng: random.Random) -> tuple[str, frozenset[str]] | None:
        name = _float_weight(graph, rng, rank)
        if name is None:
            return None
        array = numpy_helper.to_array(graph.weights[name])
        changed = change(array.copy(), rng)
        if changed is None or changed.shape != array.shape or np.array_equal(changed, array):
            return None
        graph.edit(name, lambda _: changed)
        return name, frozenset(n for node in graph.readers(name) for n in graph.around(node))

    return mutate


def _one_element(array: np.ndarray, rng: random.Random) -> np.ndarray:
    flat = array.reshape(-1)
    place = rng.randrange(flat.size)
    flat[place] = flat[place] * -2 + array.std() + 0.1
    return array


def _rows_swapped(array: np.ndarray, rng: random.Random) -> np.ndarray | None:
    if len(array) < 2:
        return None
    one, two = rng.sample(range(len(array)), 2)
    array[[one, two]] = array[[two, one]]
    return array


def _transposed(array: np.ndarray, rng: random.Random) -> np.ndarray | None:
    return np.swapaxes(array, -1, -2) if array.shape[-1] == array.shape[-2] else None


def _attribute(graph: Graph, rng: random.Random) -> tuple[str, frozenset[str]] | None:
    found = [(node, each) for node in graph.nodes for each in node.attribute if each.type in (1, 2, 7)]
    if not found:
        return None
    node, attribute = rng.choice(found)
    before = f"{attribute}"
    if attribute.type == 1:
        attribute.f = attribute.f * 1.7 + 0.3
    elif attribute.type == 2:
        attribute.i = attribute.i - 1 if attribute.i > 0 else attribute.i + 1
    else:
        values = list(attribute.ints)
        rng.shuffle(values)
        if values == list(attribute.ints):
            values = [value + 1 for value in values]
        del attribute.ints[:]
        attribute.ints.extend(values)
    return f"{node.name}: {before!r}", graph.around(node)


def _inputs_swapped(graph: Graph, rng: random.Random) -> tuple[str, frozenset[str]] | None:
    found = [node for node in graph.nodes if len(node.input) >= 2 and all(node.input[:2])]
    found = [node for node in found if node.op_type not in ("Add", "Mul", "Reshape", "Gather")]
    if not found:
        return None
    node = rng.choice(found)
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return node.name, graph.around(node)


_REPLACED = {
    "Add": "Sub", "And": "Or", "Cos": "Sin", "Div": "Mul", "Equal": "Less", "Erf": "Tanh", "Exp": "Tanh",
    "Gelu": "Relu", "Less": "Greater", "LessOrEqual": "Less", "Max": "Min", "MaxPool": "AveragePool", "Mul": "Add",
    "Neg": "Identity", "Not": "Identity", "Pow": "Add", "ReduceMean": "ReduceMax", "Relu": "Sigmoid",
    "Sigmoid": "Tanh", "Sin": "Cos", "Softmax": "LogSoftmax", "Sqrt": "Exp", "Sub": "Add", "Tanh": "Sigmoid",
}  # fmt: skip


def _op_replaced(graph: Graph, rng: random.Random) -> tuple[str, frozenset[str]] | None:
    found = [node for node in graph.nodes if node.op_type in _REPLACED]
    if not found:
        return None
    node = rng.choice(found)
    before, node.op_type = node.op_type, _REPLACED[node.op_type]
    if {before, node.op_type} & {"MaxPool", "Gelu"}:
        kept = [each for each in node.attribute if each.name not in ("storage_order", "dilations", "approximate")]
        del node.attribute[:]
        node.attribute.extend(kept)
    return f"{node.name}: {before} -> {node.op_type}", graph.around(node)


def _bypassed(graph: Graph, rng: random.Random) -> tuple[str, frozenset[str]] | None:
    """Readers of a node's output read its first input of that shape."""
    outputs = {value.name for value in graph.proto.graph.output}
    found = [
        (node, name)
        for node in graph.nodes
        for name in node.input
        if name not in graph.weights
        and node.output[0] not in outputs
        and name in graph.shapes
        and graph.shapes[name] == graph.shapes.get(node.output[0])
    ]
    if not found:
        return None
    node, name = rng.choice(found)
    guilty = graph.around(node)
    for reader in graph.readers(node.output[0]):
        for place, read in enumerate(reader.input):
            if read == node.output[0]:
                reader.input[place] = name
    graph.proto.graph.node.remove(node)
    return node.name, guilty


def _rewired(graph: Graph, rng: random.Random) -> tuple[str, frozenset[str]] | None:
    """An input reads another, earlier value of the same shape."""
    earlier: dict[tuple[int, ...], list[str]] = {}
    found = []
    for node in graph.nodes:
        for place, name in enumerate(node.input):
            shape = graph.shapes.get(name)
            if name in graph.weights or shape is None or not shape:
                continue
            found += [(node, place, other) for other in earlier.get(shape, []) if other != name]
        for name in node.output:
            if name in graph.shapes:
                earlier.setdefault(graph.shapes[name], []).append(name)
    if not found:
        return None
    node, place, other = rng.choice(found)
    node.input[place] = other
    return node.name, graph.around(node)


def _optional_dropped(graph: Graph, rng: random.Random) -> tuple[str, frozenset[str]] | None:
    found = [
        node for node in graph.nodes if node.op_type in ("Conv", "Gemm", "LayerNormalization") and len(node.input) > 2
    ]
    if not found:
        return None
    node = rng.choice(found)
    del node.input[2:]
    return node.name, graph.around(node)


def _integer(graph: Graph, rng: random.Random) -> tuple[str, frozenset[str]] | None:
    """One number of a shape, an axis or an index is another."""
    names = [name for name, tensor in graph.weights.items() if tensor.data_type == 7 and np.prod(tensor.dims) > 0]
    names = [name for name in names if len(graph.readers(name)) == 1]
    if not names:
        return None
    name = rng.choice(names)

    def change(array: np.ndarray) -> np.ndarray:
        flat = array.reshape(-1)
        if flat.size > 1:
            rng.shuffle(flat)
        flat[rng.randrange(flat.size)] += rng.choice([-1, 1])
        return array

    graph.edit(name, change)
    return name, frozenset(n for node in graph.readers(name) for n in graph.around(node))


def _inserted(op_type: str, **attributes: object):
    """A node between a node and its readers."""

    def mutate(graph: Graph, rng: random.Random) -> tuple[str, frozenset[str]] | None:
        floats = {"MatMul", "Gemm", "Conv", "Add", "Mul", "Softmax", "LayerNormalization", "Relu", "Gelu", "Transpose"}
        found = [node for node in graph.nodes if node.op_type in floats and graph.shapes.get(node.output[0])]
        if not found:
            return None
        node = rng.choice(found)
        guilty = graph.around(node) | {"inserted"}
        name, hidden = node.output[0], f"{node.output[0]}.before"
        node.output[0] = hidden
        place = list(graph.proto.graph.node).index(node)
        made = onnx.helper.make_node(op_type, [hidden], [name], name="inserted", **attributes)
        rest = list(graph.proto.graph.node)
        del graph.proto.graph.node[:]
        graph.proto.graph.node.extend([*rest[: place + 1], made, *rest[place + 1 :]])
        return f"{op_type} after {node.name}", guilty

    return mutate


KINDS: dict[str, Callable[[Graph, random.Random], tuple[str, frozenset[str]] | None]] = {
    "attribute": _attribute,
    "inputs swapped": _inputs_swapped,
    "weight scaled": _weight_edit(lambda array, rng: array * np.float32(rng.choice([0.9, 1.1, 3.0, -1.0]))),
    "weight transposed": _weight_edit(_transposed, 2),
    "weight reversed": _weight_edit(lambda array, rng: array[..., ::-1].copy()),
    "weight element": _weight_edit(_one_element),
    "weight rows swapped": _weight_edit(_rows_swapped, 1),
    "weight zeroed": _weight_edit(lambda array, rng: np.zeros_like(array)),
    "weight in half precision": _weight_edit(lambda array, rng: array.astype(np.float16).astype(np.float32)),
    "op replaced": _op_replaced,
    "bypassed": _bypassed,
    "rewired": _rewired,
    "optional input dropped": _optional_dropped,
    "integer changed": _integer,
    "negated": _inserted("Neg"),
    "rounded": _inserted("Floor"),
    "rectified": _inserted("Relu"),
}


def mutants(proto: onnx.ModelProto, shapes: dict[str, tuple[int, ...]], count: int, seed: int = 0) -> Iterator[Mutant]:
    """``count`` edits of each kind, some of which may harm nothing, or make a file that no engine runs."""
    for kind, mutate in KINDS.items():
        for number in range(count):
            graph = Graph(proto, shapes)
            done = mutate(graph, random.Random(f"{kind} {number} {seed}"))
            if done is not None:
                yield Mutant(kind, done[0], graph.proto, done[1])
