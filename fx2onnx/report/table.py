"""A profile on the terminal, and two side by side: what became slower, by phase and by operation."""

from __future__ import annotations

import io
import statistics
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import human_size
from fx2onnx.report.console import PlainConsole, headed_table
from fx2onnx.report.profile_data import Export, ProfileData, Series
from fx2onnx.report.tree import EventRow, lines, operations, phases, steps

_ROWS = 10
_WIDTH = 120


def as_text(profile: ProfileData) -> str:
    """``view`` without colours, for files and notebooks."""
    stream = io.StringIO()
    PlainConsole(file=stream, width=_WIDTH, color_system=None).print(view(profile))
    return stream.getvalue().rstrip("\n")


def view(profile: ProfileData) -> RenderableType:
    """The exporters side by side, then phases, operations and lines of the first."""
    parts: list[RenderableType] = [_exporters(profile.exports)]
    parts += [Text(f"{export.exporter}: {export.error}", "red") for export in profile.exports if export.error]
    first = profile.ours
    if first.events is not None:
        parts += [_phases(first)]
        parts += [_phases(other) for other in profile.exports[1:] if other.events is not None]
        parts += [_operations(first), _lines(first)]
    parts += [_series(series) for series in (*profile.sweeps, profile.depth) if series is not None]
    return Group(*parts)


def comparison_view(comparison: ProfileComparison) -> RenderableType:
    """The operations that became slower, largest loss first."""
    total = comparison.total
    parts: list[RenderableType] = [
        Text(f"against {comparison.before}: {_ms(total.before)} -> {_ms(total.after)} ({_percent(total)})", "bold")
    ]
    parts += [Text(f"note: {note}", "dim") for note in comparison.notes]
    for title, changes in (("phase", comparison.phases), ("operation", comparison.operations)):
        table = headed_table(title, "phase", ">before", ">after", ">difference", ">")
        for change in changes[:_ROWS]:
            style = "red" if change.difference > 0 else "green"
            table.add_row(
                Text(change.name),
                change.phase if change.phase != change.name else "",
                _ms(change.before),
                _ms(change.after),
                Text(f"{change.difference * 1e3:+.2f} ms", style),
                _percent(change),
            )
        parts.append(table)
    return Group(*parts)


def _exporters(exports: list[Export]) -> Table:
    table = headed_table(
        "exporter", ">median", ">fastest", ">slowest", ">runs", ">times", ">peak memory", ">file", ">nodes"
    )
    fastest = exports[0].median
    for export in exports:
        if not export.seconds:
            table.add_row(Text(export.exporter), Text("failed", "red"))
            continue
        ratio = f"{export.median / fastest:.1f}x" if fastest and export is not exports[0] else ""
        table.add_row(
            Text(export.exporter),
            _ms(export.median),
            _ms(min(export.seconds)),
            _ms(max(export.seconds)),
            str(len(export.seconds)),
            ratio,
            _size(export.grown_bytes()),
            _size(export.file_bytes),
            str(export.nodes or ""),
        )
    return table


def _phases(export: Export) -> Table:
    table = headed_table(f"{export.exporter}: phase", ">time", ">share", "", ">peak memory", ">bytes", ">calls")
    total = export.events.seconds if export.events is not None and export.events.seconds else 1e-9
    inner = steps(export)
    for row in phases(export):
        share = row.seconds / total
        bar = "█" * round(share * 24)
        cells = (_ms(row.seconds), f"{share:.1%}", bar, _size(row.grown_bytes), _size(row.bytes), "")
        table.add_row(Text(row.name, "bold"), *cells)
        for step in [item for item in inner if item.phase == row.name][:6]:
            if step.seconds >= 0.005 * total:
                cells = (_ms(step.seconds), f"{step.seconds / total:.1%}", "", "", _size(step.bytes), str(step.count))
                table.add_row(Text(f"  {step.name}", "dim"), *cells)
    return table


def _operations(export: Export) -> Table:
    table = headed_table("slowest operations", "phase", ">time", ">count", ">slowest", "line of the slowest")
    for row in operations(export)[:_ROWS]:
        table.add_row(Text(row.name), row.phase, _ms(row.own), str(row.count), _ms(row.slowest), Text(row.line))
    return table


