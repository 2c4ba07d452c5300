"""Nodes whose results nobody reads, and weights that nobody reads."""

from __future__ import annotations

import onnx_ir as ir


def remove_dead_nodes(model: ir.Model) -> int:
    """Remove nodes and initializers that no output depends on. Returns how many were removed."""
    graph = model.graph
    outputs = set(graph.outputs)
    removed = 0
    for node in reversed(list(graph)):
        if not any(value.uses() or value in outputs for value in node.outputs):
            graph.remove(node, safe=True)
            removed += 1
    for name, value in list(graph.initializers.items()):
        if not value.uses() and value not in outputs:
            del graph.initializers[name]
            removed += 1
    return removed
