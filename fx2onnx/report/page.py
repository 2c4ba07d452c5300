"""One self-contained HTML page: a template, the libraries of ``vendor/``, and the profile as JSON.

Names are a model's or a file's, so anything may stand in them. They reach the page in one way, as JSON in which no
character of HTML is left, and the page's scripts make text nodes of them. Besides, the page's policy lets nothing run
but the scripts of this package, known by their hashes, and nothing be loaded or sent.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fx2onnx.base.plain import plain
from fx2onnx.report.compare import Change, Comparison
from fx2onnx.report.profile_data import Export, Point, ProfileData, Series
from fx2onnx.report.tree import Row, flame, lines, operations, phases, steps

_HERE = Path(__file__).parent
_STYLES = ("vendor/d3-flame-graph.css", "assets/page.css")
_SCRIPTS = (
    "vendor/echarts.min.js",
    "vendor/d3-flame-graph.min.js",
    "vendor/cytoscape-dagre.min.js",
    "assets/core.js",
    "assets/charts.js",
    "assets/flames.js",
    "assets/graph.js",
)

_GRAPH_STYLE = ".__________cytoscape_container { position: relative; }"
"""The style that Cytoscape.js puts into the page."""

_ROWS = 400
"""Rows of the page's tables; the JSON form has all."""

_LEAST_SHARE = 2e-4
"""Flames below this share of the whole are narrower than a pixel."""

_LEAST_STEP_SHARE = 0.002
"""Steps of a phase below this share of the export are left out of the overview."""

_READINGS = 1500
"""Memory readings drawn at most."""

_DEEPEST = 48
"""Modules inside each other that the map of weights tells apart."""


def page(profile: ProfileData, comparisons: Sequence[Comparison] = ()) -> str:
    """The page as text. It loads nothing from anywhere."""
    style = "\n".join((_HERE / name).read_text(encoding="utf-8") for name in _STYLES)
    scripts = [_script(name) for name in _SCRIPTS]
    text = (_HERE / "assets/page.html").read_text(encoding="utf-8")
    parts = {
        "policy": _policy(scripts, [style, _GRAPH_STYLE]),
        "title": html.escape(plain(f"{profile.source} - export profile")),
        "style": style,
        "data": _as_json(page_data(profile, comparisons)),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    head, *rest = text.split("{{")
    return head + "".join(parts[name] + after for name, after in (piece.split("}}", 1) for piece in rest))


def _script(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8").replace("</script", "<\\/script")


def _policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """What a browser may do with the page: run and apply these texts, and no more."""
    own, looks = (" ".join(f"'sha256-{_hash(text)}'" for text in texts) for texts in (scripts, styles))
    rest = "img-src data:; connect-src 'none'; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {own}; style-src {looks}; {rest}"


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _as_json(data: Any) -> str:
    """JSON that has a meaning for no reader of HTML or JavaScript: escapes that readers of JSON undo, ASCII only."""
    text = json.dumps(_shown(data), separators=(",", ":"), allow_nan=False)
    return text.translate({ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"})


def _shown(value: Any) -> Any:
    """The data with its texts as people read them; None for infinity and what is no number, which JSON has not."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {plain(str(key)): _shown(inner) for key, inner in value.items()}
    return [_shown(inner) for inner in value] if isinstance(value, list | tuple) else value


def page_data(profile: ProfileData, comparisons: Sequence[Comparison] = ()) -> dict[str, Any]:
    """What the page's scripts read: the views of the profile, ready to draw."""
    first = profile.ours
    return {
        "source": profile.source,
        "created": profile.created,
        "machine": profile.machine,
        "exports": [_export(export) for export in profile.exports],
        "operations": [{**_row(row), "seconds": row.own} for row in operations(first)[:_ROWS]],
        "lines": [_row(row) for row in lines(first)[:_ROWS]],
        "series": [_series(series) for series in (*profile.sweeps, profile.depth) if series is not None],
        "comparisons": [_comparison(comparison) for comparison in comparisons],
        "weights": profile.weights,
        "weight_tree": weight_tree(profile.weights),
        "graph": profile.graph,
        "verification": profile.verification,
        "report": profile.report,
    }


def _export(export: Export) -> dict[str, Any]:
    parts = steps(export)
    least = _LEAST_STEP_SHARE * export.median
    memory = export.memory[:: max(1, len(export.memory) // _READINGS)]
    result: dict[str, Any] = {
        "exporter": export.exporter,
        "median": export.median,
        "least": min(export.seconds, default=0.0),
        "most": max(export.seconds, default=0.0),
        "runs": len(export.seconds),
        "error": export.error,
        "nodes": export.nodes,
        "file_bytes": export.file_bytes,
        "memory": [(round(at, 6), peak) for at, _, peak in memory],
        "grown": export.grown_bytes(),
        "phases": [
            {
                **_row(row),
                "steps": [_row(step) for step in parts if step.phase == row.name and step.seconds >= least][:8],
            }
            for row in phases(export)
        ],
    }
    if export.events is not None:
        narrowest = export.events.seconds * _LEAST_SHARE
        result["flame"] = {
            "operator": flame(export.events).as_dict(narrowest),
            "module": flame(export.events, by_module=True).as_dict(narrowest),
        }
    return result


def _row(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "phase": row.phase,
        "count": row.count,
        "seconds": row.seconds,
        "slowest": row.slowest,
        "line": row.line,
        "grown": row.grown_bytes,
        "bytes": row.bytes,
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "before": comparison.before,
        "total": _change(comparison.total),
        "phases": [_change(change) for change in comparison.phases],
        "operations": [_change(change) for change in comparison.operations[:_ROWS]],
        "notes": comparison.notes,
    }


def _change(change: Change) -> dict[str, Any]:
    share = change.share if change.before else None
    return {**asdict(change), "difference": change.difference, "share": share}


def _series(series: Series) -> dict[str, Any]:
    exporters = list(dict.fromkeys(point.exporter for point in series.points))
    return {
        "label": series.label,
        "exporters": [
            {"exporter": name, "points": [_point(point) for point in series.points if point.exporter == name]}
            for name in exporters
        ],
    }


def _point(point: Point) -> dict[str, Any]:
    median = statistics.median(point.seconds) if point.seconds else None
    return {"value": point.value, "seconds": point.seconds, "median": median, "error": point.error}


def weight_tree(weights: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Weights by the parts of their names: ``{"name", "value", "children"}``; a part with one child is joined to it."""
    root: dict[str, Any] = {}
    for weight in weights:
        place = root
        *modules, last = weight["name"].split(".", _DEEPEST)
        for part in modules:
            place = place.setdefault(f"{part}.", {})
        place[last] = weight["bytes"]
    return [_branch(name, place) for name, place in root.items()]


def _branch(name: str, place: Any) -> dict[str, Any]:
    if not isinstance(place, dict):
        return {"name": name, "value": place}
    if len(place) == 1:
        inner, below = next(iter(place.items()))
        return _branch(f"{name}{inner}", below)
    children = [_branch(inner, below) for inner, below in place.items()]
    return {"name": name.removesuffix("."), "value": sum(child["value"] for child in children), "children": children}
