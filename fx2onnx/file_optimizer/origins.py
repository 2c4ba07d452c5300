"""What exporters note of where nodes come from: stack traces, lines of the user's, paths of modules."""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.irx.edit import graphs_of

OF_EXPORTERS = "pkg."
"""How the keys of such notes on the whole model begin."""


KINDS = ("keep", "none")


def keeps_origins(metadata: str) -> bool:
    """Whether they stay. Raises UserError E001 for a word that is not known."""
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
