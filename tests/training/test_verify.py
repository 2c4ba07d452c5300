"""A verification of training graphs compares losses, gradients and next values with eager PyTorch, and notices faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional as F

import fx2onnx
from fx2onnx.verify import verify_training
from tests.training.models import Residual, task

X, Y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 1])

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, lr_decay=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.norm(self.first(x)), 0.5, self.training)
        return self.second(x.tanh())  # type: ignore[no-any-return]


def net() -> Net:
    torch.manual_seed(0)
    return Net().train()


@pytest.mark.long
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_is_right(kind: str, tmp_path: Path) -> None:
    module = net()
    done = fx2onnx.export_training(
        module,
        (X,),
        tmp_path,
        loss=F.cross_entropy,
        targets=(Y,),
        optimizer=OPTIMIZERS[kind](module.parameters()),
        dynamic_shapes={"x": {0: "batch"}, "target": {0: "batch"}},
        clip_norm=1.0,
        metrics={"accuracy": lambda outputs, target: (outputs.argmax(1) == target).float().mean()},
        verify=True,
    )
    files = {"train_step.onnx", "gradients.onnx", "apply_gradients.onnx", "eval.onnx", "model.onnx"}
    assert set(done.verdicts) == files
    for verdict in done.verdicts.values():
        assert verdict.ok
    step = done.verdicts["train_step.onnx"]
    compared = {row.output for row in step.rows}
    assert {"loss", "accuracy", "first.weight.next", "norm.running_mean.next"} <= compared
    assert any(tried.sizes.get("batch", 4) != 4 for tried in step.tried), "other sizes are tried"


@pytest.mark.long
def test_scaled_losses(tmp_path: Path) -> None:
    module = net()
    fx2onnx.export_training(
        module,
        (X,),
        tmp_path,
        loss=F.cross_entropy,
        targets=(Y,),
        optimizer=torch.optim.AdamW(module.parameters()),
        loss_scale=True,
        verify=True,
    )


@pytest.mark.long
def test_a_module_of_convolutions() -> None:
    torch.manual_seed(0)
    found = task("resnet")
    training = fx2onnx.Training(found.loss, found.targets)
    result = fx2onnx.export(found.module, found.args, training=training, verify=True)
    assert result.report.verdict["ok"]


def _harmed(path: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    proto = onnx.load(path, load_external_data=False)
    change(proto)
    path.write_bytes(proto.SerializeToString())


def _wrong_sign(proto: onnx.ModelProto) -> None:
    """A parameter climbs."""
    node = next(node for node in proto.graph.node if "first.weight.next" in node.output)
    assert node.op_type == "Sub"
    node.op_type = "Add"


def _other_decay(proto: onnx.ModelProto) -> None:
    """Momentum of 0.9 becomes 0.8."""
    for held in proto.graph.initializer:
        array = numpy_helper.to_array(held) if not held.external_data else np.zeros(0)
        if array.size == 1 and array.dtype == np.float32 and np.isclose(array, 0.9):
            held.CopyFrom(numpy_helper.from_array((array - np.float32(0.1)).astype(array.dtype), held.name))
            return
    raise AssertionError("no momentum")


def _forgotten_statistics(proto: onnx.ModelProto) -> None:
    """The running mean stays as it was."""
    node = next(node for node in proto.graph.node if "norm.running_mean.next" in node.output)
    place = list(node.output).index("norm.running_mean.next")
    node.output[place] = "unused"
    proto.graph.node.append(onnx.helper.make_node("Identity", ["norm.running_mean"], ["norm.running_mean.next"]))


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "output"),
    [
        (_wrong_sign, "first.weight.next"),
        (_other_decay, "first.weight.next"),
        (_forgotten_statistics, "norm.running_mean.next"),
    ],
)
def test_a_harmed_step_is_noticed(change: Callable[[onnx.ModelProto], None], output: str, tmp_path: Path) -> None:
    module = net()
    training = fx2onnx.Training(F.cross_entropy, (Y,), torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
    fx2onnx.export_training(module, (X,), tmp_path, loss=F.cross_entropy, targets=(Y,), optimizer=training.optimizer)
    assert all(verdict.ok for verdict in verify_training(tmp_path, module, (X,), training).values())
    _harmed(tmp_path / "train_step.onnx", change)
    verdicts = verify_training(tmp_path, module, (X,), training)
    assert [name for name, verdict in verdicts.items() if not verdict.ok] == ["train_step.onnx"]
    assert output in {row.output for row in verdicts["train_step.onnx"].rows if not row.ok}


@pytest.mark.long
def test_a_wrong_form_stops_the_export(tmp_path: Path) -> None:
    """Nothing is written where the verification fails."""
    aten = torch.ops.aten
    with pytest.raises(fx2onnx.VerificationError) as caught:
        fx2onnx.export_training(
            nn.Sequential(nn.Linear(3, 3), nn.Tanh()),
            (X,),
            tmp_path / "out",
            loss=F.mse_loss,
            targets=(X,),
            custom_translations={aten.tanh.default: lambda op, self: op.Sin(self)},
            verify=True,
        )
    assert caught.value.code == "E501"
    assert "gradients.onnx" in caught.value.what
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@pytest.mark.long
def test_the_mode_is_as_before() -> None:
    module = Residual().eval()
    fx2onnx.export(
        module,
        (torch.randn(2, 3, 32, 32),),
        training=fx2onnx.Training(F.cross_entropy, (torch.tensor([0, 1]),)),
        verify=True,
    )
    assert not any(part.training for part in module.modules())
