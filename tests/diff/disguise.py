"""The same model as another exporter might have written it."""

from __future__ import annotations

import random

import onnx


def disguised(model: onnx.ModelProto, seed: int = 0, *, keeps_origin: bool = False) -> onnx.ModelProto:
    """Other names for nodes, values and weights, nodes in another order that can run, no metadata of nodes."""
    rng = random.Random(seed)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    kept = {value.name for value in (*graph.input, *graph.output)} | {""}
    names: dict[str, str] = {}

    def renamed(name: str) -> str:
        return name if name in kept else names.setdefault(name, f"v{rng.getrandbits(40):x}")

    def rename(nodes: list[onnx.NodeProto]) -> None:
        for node in nodes:
            node.input[:] = [renamed(name) for name in node.input]
            node.output[:] = [renamed(name) for name in node.output]
            if not keeps_origin:
                node.name = f"n{rng.getrandbits(40):x}"
                del node.metadata_props[:]
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    rename(list(attribute.g.node))
                    for value in (*attribute.g.input, *attribute.g.output, *attribute.g.value_info):
                        value.name = renamed(value.name)

    rename(list(graph.node))
    for tensor in graph.initializer:
        tensor.name = renamed(tensor.name)
    for value in graph.value_info:
        value.name = renamed(value.name)
    shuffle(graph, rng)
    weights = list(graph.initializer)
    rng.shuffle(weights)
    del graph.initializer[:]
    graph.initializer.extend(weights)
    return copy


def shuffle(graph: onnx.GraphProto, rng: random.Random) -> None:
    """Shuffle the nodes so that each still comes behind those that it reads."""

    def read(node: onnx.NodeProto) -> set[str]:
        inner = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
        return set(node.input).union(*(read(each) for graph in inner for each in graph.node))

    made = {name for node in graph.node for name in node.output}
    waiting = [(node, {name for name in read(node) if name in made}) for node in graph.node]
    done: set[str] = set()
    order = []
    while waiting:
        ready = [index for index, (_, needs) in enumerate(waiting) if needs <= done]
        node, _ = waiting.pop(rng.choice(ready))
        done.update(node.output)
        order.append(node)
    del graph.node[:]
    graph.node.extend(order)
