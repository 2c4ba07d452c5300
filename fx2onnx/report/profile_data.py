"""``ProfileData``: what exports cost. Every view (table, trace, flame graph, page) is made from it alone.

The JSON form is documented in docs/profiling.md; ``VERSION`` counts its incompatible changes.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import plain
from fx2onnx.base.events import Span, SpanRecorder
from fx2onnx.base.memory import MemoryReader
from fx2onnx.base.typed_json import Misfit, Only, Open, built

SCHEMA = "fx2onnx.profile"
VERSION = 2

OURS = "fx2onnx"


_MOST = 2**63
"""Sizes in bytes stay below, and sums of as many floats as fit a file stay finite."""
_DEEPEST = 200
"""Events inside each other. Ours have some ten; functions that call themselves walk them."""


def _is_finite(value: Any, depth: int = 0) -> bool:
    """Return whether JSON has no infinite number, which other readers of the views do not know, and is not nested without end."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return depth < _DEEPEST and all(_is_finite(each, depth + 1) for each in inner)
    return not isinstance(value, float) or math.isfinite(value)


def _each(kind: type[Any], path: str) -> Only:
    """A list of objects that are read as ``kind`` and stay as they are."""
    return Only(path, lambda value: all(built(kind, each, f"{path}[{at}]") for at, each in enumerate(value)))


Number = Annotated[float, Only("a number", lambda value: -_MOST < value < _MOST)]
Seconds = Annotated[float, Only("seconds", lambda value: 0 <= value < _MOST)]
Count = Annotated[int, Only("a whole number", lambda value: 0 <= value < _MOST)]
Facts = Annotated[dict[str, Any], Only("an object of finite numbers", _is_finite)]


@dataclass
class _EventArgs(Open):
    where: str = ""
    module: str = ""
    bytes: Count = 0


@dataclass
class _Weight(Open):
    name: str
    dtype: str
    shape: list[Count]
    bytes: Count


@dataclass
class _Graph(Open):
    nodes: list[tuple[str, str]]
    edges: list[tuple[Count, Count]]

    def __post_init__(self) -> None:
        for edge in self.edges:
            if max(edge) >= len(self.nodes):
                raise Misfit(f"graph.edges has {edge}, which is not between nodes")


@dataclass
class _VerdictRow(Open):
    engine: str
    output: str
    inputs: str
    max_abs_error: float
    allowed: float
    problem: str = ""


@dataclass
class _Verification(Open):
    ok: Any
    rows: list[_VerdictRow]
    notes: list[str]
    summary: str = ""


EventArgs = Annotated[Facts, Only("args", lambda value: bool(built(_EventArgs, value, "args")))]
Weights = Annotated[list[dict[str, Any]], _each(_Weight, "weights")]
Graph = Annotated[dict[str, Any], Only("graph", lambda value: not value or bool(built(_Graph, value, "graph")))]
Verification = Annotated[
    dict[str, Any], Only("verification", lambda value: bool(built(_Verification, value, "verification")))
]
"""JSON that the views read as it is, checked."""


@dataclass
class _EventHead(Open):
    name: str
    start: Number
    seconds: Seconds
    stretches: Count = 0
    args: EventArgs = field(default_factory=dict)


@dataclass
class Event(_EventHead):
    """A named stretch of an export. ``start`` counts in seconds from the export's beginning.

    ``stretches`` above 0: the sum of so many short stretches inside the parent, whose places are not kept.
    """

    children: list[Event] = field(default_factory=list)

    @classmethod
    def of_span(cls, span: Span, zero_ns: int) -> Event:
        """The span and all below it, as seconds from ``zero_ns``."""
        return cls(
            span.name,
            (span.start_ns - zero_ns) / 1e9,
            span.seconds,
            span.stretches,
            dict(span.args),
            [cls.of_span(child, zero_ns) for child in span.children],
        )

    @classmethod
    def of_json(cls, value: Any, path: str, depth: int = 0) -> Event:
        """The event and all below it. Raises Misfit."""
        if depth >= _DEEPEST:
            raise Misfit(f"{path[:60]}...: more than {_DEEPEST} events inside each other")
        head = built(_EventHead, value, path)
        children = built(list, value.get("children", []), f"{path}.children")
        inside = [cls.of_json(child, f"{path}.children[{at}]", depth + 1) for at, child in enumerate(children)]
        return cls(**vars(head), children=inside)

    def as_dict(self) -> dict[str, Any]:
        """JSON types; what is empty is left out."""
        result: dict[str, Any] = {"name": self.name, "start": round(self.start, 9), "seconds": round(self.seconds, 9)}
        if self.stretches:
            result["stretches"] = self.stretches
        if self.args:
            result["args"] = self.args
        if self.children:
            result["children"] = [child.as_dict() for child in self.children]
        return result


