"""Gradients of the CTC loss: lengths as numbers and as data, padded and concatenated targets, sequences that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fx2onnx
from tests.training.stepping import run_by_name

TARGETS = torch.tensor([[1, 1, 2, 0], [3, 4, 0, 0], [5, 2, 2, 1]])
LENGTHS = [3, 2, 4]
FITTING, SHORT = [9, 6, 8], [9, 1, 3]


class Speech(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x).log_softmax(-1)  # type: ignore[no-any-return]


def _compared(path: Path, loss: Any, targets: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Gradients for ``targets``, and for ``other`` ones, beside autograd's in float64."""
    torch.manual_seed(0)
    module, x = Speech().double(), torch.randn(9, 3, 4).double()
    wanted = fx2onnx.Training(loss, targets, inputs=("x",))
    fx2onnx.export(module, (x,), path, training=wanted)
    parameters = dict(module.named_parameters())
    for given in (targets, targets | other):
        leaf = x.clone().requires_grad_()
        value = loss(module(leaf), *given.values())
        found = torch.autograd.grad(value, [leaf, *parameters.values()])
        feeds = {"x": x, **given, **parameters}
        for results in run_by_name(path, {name: tensor.detach().numpy() for name, tensor in feeds.items()}).values():
            np.testing.assert_allclose(results["loss"], value.detach().numpy(), rtol=1e-12)
            for name, gradient in zip(["x", *parameters], found, strict=True):
                np.testing.assert_allclose(results[f"grad.{name}"], gradient.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("is_joined", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("inputs", [FITTING, SHORT])
def test_lengths_as_numbers(is_joined: bool, reduction: str, inputs: list[int], tmp_path: Path) -> None:
    """A sequence that is too short for its target: the gradient is 0 on demand, else not a number, as autograd's is."""
    joined = torch.cat([row[:length] for row, length in zip(TARGETS, LENGTHS, strict=True)])
    targets = joined if is_joined else TARGETS

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.ctc_loss(outputs, targets, inputs, LENGTHS, reduction=reduction, zero_infinity=inputs is SHORT)

    _compared(tmp_path / "gradients.onnx", loss, {"targets": targets}, {"targets": targets.flip(-1).clamp_min(1)})


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_lengths_as_data(zero_infinity: bool, tmp_path: Path) -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor, inputs: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return F.ctc_loss(outputs, targets, inputs, lengths, blank=3, zero_infinity=zero_infinity)

    first = {"targets": TARGETS * 5 % 6, "inputs": torch.tensor(FITTING), "lengths": torch.tensor(LENGTHS)}
    first["targets"][first["targets"] == 3] = 2
    other = {"inputs": torch.tensor(SHORT), "lengths": torch.tensor([1, 4, 2])}
    _compared(tmp_path / "gradients.onnx", loss, first, other)
