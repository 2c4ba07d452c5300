"""The runner's kernels beside onnxruntime's, over shapes that people's files have.

    python -m benchmarks.runner_sweep [PART_OF_A_LABEL ...] [--seconds 0.25] [--profile] [--write docs/measured/runner_speed.md]

One thread each, in turn in one process, by processor time; a ratio is the median of ratios of rounds, runner / onnxruntime.
Whole models are exported by fx2onnx into ``--models``, where they are found again.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.metadata
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine

MAX_ROUNDS = 25
ROUND_SECONDS = 300e-6
"""Each measurement of a round repeats the call for about as long, so that reading the clock costs nothing."""
WORK_US = 20.0
"""Below this, onnxruntime's time is its cost of a call."""


@dataclass(frozen=True)
class Row:
    """The times of one case."""

    label: str
    kind: str
    nodes: int
    ours_us: float
    theirs_us: float
    ratio: float
    opening: float
    error: float
    fast_us: float
    """With the compiled kernels of ``fx2onnx[fast]``; as ``ours_us`` where they are not installed."""
    fast_ratio: float
    least_ratio: float = 0.0
    """Time of the fewest NumPy calls that the model needs, divided by that of onnxruntime; 0 where they are not timed."""


def timed(call: Callable[[], Any], repeats: int) -> float:
    """Processor time of a call in this thread, in which both engines compute: other work on the machine does not count."""
    start = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - start) / repeats


