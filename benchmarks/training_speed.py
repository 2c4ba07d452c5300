"""The cost of a training step in an exported graph, as a multiple of eager PyTorch's own, into
docs/measured/training_speed.md.

    python -m benchmarks.training_speed [--rounds 9] [--only step,memory,export,growth] [--write docs/measured/training_speed.md]

Each figure comes from a process of its own. Steps are taken in turn in one process, by eager PyTorch, onnxruntime and the
runner, each with as many threads; a ratio is the median of the rounds' ratios. Peak memory is that of a process that trains
in one engine alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import machine

LIMITS = {"onnxruntime": 1.3, "runner": 3.0, "memory": 1.3, "export": 4.0}
"""The most that is allowed, by what eager PyTorch takes, or by the export for inference."""
ENGINES = ("eager", "onnxruntime", "runner")
STEP_MODELS = {"resnet18": "ResNet-18, 4 images of 224", "bert": "BERT, 4 layers of 256, 8 x 128 tokens"}
EXPORT_MODELS = {"resnet50": "ResNet-50", "bert_base": "BERT-base"}
MEMORY_STEPS, GROWTH_STEPS, FIRST = 8, 1000, 50


def _resnet(name: str, batch: int, size: int) -> Any:
    import torch
    import torchvision

    from studies.training_models import Trained, classified

    module = torchvision.models.get_model(name, weights=None)
    labels = {"labels": torch.randint(0, 1000, (batch,))}
    return Trained(module, {"x": torch.randn(batch, 3, size, size)}, classified, labels)


def _bert(batch: int, length: int, **sizes: int) -> Any:
    import torch
    import transformers

    from studies.training_models import Trained, classified

    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    module = transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=5, **sizes, **dropout))
    inputs = {"input_ids": torch.randint(0, 1000, (batch, length))}
    return Trained(module, inputs, classified, {"labels": torch.randint(0, 5, (batch,))})


SMALL_BERT = {
    "vocab_size": 8000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024,
}  # fmt: skip
BUILD: dict[str, Callable[[], Any]] = {
    "resnet18": lambda: _resnet("resnet18", 4, 224),
    "bert": lambda: _bert(8, 128, **SMALL_BERT),
    "resnet50": lambda: _resnet("resnet50", 2, 224),
    "bert_base": lambda: _bert(2, 128),
}


def _built(name: str) -> Any:
    import torch

    torch.manual_seed(0)
    found = BUILD[name]()
    found.module.train()
    return found


def _optimizer(found: Any) -> Any:
    import torch

    return torch.optim.SGD(list(found.parameters.values()), lr=1e-3, momentum=0.9)


def write_folder(name: str, folder: Path) -> None:
    """The folder that trains, and ``batch.npz``, a batch for it."""
    import numpy as np

    import fx2onnx

    found = _built(name)
    fx2onnx.export_training(
        found.module,
        (),
        folder,
        kwargs=found.inputs,
        loss=found.loss,
        targets=found.targets,
        optimizer=_optimizer(found),
    )
    np.savez(folder / "batch.npz", **{key: value.numpy() for key, value in (found.inputs | found.targets).items()})


def _eager_step(name: str) -> Callable[[], float]:
    found = _built(name)
    optimizer = _optimizer(found)

    def step() -> float:
        optimizer.zero_grad()
        loss = found.value(found.module, found.inputs | found.targets)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def _exported_step(folder: Path, engine: str, threads: int) -> Callable[[], float]:
    import numpy as np

    from fx2onnx.runner import InferenceSession, SessionOptions, Trainer

    def opened(path: str) -> Any:
        if engine == "runner":
            ours = SessionOptions()
            ours.intra_op_num_threads = threads
            return InferenceSession(path, ours)
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    trainer = Trainer(folder, opened)
    with np.load(folder / "batch.npz") as content:
        batch = {key: content[key] for key in content.files}
    return lambda: float(trainer.step(batch)["loss"])


def _steps(name: str, folder: Path, threads: int) -> dict[str, Callable[[], float]]:
    found = {"eager": _eager_step(name)}
    return found | {engine: _exported_step(folder, engine, threads) for engine in ENGINES[1:]}


def time_steps(name: str, folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Seconds of a step, round by round, and the last losses, which are of as many steps."""
    import torch

    torch.set_num_threads(threads)
    steps = _steps(name, folder, threads)
    seconds: dict[str, list[float]] = {engine: [] for engine in steps}
    losses: dict[str, float] = {}
    clock = (
        time.process_time if threads == 1 else time.perf_counter
    )  # with one thread, others on the machine count less
    for turn in range(rounds + 2):
        for engine, step in steps.items():
            gc.collect()
            start = clock()
            losses[engine] = step()
            if turn > 1:  # the first pay for plans and arenas
                seconds[engine].append(clock() - start)
    return {"seconds": seconds, "losses": losses}