def _lines(export: Export) -> Table:
    table = headed_table("slowest source lines", ">time", ">calls")
    for row in lines(export)[:_ROWS]:
        table.add_row(Text(row.line), _ms(row.seconds), str(row.count))
    return table


def _series(series: Series) -> Table:
    exporters = list(dict.fromkeys(point.exporter for point in series.points))
    table = headed_table(series.label, *(f">{name}" for name in exporters))
    values = list(dict.fromkeys(point.value for point in series.points))
    for value in values:
        cells = []
        for name in exporters:
            point = next((p for p in series.points if p.value == value and p.exporter == name), None)
            if point is None or not point.seconds:
                cells.append(Text((point.error if point else "")[:40], "red"))
            else:
                middle = statistics.median(point.seconds)
                cells.append(Text(f"{_ms(middle)}  ({_ms(min(point.seconds))} - {_ms(max(point.seconds))})"))
        table.add_row(str(value), *cells)
    return table


def _ms(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} us"


def _size(size_bytes: int) -> str:
    return human_size(size_bytes) if size_bytes else ""


def _percent(change: TimeChange) -> str:
    return "new" if change.before == 0 else f"{change.share:+.0%}"


@dataclass(frozen=True)
class TimeChange:
    """Seconds before and after of one phase or operation; 0 where it is on one side only."""

    name: str
    phase: str
    before: float
    after: float

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def share(self) -> float:
        """0.2 is a fifth slower; infinite where there was nothing before."""
        return self.difference / self.before if self.before else float("inf")


@dataclass
class ProfileComparison:
    """``total`` compares the medians; phases and operations are those of the runs nearest the medians, largest loss
    first.
    """

    before: str
    total: TimeChange
    phases: list[TimeChange] = field(default_factory=list)
    operations: list[TimeChange] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def is_slower(self, share: float) -> bool:
        """Return whether the median of the whole export grew by more than ``share``."""
        return self.total.difference > share * self.total.before


def compare(before: ProfileData, after: ProfileData, name: str = "before") -> ProfileComparison:
    """The first exports of two profiles. Raises UserError E302 where one has no seconds."""
    old, new = before.ours, after.ours
    for export, which in ((old, name), (new, "the new profile")):
        if not export.seconds:
            raise UserError("E302", f"{which} has no seconds", why=export.error or "nothing was measured")
    return ProfileComparison(
        name,
        TimeChange("export", "", old.median, new.median),
        _changes(phases(old), phases(new)),
        _changes(operations(old), operations(new)),
        _notes(before, after, old, new),
    )


def _changes(old: list[EventRow], new: list[EventRow]) -> list[TimeChange]:
    before = {(row.name, row.phase): row.own if row.phase != row.name else row.seconds for row in old}
    after = {(row.name, row.phase): row.own if row.phase != row.name else row.seconds for row in new}
    keys = dict.fromkeys([*after, *before])
    changes = [TimeChange(*key, before.get(key, 0.0), after.get(key, 0.0)) for key in keys]
    return sorted(changes, key=lambda change: -change.difference)


def _notes(before: ProfileData, after: ProfileData, old: Export, new: Export) -> list[str]:
    """The differences between two profiles beside the code."""
    notes = []
    if before.source != after.source:
        notes.append(f"other models: {before.source} and {after.source}")
    if bool(old.file_bytes) != bool(new.file_bytes):
        notes.append("one of the two wrote no file")
    for key in sorted(set(before.machine) | set(after.machine)):
        was, now = before.machine.get(key), after.machine.get(key)
        if was != now:
            notes.append(f"{key}: {_text(was)} then, {_text(now)} now")
    return notes


def _text(value: object) -> str:
    return "not set" if value in (None, "") else str(value)


def parse_share(text: str) -> float:
    """``20%`` or ``0.2`` as 0.2. Raises UserError E001."""
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise UserError("E001", f"'{text}' is no share", next="write 20% or 0.2")
    return share
