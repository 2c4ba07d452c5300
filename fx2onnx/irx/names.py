"""Names for values that a graph gets, of the source of a node, and a model's outline as plain data."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from fx2onnx.irx.builder import Builder
from fx2onnx.irx.edit import graphs_of
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.private_names import names_of
from fx2onnx.irx.values import dtype_name


class FreeNames:
    """Names that no value of the model has."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._taken: set[str] | None = None

    def free(self, wanted: str) -> str:
        """``wanted``, or with a number behind it."""
        if self._taken is None:
            self._taken = set()
            for graph in graphs_of(self._model):
                self._taken.update(names_of(graph, nodes=False))
        name, count = wanted, 0
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def emitter_of(model: ir.Model) -> Emit:
    """An ``Emit`` in the model's opset that allots names free in the whole model."""
    builder = Builder(model.graph.opset_imports.get("", 0))
    builder.take([name for graph in graphs_of(model) for name in names_of(graph)])
    return Emit(builder)


SCOPES = "pkg.torch.onnx.name_scopes"
"""Metadata of ``torch.onnx.export``: the names of all modules around a node, and its own, as a Python list."""
STACK_TRACE = "pkg.torch.onnx.stack_trace"
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LONGEST_SCOPES = 10_000
"""Characters of that list which are parsed: it comes from a file."""


def scope_of(name: str, metadata: Mapping[str, str]) -> str:
    """The path of the module whose forward makes the node, such as ``encoder.layer.0``; empty for the root or unknown."""
    text = metadata.get(SCOPES, "")
    if text and len(text) < _LONGEST_SCOPES:
        try:
            scopes = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            scopes = None
        if isinstance(scopes, list) and len(scopes) > 1 and isinstance(scopes[-2], str):
            return scopes[-2]
    parts: list[str] = []
    for part in name.split("/")[:-1]:
        if parts and part.startswith(f"{parts[-1]}."):  # TorchScript's names: /layer1/layer1.0/conv1/Conv
            parts[-1] = part
        elif part:
            parts.append(part)
    return ".".join(parts)


def source_of(metadata: Mapping[str, str]) -> str:
    """The line that the node comes from, ``model.py:12``; of several, all; empty where the file does not say."""
    frames = _FRAME.findall(metadata.get(STACK_TRACE, ""))
    return metadata.get("source") or (":".join(frames[-1]) if frames else "")


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
