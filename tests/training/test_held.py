"""Parameters that a graph takes and another one trains: the two steps of a GAN."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fx2onnx
from fx2onnx.runner import Trainer
from tests.training.stepping import ENGINES


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))

    def forward(self, noise: torch.Tensor, real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.discriminator(self.generator(noise)), self.discriminator(real)


def told_apart(outputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return F.softplus(outputs[0]).mean() + F.softplus(-outputs[1]).mean()


def fooled(outputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return F.softplus(-outputs[0]).mean()


STEPS = {"discriminator": (told_apart, "generator."), "generator": (fooled, "discriminator.")}


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_a_gan_in_turn(engine: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Adversaries()
    sample = (torch.randn(6, 3), torch.randn(6, 2))
    rates = {"discriminator": 1e-2, "generator": 3e-3}
    for name, (loss, held) in STEPS.items():
        fx2onnx.export_training(
            module,
            sample,
            tmp_path / name,
            loss=loss,
            held=(held,),
            optimizer=torch.optim.Adam(getattr(module, name).parameters(), lr=rates[name]),
        )
    own = copy.deepcopy(module)
    optimizers = {name: torch.optim.Adam(getattr(own, name).parameters(), lr=rates[name]) for name in STEPS}
    trainers = {name: Trainer(tmp_path / name, ENGINES[engine]) for name in STEPS}
    for _ in range(10):
        batch = (torch.randn(6, 3), torch.randn(6, 2))
        for name, (loss, _) in STEPS.items():
            own.zero_grad()
            value = loss(own(*batch))
            value.backward()
            optimizers[name].step()
            other = next(one for one in trainers if one != name)
            held = trainers[name].manifest.held
            assert held
            trainers[name].state |= {key: trainers[other].state[key] for key in held}
            got = trainers[name].step({"noise": batch[0].numpy(), "real": batch[1].numpy()})
            assert float(got["loss"]) == pytest.approx(float(value.detach()), rel=1e-5)
    for name, parameter in own.named_parameters():
        got = trainers[name.split(".")[0]].state[name]
        np.testing.assert_allclose(got, parameter.detach().numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_name_that_is_none() -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(
            Adversaries(),
            (torch.randn(6, 3), torch.randn(6, 2)),
            training=fx2onnx.Training(fooled, held=("critic.",)),
        )
    assert caught.value.code == "E001"
    assert "held names 'critic.'" in caught.value.what
