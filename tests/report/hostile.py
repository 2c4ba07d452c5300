"""A profile in which names of every kind say what a page or a terminal would obey."""

from __future__ import annotations

import itertools

from fx2onnx.report.profile import Profile
from fx2onnx.report.profile_data import Event, Export, Point, Series
from fx2onnx.report.table import ProfileComparison, compare

NAMES = (
    "<img src=x onerror=window.pwned=1>",
    "</script><script>window.pwned=2</script>",
    '"><svg onload=window.pwned=3>',
    "javascript:window.pwned=4",
    "${window.pwned=5} {{data}} {a|b} {b}",
    "<!--<script>",
    "__proto__",
    "constructor",
    "hasOwnProperty",
    "line\nfeed \u2028 &amp; &#60;b&#62;",
    "\u202eright to left\u2066",
    "\x1b[31mred \x1b]8;;https://example.org\x07link \x9b2J \x00",
    "[bold red]markup[/] :smile:",
    "half a \ud800 character",
    "long " * 2000,
)


def hostile_profile() -> tuple[Profile, ProfileComparison]:
    """Every text that a profile has is one of ``NAMES``; nearly every name of them stands in every kind of place."""
    before, after = (_profile(factor) for factor in (1.0, 2.0))
    before.machine = {name: f"{name} then" for name in NAMES}
    return after, compare(before, after, NAMES[0])


def _profile(factor: float) -> Profile:
    measured = [Export(name, [0.5 * factor], _events(factor), _memory(), 1000, 10) for name in NAMES[:2]]
    failed = [Export(name, error=name) for name in NAMES[2:]]
    weights = [
        {"name": name, "dtype": name, "shape": [4, 4], "bytes": 64 + index}
        for index, name in enumerate([*NAMES, *(f"{a}.{b}" for a, b in itertools.pairwise(NAMES))])
    ]
    nodes = [[name, f"{name}.{name}"] for name in NAMES] + [[name, ""] for name in NAMES]
    points = [Point(size, name, [0.1 * size + index]) for size in (1, 2, 16) for index, name in enumerate(NAMES)]
    refused = [Point(32, name, error=name) for name in NAMES]
    rows = [
        {"engine": name, "output": name, "inputs": name, "max_abs_error": float("inf"), "allowed": 0.0, "ok": False, "problem": name}
        for name in NAMES
    ]  # fmt: skip
    return Profile(
        source=NAMES[0] + NAMES[1],
        created=NAMES[2],
        machine={name: name for name in NAMES},
        exports=[*measured, *failed],
        sweeps=[Series(NAMES[0], [*points, *refused])],
        depth=Series(NAMES[1], points),
        weights=weights,
        graph={"nodes": nodes, "edges": [[index, index + 1] for index in range(len(nodes) - 1)]},
        verification={"ok": False, "rows": rows, "notes": list(NAMES), "summary": NAMES[0]},
        report={name: name for name in NAMES} | {"warnings": list(NAMES), "seconds": NAMES[0]},
    )


def _events(factor: float) -> Event:
    """Phases of hostile names, in each of them operators with hostile modules and lines."""

    def operator(name: str) -> Event:
        args = {"module": f"{name}.{name}", "where": f"{name}:7, in {name}", "bytes": 8, name: name}
        return Event(name, 0.0, 0.001 * factor, 0, args, [Event(name, 0.0, 0.0005, 3)])

    turned = [*NAMES[1:], *NAMES]
    phases = [
        Event(name, 0.0, 0.02 * factor, 0, {}, [Event("run", 0.0, 0.016, 0, {}, [*map(operator, turned[at : at + 3])])])
        for at, name in enumerate(NAMES)
    ]
    return Event("export", 0.0, 0.5 * factor, 0, {}, phases)


def _memory() -> list[tuple[float, int, int]]:
    return [(at / 10, 1000 * at, 1000 * at) for at in range(1, 10)]
