"""Whether JSON has the form of a profile (docs/profile.schema.json, which needs a package of its own to be checked).

Every view relies on it: texts are texts, numbers are finite and of a size that arithmetic bears, events end somewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from fx2onnx.base.escape import plain

Check: TypeAlias = Callable[[Any, str], None]
"""Takes a value and its place. Raises ValueError."""

_MOST = 2**63
"""Sizes in bytes stay below, and sums of as many floats as fit a file stay finite."""

_DEEPEST = 200
"""Events inside each other. Ours have some ten; functions that call themselves walk them."""


def check_profile(data: Mapping[str, Any]) -> None:
    """Raises ValueError with the place of the first value that is not as it must be."""
    _PROFILE(data, "profile")


def _refuse(value: Any, place: str, wanted: str) -> None:
    raise ValueError(f"{place} is {plain(repr(value)[:60])}, not {wanted}")


def _text(value: Any, place: str) -> None:
    if not isinstance(value, str):
        _refuse(value, place, "a text")


def _number(value: Any, place: str) -> None:
    if not isinstance(value, int | float) or not -_MOST < value < _MOST:
        _refuse(value, place, "a number")


def _finite(value: Any, place: str) -> None:
    """Of a number that is shown and not summed."""
    if not isinstance(value, float) or not math.isfinite(value):
        _number(value, place)


def _count(value: Any, place: str) -> None:
    if not isinstance(value, int) or not 0 <= value < _MOST:
        _refuse(value, place, "a whole number")


def _seconds(value: Any, place: str) -> None:
    _number(value, place)
    if value < 0:
        _refuse(value, place, "seconds")


def _error(value: Any, place: str) -> None:
    if not isinstance(value, int | float):  # infinite where the types differ
        _refuse(value, place, "a number")


def _anything(value: Any, place: str, depth: int = 0) -> None:
    """Any JSON without infinite numbers, which other readers of the views do not know."""
    if isinstance(value, float):
        _finite(value, place)
    if isinstance(value, dict | list):
        if depth >= _DEEPEST:
            raise ValueError(f"{place[:60]}...: more than {_DEEPEST} values inside each other")
        for inner in value.values() if isinstance(value, dict) else value:
            _anything(inner, place, depth + 1)


def _maybe(check: Check) -> Check:
    return lambda value, place: None if value is None else check(value, place)


def _every(check: Check, length: int | None = None) -> Check:
    def inner(value: Any, place: str) -> None:
        if not isinstance(value, list) or length not in (None, len(value)):
            _refuse(value, place, "a list" if length is None else f"a list of {length}")
        for index, item in enumerate(value):
            check(item, f"{place}[{index}]")

    return inner


def _fields(needed: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    def inner(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            _refuse(value, place, "an object")
        for name, check in needed.items():
            if name not in value:
                raise ValueError(f"{place}.{name} is missing")
            check(value[name], f"{place}.{name}")
        for name, check in (optional or {}).items():
            if name in value:
                check(value[name], f"{place}.{name}")

    return inner


def _facts(known: Mapping[str, Check]) -> Check:
    def inner(value: Any, place: str) -> None:
        _fields({}, known)(value, place)
        _anything(value, place)

    return inner


def _seen_later(value: Any, place: str) -> None:
    """An event's child, which ``_event`` looks at."""


def _graph(value: Any, place: str) -> None:
    if value == {}:
        return
    _fields({"nodes": _every(_every(_text, 2)), "edges": _every(_every(_count, 2))})(value, place)
    for edge in value["edges"]:
        if max(edge) >= len(value["nodes"]):
            _refuse(edge, f"{place}.edges", "between nodes")


def _event(value: Any, place: str, depth: int = 0) -> None:
    if depth >= _DEEPEST:
        raise ValueError(f"{place[:60]}...: more than {_DEEPEST} events inside each other")
    _EVENT(value, place)
    for index, child in enumerate(value.get("children", ())):
        _event(child, f"{place}.children[{index}]", depth + 1)


_EVENT = _fields(
    {"name": _text, "start": _number, "seconds": _seconds},
    {
        "stretches": _count,
        "args": _facts({"where": _text, "module": _text, "bytes": _count}),
        "children": _every(_seen_later),
    },
)
_EXPORT = _fields(
    {
        "exporter": _text,
        "seconds": _every(_seconds),
        "events": _maybe(_event),
        "memory": _every(_every(_number, 3)),
        "file_bytes": _count,
        "nodes": _count,
        "error": _text,
    }
)
_POINT = _fields({"value": _number, "exporter": _text}, {"seconds": _every(_seconds), "error": _text})
_SERIES = _fields({"label": _text, "points": _every(_POINT)})
_ROW = _fields(
    {"engine": _text, "output": _text, "inputs": _text, "max_abs_error": _error, "allowed": _error},
    {"problem": _text, "scale": _finite},
)
_PROFILE = _fields(
    {
        "source": _text,
        "created": _text,
        "machine": _facts({}),
        "exports": _every(_EXPORT),
        "sweeps": _every(_SERIES),
        "depth": _maybe(_SERIES),
        "weights": _every(_fields({"name": _text, "dtype": _text, "shape": _every(_count), "bytes": _count})),
        "graph": _graph,
        "verification": _maybe(
            _fields({"ok": _anything, "rows": _every(_ROW), "notes": _every(_text)}, {"summary": _text})
        ),
        "report": _facts({}),
    }
)
