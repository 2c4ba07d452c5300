"""Whole exports and graph work alone: fx2onnx against ``torch.onnx.export``, dynamo and TorchScript.

One process, warm, all variants of a model in turn, medians of ``--rounds``. *Graph work* writes no file (``f=None``); *whole
export* ends with the finished file, weights inside, in ``--folder``. The writing of the weights is also measured by itself,
beside one plain sequential write of as many bytes to the same folder.

    python -m benchmarks.export_time [--rounds 3] [--models a,b] [--folder DIR] [--write docs/measured/benchmarks.md]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine

VARIANTS = {
    "ours": "fx2onnx, whole",
    "dynamo": "torch.onnx.export(dynamo=True), whole",
    "torchscript": "torch.onnx.export(dynamo=False), whole",
    "saved": "fx2onnx, the finished graph into its file",
    "plain": "one sequential write of as many bytes",
    "ours graph": "fx2onnx, no file",
    "dynamo graph": "torch.onnx.export(dynamo=True), no file",
    "ours dynamic": "fx2onnx, no file, dynamic shapes",
    "dynamo dynamic": "torch.onnx.export(dynamo=True), no file, dynamic shapes",
}


@dataclass
class Row:
    """The measurements of one model: seconds by variant, why a variant failed, sizes."""

    label: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    saving: list[float] = field(default_factory=list)
    """Seconds that went into the files' bytes: their weights and the graph."""
    nodes: int = 0
    their_nodes: int = 0
    file_bytes: int = 0

    def median(self, variant: str) -> float | None:
        taken = self.seconds.get(variant)
        return statistics.median(taken) if taken else None

    def times_faster(self, ours: str, theirs: str) -> float | None:
        """Median over the rounds of their seconds by ours."""
        if not self.seconds.get(ours) or not self.seconds.get(theirs):
            return None
        return statistics.median(b / a for a, b in zip(self.seconds[ours], self.seconds[theirs], strict=True))

    def of_plain(self) -> float | None:
        """Speed of our writing by that of the plain write."""
        plain = self.seconds.get("plain")
        return statistics.median(p / s for p, s in zip(plain, self.saving, strict=True)) if plain else None


def seconds(function: Callable[[], Any]) -> float:
    """Seconds of one call, without the exporters' chatter."""
    gc.collect()  # neither pays for the other's garbage
    start = time.perf_counter()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        function()
    return time.perf_counter() - start


def calls(entry: Any, folder: Path, reports: list[Any], saving: list[float]) -> dict[str, Callable[[], Any]]:
    """The call of each variant."""
    import numpy as np
    import torch

    import fx2onnx
    from fx2onnx.base.events import recording
    from fx2onnx.report.profile_data import tree_of

    module, args, kwargs, shapes = entry.module, entry.args, entry.kwargs, entry.dynamic_shapes

    def ours() -> None:
        reports.append(fx2onnx.export(module, args, folder / "ours.onnx", kwargs=kwargs).report)

    result = fx2onnx.export(module, args, None, kwargs=kwargs)

    def saved() -> None:
        with recording("save") as recorder:
            result.save(folder / "saved.onnx")
        spans = tree_of(recorder).children
        saving.append(sum(span.seconds for span in spans if span.name in ("write weights", "write model")))

    def theirs(file: str | None, **keywords: Any) -> Callable[[], Any]:
        path = str(folder / file) if file else None
        return lambda: torch.onnx.export(module, args, path, kwargs=kwargs, **keywords)

    def plain() -> None:
        with open(folder / "plain", "wb", buffering=0) as stream:
            stream.write(content)

    seconds(ours)
    content = np.ones(reports[-1].file_bytes, np.uint8).data
    functions: tuple[Callable[[], Any], ...] = (
        ours,
        theirs("theirs.onnx", dynamo=True),
        theirs("script.onnx", dynamo=False),
        saved,
        plain,
        lambda: fx2onnx.export(module, args, None, kwargs=kwargs),
        theirs(None, dynamo=True),
        lambda: fx2onnx.export(module, args, None, kwargs=kwargs, dynamic_shapes=shapes),
        theirs(None, dynamo=True, dynamic_shapes=shapes),
    )
    return dict(zip(VARIANTS, functions, strict=True))


def measure(name: str, rounds: int, folder: Path) -> Row:
    """The medians' data over ``rounds``, after one warm-up of each variant."""
    import onnx
    import torch

    from models_zoo.registry import build

    entry = build(name)
    entry.module.eval()
    row, reports = Row(name), []
    functions = calls(entry, folder, reports, row.saving)
    try:
        seconds(functions["dynamo"])
    except torch.onnx.OnnxExporterError:
        entry.module.set_attn_implementation("eager")  # torch.onnx.export fails on T5's fused attention
        row.label = f"{name} (eager attention)"
    if not entry.dynamic_shapes:
        del functions["ours dynamic"], functions["dynamo dynamic"]
    for variant, function in list(functions.items()):
        try:
            seconds(function)
        except Exception as cause:  # whatever their exporters raise is their result
            row.failures[variant] = type(cause).__name__
            del functions[variant]
    reports.clear()
    row.saving.clear()
    for _ in range(rounds):
        for variant, function in functions.items():
            clear(folder)
            row.seconds.setdefault(variant, []).append(seconds(function))
            if variant == "dynamo":
                row.their_nodes = len(onnx.load(folder / "theirs.onnx", load_external_data=False).graph.node)
    row.nodes, row.file_bytes = reports[-1].nodes_onnx, reports[-1].file_bytes
    clear(folder)
    return row


def clear(folder: Path) -> None:
    """Every file is written anew: replacing one costs a flush to the disk, whoever does it."""
    for path in folder.iterdir():
        path.unlink()


def zoo_parser(description: str | None, rounds: int) -> argparse.ArgumentParser:
    """The options of a benchmark that writes files of the zoo's models."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--models", help="a,b (default: the whole zoo)")
    parser.add_argument("--folder", default="out", help="where the files go (default: out)")
    return parser


def main() -> None:
    machine.unpinned()
    from benchmarks.export_page import page
    from models_zoo.registry import names

    parser = zoo_parser(__doc__, rounds=3)
    parser.add_argument("--write", metavar="FILE.md", help="write the page and its plot")
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="fx2onnx-bench-", dir=options.folder) as folder:
        for name in options.models.split(",") if options.models else names():
            rows.append(measure(name, options.rounds, Path(folder)))
            print(f"{rows[-1].label}: {rows[-1].times_faster('ours', 'dynamo') or 0:.1f} times", flush=True)
    text = page(rows, machine.describe(), options.rounds, Path(options.write) if options.write else None)
    print(text)


if __name__ == "__main__":
    main()
