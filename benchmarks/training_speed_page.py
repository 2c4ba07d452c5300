"""docs/measured/training_speed.md, of what ``benchmarks.training_speed`` measured."""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

from benchmarks import machine
from benchmarks.training_speed import ENGINES, EXPORT_MODELS, FIRST, GROWTH_STEPS, LIMITS, MEMORY_STEPS, STEP_MODELS


def _ratio(found: list[float], by: list[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(one / other for one, other in zip(found, by, strict=True))


def _marked(number: float, limit: float) -> str:
    return f"{number:.2f}" if number <= limit else f"**{number:.2f}**"


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _steps(found: dict[str, Any]) -> str:
    rows = []
    for name, by_threads in found.items():
        for threads, measured in by_threads.items():
            seconds = measured["seconds"]
            times = [f"{1000 * statistics.median(seconds[engine]):.0f}" for engine in ENGINES]
            ratios = [_marked(_ratio(seconds[engine], seconds["eager"]), LIMITS[engine]) for engine in ENGINES[1:]]
            rows.append([STEP_MODELS[name], threads, *times, *ratios])
    head = ["", "threads", "eager, ms", "onnxruntime, ms", "runner, ms", "onnxruntime / eager", "runner / eager"]
    return _table(head, rows)


def _memory(found: dict[str, Any]) -> str:
    rows = []
    for name, by_engine in found.items():
        peaks = [by_engine[engine]["peak"] for engine in ENGINES]
        grown = [by_engine[engine]["peak"] - by_engine[engine]["before"] for engine in ENGINES]
        cells = [f"{peak:.0f} ({more:.0f})" for peak, more in zip(peaks, grown, strict=True)]
        ratios = [
            f"{_marked(peak / peaks[0], LIMITS['memory'])} ({more / grown[0]:.2f})"
            for peak, more in zip(peaks[1:], grown[1:], strict=True)
        ]
        rows.append([STEP_MODELS[name], *cells, *ratios])
    return _table(["", "eager, MB", "onnxruntime, MB", "runner, MB", "onnxruntime / eager", "runner / eager"], rows)


def _exports(found: dict[str, Any]) -> str:
    rows = []
    for name, seconds in found.items():
        times = [f"{statistics.median(taken):.2f}" for taken in seconds.values()]
        pairs = (("step", "inference"), ("step file", "inference file"))
        rows.append(
            [
                EXPORT_MODELS[name],
                *times,
                *(_marked(_ratio(seconds[a], seconds[b]), LIMITS["export"]) for a, b in pairs),
            ]
        )
    head = [
        "", "inference, s", "step, s", "inference with file, s", "step with file, s", "step / inference", "with file",
    ]  # fmt: skip
    return _table(head, rows)


def page(found: dict[str, Any], rounds: int) -> str:
    """The page's Markdown; a number over its limit is bold."""
    parts = [
        "# What a step of training costs",
        f"`make training-speed` writes this page. {machine.describe()}. {time.strftime('%Y-%m-%d')}; load of the machine at "
        f"the end: {os.getloadavg()[0]:.1f}.",
        "A number over its limit is bold.",
    ]
    if "step" in found:
        parts += [
            "## Time",
            f"A step with SGD and momentum: eager PyTorch, onnxruntime and the runner in turn in one process, {rounds} rounds; the "
            "median, and the median of the rounds' ratios. With one thread processor time, with two the clock, which others on the "
            f"machine lengthen. Limits: onnxruntime {LIMITS['onnxruntime']}, the runner {LIMITS['runner']:.0f}.",
            _steps(found["step"]),
        ]
    if "memory" in found:
        parts += [
            "## Memory",
            f"The most memory that a process had in {MEMORY_STEPS} steps in one engine alone, one thread; in brackets how much of it "
            f"came after the libraries were loaded, PyTorch or onnxruntime. Limit: {LIMITS['memory']} of the whole.",
            _memory(found["memory"]),
        ]
    if found.get("growth"):
        sizes = found["growth"]
        parts.append(
            f"{GROWTH_STEPS:,} steps of `zoo:mnist_trained` with Adam through onnxruntime's CPU provider: the process has "
            f"{sizes[str(FIRST)]:.1f} MB after step {FIRST} and {sizes[str(GROWTH_STEPS)]:.1f} MB after step {GROWTH_STEPS:,}."
        )
    if "export" in found:
        parts += [
            "## Export",
            f"The step by the same module's export for inference, in turn in one process, {rounds} rounds, as above. "
            f"Limit: {LIMITS['export']:.0f}. With files, that for inference has the weights, which the step takes as inputs.",
            _exports(found["export"]),
        ]
    return "\n\n".join(parts) + "\n"
