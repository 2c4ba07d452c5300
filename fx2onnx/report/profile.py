"""``Profile``: what exports cost, with every form that it is shown and written in."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import Shown
from fx2onnx.base.stack_frames import public_methods
from fx2onnx.base.targets import check_target
from fx2onnx.files.staging import write_text
from fx2onnx.report.page import page
from fx2onnx.report.profile_data import Event, Export, ProfileData
from fx2onnx.report.table import ProfileComparison
from fx2onnx.report.tree import own_seconds

SPEEDSCOPE_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_MICRO = 1e6
_LINE = re.compile(r"[0-9]{1,9}")


def chrome_trace(profile: ProfileData) -> dict[str, Any]:
    """One process for each exporter, its events nested on one thread, its memory a counter.

    Stretches have no place in time: they are arguments of the event around them.
    """
    events: list[dict[str, Any]] = []
    for number, export in enumerate(profile.exports, 1):
        if export.events is None:
            continue
        events.append({"name": "process_name", "ph": "M", "pid": number, "args": {"name": export.exporter}})
        events += _complete(export.events, number)
        events += [
            {"name": "resident memory", "ph": "C", "pid": number, "ts": at * _MICRO, "args": {"bytes": now}}
            for at, now, _ in export.memory
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"source": profile.source, **profile.machine}}


def _complete(event: Event, process: int) -> Iterator[dict[str, Any]]:
    args = dict(event.args)
    for child in event.children:
        if child.stretches:
            args[child.name] = f"{child.seconds * 1e3:.3f} ms in {child.stretches}"
    yield {
        "name": event.name,
        "ph": "X",
        "pid": process,
        "tid": 1,
        "ts": event.start * _MICRO,
        "dur": event.seconds * _MICRO,
        "args": args,
    }
    for child in event.children:
        if not child.stretches:
            yield from _complete(child, process)


def speedscope(profile: ProfileData) -> dict[str, Any]:
    """One sampled profile for each exporter; a sample is a stretch of one stack, its weight the seconds."""
    frames: dict[tuple[str, str], int] = {}
    profiles = [_sampled(export, frames) for export in profile.exports if export.events is not None]
    return {
        "$schema": SPEEDSCOPE_SCHEMA,
        "name": profile.source or "fx2onnx",
        "exporter": "fx2onnx",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(name, where) for name, where in frames]},
        "profiles": profiles,
    }


def _frame(name: str, where: str) -> dict[str, Any]:
    file, colon, rest = where.partition(":")
    line = rest.split(",")[0]
    return {"name": name, "file": file, "line": int(line)} if colon and _LINE.fullmatch(line) else {"name": name}


def _sampled(export: Export, frames: dict[tuple[str, str], int]) -> dict[str, Any]:
    assert export.events is not None
    stretches = list(_stacks(export.events, (), frames))
    weights = [seconds for _, seconds in stretches]
    return {
        "type": "sampled",
        "name": export.exporter,
        "unit": "seconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": [list(stack) for stack, _ in stretches],
        "weights": weights,
    }


def _stacks(
    event: Event, outer: tuple[int, ...], frames: dict[tuple[str, str], int]
) -> Iterator[tuple[tuple[int, ...], float]]:
    """The event's stretches of time in order: gaps before, between and after its children are its own. Its summed
    stretches come first, out of its own time.
    """
    stack = (*outer, frames.setdefault((event.name, event.args.get("where", "")), len(frames)))
    own = own_seconds(event)
    for child in event.children:
        if child.stretches:
            seconds = min(child.seconds, own)
            own -= seconds
            yield (*stack, frames.setdefault((child.name, ""), len(frames))), seconds
    at = event.start
    for child in event.children:
        if child.stretches:
            continue
        gap = min(own, max(0.0, child.start - at))
        if gap:
            own -= gap
            yield stack, gap
        yield from _stacks(child, stack, frames)
        at = child.start + child.seconds
    if own > 0:
        yield stack, own


@public_methods
class Profile(Shown, ProfileData):
    """Measurements of exports, and their views."""

    def _shown(self) -> dict[str, Any]:
        timed = ", ".join(f"{each.exporter} {each.median:.3f}" for each in self.exports)
        return {"source": self.source, "seconds": timed, "nodes": self.exports[0].nodes if self.exports else ""}

    def table(self) -> str:
        """Phases, operations and lines as text."""
        from fx2onnx.report.table import as_text  # rich is slow to import

        return as_text(self)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """The documented JSON form."""
        _write(path, json.dumps(self.as_dict(), indent=1) + "\n")

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """For chrome://tracing and Perfetto."""
        _write(path, json.dumps(chrome_trace(self)))

    def to_speedscope(self, path: str | os.PathLike[str]) -> None:
        """For speedscope."""
        _write(path, json.dumps(speedscope(self)))

    def to_html(self, path: str | os.PathLike[str], comparisons: Sequence[ProfileComparison] = ()) -> None:
        """One page that needs nothing beside it. ``comparisons`` with earlier profiles get a view of their own."""
        _write(path, page(self, comparisons))

    def write(self, path: str | os.PathLike[str]) -> None:
        """The form that the end of ``path`` names. Raises UserError E001 for an unknown one."""
        writer(path)(self, path)


_WRITERS: dict[str, Callable[[Profile, str | os.PathLike[str]], None]] = {
    ".speedscope.json": Profile.to_speedscope,
    ".trace.json": Profile.to_chrome_trace,
    ".json": Profile.to_json,
    ".html": Profile.to_html,
    ".txt": lambda profile, path: _write(path, profile.table() + "\n"),
}


def writer(path: str | os.PathLike[str]) -> Callable[[Profile, str | os.PathLike[str]], None]:
    """The function that writes a profile to a path of this ending. Raises UserError E001."""
    name = os.path.basename(os.fspath(path)).lower()
    for suffix, function in _WRITERS.items():
        if name.endswith(suffix):
            return function
    raise UserError("E001", f"'{path}' names no form of a profile", next=f"end it with {', '.join(_WRITERS)}")


def _write(path: str | os.PathLike[str], text: str) -> None:
    write_text(check_target(path, what="the profile"), text)
