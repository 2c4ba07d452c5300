"""The event recorder: what it keeps, and what it costs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx.base import events
from fx2onnx.base.memory import MemoryReader
from fx2onnx.report.profile_data import Event, tree_of
from fx2onnx.report.tree import walk
from models_zoo.registry import build


def names(span: Any) -> list[Any]:
    return [span.name, [names(child) for child in span.children]]


def test_details_hang_below_the_phase_that_ran() -> None:
    with events.recording("all", detailed=True) as recorder:
        with events.record("one"):
            start_ns = time.perf_counter_ns()
            with events.record("inner", bytes=7):
                recorder.add("fake", time.perf_counter_ns() - 1000)
                recorder.add("fake", time.perf_counter_ns() - 1000)
            recorder.detail("aten.add", start_ns, "layer.0", "net.py:3")
        with events.record("two"):
            pass
    root = tree_of(recorder)
    assert names(root) == ["all", [["one", [["aten.add", [["inner", [["fake", []]]]]]]], ["two", []]]]
    add = root.children[0].children[0]
    assert add.args == {"module": "layer.0", "where": "net.py:3"}
    (fake,) = add.children[0].children
    assert (fake.stretches, add.children[0].args) == (2, {"bytes": 7})
    assert 2e-6 <= fake.seconds < 1e-3
    assert list(recorder.phases()) == ["one", "two"]
    assert tree_of(recorder) is root, "a second look adds nothing"
    assert len(root.children) == 2


def test_children_lie_within_their_parents() -> None:
    net = build("bert_tiny")
    result = fx2onnx.export(net.module, net.args, None, kwargs=net.kwargs, profile=True)
    assert result.profile is not None
    root = result.profile.ours.events
    assert root is not None

    def check(event: Event) -> None:
        for child in event.children:
            assert event.start - 1e-6 <= child.start
            assert child.start + child.seconds <= event.start + event.seconds + 1e-6
            check(child)

    check(root)


def test_details_are_only_kept_where_asked_for() -> None:
    with events.recording("all"):
        assert events.details() is None
        assert events.active() is not None
    assert events.active() is None


def test_without_a_profile_only_phases_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the recorder does per operator is nothing: no entry, no reading, not even a question."""
    kept: list[events.SpanRecorder] = []
    asked: list[None] = []
    real, details = events.SpanRecorder, events.details

    def recorder(*args: Any, **kwargs: Any) -> events.SpanRecorder:
        kept.append(real(*args, **kwargs))
        return kept[-1]

    monkeypatch.setattr(events, "SpanRecorder", recorder)
    for module in (
        "fx2onnx.capture.recording.tracer.events",
        "fx2onnx.lower.loop",
        "fx2onnx.irx.builder",
        "fx2onnx.optimize.driver",
    ):
        monkeypatch.setattr(f"{module}.details", lambda: asked.append(None) or details())
    net = build("bert_tiny")
    fx2onnx.export(net.module, net.args, None, kwargs=net.kwargs)
    (only,) = kept
    assert only.memory is None
    assert only.entries < 60
    assert 4 <= len(asked) < 20


def test_an_error_leaves_a_whole_tree() -> None:
    with (
        pytest.raises(ValueError, match="stop"),
        events.recording("all", detailed=True) as recorder,
        events.record("one"),
    ):
        raise ValueError("stop")
    root = tree_of(recorder)
    assert names(root) == ["all", [["one", []]]]
    assert root.seconds >= root.children[0].seconds >= 0


def test_every_stage_of_the_pipeline_is_recorded(exported: fx2onnx.ExportResult) -> None:
    assert exported.profile is not None
    root = exported.profile.ours.events
    assert root is not None
    paths = {"/".join((*path[1:], event.name)) for path, event in walk(root)}
    wanted = {
        "import",
        "capture/bind arguments",
        "capture/run on fake tensors",
        "capture/run on fake tensors/aten.linear.default",
        "capture/settle dynamic sizes",
        "lower/preflight",
        "lower/translate/aten.linear.default",
        "lower/translate/aten.linear.default/shapes",
        "lower/build",
        "optimize/fold_constants",
        "optimize/merge_equal_nodes",
        "optimize/fuse",
        "optimize/remove_dead_nodes",
        "save/serialize",
        "save/write model",
        "verify/eager PyTorch",
        "verify/runner",
        "verify/onnxruntime",
    }
    assert wanted - paths == set()


