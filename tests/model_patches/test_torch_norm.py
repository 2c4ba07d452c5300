"""Batch norms with ``momentum=None``: the patch gives what torch gives, and counts batches in the graph."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fx2onnx
from fx2onnx.runner import Trainer
from tests.model_patches.support import patched
from tests.training.stepping import ENGINES

TARGET = "torch.nn.modules.batchnorm:_BatchNorm.forward"


@pytest.mark.compares(TARGET)
@pytest.mark.parametrize("options", [{"momentum": None}, {"momentum": None, "affine": False}, {"momentum": 0.3}])
@pytest.mark.parametrize("is_tracking", [True, False])
@pytest.mark.parametrize("is_training", [True, False])
def test_statistics(options: dict[str, object], is_tracking: bool, is_training: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.BatchNorm2d(3, track_running_stats=is_tracking, **options).train(is_training)  # type: ignore[arg-type]
    ours = copy.deepcopy(theirs)
    for batch in (2, 5, 3):
        x = torch.randn(batch, 3, 2, 4) + batch
        want = theirs(x)
        with patched():
            got = ours(x)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.long_cases("onnxruntime")
@pytest.mark.compares(TARGET)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_average_of_all_batches_goes_on_in_a_graph_that_trains(engine: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None), nn.BatchNorm1d(3), nn.Linear(3, 2))
    for _ in range(3):
        module(torch.randn(5, 4))

    def optimizer(of: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(of.parameters(), lr=0.1)

    batches = [(torch.randn(rows, 4), torch.randint(0, 2, (rows,))) for rows in (5, 2, 7)]
    x, y = batches[0]
    shapes = {"input": {0: "rows"}, "y": {0: "rows"}}
    options = {"loss": F.cross_entropy, "targets": {"y": y}, "dynamic_shapes": shapes, "optimizer": optimizer(module)}
    fx2onnx.export_training(module, (x,), tmp_path / "steps", **options)
    trainer, eager = Trainer(tmp_path / "steps", ENGINES[engine]), copy.deepcopy(module)
    rule = optimizer(eager)
    for x, y in batches:
        rule.zero_grad()
        want = F.cross_entropy(eager(x), y)
        want.backward()
        rule.step()
        got = trainer.step({"input": x.numpy(), "y": y.numpy()})["loss"]
        torch.testing.assert_close(torch.as_tensor(got), want.detach())
    for name, buffer in eager.named_buffers():
        torch.testing.assert_close(torch.as_tensor(trainer.state[name]), buffer, msg=name)
