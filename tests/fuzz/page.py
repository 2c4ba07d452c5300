"""Profile files changed at random: each is read, drawn in every form and compared, or is one error of the user's."""

from __future__ import annotations

import copy
import functools
import json
import random
import re
from pathlib import Path
from typing import Any

from fx2onnx.base.errors import UserError
from fx2onnx.report.page import page
from fx2onnx.report.profile import Profile, chrome_trace, speedscope
from fx2onnx.report.profile_data import Event, Export, Point, Series
from fx2onnx.report.table import ProfileComparison, compare
from tests.report.hostile import NAMES

_JUNK = (
    None, True, 0, -1, 1, 3.5, -0.0, 2**63, 10**400, float("nan"), float("inf"), -1e308, "", "x", [], {}, [[]], [None],
    {"name": 1}, [1, 2, 3], {"where": []}, "9" * 5000, ".".join("m" * 3000), *(name[:200] for name in NAMES),
)  # fmt: skip
_ORDERS = re.compile(r"[<>&\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")


@functools.cache
def _base() -> str:
    def event(name: str, *children: Event) -> Event:
        return Event(name, 0.0, 1.0, 0, {"module": f"{name}.b", "where": f"{name}.py:7, in f", "bytes": 8}, [*children])

    root = event(
        "export", event("capture", event("run", event("aten.add", Event("fake", 0.0, 0.1, 3)))), event("lower")
    )
    rows = [{"engine": "runner", "output": "y", "max_abs_error": 0.0, "allowed": 1.0, "ok": True, "inputs": "sample"}]
    profile = Profile(
        "zoo:m", "2026-01-01T00:00:00+00:00", {"cpus": 2, "torch": "2"},
        [Export("fx2onnx", [1.0, 1.1], root, [(0.0, 1, 1), (1.0, 9, 9)], 10, 3), Export("torch", [2.0], root)],
        [Series("x", [Point(size, "fx2onnx", [0.1]) for size in (1, 8)])], Series("layers", [Point(1, "torch", [], "no")]),
        [{"name": name, "dtype": "float32", "shape": [2], "bytes": 8} for name in ("a.w", "a.b.w")],
        {"nodes": [["Add", "a"], ["Mul", ""]], "edges": [[0, 1]]},
        {"ok": True, "rows": rows, "notes": [], "summary": "agrees"}, {"seconds": 1.0, "warnings": ["w"]},
    )  # fmt: skip
    return json.dumps(profile.as_dict())


def case(rng: random.Random, folder: Path) -> None:
    """Raises AssertionError where a changed profile ends otherwise than well or in a UserError."""
    data = json.loads(_base())
    for _ in range(rng.choice((1, 1, 2, 5))):
        _change(data, rng)
    text = json.dumps(data)
    if rng.random() < 0.15:
        at = rng.randrange(len(text))
        text = (
            text[:at]
            + rng.choice(("", "{", "]" * 3, "[" * 20_000, "\x00", '"', "1e999"))
            + text[at + rng.randrange(3) :]
        )
    try:
        path = folder / "profile.json"
        path.write_text(text, encoding="utf-8")
        profile = Profile.from_json(path)
    except UserError:
        return
    _use(profile)


def _use(profile: Profile) -> None:
    comparisons: list[ProfileComparison] = []
    try:
        comparisons.append(compare(Profile.from_dict(json.loads(_base())), profile))
        text = page(profile, comparisons)
        table = profile.table()
    except UserError:  # an export without seconds, a profile without exports
        return
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert not _ORDERS.search(data), "the page's data holds what a browser would obey"
    json.loads(data, parse_constant=_refuse)
    assert text.count("<script>") == 8
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", table), (
        "the table holds what a terminal would obey"
    )
    text.encode()
    table.encode()
    json.dumps(chrome_trace(profile), allow_nan=False)
    json.dumps(speedscope(profile), allow_nan=False)
    again = Profile.from_dict(json.loads(json.dumps(profile.as_dict())))
    assert again.as_dict() == json.loads(json.dumps(profile.as_dict()))


def _refuse(word: str) -> Any:
    raise AssertionError(f"{word} is no JSON")


def _change(data: Any, rng: random.Random) -> None:
    """Puts something else at a random place of the JSON, or nothing."""
    place = data
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = rng.choice(keys)
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.1:
            break
        place = inner
    how = rng.random()
    if how < 0.15:
        del place[key]
    elif how < 0.25 and isinstance(place, dict):
        place[rng.choice(NAMES)[:100]] = place.pop(key)
    elif isinstance(place[key], str) and how < 0.7:
        place[key] = rng.choice(NAMES)[:300] + rng.choice(("", place[key]))
    else:
        place[key] = copy.deepcopy(rng.choice(_JUNK))
