"""Names for values that a graph gets."""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.irx.builder import Builder
from fx2onnx.irx.edit import graphs_of
from fx2onnx.irx.emit import Emit


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
                self._taken.update(value.name or "" for value in (*graph.inputs, *graph.initializers.values()))
                self._taken.update(value.name or "" for node in graph for value in node.outputs)
        name, count = wanted, 0
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def emitter_of(model: ir.Model) -> Emit:
    """An ``Emit`` in the model's opset that allots names free in the whole model."""
    builder = Builder(model.graph.opset_imports.get("", 0))
    for graph in graphs_of(model):
        for value in (*graph.inputs, *graph.initializers.values()):
            builder.unique(value.name or "")
        for node in graph:
            builder.unique(node.name or "")
            for value in node.outputs:
                builder.unique(value.name or "")
    return Emit(builder)
