"""Every kind of dropout: off, and drawn from the seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

import fx2onnx
from fx2onnx.runner import Trainer
from tests.training.stepping import ENGINES

X = torch.linspace(-2, 2, 400 * 6).reshape(400, 6)


def branch_dropped(mode: str) -> nn.Module:
    return torchvision.ops.StochasticDepth(0.25, mode)  # type: ignore[no-any-return]


class Dropped(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.scale, self.part = nn.Parameter(torch.ones(())), part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x * self.scale)  # type: ignore[no-any-return]


class DropPath(nn.Module):
    """As timm has it."""

    def __init__(self) -> None:
        super().__init__()
        self.drop_prob = 0.25

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        return x * x.new_empty(len(x), 1).bernoulli_(0.75) / 0.75


def drawn(part: nn.Module, folder: Path, dropout: str, seed: int = 0) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    fx2onnx.export_training(
        Dropped(part).train(),
        (X,),
        folder,
        loss=lambda outputs: outputs.square().mean(),
        dropout=dropout,
        returns_outputs=True,
    )
    return {
        engine: np.asarray(Trainer(folder, opened, seed=seed).gradients({"x": X.numpy()})["output"])
        for engine, opened in ENGINES.items()
    }


PARTS = {
    "rows": lambda: branch_dropped("row"),
    "batch": lambda: branch_dropped("batch"),
    "timm": DropPath,
    "alpha": lambda: nn.AlphaDropout(0.25),
    "alpha of channels": lambda: nn.FeatureAlphaDropout(0.25),
}


@pytest.mark.parametrize("kind", PARTS)
def test_off(kind: str, tmp_path: Path) -> None:
    for engine, got in drawn(PARTS[kind](), tmp_path, "off").items():
        np.testing.assert_allclose(got, X.numpy(), rtol=1e-6, err_msg=engine)


@pytest.mark.long_cases("batch")
@pytest.mark.parametrize("kind", ["rows", "timm", "batch"])
def test_branches_from_a_seed(kind: str, tmp_path: Path) -> None:
    """A row is left out whole; what stays is scaled."""
    found = drawn(PARTS[kind](), tmp_path, "seeded")
    np.testing.assert_array_equal(found["onnxruntime"] == 0, found["runner"] == 0)
    kept = ~(found["runner"] == 0).all(1)
    np.testing.assert_allclose(found["runner"][kept], X.numpy()[kept] / 0.75, rtol=1e-5)
    if kind == "batch":
        assert kept.mean() in (0.0, 1.0)
    else:
        assert abs(kept.mean() - 0.75) < 0.08


@pytest.mark.parametrize("kind", ["alpha", "alpha of channels"])
def test_alpha_dropout_from_a_seed(kind: str, tmp_path: Path) -> None:
    """What is left out and what stays have the two forms that eager PyTorch gives them."""
    torch.manual_seed(0)
    eager = F.alpha_dropout(X, 0.25, True)
    least = float(eager.flatten().mode().values)
    is_kept = ~torch.isclose(eager, torch.tensor(least), atol=1e-5)
    slope, offset = np.polyfit(X[is_kept], eager[is_kept], 1)
    found = drawn(PARTS[kind](), tmp_path, "seeded")
    np.testing.assert_allclose(found["onnxruntime"], found["runner"], rtol=1e-5, atol=1e-6)
    got = found["runner"]
    is_out = np.isclose(got, least, atol=1e-5)
    assert abs(is_out.mean() - 0.25) < 0.04
    np.testing.assert_allclose(got[~is_out], X.numpy()[~is_out] * slope + offset, rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_rrelu(tmp_path: Path) -> None:
    """Slopes from the seed lie between the two that are given; off, they are the one between."""
    found = drawn(nn.RReLU(0.1, 0.5), tmp_path / "seeded", "seeded")
    np.testing.assert_allclose(found["onnxruntime"], found["runner"], rtol=1e-5)
    slopes = (found["runner"] / X.numpy())[X.numpy() < 0]
    assert 0.1 <= slopes.min() < 0.15 < 0.45 < slopes.max() <= 0.5
    np.testing.assert_array_equal(found["runner"][X.numpy() >= 0], X.numpy()[X.numpy() >= 0])
    off = drawn(nn.RReLU(0.1, 0.5), tmp_path / "off", "off")["runner"]
    np.testing.assert_allclose(off, F.leaky_relu(X, 0.3).numpy(), rtol=1e-5)


@pytest.mark.long
def test_another_seed_draws_others(tmp_path: Path) -> None:
    one, two = (drawn(nn.AlphaDropout(0.25), tmp_path / str(seed), "seeded", seed)["runner"] for seed in (0, 1))
    assert not np.array_equal(one, two)
