"""The page of a model: modules down to single nodes, the graph, inputs and outputs, weights, lines of source code."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from fx2onnx.report.document import FLAMES, GRAPHS, document


def verdict_page(file: str, source: str, verdict: Mapping[str, Any]) -> str:
    """The page as text. ``verdict`` is ``Verdict.as_dict()``: keys that the page does not know are shown as they are."""
    created = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    data = {"file": file, "source": source, "created": created, "verdict": verdict}
    return document(f"{source} - verification", "assets/verdict.html", data, ("assets/core.js", "assets/verdict.js"))


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
