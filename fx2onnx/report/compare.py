"""Two profiles side by side: what became slower, by phase and by operation."""

from __future__ import annotations

from dataclasses import dataclass, field

from fx2onnx.base.errors import UserError
from fx2onnx.report.profile_data import Export, ProfileData
from fx2onnx.report.tree import EventRow, operations, phases


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
