"""The time of whole commands, beside the part that nobody can save, into docs/measured/start_time.md.

    python -m benchmarks.start_time [--rounds 5] [--write docs/measured/start_time.md]

Whole processes, each in turn, with compiled modules (``__pycache__``) there; medians of processor time, and of wall
time. ``fx2onnx export`` with its verification is set beside a process that imports torch and the model's library alone.
The first export in a process is set beside the second in user time, imports being done. ``verify`` on the example
inputs alone is counted in forwards.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks import machine

COMMAND = "from fx2onnx.cli.process import run; run()"
TORCHVISION = """
import torch
import torchvision
"""
TRANSFORMERS = """
import torch
from transformers import BertForMaskedLM
"""
FOLDER = """
import sys, torch
from transformers import BertConfig, BertForMaskedLM
torch.manual_seed(0)
shape = dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=8000)
BertForMaskedLM(BertConfig(**shape)).save_pretrained(sys.argv[1])
"""
TWICE = """
import importlib, json, resource, sys, time
import torch
import fx2onnx
from fx2onnx.cli.feeds import dynamic_shapes_of
from fx2onnx.sources import resolve
torch.set_num_threads(1)
source = resolve(sys.argv[1])
shapes = dynamic_shapes_of(source, "default")
for name in json.loads(sys.argv[3]):
    importlib.import_module(name)
seconds = []
for turn in range(3):
    start = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    fx2onnx.export(source.module, source.args, sys.argv[2], kwargs=source.kwargs, dynamic_shapes=shapes)
    seconds.append(resource.getrusage(resource.RUSAGE_SELF).ru_utime - start)
with torch.no_grad():
    source.module(*source.args, **source.kwargs)
    start = time.process_time()
    source.module(*source.args, **source.kwargs)
    forward = time.process_time() - start
import onnxruntime
fx2onnx.export(source.module, source.args, sys.argv[2], kwargs=source.kwargs)
costs = []
for turn in range(2):
    start = time.process_time()
    verdict = fx2onnx.verify(sys.argv[2], source.module, source.args, source.kwargs, seeds=())
    costs.append(time.process_time() - start)
assert [each.name for each in verdict.tried] == ["sample"]
names = [name for name in sys.modules if name.startswith(("fx2onnx.", "onnx"))]
print(json.dumps({"seconds": seconds, "forward": forward, "verify": costs[-1], "names": names}))
"""
LINEAR = """
import importlib, json, sys, time
def seconds(names):
    start = time.process_time()
    for name in names:
        importlib.import_module(name)
    return time.process_time() - start
found = [seconds(["torch"]), seconds(sys.argv[1:])]
start = time.process_time()
import fx2onnx, torch
fx2onnx.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
print(json.dumps([*found, time.process_time() - start]))
"""
BESIDE = {"torch": (), "torch, torch._dynamo, onnx, onnx_ir": ("torch._dynamo", "onnx", "onnx_ir")}
"""Names of modules that a process imports before `import fx2onnx` and a first export, beside torch."""
MODELS = ("bert_base_mlm", "resnet50")


def process(command: Sequence[str]) -> tuple[float, float]:
    """Processor and wall time of a whole process. Raises CalledProcessError."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def environment() -> dict[str, str]:
    """With compiled modules, as an installed package has them."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"OMP_NUM_THREADS": "1"}


def commands(folder: str) -> dict[str, list[str]]:
    """Each measured process."""
    python = [sys.executable, "-c"]
    fx2onnx = [*python, COMMAND]
    return {
        "torch and torchvision.models": [*python, TORCHVISION],
        "export torchvision": [*fx2onnx, "export", "torchvision:mobilenet_v3_small", "-o", f"{folder}/tv.onnx"],
        "torch and the class of transformers": [*python, TRANSFORMERS],
        "export hf": [*fx2onnx, "export", f"hf:{folder}/bert", "-o", f"{folder}/hf.onnx"],
        "numpy and onnx": [*python, "import numpy, onnx"],
        "run": [*fx2onnx, "run", f"{folder}/tv.onnx"],
    }


def measured(rounds: int) -> tuple[dict[str, tuple[float, float]], dict[str, dict[str, Any]]]:
    """Medians of each process, and what ``TWICE`` says of each model."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", FOLDER, f"{folder}/bert"], check=True, env=environment())
        table = commands(folder)
        rows: dict[str, list[tuple[float, float]]] = {name: [] for name in table}
        for command in table.values():  # modules are compiled, files lie in the cache
            process(command)
        for _ in range(rounds):
            for name, command in table.items():
                rows[name].append(process(command))
        twice = {model: _twice(model, f"{folder}/twice.onnx", rounds) for model in MODELS}
    medians = {name: tuple(map(statistics.median, zip(*found, strict=True))) for name, found in rows.items()}
    return medians, twice  # type: ignore[return-value]