def test_phases_know_their_bytes_and_the_strategy(tmp_path: Path) -> None:
    net = torch.nn.Linear(40, 30, bias=False)
    result = fx2onnx.export(net, (torch.ones(1, 40),), tmp_path / "m.onnx", external_data=True, profile=True)
    assert result.profile is not None
    assert result.profile.ours.events is not None
    args = {event.name: event.args for _, event in walk(result.profile.ours.events)}
    assert args["capture"] == {"strategy": "fake"}
    assert args["write model"] == {"bytes": (tmp_path / "m.onnx").stat().st_size}

    assert args["write weights"] == {"bytes": 40 * 30 * 4}


def test_operators_know_their_module_and_line(exported: fx2onnx.ExportResult) -> None:
    assert exported.profile is not None
    root = exported.profile.ours.events
    assert root is not None
    found = [event.args for _, event in walk(root) if event.name == "aten.linear.default"]
    assert {args["module"] for args in found} == {"encoder.0", "encoder.2", "head"}
    assert len(found) == 6, "three operators, each captured and lowered"
    assert all("conftest.py:" in args["where"] for args in found if args["module"] == "head")


@pytest.mark.long
def test_memory_readings_see_a_peak() -> None:
    """In a process of its own, above what it had before (Linux counts what the process had that started it): a peak below
    the highest ever cannot be seen.
    """
    code = """
from fx2onnx.base.memory import MemoryReader
memory = MemoryReader()
memory.read()
block = bytearray(300_000_000 + max(0, memory._peak_bytes() - memory._now_bytes()))
block[::4096] = b"x" * len(block[::4096])
del block
memory.read()
before, after = memory.readings
print(after[2] - before[1] > 200_000_000, after[0] > before[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"], "the peak between two readings, not only what is left"


@pytest.mark.long
def test_profiling_costs_less_than_two_per_cent() -> None:
    """Cost of one event, as the pipeline makes them, times their number, against the export's own time. (The times of two
    exports differ by more than what is measured here; benchmarks/profile_overhead.py compares them over many rounds.)
    """
    net = build("bert_base_mlm")

    def export(profile: bool) -> tuple[float, fx2onnx.ExportResult]:
        start = time.perf_counter()
        result = fx2onnx.export(net.module, net.args, None, kwargs=net.kwargs, profile=profile)
        return time.perf_counter() - start, result

    export(True)
    export_seconds = min(export(False)[0] for _ in range(3))
    measured = export(True)[1].measured
    assert measured is not None
    assert measured.memory is not None
    stretches = sum(path is None for path in measured.recorder.log[3::5])
    spent = stretches * min(_seconds_per_stretch() for _ in range(7))
    spent += (measured.recorder.entries - stretches) * min(_seconds_per_entry() for _ in range(7))
    spent += len(measured.memory.readings) * min(_seconds_per_reading() for _ in range(7))
    assert spent < 0.02 * export_seconds, f"{spent * 1e3:.2f} ms of {export_seconds * 1e3:.1f} ms"


def _seconds_per_entry(count: int = 1000) -> float:
    recorder = events.SpanRecorder("cost", detailed=True, memory=MemoryReader())
    recorder.memory.next_ns = 1 << 62  # type: ignore[union-attr]
    start = time.perf_counter()
    for _ in range(count):
        recorder.detail("aten.add", time.perf_counter_ns(), "layer.0", "net.py:3")
    return (time.perf_counter() - start) / count


def _seconds_per_stretch(count: int = 1000) -> float:
    """With the clock that is read at its beginning."""
    recorder = events.SpanRecorder("cost", detailed=True)
    start = time.perf_counter()
    for _ in range(count):
        recorder.add("match", time.perf_counter_ns())
    return (time.perf_counter() - start) / count


def test_a_phase_right_after_another_takes_no_reading_of_its_own() -> None:
    memory = MemoryReader()
    with events.recording("all", memory=memory):
        for name in ("one", "two", "three"):
            with events.record(name):
                pass
    assert 2 <= len(memory.readings) <= 3, "the beginning and the end; not each phase's"
    time_before = memory.readings[-1][0]
    memory.readings[-1] = (time_before - 30_000_000, *memory.readings[-1][1:])
    memory.read_if_old()
    assert memory.readings[-1][0] > time_before, "an old one is taken anew"


def _seconds_per_reading(count: int = 100) -> float:
    memory = MemoryReader()
    start = time.perf_counter()
    for _ in range(count):
        memory.read()
    return (time.perf_counter() - start) / count
