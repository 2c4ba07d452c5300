"""PyTorch's operator database (OpInfo) through the table.

python -m tests.ops.database 'nn.functional.*' --dtype float32,int64 --opset 18
"""

from __future__ import annotations

import argparse
import fnmatch
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tests.ops.harness import DEFAULT_OPSET, Call, Verdict, check, record


def op_infos(patterns: Sequence[str] = ("*",)) -> Iterator[Any]:
    """OpInfo entries whose full name (``name`` or ``name.variant``) matches any of ``patterns``."""
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
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
    """Verdicts of all calls of one entry."""
    if dtype not in info.supported_dtypes("cpu"):
        return []
    try:
        calls = list(calls_of(info, dtype, samples))
    except Exception as error:
        return [Verdict("ignored", name_of(info), f"eager: {type(error).__name__}: {error}")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [check(call, opset) for call in calls]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--dtype", default="float32", help="comma-separated")
    parser.add_argument("--opset", type=int, default=DEFAULT_OPSET)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--verbose", "-v", action="store_true", help="print every verdict that is not ok")
    arguments = parser.parse_args()
    totals: Counter[str] = Counter()
    entries: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    for info in op_infos(arguments.patterns):
        worst = "ok"
        for dtype_name in arguments.dtype.split(","):
            verdicts = sweep(info, getattr(torch, dtype_name), arguments.samples, arguments.opset)
            counts = Counter(verdict.status for verdict in verdicts)
            totals += counts
            missing.update(verdict.call.split("(")[0] for verdict in verdicts if verdict.status == "missing")
            shown = {v.status + v.call.split("(")[0]: v for v in verdicts if v.status not in ("ok", "ignored")}
            faults = verdicts if arguments.verbose else shown.values()
            for verdict in faults:
                if verdict.status == "missing" and not arguments.verbose:
                    continue
                if verdict.status not in ("ok", "ignored"):
                    note = " ".join(verdict.note.split())
                    print(f"{verdict.status:9} {name_of(info)}: {verdict.call[:300]}\n          {note[:400]}")
                    print(f"          {' '.join(verdict.op_types[:40])}")
            for status in ("wrong", "rejected", "broken", "unjudged", "missing", "refused"):
                if counts[status] and worst == "ok":
                    worst = status
        entries[worst] += 1
    print("calls", dict(totals))
    print("entries", dict(entries))
    print("missing", dict(missing.most_common()))


if __name__ == "__main__":
    main()
