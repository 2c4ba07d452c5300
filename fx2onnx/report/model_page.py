"""The page of a model: modules down to single nodes, the graph, inputs and outputs, weights, lines of source code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from fx2onnx.report.document import FLAMES, GRAPHS, document

_FILES = (*FLAMES, *GRAPHS, "assets/core.js", "assets/graph.js", "assets/model.js")


class Node(Protocol):
    """A node as the page has it."""

    op_type: str
    scope: str
    name: str
    source: str
    results: list[str]
    reads: list[int]


def model_page(facts: Mapping[str, Any], nodes: Iterable[Node], weights: Sequence[Mapping[str, Any]]) -> str:
    """The page as text. ``facts`` are those of ``fx2onnx inspect --json``; weights have name, module, dtype, shape, bytes."""
    scopes: dict[str, int] = {}
    lines: dict[str, int] = {}
    rows = [
        [
            node.op_type,
            scopes.setdefault(node.scope, len(scopes)),
            node.name,
            lines.setdefault(node.source, len(lines)),
            "; ".join(node.results),
            node.reads,
        ]
        for node in nodes
    ]
    data = {
        "source": facts["file"],
        "facts": facts,
        "nodes": rows,
        "scopes": list(scopes),
        "lines": list(lines),
        "weights": sorted(weights, key=lambda weight: -weight["bytes"]),
    }
    return document(f"{facts['file']} - ONNX model", "assets/model.html", data, _FILES)
