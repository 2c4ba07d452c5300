"""Gradients and losses of training graphs beside eager PyTorch's, for architectures of each kind.

Per model: the gradients of every parameter in onnxruntime and in the runner against autograd's in float64, beside the error
that eager float32 makes itself; then steps of SGD and AdamW, each on another batch, whose losses are those of eager PyTorch.

    python -m studies.training_coverage [--models a,b] [--steps 20] [--kept FILE] [--write docs/measured/training_coverage.md]
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine

LIMITS = {"SGD": 1e-4, "AdamW": 1e-3}
"""The largest relative distance of a loss from eager PyTorch's."""
NOISE = 8.0
"""The multiple of eager float32's own error by which a gradient may be off."""
BATCHES = 9
LOSS_NOISE = 4.0
"""The multiple of the distance of eager float32 from float64 by which a loss may be off."""
LEAST = 1e-6
"""Errors below are those of rounding, whatever eager float32 makes."""


@dataclass
class Row:
    """The results of a model. Errors are shares of a gradient's largest number; ``losses`` the worst by optimizer,
    engine."""

    name: str
    what: str
    parameters: int = 0
    nodes: int = 0
    eager: float = 0.0
    gradients: dict[str, float] = field(default_factory=dict)
    losses: dict[str, dict[str, float]] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)
    """The distance of the losses of eager float32 from those of eager float64, by optimizer."""
    fault: str = ""

    @property
    def is_within_limits(self) -> bool:
        """True if losses are within ``LIMITS``, whatever rounding does to eager PyTorch's own."""
        return self.is_right and all(
            error <= LIMITS[kind] for kind, found in self.losses.items() for error in found.values()
        )

    @property
    def is_right(self) -> bool:
        limit = max(NOISE * self.eager, LEAST)
        return (
            not self.fault
            and all(error <= limit for error in self.gradients.values())
            and all(
                error <= max(LIMITS[kind], LOSS_NOISE * self.noise[kind])
                for kind, found in self.losses.items()
                for error in found.values()
            )
        )


def _engines() -> dict[str, Callable[[str], Any]]:
    import onnxruntime

    from fx2onnx.runner import InferenceSession

    def opened(path: str) -> Any:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    return {"onnxruntime": opened, "runner": InferenceSession}


def _arrays(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _batches(found: Any, steps: int) -> Iterator[dict[str, Any]]:
    """A different batch for each step: floating numbers with noise, and the classes in another order, so that no loss
    gets to 0, where all that is left is rounding.
    """
    import torch

    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        inputs = {
            name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator) if name in found.noisy else tensor
            for name, tensor in found.inputs.items()
        }
        order = {name: torch.randperm(len(tensor), generator=generator) for name, tensor in found.targets.items()}
        targets = {
            name: tensor if tensor.is_floating_point() else tensor[order[name]]
            for name, tensor in found.targets.items()
        }
        yield inputs | targets


