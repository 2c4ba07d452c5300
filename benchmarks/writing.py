"""Writing the weights beside one plain sequential write of as many bytes, by itself: no other exporter runs in between.

Per model, in turn and after a round that does not count: the spans of ``result.save`` that write bytes (weights and graph),
and one ``write`` of as many bytes into a new file of the same folder. Medians of the rounds' quotients.

    python -m benchmarks.writing [--rounds 21] [--models a,b] [--folder DIR]
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.export_time import calls, clear, seconds, zoo_parser


def measure(name: str, rounds: int, folder: Path) -> tuple[int, list[float]]:
    """Bytes of the files, and our speed by that of the plain write, round by round."""
    from models_zoo.registry import build

    entry = build(name)
    entry.module.eval()
    reports: list[Any] = []
    ours: list[float] = []
    functions = calls(entry, folder, reports, ours)
    plain = []
    for _ in range(rounds + 1):
        clear(folder)
        seconds(functions["saved"])
        clear(folder)
        plain.append(seconds(functions["plain"]))
    clear(folder)
    return reports[-1].file_bytes, [b / a for a, b in zip(ours, plain, strict=True)][1:]


def main() -> None:
    machine.unpinned()
    from models_zoo.registry import names

    options = zoo_parser(__doc__, rounds=21).parse_args()
    os.makedirs(options.folder, exist_ok=True)
    print(f"{machine.describe()}. Medians of {options.rounds}, in brackets the middle half.\n")
    print("| model | MB | speed of writing by a plain write's |\n| --- | --- | --- |")
    medians = []
    with tempfile.TemporaryDirectory(prefix="fx2onnx-bench-", dir=options.folder) as folder:
        for name in options.models.split(",") if options.models else names():
            size, quotients = measure(name, options.rounds, Path(folder))
            low, median, high = statistics.quantiles(quotients, n=4)
            medians.append(median)
            print(f"| {name} | {size / 1e6:.1f} | {median:.2f} ({low:.2f} to {high:.2f}) |", flush=True)
    print(f"\nmedian {statistics.median(medians):.2f}, least {min(medians):.2f}")


if __name__ == "__main__":
    main()
