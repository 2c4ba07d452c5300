"""The runner's speed against onnxruntime's and onnx.reference's, interleaved in one process.

    python -m benchmarks.runner_speed model.onnx ... [--rounds 15] [--threads 1] [--seq 128] [--reference] [--profile]

Ratios are medians of per-round ratios runner / onnxruntime; below 1 the runner is faster. Lift pins on OpenBLAS first
(``env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE``); the kernels in use are printed.
"""

from __future__ import annotations

import argparse
import collections
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.machine import blas_core


def sample_feeds(inputs: list[Any], batch: int, seq: int) -> dict[str, np.ndarray]:
    """Seeded feeds: symbolic dims named after a batch get ``batch``, all others ``seq``."""
    rng = np.random.default_rng(0)
    feeds = {}
    for arg in inputs:
        dims = [d if isinstance(d, int) else batch if "batch" in str(d) else seq for d in arg.shape]
        if "int" in arg.type:
            ones = "mask" in arg.name
            feeds[arg.name] = (
                np.ones(dims, np.int64) if ones else rng.integers(0, 2 if "type" in arg.name else 1000, dims)
            )
        elif "bool" in arg.type:
            feeds[arg.name] = np.ones(dims, bool)
        else:
            feeds[arg.name] = rng.standard_normal(dims).astype(np.float32)
    return feeds


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return (time.perf_counter() - start) * 1e3, result


def measure(path: str, args: argparse.Namespace) -> None:
    import onnxruntime

    import fx2onnx.runner as ort

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    ours_start, ours = timed(lambda: ort.InferenceSession(path))
    theirs_start, theirs = timed(
        lambda: onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    )
    feeds = sample_feeds(theirs.get_inputs(), args.batch, args.seq)
    for _ in range(3):
        given = ours.run(None, feeds)
    wanted = theirs.run(None, feeds)
    error = max(float(np.abs(g - w).max() / max(np.abs(w).max(), 1e-9)) for g, w in zip(given, wanted, strict=True))
    rows = []
    for _ in range(args.rounds):
        a, _ = timed(lambda: ours.run(None, feeds))
        b, _ = timed(lambda: theirs.run(None, feeds))
        rows.append((a, b))
    ratio = statistics.median(a / b for a, b in rows)
    a, b = (statistics.median(column) for column in zip(*rows, strict=True))
    line = f"{os.path.basename(path):28s} runner {a:8.2f} ms  onnxruntime {b:8.2f} ms  ratio {ratio:5.2f}"
    line += f"  start {ours_start / theirs_start:5.2f} ({ours_start:.0f} ms)  error {error:.1e}"
    if args.reference:
        from onnx.reference import ReferenceEvaluator

        try:
            reference, _ = timed(lambda: ReferenceEvaluator(path).run(None, feeds))
            line += f"  reference/runner {reference / a:.1f}"
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as cause:
            line += f"  reference fails: {type(cause).__name__}"
    print(line, flush=True)
    if args.profile:
        show_steps(ours, feeds)


def show_steps(session: Any, feeds: dict[str, np.ndarray]) -> None:
    """Milliseconds by operator, timed call by call in the plan."""
    plan = next(plan for plan in session.executor.plans.values() if not isinstance(plan, str))
    state = plan.take_state()
    totals: collections.Counter[str] = collections.Counter()
    for index, step in enumerate([step for _, step in state.steps]):
        call = state.calls[index]

        def wrapped(call: Callable[[], None] = call, name: str = step.op_type) -> None:
            start = time.perf_counter()
            call()
            totals[name] += (time.perf_counter() - start) * 1e3

        state.calls[index] = wrapped
    ordered = [feeds[session.program.slots[index].name] for index in session.program.inputs]
    for _ in range(5):
        state.run(ordered, session.executor.call)
    print(f"   arena {plan.arena_bytes / 1e6:.1f} MB, {len(state.steps)} steps")
    for name, spent in totals.most_common(14):
        count = sum(step.op_type == name for _, step in state.steps)
        print(f"   {name:24s} {spent / 5:8.3f} ms in {count}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    print(f"BLAS kernels {blas_core()}, threads {args.threads}, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS')}")
    for path in args.models:
        measure(path, args)


if __name__ == "__main__":
    main()
