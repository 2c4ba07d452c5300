"""The page of a profile: time, memory, operations, lines, weights, the graph, the verdict."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fx2onnx.report.document import CHARTS, FLAMES, GRAPHS, document
from fx2onnx.report.profile_data import Export, Point, ProfileData, Series
from fx2onnx.report.table import ProfileComparison, TimeChange
from fx2onnx.report.tree import EventRow, flame, lines, operations, phases, steps

_FILES = (
    *(*CHARTS, *FLAMES, *GRAPHS),
    *("assets/core.js", "assets/charts.js", "assets/flames.js", "assets/graph.js", "assets/profile.js"),
)

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


def page(profile: ProfileData, comparisons: Sequence[ProfileComparison] = ()) -> str:
    """The page as text. It loads nothing from anywhere."""
    title = f"{profile.source} - export profile"
    return document(title, "assets/profile.html", page_data(profile, comparisons), _FILES)


def page_data(profile: ProfileData, comparisons: Sequence[ProfileComparison] = ()) -> dict[str, Any]:
    """The data for the page's scripts: the views of the profile, ready to draw."""
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


def _row(row: EventRow) -> dict[str, Any]:
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


def _comparison(comparison: ProfileComparison) -> dict[str, Any]:
    return {
        "before": comparison.before,
        "total": _change(comparison.total),
        "phases": [_change(change) for change in comparison.phases],
        "operations": [_change(change) for change in comparison.operations[:_ROWS]],
        "notes": comparison.notes,
    }


def _change(change: TimeChange) -> dict[str, Any]:
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
