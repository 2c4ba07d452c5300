"""Models that draw random numbers, and models that choose among nearly equal ones, in the verifier."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.verify import verify

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


class Masked(nn.Module):
    """Keeps the half of the columns that noise picks."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        order = torch.rand(x.shape).argsort(1)
        noisy = x + torch.randn_like(x) * 0.1 + torch.rand(()) * self.factor
        return noisy.gather(1, order[:, :4]), x * 2 * self.factor


class SizeFromNoise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[torch.rand(3) > 0.5]


class Integers(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, torch.randint(8, (20,))], torch.randint_like(x, -3, 5) + torch.randint(2, 9, (8,))


@pytest.mark.parametrize("module", [Masked(), SizeFromNoise(), Integers()])
def test_what_is_drawn_is_fed(module: nn.Module) -> None:
    verdict = verify(fx2onnx.export(module, (X,)), module, (X,))
    assert verdict.ok, verdict.describe()
    assert not [note for note in verdict.notes if "random" in note]


def test_wrong_numbers_are_found_under_noise() -> None:
    result = fx2onnx.export(Masked(), (X,))
    verdict = verify(result, Masked(1.01), (X,))
    assert {row.output for row in verdict.rows if not row.ok} == {"output_0", "output_1"}


class Shuffled(nn.Module):
    """A permutation is no single random node of the file."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, torch.randperm(8)] * self.factor, x * self.factor


def test_noise_that_cannot_be_fed_leaves_types() -> None:
    result = fx2onnx.export(Shuffled(), (X,))
    verdict = verify(result, Shuffled(), (X,))
    assert verdict.ok, verdict.describe()
    assert any("random" in note for note in verdict.notes)
    other = verify(result, Shuffled(1.01), (X,))
    assert {row.output for row in other.rows if not row.ok} == {"output_1"}


class BestRows(nn.Module):
    """The rows of the best scores, which are a millionth apart; ``units`` is how far the scores are rounded away."""

    def __init__(self, units: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.rows = nn.Parameter(torch.randn(64, 32, generator=generator))
        self.scores = nn.Parameter(1 + torch.randperm(64, generator=generator) * 1e-6)
        self.off = 1 + torch.randn(64, generator=generator) * units * 1.2e-7

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.scores * self.off * x.abs().sum()
        return self.rows[scores.topk(8).indices]


@pytest.mark.parametrize(("units", "is_rounding"), [(6.0, True), (3000.0, False)])
def test_choices_that_rounding_decides(units: float, is_rounding: bool) -> None:
    result = fx2onnx.export(BestRows(), (X,))
    verdict = verify(result, BestRows(units), (X,), seeds=())
    assert verdict.ok == is_rounding, verdict.describe()
    assert any("moves by" in note for note in verdict.notes) == is_rounding


class Ranks(BestRows):
    """The order of scores that are some 25 units in the last place apart."""

    def __init__(self, units: float = 0.0) -> None:
        super().__init__(units)
        self.scores = nn.Parameter((self.scores.detach() - 1) * 3 + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scores * self.off * x.abs().sum()).argsort()


@pytest.mark.parametrize(("units", "is_rounding"), [(9.0, True), (3000.0, False)])
def test_places_that_rounding_decides(units: float, is_rounding: bool) -> None:
    verdict = verify(fx2onnx.export(Ranks(), (X,)), Ranks(units), (X,), seeds=())
    assert verdict.ok == is_rounding, verdict.describe()
    assert any("numbers are others" in note for note in verdict.notes) == is_rounding


class Order(nn.Module):
    def __init__(self, descending: bool = False) -> None:
        super().__init__()
        self.descending = descending

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.argsort(descending=self.descending)


def test_wrong_places_are_found_where_rounding_decides_nothing() -> None:
    assert not verify(fx2onnx.export(Order(), (X,)), Order(True), (X,)).ok


def test_a_wrong_factor_is_found_where_nothing_is_chosen() -> None:
    module, wrong = nn.Linear(8, 4), nn.Linear(8, 4)
    wrong.load_state_dict({name: value * (1 + 1e-5) for name, value in module.state_dict().items()})
    assert not verify(fx2onnx.export(module, (X,)), wrong, (X,)).ok
