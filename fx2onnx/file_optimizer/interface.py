"""Inputs and outputs of a file as it declares them, kept through all rewrites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from fx2onnx.irx.edit import graphs_of
from fx2onnx.irx.inference import STANDARD


@dataclass
class Interface:
    """Declared types of the outputs by name, and whether the file gives types of values between nodes."""

    outputs: dict[str, tuple[Any, ir.Shape | None]]
    names: frozenset[str]
    has_types: bool

    @staticmethod
    def of(model: ir.Model) -> Interface:
        """The interface of a model before it is rewritten."""
        dims = [dim for value in (*model.graph.inputs, *model.graph.outputs) for dim in value.shape or ()]
        names = frozenset(str(dim.value) for dim in dims if not isinstance(dim, int) and dim.value is not None)
        inner = [value for node in model.graph for value in node.outputs if not value.is_graph_output()]
        typed = sum(value.type is not None and value.shape is not None for value in inner)
        outputs = {value.name or "": (value.type, value.shape) for value in model.graph.outputs}
        return Interface(outputs, names, bool(inner) and 2 * typed > len(inner))

    def restore(self, model: ir.Model, *, keeps_types: bool) -> None:
        """Give outputs what the file said of them, where it is not wrong, and values between nodes what is certain; outputs of steps keep
        their shapes, which are those of none where a loop takes no step.
        """
        main = set(model.graph.inputs) | set(model.graph.outputs)
        steps: set[ir.Value] = set()
        for node in (node for graph in graphs_of(model) for node in graph if node.op_type in ("Loop", "Scan")):
            steps.update(node.attributes["body"].as_graph().outputs)
        for graph in graphs_of(model):
            for node in graph:
                for value in node.outputs:
                    if value in main:
                        continue
                    if node.domain in STANDARD and not (keeps_types and self.has_types) and value not in steps:
                        value.type, value.shape = None, None
                    elif value.shape is not None:
                        value.shape = self._plain(value.shape)
        for value in model.graph.initializers.values():
            if not value.is_graph_input():  # the weight itself says its type
                value.type, value.shape = None, None
        for value in model.graph.outputs:
            kind, shape = self.outputs.get(value.name or "", (None, None))
            if kind is not None:
                value.type = kind
            value.shape = self._joined(shape, value.shape)

    def _plain(self, shape: ir.Shape) -> ir.Shape:
        """Without names that only stand for something unknown."""
        return ir.Shape([dim if isinstance(dim, int) or str(dim.value) in self.names else None for dim in shape])

    def _joined(self, declared: ir.Shape | None, inferred: ir.Shape | None) -> ir.Shape | None:
        if inferred is None:
            return declared
        if declared is None or len(declared) != len(inferred):
            return self._plain(inferred)
        return ir.Shape([own if isinstance(own, int) else told for told, own in zip(declared, inferred, strict=True)])