@dataclass
class Export(Open):
    """The runs of one exporter on one model. ``events`` and ``memory`` are those of the run nearest the median."""

    exporter: str
    seconds: list[Seconds] = field(default_factory=list)
    events: Event | None = None
    memory: list[tuple[Number, int, int]] = field(default_factory=list)
    """(seconds from the beginning, resident bytes, peak bytes since the reading before)."""
    file_bytes: Count = 0
    """Bytes on disk, weights included; 0 where no file was written."""
    nodes: Count = 0
    error: str = ""
    """The reason why there are no figures."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) if self.seconds else 0.0

    def peak_bytes(self, start: float = 0.0, end: float = float("inf")) -> int:
        """Highest resident memory between two times, as far as readings tell; 0 where nothing was read. A reading speaks
        for all the time since the one before.
        """
        ends = [at for at, _, _ in self.memory]
        begins = [-1.0, *ends[:-1]]
        inside = zip(self.memory, begins, ends, strict=True)
        return max((reading[2] for reading, was, at in inside if was < end and at >= start), default=0)

    def grown_bytes(self, start: float = 0.0, end: float = float("inf")) -> int:
        """``peak_bytes`` above what was resident when the export began."""
        return max(0, self.peak_bytes(start, end) - self.memory[0][1]) if self.memory else 0


@dataclass
class Point(Open):
    """One size of a series. ``error`` says why there are no seconds."""

    value: int
    exporter: str
    seconds: list[Seconds] = field(default_factory=list)
    error: str = ""


@dataclass
class Series(Open):
    """Export time over a size of the example input (``sweep``) or over the number of layers (``depth``)."""

    label: str
    points: list[Point] = field(default_factory=list)


@dataclass
class ProfileData(Open):
    """Exports of one model, ours first, with what explains them."""

    source: str = ""
    created: str = ""
    """UTC, ISO 8601."""
    machine: Facts = field(default_factory=dict)
    exports: list[Export] = field(default_factory=list)
    sweeps: list[Series] = field(default_factory=list)
    depth: Series | None = None
    weights: Weights = field(default_factory=list)
    """``{"name", "dtype", "shape", "bytes"}`` of each weight of our file."""
    graph: Graph = field(default_factory=dict)
    """``{"nodes": [[operator, scope]], "edges": [[from, to]]}`` of our file; edges count nodes from 0."""
    verification: Verification | None = None
    report: Facts = field(default_factory=dict)
    """The fields of ``fx2onnx.Report``."""

    @property
    def ours(self) -> Export:
        """The first export. Raises UserError E302 where there is none."""
        if not self.exports:
            raise UserError("E302", "the profile holds no export")
        return self.exports[0]

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON form."""
        result: dict[str, Any] = {"schema": SCHEMA, "version": VERSION}
        for item in fields(self):
            result[item.name] = getattr(self, item.name)
        result["exports"] = [_export_as_dict(export) for export in self.exports]
        result["sweeps"] = [asdict(series) for series in self.sweeps]
        result["depth"] = None if self.depth is None else asdict(self.depth)
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Older versions are read too. Raises UserError E302 where ``data`` is no profile or of a newer version."""
        if data.get("schema") != SCHEMA:
            raise UserError(
                "E302", "this JSON is not a profile", next="fx2onnx profile SOURCE --output FILE writes one"
            )
        if data.get("version") not in range(1, VERSION + 1):
            raise UserError("E302", f"profiles of version {data.get('version')} cannot be read, only to {VERSION}")
        try:
            if data["version"] == 1:
                data = {**data, "sweeps": [data["sweep"]] if data["sweep"] else []}
            whole = [(data, fields(cls)), *((export, fields(Export)) for export in data["exports"])]
            for stated, known in whole:
                for item in known:
                    stated[item.name]  # a profile is written whole, also where a field has a default
            return built(cls, data)
        except (KeyError, TypeError, ValueError) as cause:
            raise UserError("E302", "the profile is damaged", why=plain(f"{type(cause).__name__}: {cause}")) from cause

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Self:
        """Raises UserError E302."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as cause:
            raise UserError("E302", f"cannot read the profile '{path}'", why=str(cause)) from cause
        if not isinstance(data, dict):
            raise UserError("E302", f"'{path}' is not a profile")
        return cls.from_dict(data)


