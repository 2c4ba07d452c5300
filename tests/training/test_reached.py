"""Ways by which a module reaches its own parameters: whatever it holds, a training graph takes them as inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fx2onnx
from fx2onnx.runner import Trainer
from tests.training.stepping import ENGINES, exported_losses


class _Product(torch.autograd.Function):
    """A layer whose weight the backward pass reads from the layer."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x)
        return F.linear(x, layer.weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return grads[0] @ ctx.layer.weight, grads[0].t() @ ctx.saved_tensors[0], None


Reach = Callable[["Reached"], Callable[[torch.Tensor], torch.Tensor]]


class Reached(nn.Module):
    """``reach`` is called once, when the module is made; what it returns is a part of forward."""

    def __init__(self, reach: Reach) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.inner = reach(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(torch.tanh(self.first(x))))  # type: ignore[no-any-return]


def _closure(own: Reached) -> Callable[[torch.Tensor], torch.Tensor]:
    weight, bias = own.second.weight, own.second.bias
    return lambda x: F.linear(x, weight, bias)


def _hook(own: Reached) -> Callable[[torch.Tensor], torch.Tensor]:
    last = own.last
    own.second.register_forward_hook(lambda module, args, output: output * last.weight.mean())
    return own.second


def _gradient_hook(own: Reached) -> Callable[[torch.Tensor], torch.Tensor]:
    def inner(x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            x.register_hook(lambda grad: grad * own.second.weight.sum())
        return own.second(x)  # type: ignore[no-any-return]

    return inner


def _row(own: Reached) -> Callable[[torch.Tensor], torch.Tensor]:
    """A view that was made with the module, through which gradients go."""
    row = own.second.weight[0]
    return lambda x: own.second(x) * row


def _column(own: Reached) -> Callable[[torch.Tensor], torch.Tensor]:
    column = own.second.weight.data[:, 1]
    return lambda x: own.second(x) * column


def _array(own: Reached) -> Callable[[torch.Tensor], torch.Tensor]:
    row = torch.from_numpy(own.second.weight.detach().numpy())[2]
    return lambda x: own.second(x) * row


def _clamped(own: Reached) -> Callable[[torch.Tensor], torch.Tensor]:
    def inner(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            own.second.weight.clamp_(-0.2, 0.2)
        return own.second(x)  # type: ignore[no-any-return]

    return inner


def _spectral(own: Reached) -> Callable[[torch.Tensor], torch.Tensor]:
    return nn.utils.spectral_norm(own.second)


WAYS: dict[str, Reach] = {
    "backward": lambda own: lambda x: _Product.apply(x, own.second.weight, own.second) + own.second.bias,  # type: ignore[no-untyped-call]
    "closure": _closure,
    "hook": _hook,
    "hook of a gradient": _gradient_hook,
    "row": _row,
    "column": _column,
    "array": _array,
    "clamped": _clamped,
    "spectral norm": _spectral,
    "number": lambda own: lambda x: own.second(x) * own.second.weight.sum().item(),
    "list": lambda own: lambda x: own.second(x) * sum(own.second.weight.tolist()[0]),
    "number of data": lambda own: lambda x: own.second(x) * x.sum().item(),
}
X, Y = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)), torch.ones(5, 2)


def _sgd(module: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.3, momentum=0.9)


@pytest.mark.long_cases("row", "spectral norm")
@pytest.mark.parametrize("way", WAYS)
def test_a_step_takes_the_parameters_that_it_is_given(way: str, tmp_path: Path) -> None:
    module = Reached(WAYS[way])
    options: dict[str, Any] = {
        "loss": F.mse_loss,
        "targets": (Y,),
        "optimizer": _sgd(module),
        "verify": way in _VERIFIED,
    }
    before = {name: value.clone() for name, value in module.state_dict().items()}
    fx2onnx.export_training(module, (X,), tmp_path, **options)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    own = Reached(WAYS[way])
    optimizer, wanted = _sgd(own), []
    for _ in range(4):
        optimizer.zero_grad()
        loss = F.mse_loss(own(X), Y)
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    batch = {"x": X.numpy(), "target": Y.numpy()}
    own.eval()
    with torch.no_grad():
        after = F.mse_loss(own(X), Y).item()
    for engine in ENGINES:
        np.testing.assert_allclose(exported_losses(tmp_path, engine, batch, 4), wanted, rtol=1e-5, err_msg=engine)
    trainer = Trainer(tmp_path)
    for _ in range(4):
        trainer.step(batch)
    np.testing.assert_allclose(trainer.evaluate(batch)["loss"], after, rtol=1e-5)


_VERIFIED = ("backward", "closure", "row", "spectral norm")
"""Compared with eager PyTorch by the exporter, too, which has to reach them in the same ways."""


def test_accumulated_gradients_are_of_what_forward_wrote(tmp_path: Path) -> None:
    module = Reached(_clamped)
    fx2onnx.export_training(module, (X,), tmp_path, loss=F.mse_loss, targets=(Y,), optimizer=_sgd(module))
    outputs = [value.name for value in onnx.load(tmp_path / "train_step.onnx", load_external_data=False).graph.output]
    assert [name for name in outputs if "second.weight" in name] == [
        "second.weight.next",
        "second.weight.momentum_buffer.next",
    ]
    whole, parts = Trainer(tmp_path), Trainer(tmp_path)
    batch = {"x": X.numpy(), "target": Y.numpy()}
    for _ in range(3):
        whole.step(batch)
        found = parts.gradients(batch)
        parts.apply({name: value for name, value in found.items() if name.startswith("grad.")})
    for name, value in whole.state.items():
        np.testing.assert_allclose(parts.state[name], value, rtol=1e-5, atol=1e-7, err_msg=name)


def _refused(module: nn.Module, loss: Any = F.mse_loss, more: tuple[nn.Parameter, ...] = ()) -> fx2onnx.UserError:
    training = fx2onnx.Training(loss, (Y,), torch.optim.SGD([*module.parameters(), *more], lr=0.1))
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(module, (X,), training=training)
    assert caught.value.where is not None
    assert caught.value.where.file == __file__
    return caught.value


def _as_integers(own: Reached) -> Callable[[torch.Tensor], torch.Tensor]:
    bits = own.second.weight.data.view(torch.int32)
    return lambda x: x * bits.sum()


def _first_row(own: Reached) -> Callable[[torch.Tensor], torch.Tensor]:
    row = own.second.weight.data[0]
    return lambda x: x * math.exp(row.tolist()[0])


def _beyond(own: Reached) -> Callable[[torch.Tensor], torch.Tensor]:
    every = torch.randn(12)
    own.second.weight = nn.Parameter(every[:9].view(3, 3))
    return lambda x: own.second(x) * every[7:10]


READS: dict[str, tuple[str, Reach]] = {
    "float": ("E104", lambda own: lambda x: x * math.exp(float(own.second.weight.data.sum()))),
    "list": ("E104", lambda own: lambda x: x * math.exp(own.second.weight.tolist()[0][0])),
    "list of a view": ("E104", _first_row),
    "array": ("E104", lambda own: lambda x: x * torch.from_numpy(own.second.weight.data.numpy()[0])),
    "storage": ("E104", lambda own: lambda x: x * own.second.weight.untyped_storage()[0]),
    "bits": ("E103", _as_integers),
    "more than it": ("E103", _beyond),
}


@pytest.mark.parametrize("how", READS)
def test_numbers_of_a_parameter_are_no_constants(how: str) -> None:
    code, reach = READS[how]
    assert _refused(Reached(reach)).code == code


def test_what_the_optimizer_trains_is_no_constant() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return F.mse_loss(outputs, target) * self.scale

    loss, module = Scaled(), nn.Linear(3, 2)
    error = _refused(module, loss, (loss.scale,))
    assert (error.code, "does not have" in error.what) == ("E108", True)
    training = fx2onnx.Training(loss, (Y,), torch.optim.SGD(module.parameters(), lr=0.1))
    fx2onnx.export(module, (X,), training=training)