def measure(case: Any, seconds: float, profile: bool = False) -> Row:
    """One case: as many rounds as fit into ``seconds``, three at least (fifteen of a whole model)."""
    import numpy as np
    import onnxruntime

    import fx2onnx.runner as ort
    from fx2onnx.runner import fast

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    ours_options = ort.SessionOptions()
    ours_options.intra_op_num_threads = 1
    ours_options.add_session_config_entry(fast.ENTRY, "0")
    provider = ["CPUExecutionProvider"]
    opening = [time.process_time()]
    theirs = onnxruntime.InferenceSession(case.model, options, providers=provider)
    opening.append(time.process_time())
    ours = ort.InferenceSession(case.model, ours_options)
    opening.append(time.process_time())
    fast_options = ort.SessionOptions()
    fast_options.intra_op_num_threads = 1
    compiled = ort.InferenceSession(case.model, fast_options)
    sessions = [ours, theirs, compiled] if fast.is_installed() else [ours, theirs]
    for _ in range(3):
        given, wanted, *others = (session.run(None, case.feeds) for session in sessions)
    error = max(
        (
            float(np.abs(g.astype(float) - w.astype(float)).max() / max(np.abs(w.astype(float)).max(), 1e-9))
            for results in (given, *others)
            for g, w in zip(results, wanted, strict=True)
            if w.size and w.shape == g.shape and w.dtype != object
        ),
        default=math.nan,
    )
    calls: list[Callable[[], Any]] = [functools.partial(session.run, None, case.feeds) for session in sessions]
    calls += [case.least] if case.least is not None else []
    repeats = [max(1, int(ROUND_SECONDS / timed(call, 1))) for call in calls]
    rounds: list[list[float]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < (15 if case.kind == "zoo" else 3) or (time.perf_counter() < end and len(rounds) < MAX_ROUNDS):
        rounds.append([timed(call, n) for call, n in zip(calls, repeats, strict=True)])
    ours_us, theirs_us, fast_us = (
        statistics.median(one[place] for one in rounds) * 1e6 for place in (0, 1, 2 if len(sessions) > 2 else 0)
    )
    ratio, fast_ratio, least_ratio = (
        statistics.median(one[place] / one[1] for one in rounds) for place in (0, len(sessions) - 1, -1)
    )
    if profile:
        show_steps(compiled if compiled in sessions else ours, case.feeds)
    return Row(
        case.label,
        case.kind,
        case.nodes,
        ours_us,
        theirs_us,
        ratio,
        (opening[2] - opening[1]) / (opening[1] - opening[0]),
        error,
        fast_us,
        fast_ratio if len(sessions) > 2 else ratio,
        least_ratio if case.least is not None else 0.0,
    )


def show_steps(session: Any, feeds: dict[str, Any]) -> None:
    """Print what the operators of a plan take, timed call by call."""
    plan = next(plan for plan in session.executor.plans.values() if hasattr(plan, "take_state"))
    state = plan.take_state()
    totals: dict[str, list[float]] = {}

    def wrapped(call: Callable[[], None], spent: list[float]) -> Callable[[], None]:
        def run() -> None:
            spent.append(timed(call, 1))

        return run

    state.calls = [
        wrapped(call, totals.setdefault(step.op_type, []))
        for call, (_, step) in zip(state.calls, state.steps, strict=True)
    ]
    runs = 5
    for _ in range(runs):
        state.run(session.check_feeds(feeds), session.executor.call)
    print(f"   arena {plan.arena_bytes / 1e6:.1f} MB, {len(state.steps)} steps")
    for name, spent in sorted(totals.items(), key=lambda item: -sum(item[1]))[:14]:
        print(f"   {name:24s} {sum(spent) / runs * 1e6:10.1f} us in {len(spent) // runs}")


def mean_of(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def over(ratios: Sequence[float]) -> str:
    """The mean of some ratios, their median, how many are above 3 and above 8, and the worst."""
    above = [sum(ratio > bound for ratio in ratios) for bound in (3, 8)]
    return (
        f"geometric mean {mean_of(ratios):.2f}, median {statistics.median(ratios):.2f}, "
        f"{above[0]} above 3, {above[1]} above 8, worst {max(ratios):.1f}"
    )


def summary(rows: Sequence[Row]) -> list[str]:
    """Sentences that say how fast the runner is."""
    lines = []
    single = [row for row in rows if row.kind == "operator"]
    work = [row for row in single if row.theirs_us >= WORK_US]
    for name, some in (("all single operators", single), (f"those of {WORK_US:.0f} us or more", work)):
        if some:
            lines.append(f"- {name} ({len(some)}): {over([row.ratio for row in some])}")
            lines.append(f"- the same with `[fast]`: {over([row.fast_ratio for row in some])}")
    for row in rows:
        ratios = f"{row.ratio:.2f} times onnxruntime's time, {row.fast_ratio:.2f} with `[fast]`"
        if row.kind == "small":
            lines.append(f"- {row.label}: {row.ours_us / row.nodes:.1f} us a node, {ratios}")
        elif row.kind in ("model", "zoo"):
            least = f"; the fewest calls of NumPy that it needs: {row.least_ratio:.2f}" if row.least_ratio else ""
            lines.append(f"- {row.label}: {row.ours_us / 1000:.2f} ms, {ratios}{least}")
    lines.append(
        f"- opening a session: median {statistics.median(row.opening for row in rows):.2f} of onnxruntime's time"
    )
    return lines


def table(rows: Sequence[Row]) -> list[str]:
    lines = ["| case | runner, us | onnxruntime, us | ratio | ratio with [fast] |", "|---|---:|---:|---:|---:|"]
    return lines + [
        f"| {row.label} | {row.ours_us:.0f} | {row.theirs_us:.0f} | {row.ratio:.1f} | {row.fast_ratio:.1f} |"
        for row in rows
    ]


def models(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| model, batch 1 | runner, ms | onnxruntime, ms | ratio | ratio with [fast] | session start, ratio |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    return lines + [
        f"| {row.label} | {row.ours_us / 1e3:.1f} | {row.theirs_us / 1e3:.1f} | {row.ratio:.2f} | {row.fast_ratio:.2f} | {row.opening:.2f} |"
        for row in rows
        if row.kind == "zoo"
    ]


def _numba() -> str:
    """The version of numba, in brackets, or that it is missing."""
    try:
        return f" (numba {importlib.metadata.version('numba')})"
    except importlib.metadata.PackageNotFoundError:
        return " (not installed here: its columns repeat NumPy's)"


def page(rows: Sequence[Row]) -> str:
    worst = sorted(
        (row for row in rows if row.kind == "operator" and row.theirs_us >= WORK_US), key=lambda row: -row.ratio
    )
    tiny = sorted(
        (row for row in rows if row.kind == "operator" and row.theirs_us < WORK_US), key=lambda row: -row.ours_us
    )
    day = datetime.datetime.now(datetime.UTC).date()
    text = [
        "# Speed of the runner",
        "",
        f"Generated by `make runner-sweep` on {day} ({machine.cpu_name()}, {machine.describe()}). {len(rows)} models, most of one or a few "
        "operators, in shapes that people's files have, run in the runner and in onnxruntime: one thread each, in turn in one "
        "process, by processor time. A ratio is the median of the ratios of the rounds; below 1 the runner is faster. Whole models are "
        "of the zoo, with random weights, exported by fx2onnx. `[fast]` is the extra with compiled kernels"
        f"{_numba()}.",
        "",
        *summary([row for row in rows if row.kind != "zoo"]),
        "",
        "## Whole models",
        "",
        *models(rows),
        "",
        f"## The slowest twenty, of cases that take onnxruntime {WORK_US:.0f} us or more",
        "",
        *table(worst[:20]),
        "",
        "## The slowest ten with [fast], of the same cases",
        "",
        *table(sorted(worst, key=lambda row: -row.fast_ratio)[:10]),
        "",
        "## The slowest ten of the others",
        "",
        "A call costs onnxruntime 3 to 10 us and the runner 10 to 20 us, whatever it computes.",
        "",
        *table(tiny[:10]),
    ]
    return "\n".join(text) + "\n"


def main() -> None:
    from benchmarks import runner_sweep_operators as operators
    from benchmarks.runner_sweep_cases import ZOO, model_graphs, small_graphs, zoo_models
    from benchmarks.runner_sweep_rare import rare

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("labels", nargs="*", help="only cases whose label has one of these in it")
    parser.add_argument("--seconds", type=float, default=0.25, help="of measuring a case, in both engines")
    parser.add_argument("--profile", action="store_true", help="show what the operators of each case take")
    parser.add_argument("--models", type=Path, default=Path("out/runner_sweep"), help="folder of whole models")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()

    def is_wanted(label: str) -> bool:
        return not options.labels or any(part in label for part in options.labels)

    options.models.mkdir(parents=True, exist_ok=True)
    families = (
        *(operators.convolutions, operators.products, operators.recurrences),
        *(
            operators.elementwise,
            operators.reductions,
            operators.movements,
            operators.others,
            rare,
            small_graphs,
            model_graphs,
        ),
    )
    cases = (case for family in families for case in family() if is_wanted(case.label))
    rows = []
    for case in itertools.chain(cases, zoo_models(options.models, list(filter(is_wanted, ZOO)))):
        row = measure(case, options.seconds, options.profile)
        print(
            f"{row.label:44s} {row.ours_us:10.1f} us {row.theirs_us:10.1f} us {row.ratio:8.2f} {row.fast_ratio:8.2f}  error {row.error:.0e}",
            flush=True,
        )
        rows.append(row)
    print("\n".join([*summary(rows), *table(sorted(rows, key=lambda row: -row.ratio)[:20])]))
    if options.write:
        options.write.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    machine.unpinned()
    main()
