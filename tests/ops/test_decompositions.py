"""What models make of singular and eigenvectors, which hangs neither on their signs nor on their order where values are equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fx2onnx
from tests.support import check

GENERATOR = torch.Generator().manual_seed(3)


def points(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, 3, generator=GENERATOR)


def fitted(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The rotation that brings points nearest to others (Kabsch)."""
    left, _, right = torch.linalg.svd(source.mT @ target)
    turn = torch.sign(torch.det(left @ right))
    ends = torch.stack([torch.ones_like(turn), torch.ones_like(turn), turn], -1)
    return (left @ torch.diag_embed(ends) @ right).mT


def whitened(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-2, keepdim=True)
    values, vectors = torch.linalg.eigh(centred.mT @ centred / x.shape[-2])
    return centred @ (vectors * values.clamp(min=1e-3).rsqrt()[..., None, :]) @ vectors.mT


def normals(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    centred = x - x.mean(-2, keepdim=True)
    values, vectors = torch.linalg.eigh(centred.mT @ centred)
    first = vectors[..., 0]
    return first * torch.sign(first[..., :1]), values / values.sum(-1, keepdim=True)


def of_low_rank(x: torch.Tensor) -> torch.Tensor:
    left, values, right = torch.svd(x)
    return (left[..., :2] * values[..., None, :2]) @ right[..., :2].mT


DIMS = {0: "batch", 1: "n"}
MODELS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "a rotation that fits": (fitted, (points(2, 7), points(2, 7))),
    "a whitened batch": (whitened, (points(2, 9),)),
    "normals": (normals, (points(3, 8),)),
    "of low rank": (of_low_rank, (points(2, 6),)),
}


@pytest.mark.long_cases("a rotation that fits", "normals")
@pytest.mark.parametrize("name", MODELS)
def test_models_of_decompositions(name: str) -> None:
    forward, args = MODELS[name]
    others = [tuple(points(*sizes) for _ in args) for sizes in ((1, 12), (4, 4))]
    result = check(forward, args, others=others, atol=1e-4, dynamic_shapes=(DIMS,) * len(args))
    (warning,) = result.report.warnings
    assert "unique up to their signs" in warning


@pytest.mark.parametrize("function", [lambda x: torch.linalg.svd(x).S, lambda x: torch.linalg.eigh(x @ x.mT)[0]])
def test_values_of_a_decomposition_have_no_signs(function: Callable[..., Any]) -> None:
    assert fx2onnx.export(function, (points(3, 3),)).report.warnings == []


@pytest.mark.long
def test_a_decomposition_is_differentiated() -> None:
    class Aligned(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            left, _, right = torch.linalg.svd(self.layer(x).mT @ y)
            return (x @ (left @ right) - y).square().mean()

    torch.manual_seed(0)
    training = fx2onnx.Training(lambda loss: loss, optimizer=None)
    result = fx2onnx.export(Aligned(), (points(2, 7), points(2, 7)), training=training, verify=True)
    assert {"onnxruntime", "runner"} <= set(result.report.verdict["versions"])
