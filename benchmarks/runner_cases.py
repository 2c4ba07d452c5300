"""The backend's node cases in the runner and in onnx.reference: making the session and one run, in one process, in turn.

    python -m benchmarks.runner_cases [--rounds 3]

For each case the median over the rounds counts. Cases that onnx.reference fails on are left out of both sums. Objects
made before the measurement are kept from the garbage collector, whose passes over all cases would be measured instead.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import fx2onnx.runner as ort

Feeds = dict[str, Any]


def node_cases() -> Iterator[tuple[str, onnx.ModelProto, list[Feeds]]]:
    """Name, model and feeds of each case that ships in the onnx wheel."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        for case in load_model_tests(kind="node"):
            if case.model is not None:
                names = [info.name for info in case.model.graph.input]
                sets = [dict(zip(names, map(_plain, inputs), strict=False)) for inputs, _ in case.data_sets]
                yield case.name, case.model, sets


def _plain(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def timed(
    engine: Callable[[onnx.ModelProto], Any], model: onnx.ModelProto, sets: Sequence[Feeds]
) -> tuple[float, float]:
    """Seconds for making the session, and for a run with each of the feeds."""
    start = time.perf_counter()
    session = engine(model)
    made = time.perf_counter()
    for feeds in sets:
        session.run(None, feeds)
    return made - start, time.perf_counter() - made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slowest", type=int, default=0, help="show this many cases where the runner is slowest")
    args = parser.parse_args()
    from onnx.reference import ReferenceEvaluator

    cases = list(node_cases())
    times: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name, _, _ in cases}
    gc.collect()
    gc.freeze()
    failed: set[str] = set()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(args.rounds):
            for name, model, sets in cases:
                try:
                    theirs = timed(ReferenceEvaluator, model, sets)
                except Exception:  # whatever it raises, the case is left out of both sums
                    failed.add(name)
                    continue
                times[name].append((*timed(ort.InferenceSession, model, sets), *theirs))
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)]
        for name, rows in times.items()
        if name not in failed
    }
    our_start, our_runs, their_start, their_runs = (sum(row[i] for row in medians.values()) for i in range(4))
    print(f"{len(medians)} node cases, {args.rounds} rounds; onnx.reference fails on {len(failed)}")
    print(f"runner          sessions {our_start:.3f} s  runs {our_runs:.3f} s")
    print(f"onnx.reference  sessions {their_start:.3f} s  runs {their_runs:.3f} s")
    print(
        f"times less: runs {their_runs / our_runs:.1f}, with sessions {(their_start + their_runs) / (our_start + our_runs):.1f}"
    )
    few = sorted(medians.values(), key=lambda row: -row[3])[10:]
    print(
        f"without the 10 cases that take onnx.reference longest: {sum(r[2] + r[3] for r in few) / sum(r[0] + r[1] for r in few):.1f}"
    )
    for name in sorted(medians, key=lambda name: -sum(medians[name][:2]))[: args.slowest]:
        print(f"  {name:70s} {1e3 * medians[name][0]:8.2f} {1e3 * medians[name][1]:8.2f} ms")


if __name__ == "__main__":
    main()
