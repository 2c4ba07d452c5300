"""Training graphs of modules that go several ways, on some of which a parameter has no gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.runner import Trainer
from tests.training.stepping import ENGINES, eager_losses


class OneWay(nn.Module):
    """Two layers, of which ``way`` uses some."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)


class Skipped(OneWay):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(y) if x.sum() > 0 else y


class Either(OneWay):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.mean() > 0:
            return self.first(x)
        return self.second(x) * 2


class Rows(OneWay):
    """The rows that a test chooses, as routed experts take theirs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        rows = torch.where(x[:, 0] > 0.5)[0]
        if rows.numel() > 0:
            y = y.index_add(0, rows, self.second(x[rows]))
        return y


class Longer(OneWay):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(y) if x.shape[0] > 4 else y


class Nothing(OneWay):
    """One of the ways leaves the parameters alone altogether; eager PyTorch cannot take a step there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        if x.sum() > 0:
            y = self.second(self.first(x))
        return y


BATCHES = [
    torch.linspace(start, start + 1, 4 * rows).reshape(rows, 4)
    for rows, start in ((3, 0.0), (6, -2.0), (6, 0.1), (2, -1.5))
]


def _loss(outputs: torch.Tensor) -> torch.Tensor:
    return (outputs - 1).pow(2).mean()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [Skipped, Either, Rows, Longer])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_what_a_way_leaves_out_stays_as_it_is(tmp_path: Path, kind: type[OneWay], momentum: float, engine: str) -> None:
    """As in PyTorch, whose optimizers skip a parameter without a gradient, with its weight decay and its momentum."""

    def optimizer(module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), lr=0.1, momentum=momentum, weight_decay=0.01)

    module = kind()
    with pytest.warns(fx2onnx.ExportWarning, match="no gradient on some of the ways"):
        fx2onnx.export_training(
            module,
            (BATCHES[0],),
            tmp_path / "folder",
            loss=_loss,
            optimizer=optimizer(module),
            dynamic_shapes={"x": {0: "batch"}},
            verify=True,
        )
    for first in range(len(BATCHES)):
        batches = BATCHES[first:] + BATCHES[:first]
        left = iter(batches)
        wanted = eager_losses(module, optimizer, lambda own, left=left: _loss(own(next(left))), len(batches))
        trainer = Trainer(tmp_path / "folder", ENGINES[engine])
        given = [float(trainer.step({"x": x.numpy()})["loss"]) for x in batches]
        assert given == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_way_without_parameters_leaves_all_as_they_are(tmp_path: Path, engine: str) -> None:
    module = Nothing()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    with pytest.warns(fx2onnx.ExportWarning, match="no gradient on some of the ways"):
        fx2onnx.export_training(module, (BATCHES[0],), tmp_path / "folder", loss=_loss, optimizer=optimizer)
    trainer = Trainer(tmp_path / "folder", ENGINES[engine])
    before = {name: value.copy() for name, value in trainer.state.items()}
    trainer.step({"x": -BATCHES[0].numpy()})
    assert all((value == before[name]).all() for name, value in trainer.state.items() if name != "step")
    trainer.step({"x": BATCHES[0].numpy()})
    assert (trainer.state["first.weight"] != before["first.weight"]).any()


def test_what_no_way_uses_is_named() -> None:
    module = Skipped()
    module.unused = nn.Linear(2, 2)
    with pytest.raises(fx2onnx.UserError, match=r"no gradient for unused.bias, unused.weight") as caught:
        fx2onnx.export(module, (BATCHES[0],), training=fx2onnx.Training(_loss))
    assert caught.value.code == "E108"