def tree_of(recorder: SpanRecorder) -> Span:
    """The root of a closed recorder, with all spans below it."""
    if not recorder.root.children:
        _grow(recorder.root, recorder.log)
    return recorder.root


Stretch: TypeAlias = tuple[str, int, int]
"""Name, start, end."""


def _grow(root: Span, log: list[Any]) -> None:
    """Hang the log's entries below ``root``."""
    phases = [root]
    ended: list[list[Span | Stretch]] = [[]]
    """For each open phase, the spans and stretches that ended in it and are in no detail so far."""
    items = iter(log)
    for name, start_ns, end_ns, path, where in zip(items, items, items, items, items, strict=True):
        if isinstance(name, Span):
            phases.append(name)
            ended.append([])
        elif name is None:
            phase = phases.pop()
            _fill(phase, ended.pop())
            ended[-1].append(phase)
        elif path is None:
            ended[-1].append((name, start_ns, end_ns))
        else:
            label = path(name) if callable(path) else (str(name), path, where)
            span = _detail(label, start_ns, end_ns)
            held = len(ended[-1])
            while held and _start_ns(ended[-1][held - 1]) >= start_ns:
                held -= 1
            _fill(span, ended[-1][held:])
            ended[-1][held:] = [span]
    while phases:
        _fill(phases.pop(), ended.pop())


def _detail(label: tuple[str, str, object], start_ns: int, end_ns: int) -> Span:
    name, module_path, where = label
    args = {"module": module_path} if module_path else {}
    return Span(name, start_ns, end_ns, args if where is None else args | {"where": str(where)})


def _start_ns(ended: Span | Stretch) -> int:
    return ended.start_ns if isinstance(ended, Span) else ended[1]


def _fill(parent: Span, ended: list[Span | Stretch]) -> None:
    """Make ``ended`` the children, stretches of one name together."""
    together: dict[str, Span] = {}
    for item in ended:
        if isinstance(item, Span):
            parent.children.append(item)
            continue
        name, start_ns, end_ns = item
        span = together.get(name)
        if span is None:
            span = together[name] = Span(name, parent.start_ns, parent.start_ns)
            parent.children.append(span)
        span.end_ns += end_ns - start_ns
        span.stretches += 1


def events_of(span: Span, memory: MemoryReader | None) -> tuple[Event, list[tuple[float, int, int]]]:
    """A recorder's tree and memory readings, on the clock of the export."""
    zero_ns = span.start_ns
    readings = memory.readings if memory is not None else []
    return Event.of_span(span, zero_ns), [(max(0.0, (at - zero_ns) / 1e9), now, peak) for at, now, peak in readings]


def _export_as_dict(export: Export) -> dict[str, Any]:
    result = {item.name: getattr(export, item.name) for item in fields(export)}
    result["events"] = None if export.events is None else export.events.as_dict()
    result["memory"] = [[round(at, 6), now, peak] for at, now, peak in export.memory]
    return result


_PACKAGES = ("fx2onnx", "torch", "onnx", "onnx_ir", "onnxscript", "numpy")


def machine() -> dict[str, Any]:
    """CPU count, threads, platform, Python, and the versions of the packages that do the work."""
    result: dict[str, Any] = {
        "cpus": os.cpu_count(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", ""),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            result[package] = version(package)
        except PackageNotFoundError:
            continue
    return result
