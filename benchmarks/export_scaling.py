"""The growth of export time and memory with the example's size and with depth.

One process, warm, variants in turn, medians; ratios are the claim. Memory is the growth of the peak resident set during one
whole export, in a process of its own that has the model loaded and a smaller one of its kind exported before.

    python -m benchmarks.export_scaling [--rounds 60] [--write docs/measured/scaling.md]
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.capture_time import timed

TOKENS = (32, 128, 512, 1024, 4096)
PIXELS = (64, 128, 224, 512, 1024)
LAYERS = (12, 24, 48, 96)
MEMORY_MODELS = ("resnet50", "vit_b_16", "bert_base_mlm", "gpt2", "t5_small")


def exporting(module: Any, args: Any, kwargs: Any) -> Callable[[], Any]:
    """Graph work of one export, the garbage of the one before collected outside."""
    import fx2onnx

    return functools.partial(fx2onnx.export, module, args, None, kwargs=kwargs)


def by_tokens() -> dict[Any, Callable[[], Any]]:
    import torch

    from models_zoo.registry import build

    module = build("t5_small").module.eval()
    variants = {}
    for length in TOKENS:
        ids = torch.ones(1, length, dtype=torch.long)
        variants[length] = exporting(
            module, (), {"input_ids": ids, "attention_mask": ids, "decoder_input_ids": ids, "use_cache": False}
        )
    return variants


def by_pixels() -> dict[Any, Callable[[], Any]]:
    import torch

    from models_zoo.registry import build

    module = build("resnet50").module.eval()
    return {side: exporting(module, (torch.empty(1, 3, side, side),), {}) for side in PIXELS}


def by_depth() -> dict[Any, Callable[[], Any]]:
    import torch
    from transformers import BertConfig, BertModel

    ids = torch.ones(1, 16, dtype=torch.long)
    variants = {}
    for layers in LAYERS:
        config = BertConfig(hidden_size=64, intermediate_size=128, num_attention_heads=4, num_hidden_layers=layers)
        variants[layers] = exporting(BertModel(config).eval(), (ids, ids), {})
    return variants


def section(title: str, unit: str, found: dict[Any, float], per_unit: bool = False) -> str:
    """A table: seconds and, against the smallest, the ratio (of seconds per unit where ``per_unit``)."""
    lines = [f"## {title}", "", f"| {unit} | s | against the smallest |", "|---|---|---|"]
    smallest, least = next(iter(found.items()))
    for size, seconds in found.items():
        ratio = (seconds / size) / (least / smallest) if per_unit else seconds / least
        lines.append(f"| {size} | {seconds:.3f} | {ratio:.2f} |")
    return "\n".join(lines)


def memory(name: str) -> tuple[float, float]:
    """Megabytes of weights, and megabytes by which the resident set grew at most during the export."""
    command = [sys.executable, "-m", "benchmarks.export_scaling", "--memory-of", name]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(answer.splitlines()[-1])
    return found["weights"], found["growth"]


def measure_memory(name: str) -> None:
    """Print the two numbers as JSON: the work of the child process."""
    import psutil

    import fx2onnx
    from models_zoo.registry import build

    small = build("resnet18" if name.startswith("resnet") else "bert_tiny")
    with tempfile.TemporaryDirectory() as folder:
        fx2onnx.export(small.module, small.args, Path(folder) / "m.onnx", kwargs=small.kwargs)
    entry = build(name)
    gc.collect()
    process = psutil.Process()
    before = peak = process.memory_info().rss
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.001)

    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=watch)
        thread.start()
        report = fx2onnx.export(entry.module, entry.args, Path(folder) / "m.onnx", kwargs=entry.kwargs).report
        done.set()
        thread.join()
    print(json.dumps({"weights": report.file_bytes / 1e6, "growth": (peak - before) / 1e6}))


def main() -> None:
    machine.unpinned()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--write", metavar="FILE.md")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        measure_memory(options.memory_of)
        return
    parts = [
        "# How export grows",
        f"`make scaling` writes this page. {machine.describe()}. One process, warm, variants in turn, medians of "
        f"{options.rounds}; graph work without the file.",
        section("T5-small by sample length", "tokens", timed(by_tokens(), options.rounds)),
        section("ResNet-50 by sample size", "pixels", timed(by_pixels(), options.rounds)),
        section("BERT by depth, seconds per layer", "layers", timed(by_depth(), options.rounds), per_unit=True),
        "## Peak memory of a whole export above the loaded model",
        "| model | MB of weights | MB of growth | share |\n|---|---|---|---|",
    ]
    for name in MEMORY_MODELS:
        weights, growth = memory(name)
        parts[-1] += f"\n| {name} | {weights:.0f} | {growth:.1f} | {growth / weights:.1%} |"
    text = "\n\n".join(parts) + "\n"
    print(text)
    if options.write:
        Path(options.write).write_text(text)


if __name__ == "__main__":
    main()
