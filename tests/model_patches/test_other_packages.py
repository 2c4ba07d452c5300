"""Patches of packages that are not installed with fx2onnx: each compared with what it replaces where the package is there."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan

from fx2onnx.model_patches.single_functions import gate_loop_scan, pscan
from tests.support import check


def _by_steps(_: object, factors: Tensor, added: Tensor) -> Tensor:
    states = [added[:, 0]]
    for place in range(1, added.shape[1]):
        states.append(factors[:, place] * states[-1] + added[:, place])
    return torch.stack(states, 1)


def _rows(length: int) -> tuple[Tensor, Tensor]:
    return torch.rand(2, length, 3, 4), torch.randn(2, length, 3, 4)


def test_a_scan_of_any_length() -> None:
    context = SimpleNamespace(save_for_backward=lambda *_: None)
    check(
        lambda a, x: pscan(_by_steps, context, a, x),
        _rows(6),
        others=[_rows(5), _rows(1), _rows(8)],
        dynamic_shapes=({1: "n"}, {1: "n"}),
    )


@pytest.mark.compares("mambapy.pscan:PScan.forward")
@pytest.mark.skipif(find_spec("mambapy") is None, reason="mambapy is not installed")
def test_mambapys_scan() -> None:
    scan: Any = importlib.import_module("mambapy.pscan").pscan
    check(scan, _rows(6), others=[_rows(5), _rows(8)], dynamic_shapes=({1: "n"}, {1: "n"}))


def _composed(one: Any, other: Any) -> tuple[Tensor, Tensor]:
    return one[0] * other[0], other[0] * one[1] + other[1]


@pytest.mark.long
@pytest.mark.compares("torch._higher_order_ops.associative_scan:generic_associative_scan")
def test_torchs_associative_scan() -> None:
    def forward(a: Tensor, x: Tensor) -> Any:
        states = associative_scan(_composed, (a, x), dim=1, combine_mode="generic")
        largest = associative_scan(torch.maximum, x, dim=-1, combine_mode="generic")
        return states, largest, associative_scan(torch.add, x, dim=1, reverse=True, combine_mode="generic")

    check(forward, _rows(6), others=[_rows(5), _rows(1), _rows(8)], dynamic_shapes=({1: "n"}, {1: "n"}))


@pytest.mark.long
def test_an_associative_scan_by_lists() -> None:
    def forward(a: Tensor, x: Tensor) -> Any:
        return gate_loop_scan(lambda operator, elems: (elems[0].cumprod(1), _by_steps(None, *elems)), _composed, (a, x))

    check(forward, _rows(6), others=[_rows(5), _rows(1), _rows(8)], dynamic_shapes=({1: "n"}, {1: "n"}))


@pytest.mark.compares("gateloop_transformer.associative_scan:associative_scan")
@pytest.mark.skipif(find_spec("gateloop_transformer") is None, reason="gateloop_transformer is not installed")
def test_gate_loops() -> None:
    gates: Any = importlib.import_module("gateloop_transformer.simplified_gate_loop")
    layer = gates.SimpleGateLoopLayer(dim=8, use_heinsen=False)
    others = [(torch.randn(2, length, 8),) for length in (1, 5, 8)]
    check(layer, (torch.randn(2, 6, 8),), others=others, dynamic_shapes=({1: "n"},))


@pytest.mark.compares(
    "gpytorch.models.exact_prediction_strategies:DefaultPredictionStrategy.exact_prediction",
)
@pytest.mark.skipif(find_spec("gpytorch") is None, reason="gpytorch is not installed")
def test_a_gaussian_process_at_any_number_of_points() -> None:
    gpytorch: Any = importlib.import_module("gpytorch")
    points = torch.rand(6, 2)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()

    class Process(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(points, points.sum(1), likelihood)
            self.mean, self.kernel = gpytorch.means.ConstantMean(), gpytorch.kernels.RBFKernel()

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    class Predicts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.process = Process()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            found = self.process(x)
            return found.mean, found.variance

    check(Predicts(), (torch.rand(5, 2),), others=[(torch.rand(30, 2),)], dynamic_shapes=({0: "n"},), atol=1e-4)
