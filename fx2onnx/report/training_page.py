"""The page of a training: a curve for each number of a step, and the same curves as a drawing (SVG)."""

from __future__ import annotations

import datetime
import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from fx2onnx.base.escape import plain
from fx2onnx.report.document import CHARTS, document

WIDTH, HEIGHT, MARGIN, TITLE = 720, 220, 72, 28
"""Of one curve of the drawing, in pixels; ``TITLE`` above each."""
COLOURS = ("#4e8ef7", "#f2a33c", "#3fb68b", "#e8637c")
"""Those of the page (assets/core.js)."""
MOST_POINTS = 2000
"""Of a curve in the drawing: more are thinner than a pixel."""


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
