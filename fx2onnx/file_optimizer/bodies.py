"""Small constants that bodies read (If, Loop, Scan) -> weights of the body: what it reads from outside costs each run of it."""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.irx.edit import drop_initializer, graphs_of, is_read

MOST_BYTES = 64
"""Larger ones are not stored again in each body that reads them."""


def store_inside(model: ir.Model) -> None:
    """Give each body its own small constants; those that nobody reads outside leave the main graph."""
    main = model.graph.initializers
    taken = {value.name for graph in graphs_of(model) for node in graph for value in node.outputs} | set(main)
    for graph in list(graphs_of(model))[1:]:
        inside: dict[ir.Value, ir.Value] = {}
        for node in graph:
            for index, value in enumerate(node.inputs):
                if value is None or value.graph is not model.graph or not _is_small(value):
                    continue
                if value not in inside:
                    name = f"{value.name}.inside"
                    while name in taken:
                        name += "_"
                    taken.add(name)
                    inside[value] = ir.Value(name=name, const_value=value.const_value)
                    graph.initializers[name] = inside[value]
                node.replace_input_with(index, inside[value])
        for value in inside:
            if not is_read(value):
                drop_initializer(value)


def _is_small(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and not value.is_graph_input() and tensor.nbytes <= MOST_BYTES
