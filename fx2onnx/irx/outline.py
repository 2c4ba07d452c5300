"""The shape of a model as plain data: its nodes, what they hand to each other, its weights. For pictures and tables."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from fx2onnx.irx.dtype_names import dtype_name


def graph_outline(model: ir.Model) -> dict[str, Any]:
    """``{"nodes": [[operator, scope]], "edges": [[from, to]]}`` of the main graph. ``scope`` is the module path in a
    node's name; edges count nodes from 0 and leave out weights and inputs.
    """
    index = {node: number for number, node in enumerate(model.graph)}
    edges = {
        (index[producer], number)
        for node, number in index.items()
        for value in node.inputs
        if value is not None and (producer := value.producer()) is not None and producer in index
    }
    return {
        "nodes": [[node.op_type, (node.name or "").rpartition("/")[0]] for node in index],
        "edges": [list(edge) for edge in sorted(edges)],
    }


def weight_outline(model: ir.Model) -> list[dict[str, Any]]:
    """``{"name", "dtype", "shape", "bytes"}`` of every weight, largest first."""
    found = [
        {
            "name": name,
            "dtype": dtype_name(tensor.dtype.value),
            "shape": [int(dim) for dim in tensor.shape],  # type: ignore[arg-type]
            "bytes": tensor.nbytes,
        }
        for name, value in model.graph.initializers.items()
        if (tensor := value.const_value) is not None
    ]
    return sorted(found, key=lambda weight: (-weight["bytes"], weight["name"]))
