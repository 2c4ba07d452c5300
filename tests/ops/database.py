"""PyTorch's operator database (OpInfo) through the table.

python -m tests.ops.database 'nn.functional.*' --dtype float32,int64 --opset 18 --engine both
"""

from __future__ import annotations

import argparse
import fnmatch
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tests.ops.harness import DEFAULT_OPSET, Call, Verdict, check_engines, record
from tests.support import of_torchs_tests


def op_infos(patterns: Sequence[str] = ("*",)) -> Iterator[Any]:
    """OpInfo entries whose full name (``name`` or ``name.variant``) matches any of ``patterns``."""
    for info in of_torchs_tests("common_methods_invocations").op_db:
        if any(fnmatch.fnmatchcase(name_of(info), pattern) for pattern in patterns):
            yield info


def name_of(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def calls_of(info: Any, dtype: torch.dtype, samples: int = 5) -> Iterator[Call]:
    """The calls that the entry's first ``samples`` sample inputs make, evenly spread over all samples."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = list(info.sample_inputs("cpu", dtype, requires_grad=False))
        step = max(1, len(every) / samples)
        for index in sorted({int(i * step) for i in range(min(samples, len(every)))}):
            sample = every[index]
            yield from record(info.op, sample.input, *sample.args, **sample.kwargs)


def sweep(info: Any, dtype: torch.dtype, samples: int = 5, opset: int = DEFAULT_OPSET) -> list[Verdict]:
    """Verdicts of all calls of one entry in onnxruntime."""
    return sweep_engines(info, dtype, ["onnxruntime"], samples, opset)["onnxruntime"]


def sweep_engines(
    info: Any, dtype: torch.dtype, engines: Sequence[str], samples: int = 5, opset: int = DEFAULT_OPSET
) -> dict[str, list[Verdict]]:
    """Verdicts of all calls of one entry, by engine; none where the entry does not take ``dtype``."""
    if dtype not in info.supported_dtypes("cpu"):
        return {engine: [] for engine in engines}
    try:
        calls = list(calls_of(info, dtype, samples))
    except Exception as error:  # eager PyTorch itself fails on some samples of its own
        return {
            engine: [Verdict("ignored", name_of(info), f"eager: {type(error).__name__}: {error}")] for engine in engines
        }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdicts = [check_engines(call, engines, opset) for call in calls]
    return {engine: [verdict[engine] for verdict in verdicts] for engine in engines}


SEVERITY = ("wrong", "rejected", "broken", "unjudged", "missing", "refused", "ok", "ignored")
"""What an entry is called after: the first of these that any of its calls is."""


def worst_of(verdicts: Sequence[Verdict]) -> str:
    """The status of an entry; ignored where nothing could be compared."""
    found = {verdict.status for verdict in verdicts}
    return next((status for status in SEVERITY if status in found), "ignored")


def engines_of(name: str) -> list[str]:
    return list(ENGINES) if name == "both" else [name]


ENGINES = ("onnxruntime", "runner")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--dtype", default="float32", help="comma-separated")
    parser.add_argument("--opset", type=int, default=DEFAULT_OPSET)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--engine", choices=[*ENGINES, "both"], default="onnxruntime")
    parser.add_argument("--verbose", "-v", action="store_true", help="print every verdict that is not ok")
    arguments = parser.parse_args()
    engines = engines_of(arguments.engine)
    dtypes = [getattr(torch, name) for name in arguments.dtype.split(",")]
    totals: dict[str, Counter[str]] = {engine: Counter() for engine in engines}
    entries: dict[str, Counter[str]] = {engine: Counter() for engine in engines}
    missing: Counter[str] = Counter()
    for info in op_infos(arguments.patterns):
        every: dict[str, list[Verdict]] = {engine: [] for engine in engines}
        for dtype in dtypes:
            for engine, verdicts in sweep_engines(info, dtype, engines, arguments.samples, arguments.opset).items():
                every[engine] += verdicts
        for engine, verdicts in every.items():
            totals[engine].update(verdict.status for verdict in verdicts)
            entries[engine][worst_of(verdicts)] += 1
            _print_faults(engine, name_of(info), verdicts, arguments.verbose)
        missing.update(v.call.split("(")[0] for v in every[engines[0]] if v.status == "missing")
    for engine in engines:
        print(engine, "calls", dict(totals[engine]))
        print(engine, "entries", dict(entries[engine]))
    print("missing", dict(missing.most_common()))


def _print_faults(engine: str, name: str, verdicts: Sequence[Verdict], verbose: bool) -> None:
    """Every call that is not right, or one an overload and status."""
    first = {verdict.status + verdict.call.split("(")[0]: verdict for verdict in reversed(verdicts)}
    for verdict in verdicts if verbose else first.values():
        if verdict.status in ("ok", "ignored") or (verdict.status == "missing" and not verbose):
            continue
        print(f"{engine} {verdict.status:9} {name}: {verdict.call[:300]}")
        print(f"          {' '.join(verdict.note.split())[:400]}")
        print(f"          {' '.join(verdict.op_types[:40])}", flush=True)


if __name__ == "__main__":
    main()
