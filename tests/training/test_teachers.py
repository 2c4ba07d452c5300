"""Parameters that forward writes itself, and gradients that it takes itself."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fx2onnx
from fx2onnx.runner import Trainer
from fx2onnx.verify import verify, verify_training
from tests.training.stepping import ENGINES


class Taught(nn.Module):
    """A teacher follows the trained layer by an average: self-supervised training as BYOL and DINO have it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.online, self.head = nn.Linear(6, 4), nn.Linear(4, 4)
        self.teacher = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for own, follower in zip(self.online.parameters(), self.teacher.parameters(), strict=True):
                follower.mul_(0.9).add_(own.detach(), alpha=0.1)
            wanted = self.teacher(b)
        return 1 - F.cosine_similarity(self.head(self.online(a)), wanted).mean()


def optimizer(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([value for value in module.parameters() if value.requires_grad], lr=0.3)


@pytest.mark.long
def test_a_teacher_is_a_state_of_the_graph_and_stays_in_the_module(tmp_path: Path) -> None:
    module = Taught()
    before = copy.deepcopy(module.state_dict())
    batches = [(torch.randn(rows, 6), torch.randn(rows, 6)) for rows in (3, 5, 2, 4)]
    training = fx2onnx.Training(lambda loss: loss, (), optimizer(module))
    shapes = {"a": {0: "rows"}, "b": {0: "rows"}}
    options = {"loss": training.loss, "optimizer": training.optimizer, "dynamic_shapes": shapes}
    done = fx2onnx.export_training(module, batches[0], tmp_path / "steps", **options, verify=True)
    assert "teacher.weight.next" in done.results["train_step.onnx"].report.output_names
    verdicts = verify_training(tmp_path / "steps", module, batches[0], training)
    assert all(verdict.ok for verdict in verdicts.values())
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)
    for engine, opened in ENGINES.items():
        eager, trainer = copy.deepcopy(module), Trainer(tmp_path / "steps", opened)
        rule = optimizer(eager)
        for a, b in batches:
            rule.zero_grad()
            want = eager(a, b)
            want.backward()
            rule.step()
            got = trainer.step({"a": a.numpy(), "b": b.numpy()})["loss"]
            torch.testing.assert_close(torch.as_tensor(got), want.detach(), msg=engine)
        torch.testing.assert_close(torch.as_tensor(trainer.state["teacher.weight"]), eager.teacher.weight, msg=engine)


class Sloped(nn.Module):
    """Forward takes a gradient, and does not turn gradients on for it."""

    def __init__(self, *, is_noisy: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        self.is_noisy = is_noisy

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = (x + torch.rand_like(x) if self.is_noisy else x).requires_grad_()
        (slope,) = torch.autograd.grad(self.critic(at).sum(), at, create_graph=True)
        return (slope.norm(2, dim=1) - 1).square()


@pytest.mark.parametrize("is_noisy", [False, True])
def test_gradients_that_forward_takes_are_verified(is_noisy: bool) -> None:
    module, x = Sloped(is_noisy=is_noisy), torch.randn(3, 6)
    result = fx2onnx.export(module, (x,))
    verdict = verify(result, module, (x,))
    assert verdict.ok, verdict.describe()
    assert not x.requires_grad


@pytest.mark.long
def test_a_penalty_that_forward_computes_is_verified_in_every_file(tmp_path: Path) -> None:
    module = Sloped(is_noisy=False)
    rule = torch.optim.Adam(module.parameters())
    options = {"loss": torch.mean, "optimizer": rule, "frozen": ("critic.2.bias",), "verify": True}
    done = fx2onnx.export_training(module, (torch.randn(3, 6),), tmp_path / "steps", **options)
    assert {verdict.ok for verdict in done.verdicts.values()} == {True}
