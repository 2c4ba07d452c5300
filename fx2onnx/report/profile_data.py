"""``ProfileData``: what exports cost. Every view (table, trace, flame graph, page) is made from it alone.

The JSON form is documented in docs/profiling.md; ``VERSION`` counts its incompatible changes.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from fx2onnx.base.errors import UserError
from fx2onnx.base.events import Span
from fx2onnx.base.memory import MemoryReader
from fx2onnx.report.form import check_profile

SCHEMA = "fx2onnx.profile"
VERSION = 2

OURS = "fx2onnx"


@dataclass
class Event:
    """A named stretch of an export. ``start`` counts in seconds from the export's beginning.

    ``stretches`` above 0: the sum of so many short stretches inside the parent, whose places are not kept.
    """

    name: str
    start: float
    seconds: float
    stretches: int = 0
    args: dict[str, Any] = field(default_factory=dict)
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
    def from_dict(cls, data: Mapping[str, Any]) -> Event:
        return cls(
            data["name"],
            data["start"],
            data["seconds"],
            data.get("stretches", 0),
            dict(data.get("args", {})),
            [cls.from_dict(child) for child in data.get("children", ())],
        )

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
class Export:
    """The runs of one exporter on one model. ``events`` and ``memory`` are those of the run nearest the median."""

    exporter: str
    seconds: list[float] = field(default_factory=list)
    events: Event | None = None
    memory: list[tuple[float, int, int]] = field(default_factory=list)
    """(seconds from the beginning, resident bytes, peak bytes since the reading before)."""
    file_bytes: int = 0
    """Bytes on disk, weights included; 0 where no file was written."""
    nodes: int = 0
    error: str = ""
    """Why there are no figures."""

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
class Point:
    """One size of a series. ``error`` says why there are no seconds."""

    value: int
    exporter: str
    seconds: list[float] = field(default_factory=list)
    error: str = ""


@dataclass
class Series:
    """Export time over a size of the sample input (``sweep``) or over the number of layers (``depth``)."""

    label: str
    points: list[Point] = field(default_factory=list)


@dataclass
class ProfileData:
    """Exports of one model, ours first, with what explains them."""

    source: str = ""
    created: str = ""
    """UTC, ISO 8601."""
    machine: dict[str, Any] = field(default_factory=dict)
    exports: list[Export] = field(default_factory=list)
    sweeps: list[Series] = field(default_factory=list)
    depth: Series | None = None
    weights: list[dict[str, Any]] = field(default_factory=list)
    """``{"name", "dtype", "shape", "bytes"}`` of each weight of our file."""
    graph: dict[str, Any] = field(default_factory=dict)
    """``{"nodes": [[operator, scope]], "edges": [[from, to]]}`` of our file; edges count nodes from 0."""
    verification: dict[str, Any] | None = None
    report: dict[str, Any] = field(default_factory=dict)
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
            check_profile(data)
            known = {item.name: data[item.name] for item in fields(cls)}
            known["exports"] = [_export_from_dict(export) for export in data["exports"]]
            known["sweeps"] = [_series_from_dict(series) for series in data["sweeps"]]
            known["depth"] = data["depth"] and _series_from_dict(data["depth"])
        except (KeyError, TypeError, ValueError) as cause:
            raise UserError("E302", "the profile is damaged", why=f"{type(cause).__name__}: {cause}") from cause
        return cls(**known)

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


def _export_from_dict(data: Mapping[str, Any]) -> Export:
    known = {item.name: data[item.name] for item in fields(Export)}
    known["events"] = None if data["events"] is None else Event.from_dict(data["events"])
    known["memory"] = [(at, now, peak) for at, now, peak in data["memory"]]
    return Export(**known)


def _series_from_dict(data: Mapping[str, Any]) -> Series:
    return Series(data["label"], [Point(**point) for point in data["points"]])
