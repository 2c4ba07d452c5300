"""Whole ``export(...)`` to a finished file: fx2onnx against ``torch.onnx.export(dynamo=True)``.

One process, warm, the two exporters in turn, medians. Files go to a memory file system where there is one, so that the
disk's writing back of one exporter's file does not slow the other's. ``python -m benchmarks.export_time [--rounds 5]
[--models a,b] [--folder DIR]``
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
from pathlib import Path
from typing import Any

from benchmarks import machine

MODELS = ("resnet50", "vit_b_16", "bert_base_mlm", "gpt2", "t5_small")


def seconds(function: Callable[[], Any]) -> float:
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


def measure(name: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Medians over ``rounds`` after one warm-up of each."""
    import torch

    import fx2onnx
    from models_zoo.registry import build

    entry = build(name)
    module, args, kwargs = entry.module.eval(), entry.args, entry.kwargs
    ours_path, theirs_path = folder / f"{name}-ours.onnx", folder / f"{name}-theirs.onnx"
    results: list[Any] = []

    def ours() -> None:
        results.append(fx2onnx.export(module, args, ours_path, kwargs=kwargs))

    def theirs() -> None:
        torch.onnx.export(module, args, str(theirs_path), kwargs=kwargs, dynamo=True)

    seconds(ours)
    label = name
    try:
        seconds(theirs)
    except torch.onnx.OnnxExporterError:
        module.set_attn_implementation("eager")  # torch.onnx.export fails on T5's fused attention
        label = f"{name} (eager attention in both)"
        seconds(theirs)
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    import onnx

    their_nodes = len(onnx.load(theirs_path, load_external_data=False).graph.node)
    report = results[-1].report
    for path in folder.iterdir():
        path.unlink()
    return {
        "model": label,
        "ours": statistics.median(pair[0] for pair in pairs),
        "theirs": statistics.median(pair[1] for pair in pairs),
        "ratio": statistics.median(pair[1] / pair[0] for pair in pairs),
        "ours_nodes": report.nodes_onnx,
        "their_nodes": their_nodes,
        "megabytes": report.file_bytes / 1e6,
    }


def main() -> None:
    machine.unpinned()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--folder", default="/dev/shm" if os.path.isdir("/dev/shm") else None)
    options = parser.parse_args()
    print(machine.describe())
    print("medians of", options.rounds, "rounds, whole call with the file written, one process, in turn")
    print("files in", options.folder or tempfile.gettempdir())
    print("| model | fx2onnx s | torch.onnx.export s | times faster | nodes | torch's nodes | MB |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="fx2onnx-bench-", dir=options.folder) as folder:
        for name in options.models.split(","):
            row = measure(name, options.rounds, Path(folder))
            print(
                f"| {row['model']} | {row['ours']:.3f} | {row['theirs']:.2f} | {row['ratio']:.1f} | {row['ours_nodes']} "
                f"| {row['their_nodes']} | {row['megabytes']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
