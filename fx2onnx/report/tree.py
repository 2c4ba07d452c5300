"""The summaries of the tree of events: phases, operations, source lines, merged flames."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fx2onnx.report.profile_data import Event, Export


@dataclass
class EventRow:
    """Seconds of all events of one name. ``own`` leaves out what their children take; ``line`` is the costliest one's.
    ``grown_bytes``: peak memory above that at the export's start; ``bytes``: what was written.
    """

    name: str
    phase: str
    count: int = 0
    seconds: float = 0.0
    own: float = 0.0
    slowest: float = 0.0
    line: str = ""
    grown_bytes: int = 0
    bytes: int = 0


@dataclass
class Flame:
    """Events merged by name among siblings. ``seconds`` holds the children's."""

    name: str
    seconds: float = 0.0
    count: int = 0
    children: dict[str, Flame] = field(default_factory=dict)

    def as_dict(self, least_seconds: float = 0.0) -> dict[str, Any]:
        """``{"name", "value", "count", "children"}``; those below ``least_seconds`` stay in their parent."""
        result: dict[str, Any] = {"name": self.name, "value": round(self.seconds, 7), "count": self.count}
        children = [child for child in self.children.values() if child.seconds >= least_seconds]
        if children:
            result["children"] = [child.as_dict(least_seconds) for child in children]
        return result


def walk(event: Event, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Event]]:
    """Every event with the names of those around it, outermost first."""
    yield path, event
    for child in event.children:
        yield from walk(child, (*path, event.name))


def own_seconds(event: Event) -> float:
    """The seconds of the event without its children; stretches count as its own."""
    return max(0.0, event.seconds - sum(child.seconds for child in event.children if not child.stretches))


def phases(export: Export) -> list[EventRow]:
    """The events right below the root, in order, with one row for what lies between them."""
    if export.events is None:
        return []
    rows: dict[str, EventRow] = {}
    for child in export.events.children:
        row = rows.setdefault(child.name, EventRow(child.name, child.name))
        row.count += child.stretches or 1
        row.seconds += child.seconds
        row.own += own_seconds(child)
        row.slowest = max(row.slowest, child.seconds)
        row.grown_bytes = max(row.grown_bytes, export.grown_bytes(child.start, child.start + child.seconds))
        row.bytes += _bytes(child)
    rest = own_seconds(export.events)
    if rows and rest > 0:
        rows["(between)"] = EventRow("(between)", "", 1, rest, rest, rest)
    return list(rows.values())


def steps(export: Export) -> list[EventRow]:
    """The parts of each phase, and the stretches inside them (fake operators, shape rules) summed up, by phase and then
    by seconds. A stretch is counted in its part too.
    """
    rows: dict[tuple[str, str], EventRow] = {}
    for path, event in _walk_all(export):
        if len(path) == 2 or (len(path) > 2 and event.stretches):
            _count(rows.setdefault((path[1], event.name), EventRow(event.name, path[1])), event)
    order = {row.name: index for index, row in enumerate(phases(export))}
    return sorted(rows.values(), key=lambda row: (order[row.phase], -row.seconds))


def operations(export: Export) -> list[EventRow]:
    """The operations that the time was spent for: operators of the model by phase, and rewrites, those of one name together,
    slowest first.
    """
    rows: dict[tuple[str, str], EventRow] = {}
    slowest: dict[tuple[str, str], float] = {}
    for path, event in _walk_all(export):
        is_part_of_operator = event.stretches and path[-1].startswith(_OPERATORS)
        if len(path) < 3 or is_part_of_operator:
            continue
        key = (event.name, path[1])
        row = rows.setdefault(key, EventRow(*key))
        _count(row, event)
        if event.args.get("where") and event.seconds > slowest.get(key, 0.0):
            slowest[key] = event.seconds
            row.line = event.args["where"]
    return sorted(rows.values(), key=lambda row: -row.own)


_OPERATORS = ("aten.", "prim.", "quantized.", "torchvision.", "_operator.")


def lines(export: Export) -> list[EventRow]:
    """Seconds of each source line of the user's model, over all phases, slowest first. Every second belongs to one line:
    that of the innermost operator.
    """
    rows: dict[str, EventRow] = {}

    def visit(event: Event, line: str) -> None:
        line = event.args.get("where", line)
        if line:
            row = rows.setdefault(line, EventRow(line, "", line=line))
            row.seconds += own_seconds(event) if not event.stretches else 0.0
            row.count += "where" in event.args
        for child in event.children:
            visit(child, line)

    if export.events is not None:
        visit(export.events, "")
    return sorted(rows.values(), key=lambda row: -row.seconds)


def flame(event: Event, *, by_module: bool = False) -> Flame:
    """The tree with siblings of one name merged; ``by_module`` puts operators below the modules that called them."""
    root = Flame(event.name)
    _merge(root, event, by_module, ())
    return root


def _merge(into: Flame, event: Event, by_module: bool, scope: tuple[str, ...]) -> None:
    into.seconds += event.seconds
    into.count += event.stretches or 1
    for child in event.children:
        parent, inner = into, scope
        module = child.args.get("module", "")
        if by_module and module:
            inner = tuple(module.split("."))
            common = inner[: len(scope)] == scope
            for part in inner[len(scope) :] if common else inner:
                parent = parent.children.setdefault(part, Flame(part))
                parent.seconds += child.seconds
                parent.count += 1
        _merge(parent.children.setdefault(child.name, Flame(child.name)), child, by_module, inner)


def _walk_all(export: Export) -> Iterator[tuple[tuple[str, ...], Event]]:
    if export.events is not None:
        yield from walk(export.events)


def _bytes(event: Event) -> int:
    """The event's own number, else the sum of its children's."""
    return int(event.args["bytes"]) if "bytes" in event.args else sum(map(_bytes, event.children))


def _count(row: EventRow, event: Event) -> None:
    row.bytes += _bytes(event)
    row.count += event.stretches or 1
    row.seconds += event.seconds
    row.own += own_seconds(event)
    row.slowest = max(row.slowest, event.seconds if not event.stretches else event.seconds / event.stretches)
