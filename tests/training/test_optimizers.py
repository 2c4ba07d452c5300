"""Every optimizer with its options follows PyTorch's own, parameter by parameter."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

import fx2onnx
from fx2onnx.runner import Trainer
from fx2onnx.training.optimizers import Moment, State
from tests.training.stepping import ENGINES

STEPS = 6
Make = Callable[[nn.Module], optim.Optimizer]


def _of(kind: type[optim.Optimizer], **options: Any) -> Make:
    return lambda module: kind(module.parameters(), **options)


OPTIMIZERS: dict[str, Make] = {
    "sgd": _of(optim.SGD, lr=0.1),
    "sgd, momentum and dampening": _of(optim.SGD, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "sgd, nesterov": _of(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "sgd, maximize": _of(optim.SGD, lr=0.01, maximize=True),
    "adam": _of(optim.Adam, lr=0.01, weight_decay=0.1),
    "adam, amsgrad": _of(optim.Adam, lr=0.01, amsgrad=True, betas=(0.8, 0.9)),
    "adam, maximize": _of(optim.Adam, lr=0.01, maximize=True),
    "adamw": _of(optim.AdamW, lr=0.01, weight_decay=0.1),
    "rmsprop": _of(optim.RMSprop, lr=0.01, weight_decay=0.01),
    "rmsprop, centered with momentum": _of(optim.RMSprop, lr=0.01, centered=True, momentum=0.5),
    "adagrad": _of(optim.Adagrad, lr=0.1, lr_decay=0.1, weight_decay=0.01, initial_accumulator_value=0.2),
    "adafactor": _of(optim.Adafactor, lr=0.05, weight_decay=0.01),
    "adafactor, with an epsilon": _of(optim.Adafactor, lr=0.05, eps=(1e-6, 1e-2)),
    "groups": lambda module: optim.SGD(
        [
            {"params": [module[0].weight], "lr": 0.01, "momentum": 0.9},  # type: ignore[index]
            {"params": [module[0].bias, *module[2].parameters()], "weight_decay": 0.1},  # type: ignore[index]
        ],
        lr=0.1,
    ),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(5, 4, generator=generator), torch.randint(0, 3, (5,), generator=generator)) for _ in range(count)
    ]


def trained(
    module: nn.Module, optimizer: optim.Optimizer, count: int, clip: Callable[[Any], object] | None = None
) -> None:
    for x, y in batches(count):
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        if clip is not None:
            clip(list(module.parameters()))
        optimizer.step()


def exported(folder: Path, module: nn.Module, optimizer: object, **options: Any) -> None:
    x, y = batches(1)[0]
    fx2onnx.export_training(module, (x,), folder, loss=F.cross_entropy, targets=(y,), optimizer=optimizer, **options)


def steps(trainer: Trainer, count: int, start: int = 0) -> None:
    for x, y in batches(count)[start:]:
        trainer.step({"input": x.numpy(), "target": y.numpy()})


def compare(trainer: Trainer, module: nn.Module, name: str, *, atol: float = 2e-6) -> None:
    for parameter, value in module.named_parameters():
        np.testing.assert_allclose(
            trainer.state[parameter], value.detach().numpy(), rtol=2e-5, atol=atol, err_msg=f"{name} {parameter}"
        )


@pytest.mark.long_cases("adam, amsgrad")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_pytorchs(name: str, tmp_path: Path) -> None:
    module = network()
    exported(tmp_path, module, OPTIMIZERS[name](module))
    own = copy.deepcopy(module)
    trained(own, OPTIMIZERS[name](own), STEPS)
    assert not torch.equal(own[0].weight, module[0].weight)  # type: ignore[index]
    for engine, open_session in ENGINES.items():
        trainer = Trainer(tmp_path, open_session)
        steps(trainer, STEPS)
        compare(trainer, own, f"{name} in {engine}")


@pytest.mark.parametrize("name", ["adam", "sgd, momentum and dampening"])
def test_an_optimizer_that_has_made_steps_goes_on(name: str, tmp_path: Path) -> None:
    module = network()
    optimizer = OPTIMIZERS[name](module)
    trained(module, optimizer, 3)
    exported(tmp_path, module, optimizer)
    assert Trainer(tmp_path).steps == (3 if name == "adam" else 1)
    trainer = Trainer(tmp_path)
    steps(trainer, 5, start=3)
    for x, y in batches(5)[3:]:
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()
    compare(trainer, module, name)


@pytest.mark.parametrize(
    ("options", "clip"),
    [
        ({"clip_norm": 0.05}, lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.05)),
        ({"clip_value": 0.01}, lambda parameters: nn.utils.clip_grad_value_(parameters, 0.01)),
    ],
    ids=["norm", "value"],
)
def test_gradients_are_clipped(options: dict[str, float], clip: Callable[[Any], object], tmp_path: Path) -> None:
    module = network()
    make = _of(optim.SGD, lr=1.0)
    exported(tmp_path, module, make(module), **options)
    own = copy.deepcopy(module)
    trained(own, make(own), STEPS, clip)
    trainer = Trainer(tmp_path)
    steps(trainer, STEPS)
    compare(trainer, own, "clipped")


def test_gradients_added_up_over_batches_make_one_step(tmp_path: Path) -> None:
    module, make = network(), _of(optim.AdamW, lr=0.01)
    exported(tmp_path, module, make(module))
    own = copy.deepcopy(module)
    optimizer = make(own)
    for x, y in batches(4):
        F.cross_entropy(own(x), y).backward()
    optimizer.step()
    trainer = Trainer(tmp_path)
    parts = [trainer.gradients({"input": x.numpy(), "target": y.numpy()}) for x, y in batches(4)]
    names = [name for name in parts[0] if name.startswith("grad.")]
    trainer.apply({name: np.sum([part[name] for part in parts], axis=0) for name in names})
    compare(trainer, own, "added up")
    assert trainer.steps == 1


def test_a_rule_of_ones_own(tmp_path: Path) -> None:
    def lion(
        parameter: torch.Tensor, gradient: torch.Tensor, state: State, moment: Moment
    ) -> tuple[torch.Tensor, State]:
        direction = torch.sign(state["mean"] * 0.9 + gradient * 0.1)
        return parameter - moment.learning_rate * direction, {"mean": state["mean"] * 0.99 + gradient * 0.01}

    module = network()
    exported(tmp_path, module, fx2onnx.UpdateRule(lion, {"mean": 0.0}, learning_rate=0.01, uses_step=False))
    own, means = copy.deepcopy(module), {}
    for x, y in batches(STEPS):
        own.zero_grad()
        F.cross_entropy(own(x), y).backward()
        with torch.no_grad():
            for name, value in own.named_parameters():
                mean = means.get(name, torch.zeros_like(value))
                assert value.grad is not None
                value -= 0.01 * torch.sign(mean * 0.9 + value.grad * 0.1)
                means[name] = mean * 0.99 + value.grad * 0.01
    trainer = Trainer(tmp_path)
    steps(trainer, STEPS)
    compare(trainer, own, "lion")


def test_a_schedule_is_an_input(tmp_path: Path) -> None:
    module, make = network(), _of(optim.SGD, lr=0.1)
    exported(tmp_path, module, make(module))
    own = copy.deepcopy(module)
    optimizer = make(own)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    trainer = Trainer(tmp_path)
    for x, y in batches(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(own(x), y).backward()
        optimizer.step()
        trainer.step({"input": x.numpy(), "target": y.numpy()})
        schedule.step()
        trainer.learning_rates["learning_rate"] *= 0.5
    compare(trainer, own, "schedule")


def test_a_step_with_infinite_gradients_is_left_out(tmp_path: Path) -> None:
    module = network()
    make = _of(optim.SGD, lr=0.1, momentum=0.9, dampening=0.1)
    exported(tmp_path, module, make(module), loss_scale=True)
    trainer = Trainer(tmp_path)
    trainer.loss_scale = 1024.0
    own = copy.deepcopy(module)
    trained(own, make(own), 2)
    steps(trainer, 2)
    compare(trainer, own, "scaled", atol=2e-5)
    before = dict(trainer.state)
    x, y = batches(1)[0]
    results = trainer.step({"input": (x * np.inf).numpy(), "target": y.numpy()})
    assert not results["gradients_finite"]
    assert all(np.array_equal(trainer.state[name], value) for name, value in before.items())
