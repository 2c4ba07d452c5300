"""Nodes of one graph copied into another, nested graphs too."""

from __future__ import annotations

from typing import TypeAlias, cast

import torch.fx
from torch.fx.node import Argument

from fx2onnx.capture.recording.control_flow import Nested
from fx2onnx.torchcompat.graphs import RecordedGraph

Node: TypeAlias = torch.fx.Node


def operands(node: Node) -> list[Node]:
    """Those of nested graphs, too."""
    found = list(node.all_input_nodes)
    for arg in node.args:
        if isinstance(arg, Nested):
            found += [operand for inner in arg.graph.nodes for operand in operands(inner)] + arg.outputs
        elif isinstance(arg, list | tuple):
            found += [part for part in arg if isinstance(part, Node)]
    return found


class CopiedNodes:
    """Nodes of one graph, copied into another."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self.seen: dict[Node, Node] = {}

    def add(self, nodes: torch.fx.Graph) -> None:
        self._add(nodes, self.graph)

    def _add(self, nodes: torch.fx.Graph, graph: torch.fx.Graph) -> None:
        for node in nodes.nodes:
            if node not in self.seen:
                args = tuple([self._mapped(arg) for arg in node.args])
                kwargs = {name: self._mapped(arg) for name, arg in node.kwargs.items()}
                made = self.seen[node] = graph.create_node(node.op, node.target, args, kwargs)
                made.meta = dict(node.meta)

    def _mapped(self, arg: Argument) -> Argument:
        return torch.fx.node.map_aggregate(arg, self._leaf)

    def _leaf(self, leaf: object) -> Argument:
        if isinstance(leaf, Node):
            return self.seen[leaf]
        if not isinstance(leaf, Nested):
            return cast(Argument, leaf)
        graph = RecordedGraph()
        self._add(leaf.graph, graph)
        inputs, outputs = ([self.seen[node] for node in nodes] for nodes in (leaf.inputs, leaf.outputs))
        return cast(Argument, Nested(graph, inputs, outputs, leaf.infos, leaf.sizes))
