"""The profile as data: its JSON form, traces, comparisons."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.report.profile import Profile, chrome_trace, speedscope
from fx2onnx.report.profile_data import Event, Export
from fx2onnx.report.table import compare, parse_share
from fx2onnx.report.text import of_allowed
from fx2onnx.report.tree import flame, lines, operations, phases, walk

DATA = Path(__file__).parent / "data"
DOCUMENTED = Path(__file__).parents[2] / "docs" / "profile.schema.json"


def tree() -> Export:
    """capture 4 s (linear 3 s, of which fake op 1 s; add 0.5 s), lower 1 s, and half a second in between."""
    linear = Event(
        "aten.linear", 0.0, 3.0, 0, {"module": "a.b", "where": "net.py:7, in forward"}, [Event("fake op", 0, 1.0, 5)]
    )
    add = Event("aten.add", 3.2, 0.5, 0, {"module": "a", "where": "net.py:9, in forward"})
    again = Event("aten.linear", 4.2, 0.8, 0, {"module": "a.b", "where": "net.py:7, in forward"})
    capture = Event("capture", 0.0, 4.0, children=[Event("run", 0.0, 3.9, children=[linear, add])])
    lower = Event("lower", 4.2, 1.0, children=[Event("translate", 4.2, 0.9, 0, {"bytes": 12}, [again])])
    memory = [(0.0, 100, 100), (2.0, 150, 170), (4.0, 150, 160), (4.5, 120, 400), (5.5, 110, 120)]
    return Export("fx2onnx", [5.5], Event("export", 0.0, 5.5, children=[capture, lower]), memory)


def test_json_is_read_back_unchanged(profile: Profile, tmp_path: Path) -> None:
    profile.to_json(tmp_path / "p.json")
    again = Profile.from_json(tmp_path / "p.json")
    assert again.as_dict() == json.loads((tmp_path / "p.json").read_text())
    assert again.exports[0].events is not None
    assert [row.name for row in phases(again.exports[0])] == [row.name for row in phases(profile.exports[0])]


def test_json_is_as_documented(profile: Profile) -> None:
    schema = json.loads(DOCUMENTED.read_text())
    data = json.loads(json.dumps(profile.as_dict()))
    jsonschema.validate(data, schema)
    for broken in (
        {**data, "version": 3},
        {**data, "exports": [{}]},
        {key: data[key] for key in data if key != "graph"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema)


def test_version_1_had_one_sweep(profile: Profile) -> None:
    data = profile.as_dict()
    for sweeps in (data["sweeps"][:1], []):
        old = {**data, "version": 1, "sweep": sweeps[0] if sweeps else None}
        del old["sweeps"]
        assert Profile.from_dict(old).as_dict()["sweeps"] == sweeps


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "other"}, "not a profile"),
        ({"version": 99}, "version 99"),
        ({"exports": [{"exporter": "x"}]}, "damaged"),
    ],
)
def test_what_is_no_profile_is_refused(profile: Profile, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        Profile.from_dict({**profile.as_dict(), **change})
    assert caught.value.code == "E302"


def test_speedscope_file_has_speedscopes_form(profile: Profile) -> None:
    found = json.loads(json.dumps(speedscope(profile)))
    jsonschema.validate(found, json.loads((DATA / "speedscope.schema.json").read_text()))
    for sampled, export in zip(found["profiles"], profile.exports, strict=False):
        assert export.events is not None
        assert sum(sampled["weights"]) == pytest.approx(export.events.seconds, rel=1e-6)
        frames = found["shared"]["frames"]
        assert all(frames[stack[0]]["name"] == export.events.name for stack in sampled["samples"])
    assert any(frame.get("line") and "conftest.py" in frame["file"] for frame in found["shared"]["frames"])


def test_speedscope_keeps_own_time_and_order() -> None:
    found = speedscope(Profile(exports=[tree()]))
    names = [frame["name"] for frame in found["shared"]["frames"]]
    sampled = found["profiles"][0]
    stacks = [
        ["/".join(names[i] for i in stack), pytest.approx(weight)]
        for stack, weight in zip(sampled["samples"], sampled["weights"], strict=True)
    ]
    assert stacks == [
        ["export/capture/run/aten.linear/fake op", 1.0],
        ["export/capture/run/aten.linear", 2.0],
        ["export/capture/run", 0.2],
        ["export/capture/run/aten.add", 0.5],
        ["export/capture/run", 0.2],
        ["export/capture", 0.1],
        ["export", 0.2],
        ["export/lower/translate/aten.linear", 0.8],
        ["export/lower/translate", 0.1],
        ["export/lower", 0.1],
        ["export", 0.3],
    ]


def test_chrome_trace_nests_and_counts_memory() -> None:
    events = chrome_trace(Profile(exports=[tree()]))["traceEvents"]
    spans = {(event["name"], event["ts"]): event for event in events if event["ph"] == "X"}
    assert spans["aten.linear", 0.0]["dur"] == 3e6
    assert spans["aten.linear", 0.0]["args"]["fake op"] == "1000.000 ms in 5"
    assert ("fake op", 0.0) not in spans
    assert [(event["ts"], event["args"]["bytes"]) for event in events if event["ph"] == "C"] == [
        (0, 100),
        (2e6, 150),
        (4e6, 150),
        (4.5e6, 120),
        (5.5e6, 110),
    ]


def test_chrome_trace_is_what_perfetto_takes(profile: Profile) -> None:
    """The rules of the Trace Event Format; and slices of a thread must nest, to the nanosecond that Perfetto counts in:
    it drops those that do not.
    """
    found = json.loads(json.dumps(chrome_trace(profile), allow_nan=False))
    jsonschema.validate(found, _TRACE)
    by_process: dict[int, list[tuple[int, int]]] = {}
    for event in found["traceEvents"]:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            by_process.setdefault(event["pid"], []).append((start, start + round(event["dur"] * 1000)))
    named = {event["pid"]: event["args"]["name"] for event in found["traceEvents"] if event["name"] == "process_name"}
    assert named == {1: "fx2onnx", 2: "torch"}
    assert set(by_process) == set(named)
    for slices in by_process.values():
        ends: list[int] = []
        for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or end <= ends[-1], "a slice leaves the one that it began in"
            ends.append(end)


_COMMON = {"name": {"type": "string", "minLength": 1}, "pid": {"type": "integer"}, "tid": {"type": "integer"}}
_TIME = {"type": "number", "minimum": 0}
_TRACE = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "minItems": 20,
            "items": {
                "oneOf": [
                    {
                        "properties": {**_COMMON, "ph": {"const": "X"}, "ts": _TIME, "dur": _TIME, "args": {"type": "object"}},
                        "required": ["name", "ph", "pid", "tid", "ts", "dur"],
                        "additionalProperties": False,
                    },
                    {
                        "properties": {
                            **_COMMON,
                            "ph": {"const": "C"},
                            "ts": _TIME,
                            "args": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "number"}},
                        },
                        "required": ["name", "ph", "pid", "ts", "args"],
                        "additionalProperties": False,
                    },
                    {
                        "properties": {
                            **_COMMON,
                            "ph": {"const": "M"},
                            "args": {"type": "object", "required": ["name"], "additionalProperties": {"type": "string"}},
                        },
                        "required": ["name", "ph", "pid", "args"],
                        "additionalProperties": False,
                    },
                ]
            },
        },
    },
}  # fmt: skip
"""Source: the Trace Event Format document: complete, counter and metadata events."""


def test_phases_operations_and_lines_add_up() -> None:
    export = tree()
    assert [(row.name, row.seconds, row.grown_bytes, row.bytes) for row in phases(export)] == [
        ("capture", 4.0, 70, 0),
        ("lower", 1.0, 300, 12),
        ("(between)", 0.5, 0, 0),
    ]
    assert export.grown_bytes() == 300
    assert export.peak_bytes(2.5, 2.6) == 160, "a reading speaks for the time before it"
    found = {(row.name, row.phase): row for row in operations(export)}
    assert set(found) == {("aten.linear", "capture"), ("aten.add", "capture"), ("aten.linear", "lower")}
    assert found["aten.linear", "capture"].own == 3.0
    assert [(row.line, pytest.approx(row.seconds), row.count) for row in lines(export)] == [
        ("net.py:7, in forward", 3.8, 2),
        ("net.py:9, in forward", 0.5, 1),
    ]


def test_flames_merge_siblings_and_group_by_module() -> None:
    events = tree().events
    assert events is not None
    by_module = flame(events, by_module=True).as_dict()
    run = by_module["children"][0]["children"][0]
    (module,) = run["children"]
    assert (module["name"], module["value"]) == ("a", 3.5)
    assert [child["name"] for child in module["children"]] == ["b", "aten.add"]
    assert flame(events).as_dict(1.0)["children"][0]["children"][0]["children"][0]["name"] == "aten.linear"
    assert len(flame(events).as_dict(1.0)["children"][0]["children"][0]["children"]) == 1


def test_comparison_finds_what_became_slower(profile: Profile) -> None:
    slower = copy.deepcopy(profile)
    before = Profile(exports=[tree()])
    slower = Profile(exports=[tree()])
    after = slower.ours
    after.seconds = [7.5]
    assert after.events is not None
    added = next(event for _, event in walk(after.events) if event.name == "aten.add")
    added.seconds += 2.0
    after.events.children[0].seconds += 2.0
    found = compare(before, slower)
    assert (found.phases[0].name, found.phases[0].difference) == ("capture", 2.0)
    assert (found.operations[0].name, found.operations[0].difference) == ("aten.add", 2.0)
    assert found.is_slower(0.3)
    assert not found.is_slower(0.4)
    assert not compare(before, before).is_slower(0.0)
    assert not found.notes
    slower.machine = {"cpus": 64}
    assert compare(before, slower).notes == ["cpus: not set then, 64 now"]


def test_an_export_that_failed_cannot_be_compared(profile: Profile) -> None:
    with pytest.raises(UserError, match="nothing was measured"):
        compare(Profile(exports=[Export("fx2onnx")]), profile)


@pytest.mark.parametrize(("text", "share"), [("20%", 0.2), ("0.2", 0.2), (" 5 %", 0.05), ("0", 0.0)])
def test_shares_are_read(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize(
    ("error", "allowed", "text"),
    [
        (0.0, 0.0, "0%"), (0.0, 1.0, "0%"), (1e-4, 1.0, "<0.1%"), (0.0142, 1.0, "1.4%"), (8.8e12, 2e13, "44%"),
        (3.0, 1.0, "3.0 times"), (217.0, 1.0, "217 times"), (217.0, 0.02154, "over 1000 times"),
        (3.0, 0.0, ""), (float("inf"), 1.0, ""), (float("nan"), 1.0, ""), (None, 1.0, ""),
    ],
)  # fmt: skip
def test_errors_are_told_as_shares_of_what_is_allowed(error: float | None, allowed: float, text: str) -> None:
    assert of_allowed(error, allowed) == text


@pytest.mark.parametrize("text", ["", "-1", "much", "20%%", "nan"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="no share"):
        parse_share(text)


def test_table_names_exporters_phases_operations_and_lines(profile: Profile) -> None:
    text = profile.table()
    for wanted in (
        "fx2onnx",
        "torch",
        "failed",
        "no such luck",
        "capture",
        "save",
        "aten.linear.default",
        "conftest.py",
        "too large",
    ):
        assert wanted in text, wanted
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("p.html", "<!DOCTYPE"),
        ("p.json", "{"),
        ("p.trace.json", '{"traceEvents"'),
        ("p.speedscope.json", '{"$schema"'),
        ("p.txt", " "),
    ],
)
def test_the_path_decides_the_form(tmp_path: Path, name: str, start: str) -> None:
    import torch

    fx2onnx.export(torch.nn.Linear(2, 3), (torch.ones(1, 2),), profile=tmp_path / name)
    assert (tmp_path / name).read_text().startswith(start)


def test_a_path_without_a_form_is_refused_before_the_export(tmp_path: Path) -> None:
    import torch

    class Never(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError("the export began")

    for path, code in ((tmp_path / "p.xml", "E001"), (tmp_path / "missing" / "p.html", "E301")):
        with pytest.raises(UserError) as caught:
            fx2onnx.export(Never(), (torch.ones(1, 2),), profile=path)
        assert caught.value.code == code


def test_without_profile_there_is_none() -> None:
    import torch

    assert fx2onnx.export(torch.nn.Linear(2, 3), (torch.ones(1, 2),)).profile is None


def test_the_profile_knows_the_file(exported: fx2onnx.ExportResult) -> None:
    profile = exported.profile
    assert profile is not None
    assert {weight["name"] for weight in profile.weights} >= {"encoder.0.bias", "head.bias"}
    assert sum(weight["bytes"] for weight in profile.weights) >= 4 * (6 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3)
    assert len(profile.graph["nodes"]) == profile.ours.nodes == len(exported.model.graph)
    assert all(before < after for before, after in profile.graph["edges"])
    assert profile.verification is not None
    assert profile.verification["ok"]
    assert profile.ours.file_bytes > 0


def test_the_applying_of_rewrites_lies_in_its_phase() -> None:
    import torch

    import fx2onnx

    result = fx2onnx.export(torch.nn.Linear(3, 4), (torch.ones(2, 5, 3),), profile=True)
    assert result.profile is not None
    assert result.profile.ours.events is not None
    (fuse,) = (event for _, event in walk(result.profile.ours.events) if event.name == "fuse")
    assert any(event.name.startswith("apply ") and 0 < event.seconds < fuse.seconds for event in fuse.children)
