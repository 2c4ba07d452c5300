"""Nodes whose results nobody reads, and weights that nobody reads."""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.irx.edit import drop_initializer, graphs_of, is_read, remove_unread


def remove_dead_nodes(model: ir.Model) -> int:
    """Remove nodes and initializers that no output depends on, in nested graphs too. Returns how many were removed."""
    removed, graphs = 0, list(graphs_of(model))
    for graph in graphs:
        dead = [node for node in graph if not any(is_read(value) for value in node.outputs)]
        removed += len(remove_unread(dead))
    for graph in graphs:
        for value in list(graph.initializers.values()):
            if not is_read(value):
                drop_initializer(value)
                removed += not value.is_initializer()
    return removed
