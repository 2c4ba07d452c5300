"""Self-contained HTML pages: a frame, a body, the libraries of ``vendor/`` that it needs, and the data as JSON.

Names are a model's or a file's, so anything may stand in them. They reach a page in one way, as JSON in which no
character of HTML is left, and the page's scripts make text nodes of them. Besides, the page's policy lets nothing run
but the scripts of this package, known by their hashes, and nothing be loaded or sent.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fx2onnx.base.escape import plain
from fx2onnx.base.metadata import DOCS

FLAMES = ("vendor/d3-flame-graph.min.js", "vendor/d3-flame-graph.css")
"""Bars inside each other: the library, and its style."""
GRAPHS = ("vendor/cytoscape-dagre.min.js",)
CHARTS = ("vendor/echarts.min.js",)

_HERE = Path(__file__).parent
_GRAPH_STYLE = ".__________cytoscape_container { position: relative; }"
"""The style that Cytoscape.js puts into the page."""


def document(title: str, body: str, data: Any, files: Sequence[str]) -> str:
    """A page as text. It loads nothing from anywhere. ``body`` and ``files`` (scripts and styles, in order) are of this
    package; every page has ``assets/core.js`` before its own scripts.
    """
    styles = [name for name in files if name.endswith(".css")]
    style = "\n".join(_read(name) for name in (*styles, "assets/page.css"))
    scripts = [_read(name).replace("</script", "<\\/script") for name in files if name.endswith(".js")]
    parts = {
        "policy": _policy(scripts, [style, _GRAPH_STYLE]),
        "title": html.escape(plain(title)),
        "style": style,
        "body": _read(body),
        "data": _as_json(data),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    head, *rest = _read("assets/frame.html").split("{{")
    return head + "".join(parts[name] + after for name, after in (piece.split("}}", 1) for piece in rest))


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """The content security policy of the page: it runs and applies these texts, and no more."""
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


def verdict_page(file: str, source: str, verdict: Mapping[str, Any]) -> str:
    """The page as text. ``verdict`` is ``Verdict.as_dict()``: keys that the page does not know are shown as they are."""
    created = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    names = f"{DOCS}verify.html#on-which-inputs"
    data = {"file": file, "source": source, "created": created, "verdict": verdict, "names": names}
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


WIDTH, HEIGHT, MARGIN, TITLE = 720, 220, 72, 28
"""The size of one curve of the drawing in pixels; ``TITLE`` above each."""
COLOURS = ("#4e8ef7", "#f2a33c", "#3fb68b", "#e8637c")
"""The colours of the page (assets/core.js)."""
MOST_POINTS = 2000
"""The largest number of points of a curve in the drawing: more are thinner than a pixel."""


@dataclass
class TrainingCurves:
    """``curves`` has a number for each step by name; ``tests`` those of the rows kept for the test, after so many steps."""

    source: str
    curves: Mapping[str, Sequence[float]]
    tests: Sequence[tuple[int, Mapping[str, float]]] = ()
    first: int = 0
    """Steps that were made before."""
    created: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"))


def training_page(found: TrainingCurves) -> str:
    """The page as text."""
    scripts = (*CHARTS, "assets/core.js", "assets/charts.js", "assets/training.js")
    return document(f"{found.source} - training", "assets/training.html", asdict(found), scripts)


def training_drawing(found: TrainingCurves) -> str:
    """The curves under each other, as SVG."""
    height = len(found.curves) * (HEIGHT + TITLE) + MARGIN // 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{html.escape(plain(found.source))}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for index, name in enumerate(found.curves):
        parts += _curve(found, name, COLOURS[index % len(COLOURS)], index * (HEIGHT + TITLE) + TITLE)
    return "\n".join([*parts, "</svg>", ""])


def _curve(found: TrainingCurves, name: str, colour: str, top: int) -> list[str]:
    """One curve with its axes; what is not finite leaves a gap."""
    values = [(found.first + step + 1, value) for step, value in enumerate(found.curves[name])]
    values = values[:: max(1, len(values) // MOST_POINTS)]
    tests = [(step, numbers[name]) for step, numbers in found.tests if name in numbers and math.isfinite(numbers[name])]
    finite = [pair for pair in values if math.isfinite(pair[1])] + tests
    numbers = [value for _, value in finite] or [0.0]
    low, high = min(numbers), max(numbers)
    first, last = min([found.first + 1, *(step for step, _ in tests)]), found.first + max(1, len(found.curves[name]))
    spread, steps = (high - low) or 1.0, (last - first) or 1
    bottom, right = top + HEIGHT - TITLE, WIDTH - MARGIN // 2

    def place(step: float, value: float) -> str:
        x = MARGIN + (right - MARGIN) * (step - first) / steps
        return f"{x:.1f},{bottom - (bottom - top) * (value - low) / spread:.1f}"

    parts = [f'<text x="{MARGIN}" y="{top - 8}" font-weight="600">{html.escape(plain(name))}</text>']
    for value in (low, (low + high) / 2, high):
        y = bottom - (bottom - top) * (value - low) / spread
        parts.append(f'<line x1="{MARGIN}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dde2e9"/>')
        parts.append(f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#5b6675">{value:.3g}</text>')
    for step, anchor, x in ((first, "start", MARGIN), (last, "end", right)):
        parts.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="{anchor}" fill="#5b6675">step {step}</text>')
    for run in _runs(values):
        points = " ".join(place(*pair) for pair in run)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    if tests:
        parts.append(f'<text x="{right}" y="{top - 8}" text-anchor="end" fill="#5b6675">points: test</text>')
    for pair in tests:
        left, down = place(*pair).split(",")
        parts.append(
            f'<circle cx="{left}" cy="{down}" r="4" fill="#9a7ff0"><title>test: {pair[1]:.4g}</title></circle>'
        )
    return parts


def _runs(values: Sequence[tuple[int, float]]) -> list[list[tuple[int, float]]]:
    """Neighbours that are finite."""
    runs: list[list[tuple[int, float]]] = [[]]
    for pair in values:
        if math.isfinite(pair[1]):
            runs[-1].append(pair)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
