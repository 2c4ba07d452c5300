"""Rounding: what engines round otherwise than PyTorch is no fault, and beside it what is wrong still is one; rows in which it decides whether
a number is NaN.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx import verify
from fx2onnx.judge.movements import Movements
from fx2onnx.verify.rounding import Moved
from tests.verify.given import Forward, Given

GENERATOR = torch.Generator().manual_seed(11)


def nucleus(x: torch.Tensor, kept: float = 0.9) -> torch.Tensor:
    """Scores whose probabilities add up to ``kept``; of equal ones PyTorch's sort takes any."""
    ordered, places = x.sort(-1, descending=True)
    probabilities = ordered.softmax(-1)
    left = ordered.masked_fill(probabilities.cumsum(-1) - probabilities > kept, -torch.inf)
    return torch.zeros_like(x).scatter(-1, places, left)


X = torch.randn(2, 50, generator=GENERATOR)
LONG = torch.randn(2, 2000, generator=GENERATOR)
EQUAL = torch.full((2, 3, 5, 5), 7.0)
IMAGE = torch.randn(2, 3, 144, 2, generator=GENERATOR) * 16
THETA = torch.randn(2, 2, 3, generator=GENERATOR) * 8


def flowed(x: torch.Tensor, share: float = 0.1) -> torch.Tensor:
    """Sampled where what was sampled first says: far from the image a place is off by parts of a pixel."""
    grid = nn.functional.affine_grid(THETA, list(x.shape), align_corners=False)
    flow = nn.functional.grid_sample(x, grid, mode="bicubic", padding_mode="border", align_corners=False)
    places = flow[:, :2].permute(0, 2, 3, 1) * share
    return nn.functional.grid_sample(x, places, padding_mode="reflection", align_corners=True)


CASES: dict[str, tuple[torch.Tensor, Forward, Forward]] = {
    "which of equal scores are not chosen": (X, nucleus, lambda x: nucleus(x, 0.85)),
    "long sums in single precision": (LONG, lambda x: x.softmax(-1).cumsum(-1), lambda x: x.softmax(-1).cumsum(-1) + 1e-4),
    "rows of equal numbers less their mean": (EQUAL, nn.functional.instance_norm, lambda x: nn.functional.instance_norm(x, eps=1e-3)),
    "places of pixels": (IMAGE, flowed, lambda x: flowed(x, 0.101)),
    "exponentials of nearly nothing less one": (X, nn.functional.selu, lambda x: nn.functional.elu(x, 1.673) * 1.0507),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("what", CASES)
def test_what_engines_round_otherwise(what: str) -> None:
    x, right, wrong = CASES[what]
    verdict = verify(fx2onnx.export(Given(right), (x,)), Given(right), (x,))
    assert verdict.ok, verdict.describe()
    assert not verify(fx2onnx.export(Given(wrong), (x,)), Given(right), (x,)).ok


TERMS = torch.randn(1, 40, generator=GENERATOR)
ONES = torch.ones(1, 40)
SUMS: dict[str, Forward] = {
    "linear": lambda x: nn.functional.linear(x, ONES),
    "addmm": lambda x: torch.addmm(torch.ones(1, 1), x, ONES.T, alpha=2.0),
    "bmm": lambda x: torch.bmm(x[None], ONES.T[None]),
    "dot": lambda x: torch.dot(x[0], ONES[0]),
    "convolution": lambda x: nn.functional.conv1d(x[None], ONES[None]),
    "bilinear": lambda x: nn.functional.bilinear(x, torch.ones(1, 3), torch.ones(1, 40, 3)),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_single_sum_of_products_is_off_by_units_of_its_terms(name: str) -> None:
    """Not of what they add up to, which may be nearly nothing."""
    x = torch.cat([TERMS, -TERMS], 1)[:, torch.randperm(80, generator=GENERATOR)][:, :40]
    x = x - x.mean()
    with Moved(1, 2.0):
        moved = SUMS[name](x)
    wanted = SUMS[name](x)
    assert 2e-8 < float((moved - wanted).abs().max()) < 1e-5, (moved, wanted)


WANT = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)


def with_nan(*rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    found = WANT.copy()
    found[list(rows), 2] = np.nan
    return found


def moved(*runs: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> Movements:
    movements = Movements(WANT)
    for run in runs:
        movements.add(run)
    return movements


def test_nan_is_right_in_rows_in_which_some_run_has_it() -> None:
    movements = moved(WANT, with_nan(3), with_nan(3, 7))
    assert movements.judge(with_nan(3)).ok
    assert movements.judge(with_nan(7)).ok
    assert movements.judge(WANT).ok


def test_nan_is_wrong_in_other_rows() -> None:
    assert not moved(WANT, with_nan(3), with_nan(3, 7)).judge(with_nan(3, 8)).ok
    assert not moved(WANT, WANT).judge(with_nan(3)).ok