def _widened(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def _copied(found: Any, *, wide: bool) -> tuple[Any, dict[str, Any]]:
    """A copy of the module, in float64 or as it is, and its trained parameters."""
    module = copy.deepcopy(found.module)
    module = module.double() if wide else module
    return module, {name: value for name, value in module.named_parameters() if name in found.parameters}


def _autograd(found: Any, batch: dict[str, Any], *, wide: bool) -> dict[str, Any]:
    """The gradients of every trained parameter."""
    import torch

    module, named = _copied(found, wide=wide)
    loss = found.value(module, _widened(batch) if wide else batch)
    gradients = torch.autograd.grad(loss, list(named.values()))
    return {name: gradient.double().numpy() for name, gradient in zip(named, gradients, strict=True)}


def _worst(found: dict[str, Any], exact: dict[str, Any]) -> float:
    """The largest error of any gradient by that gradient's largest number; one that is zero except for rounding by
    all's."""
    import numpy as np

    largest = max(float(np.abs(value).max()) for value in exact.values())
    return max(
        float(np.abs(found[name] - value).max()) / max(float(np.abs(value).max()), 1e-3 * largest)
        for name, value in exact.items()
    )


def _compare_gradients(row: Row, found: Any, folder: Path) -> None:
    """Medians of some batches: a near tie of a max pool or a ReLU at 0 may go the other way in any of them."""
    from fx2onnx.runner import Trainer

    errors: dict[str, list[float]] = {"eager": []}
    for batch in _batches(found, BATCHES):
        exact = _autograd(found, batch, wide=True)
        errors["eager"].append(_worst(_autograd(found, batch, wide=False), exact))
        for engine, opened in _engines().items():
            results = Trainer(folder, opened).gradients(_arrays(batch))
            worst = _worst({name: results[f"grad.{name}"] for name in exact}, exact)
            errors.setdefault(engine, []).append(worst)
    medians = {name: statistics.median(found) for name, found in errors.items()}
    row.eager = medians.pop("eager")
    row.gradients = medians


def _eager_losses(found: Any, kind: str, steps: int, *, wide: bool) -> Any:
    import numpy as np

    module, named = _copied(found, wide=wide)
    optimizer = _optimizer(kind, found, list(named.values()))
    losses = []
    for batch in _batches(found, steps):
        optimizer.zero_grad()
        loss = found.value(module, _widened(batch) if wide else batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return np.array(losses)


def _compare_losses(row: Row, found: Any, folder: Path, kind: str, steps: int) -> None:
    import numpy as np
    import torch

    from fx2onnx.runner import Trainer

    wanted = _eager_losses(found, kind, steps, wide=False)
    with torch.backends.mkldnn.flags(enabled=False):  # convolutions of PyTorch's own, which round otherwise
        other = _eager_losses(found, kind, steps, wide=False)
    exact = _eager_losses(found, kind, steps, wide=True)
    row.noise[kind] = max(float(np.max(np.abs(losses / exact - 1))) for losses in (wanted, other))
    for engine, opened in _engines().items():
        trainer = Trainer(folder, opened)
        got = np.array([float(trainer.step(_arrays(batch))["loss"]) for batch in _batches(found, steps)])
        row.losses.setdefault(kind, {})[engine] = float(np.max(np.abs(got / wanted - 1)))


def _optimizer(kind: str, found: Any, parameters: list[Any]) -> Any:
    import torch

    if kind == "SGD":
        return torch.optim.SGD(parameters, lr=found.sgd_rate, momentum=0.9, weight_decay=1e-4)
    return torch.optim.AdamW(parameters, lr=found.adamw_rate)


def measure(name: str, steps: int) -> Row:
    """Everything about one model; what fails is said in the row."""
    import fx2onnx
    from studies.training_models import MODELS, trained

    row = Row(name, MODELS[name][0])
    try:
        found = trained(name)
        row.parameters = sum(value.numel() for value in found.parameters.values())
        for kind in LIMITS:
            with tempfile.TemporaryDirectory() as path:
                done = fx2onnx.export_training(
                    found.module,
                    (),
                    Path(path) / "folder",
                    kwargs=found.inputs,
                    loss=found.loss,
                    targets=found.targets,
                    optimizer=_optimizer(kind, found, list(found.parameters.values())),
                    **found.options,
                )
                row.nodes = len(list(done.results["train_step.onnx"].owned.model.graph))
                if not row.gradients:
                    _compare_gradients(row, found, Path(path) / "folder")
                _compare_losses(row, found, Path(path) / "folder", kind, steps)
    except Exception as error:  # whatever a model or an engine raises is what the row says
        row.fault = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return row


ENGINES = ("onnxruntime", "runner")
HEAD = (
    *("model", "", "parameters", "nodes of a step", "gradients: eager", *ENGINES),
    *(cell for kind in LIMITS for cell in (f"{kind}: eager", *ENGINES)),
)


def line(row: Row) -> str:
    """The row of the table."""
    missing = float("nan")
    numbers = [row.eager, *(row.gradients.get(engine, missing) for engine in ENGINES)]
    for kind in LIMITS:
        numbers += [
            row.noise.get(kind, missing),
            *(row.losses.get(kind, {}).get(engine, missing) for engine in ENGINES),
        ]
    verdict = "right" if row.is_right else row.fault or "**off**"
    cells = [row.name, row.what, f"{row.parameters:,}", f"{row.nodes:,}", *(f"{number:.1e}" for number in numbers)]
    return f"| {' | '.join(cells)} | {verdict} |"


def page(rows: list[Row], steps: int) -> str:
    """The page's Markdown."""
    right = sum(row.is_right for row in rows)
    within = sum(row.is_within_limits for row in rows)
    beyond = ", ".join(row.name for row in rows if row.is_right and not row.is_within_limits) or "none"
    table = "\n".join([f"| {' | '.join(HEAD)} | |", "|" + " --- |" * (len(HEAD) + 1), *map(line, rows)])
    return f"""# Training, by model

`make training` writes this page. {machine.describe()}. {time.strftime("%Y-%m-%d")}.

{right} of {len(rows)} models train as in eager PyTorch up to rounding, {within} of them within the fixed limits below; beyond
these, where eager PyTorch's own rounding is: {beyond}. Architectures are as published, with random weights (the last batch norm
of each residual branch of the ResNets begins with 0.2); images are small and sequences short, and dropout is off.

`gradients`: the largest error of any parameter's gradient against autograd in float64, as a share of that gradient's largest
number: of eager PyTorch in float32, and of the exported graph in both engines, which may be off {NOISE:.0f} times as far.
Medians of {BATCHES} batches.

`SGD`, `AdamW`: the largest distance of a loss within {steps} steps, each on another batch, as a share of it: of eager PyTorch
in float32, with oneDNN and without, from itself in float64, and of the exported graph from eager PyTorch in float32: at most {LIMITS["SGD"]:.0e} with SGD
and momentum and {LIMITS["AdamW"]:.0e} with AdamW, or {LOSS_NOISE:.0f} times what eager PyTorch is off itself, where that is more.

{table}

[`studies/training_models.py`](../../studies/training_models.py) has the models, [training.md](../training.md) what training
graphs are.
"""


def main() -> None:
    machine.unpinned()
    from studies.training_models import MODELS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="names, by commas")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--kept", type=Path, default=Path("out/training_coverage.json"), help="rows of earlier runs")
    options = parser.parse_args()
    kept = json.loads(options.kept.read_text()) if options.models and options.kept.exists() else {}
    found = {name: Row(**row) for name, row in kept.items() if name in MODELS}
    options.kept.parent.mkdir(parents=True, exist_ok=True)
    for name in options.models.split(",") if options.models else MODELS:
        start = time.perf_counter()
        found[name] = measure(name, options.steps)
        print(line(found[name]), f"{time.perf_counter() - start:.0f} s", flush=True)
        options.kept.write_text(json.dumps({name: asdict(row) for name, row in found.items()}))
    rows = [found[name] for name in MODELS if name in found]
    if options.write is not None:
        options.write.write_text(page(rows, options.steps))
    if not all(row.is_right for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