def _memory(key: str) -> float:
    """``VmHWM``, the peak, or ``VmRSS`` of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(key))) / 1024


def peak_memory(name: str, folder: Path, engine: str) -> dict[str, float]:
    """MB of the process at its peak, and before anything of the model was there."""
    if engine == "eager":
        import torch

        from studies import training_models  # noqa: F401

        torch.set_num_threads(1)
        (torch.ones(64, 64, requires_grad=True) @ torch.ones(64, 64)).sum().backward()
        _built("bert" if name == "resnet18" else "resnet18")  # so that the libraries are there
    else:
        import onnxruntime  # noqa: F401

        import fx2onnx.runner  # noqa: F401
    gc.collect()
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    step = _eager_step(name) if engine == "eager" else _exported_step(folder, engine, 1)
    for _ in range(MEMORY_STEPS):
        step()
    return {"before": before, "peak": _memory("VmHWM")}


def time_exports(name: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each export, round by round: for inference and of the step, without a file and with one."""
    import torch

    import fx2onnx

    torch.set_num_threads(1)
    found = _built(name)
    training = fx2onnx.Training(found.loss, found.targets, _optimizer(found))
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)

        def exported(file: str | None, **options: Any) -> None:
            target = None if file is None else folder / file
            fx2onnx.export(found.module, (), target, kwargs=found.inputs, **options)

        tasks: dict[str, Callable[[], object]] = {
            "inference": lambda: exported(None),
            "step": lambda: exported(None, training=training),
            "inference file": lambda: exported("model.onnx"),
            "step file": lambda: exported("step.onnx", training=training),
        }
        seconds: dict[str, list[float]] = {task: [] for task in tasks}
        for turn in range(rounds + 1):
            for task, function in tasks.items():
                for file in folder.iterdir():
                    file.unlink()
                gc.collect()
                start = time.perf_counter()
                function()
                if turn:
                    seconds[task].append(time.perf_counter() - start)
    return seconds


def growth(folder: Path) -> dict[str, float]:
    """MB of a process that trains in onnxruntime alone, after the first steps and after many."""
    step = _exported_step(folder, "onnxruntime", 1)
    sizes: dict[str, float] = {}
    for number in range(1, GROWTH_STEPS + 1):
        loss = step()
        if number in (FIRST, GROWTH_STEPS):
            gc.collect()
            sizes[str(number)] = _memory("VmRSS")
    return sizes | {"loss": loss}


def write_digits(folder: Path) -> None:
    """The folder of a classifier of digits, and a batch for it."""
    import numpy as np
    import torch
    import torch.nn.functional as F

    import fx2onnx
    from models_zoo.digits import BATCH, DigitsCnn, digits

    torch.manual_seed(0)
    module = DigitsCnn()
    images, labels = (tensor[:BATCH] for tensor in digits(test=False))
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    options: dict[str, Any] = {"loss": F.cross_entropy, "targets": {"labels": labels}, "optimizer": optimizer}
    fx2onnx.export_training(module, (images,), folder, **options)
    np.savez(folder / "batch.npz", image=images.numpy(), labels=labels.numpy())


TASKS: dict[str, Callable[..., Any]] = {
    "folder": lambda name, folder: write_folder(name, Path(folder)),
    "digits": lambda folder: write_digits(Path(folder)),
    "step": lambda name, folder, threads, rounds: time_steps(name, Path(folder), int(threads), int(rounds)),
    "memory": lambda name, folder, engine: peak_memory(name, Path(folder), engine),
    "export": lambda name, rounds: time_exports(name, int(rounds)),
    "growth": lambda folder: growth(Path(folder)),
}


def in_process(*task: str, threads: int = 1) -> Any:
    """The result of a task in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.training_speed", "--task", *task]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def measure(only: list[str], rounds: int) -> dict[str, Any]:
    """Every figure of the page, by task and model."""
    found: dict[str, Any] = {task: {} for task in only}
    with tempfile.TemporaryDirectory() as path:
        for name in STEP_MODELS:
            folder = f"{path}/{name}"
            if {"step", "memory"} & set(only):
                in_process("folder", name, folder)
            if "step" in only:
                found["step"][name] = {
                    threads: in_process("step", name, folder, threads, str(rounds), threads=int(threads))
                    for threads in ("1", "2")
                }
            if "memory" in only:
                found["memory"][name] = {engine: in_process("memory", name, folder, engine) for engine in ENGINES}
            print(name, json.dumps({task: found[task].get(name) for task in only}), flush=True)
        if "export" in only:
            for name in EXPORT_MODELS:
                found["export"][name] = in_process("export", name, str(rounds))
                print(name, json.dumps(found["export"][name]), flush=True)
        if "growth" in only:
            in_process("digits", f"{path}/digits")
            found["growth"] = in_process("growth", f"{path}/digits")
    return found


def main() -> None:
    machine.unpinned()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="step,memory,export,growth")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--task", nargs="+", help="one task in this process, as JSON")
    options = parser.parse_args()
    if options.task:
        warnings.simplefilter("ignore")
        print(json.dumps(TASKS[options.task[0]](*options.task[1:])))
        return
    from benchmarks.training_speed_page import page

    found = measure(options.only.split(","), options.rounds)
    text = page(found, options.rounds)
    print(text)
    if options.write:
        options.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
