"""The form in which a rewritten graph is written: what the file declares, small constants in the bodies that read them, notes of exporters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.metadata import OF_EXPORTERS
from fx2onnx.irx.edit import drop_initializer, graphs_of, is_read
from fx2onnx.irx.inference import STANDARD
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.text import parse_dim


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
            if kind is not None and (value.dtype is None or value.dtype == kind.dtype):  # 16 bits are others
                value.type = kind
            value.shape = self._joined(shape, value.shape)

    def _plain(self, shape: ir.Shape) -> ir.Shape:
        """Without names that only stand for something unknown: those of the interface stay, and what is computed from them."""
        return ir.Shape([dim if isinstance(dim, int) or self._is_told(str(dim.value)) else None for dim in shape])

    def _is_told(self, text: str) -> bool:
        read = parse_dim(text)
        return text in self.names or (isinstance(read, Dim) and read.symbols() <= self.names)

    def _joined(self, declared: ir.Shape | None, inferred: ir.Shape | None) -> ir.Shape | None:
        if inferred is None:
            return declared
        if declared is None or len(declared) != len(inferred):
            return self._plain(inferred)
        return ir.Shape([own if isinstance(own, int) else told for told, own in zip(declared, inferred, strict=True)])


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


KINDS = ("keep", "none")


def keeps_origins(metadata: str) -> bool:
    """Return whether they stay. Raises UserError E001 for a word that is not known."""
    if metadata not in KINDS:
        raise UserError("E001", f"metadata={metadata!r:.40} is not known", next=f"one of {', '.join(KINDS)}")
    return metadata == "keep"


def leave_out_origins(model: ir.Model) -> int:
    """Remove metadata and texts of nodes, values and graphs, and notes of exporters on the model. Returns of how many objects."""
    count = 0
    for graph in graphs_of(model):
        weights = graph.initializers.values()
        for each in (graph, *graph, *graph.inputs, *weights, *(value for node in graph for value in node.outputs)):
            count += bool(each.metadata_props or each.doc_string)
            each.metadata_props.clear()
            each.doc_string = None
    notes = [key for key in model.metadata_props if key.startswith(OF_EXPORTERS)]
    for key in notes:
        del model.metadata_props[key]
    return count + len(notes)