def _twice(model: str, path: str, rounds: int) -> dict[str, Any]:
    names: list[str] = []
    found: list[dict[str, Any]] = []
    for _ in range(rounds + 1):
        command = [sys.executable, "-c", TWICE, f"zoo:{model}", path, json.dumps(names)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
        said = json.loads(done.stdout.splitlines()[-1])
        found, names = [*found, said] if names else found, said["names"]
    first, second = (statistics.median(each["seconds"][turn] for each in found) for turn in (0, 1))
    checks = statistics.median(each["verify"] / each["forward"] for each in found)
    return {"first": first, "second": second, "verify": checks}


def _linear(names: Sequence[str], rounds: int) -> tuple[float, float]:
    """Seconds of ``import torch``, and of ``import fx2onnx`` with a first export of a Linear after ``names``."""
    found: list[list[float]] = []
    for _ in range(rounds + 1):
        command = [sys.executable, "-c", LINEAR, *names]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return statistics.median(each[0] for each in found[1:]), statistics.median(each[2] for each in found[1:])


def page(rounds: int, medians: dict[str, tuple[float, float]], twice: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# How long it takes to start",
        "",
        f"Generated by `make start-time` on {date.today()} ({machine.describe()}). Medians of {rounds} rounds, each process in turn, one thread.",
        "Whole commands, exports with their verification, each beside a process with the imports that nobody can save alone.",
        "",
        "| process | processor, s | wall, s | times the imports |",
        "|---|---:|---:|---:|",
    ]
    base = 0.0
    for name, (processor, wall) in medians.items():
        is_base = not name.startswith(("export", "run"))
        base = processor if is_base else base
        ratio = "" if is_base else f"{processor / base:.2f}"
        lines.append(f"| {name} | {processor:.2f} | {wall:.2f} | {ratio} |")
    lines += [
        "",
        "`run` is `fx2onnx run` of MobileNetV3-small on random inputs.",
        "",
        "The next table is in user time: the kernel's share of writing 440 MB comes and goes with the state of the page cache.",
        "What an export of the same model imports is imported before the first one.",
        "",
        "| model | first export in a process, s | second, s | | verification on the example inputs alone, forwards |",
        "|---|---:|---:|---:|---:|",
    ]
    for model, row in twice.items():
        ratio = row["first"] / row["second"]
        lines.append(f"| {model} | {row['first']:.2f} | {row['second']:.2f} | {ratio:.2f} | {row['verify']:.1f} |")
    lines += [
        "",
        "`import fx2onnx` and the export of a `Linear(2, 2)`, in processor time:",
        "",
        "| imported before | `import torch`, s | `import fx2onnx` and first export, s | |",
        "|---|---:|---:|---:|",
    ]
    for imported, names in BESIDE.items():
        torch_s, first_s = _linear(names, rounds)
        lines.append(f"| {imported} | {torch_s:.2f} | {first_s:.2f} | {first_s / torch_s:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    text = page(options.rounds, *measured(options.rounds))
    print(text)
    if options.write:
        options.write.write_text(text)


if __name__ == "__main__":
    main()
