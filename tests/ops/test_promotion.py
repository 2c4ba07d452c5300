"""PyTorch's promotion among tensors, 0-d tensors and Python numbers, over pairs of dtypes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tests.support import check

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64]
PAIRS = list(itertools.product(DTYPES, DTYPES))


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Numbers that tell dtypes apart: fractions, more than 8 bits, more than float16's and float32's digits."""
    values = [0.0, 1.0, 2.0, 2.5, 44.0, 100.0, 2049.0, 16777217.0]
    if dtype == torch.bool:
        return torch.tensor(values) > 1
    limit = 100 if dtype in (torch.uint8, torch.int8) else 60000 if dtype == torch.float16 else 1e9
    return torch.tensor([value for value in values if value <= limit], dtype=torch.float64).to(dtype)


def comparisons(x: torch.Tensor, y: Any) -> list[torch.Tensor]:
    return [x == y, x != y, x < y, x >= y]


def arithmetic(x: torch.Tensor, y: Any) -> list[torch.Tensor]:
    return [x + y, x * y, torch.maximum(x, y), torch.where(x > 1, x, y)]


@pytest.mark.long
def test_promotion_of_two_tensors() -> None:
    """All pairs in one model: every operand is an input."""
    operands = [(numbers(lhs)[:, None], numbers(rhs)) for lhs, rhs in PAIRS]
    check(
        lambda *flat: [comparisons(x, y) + arithmetic(x, y) for x, y in zip(flat[::2], flat[1::2], strict=True)],
        tuple(itertools.chain(*operands)),
    )


@pytest.mark.long
@pytest.mark.parametrize("value", [2.0, 44.0, 100.0])
def test_promotion_with_a_zero_dimensional_tensor(value: float) -> None:
    """A 0-d tensor changes the category of the result, never the width within it."""
    operands = [(numbers(lhs), torch.tensor(value).to(rhs)) for lhs, rhs in PAIRS]
    check(
        lambda *flat: [comparisons(x, y) + arithmetic(x, y) for x, y in zip(flat[::2], flat[1::2], strict=True)],
        tuple(itertools.chain(*operands)),
    )


def test_a_wide_zero_dimensional_tensor_wraps_as_in_pytorch() -> None:
    """int8 [44] against int64 300 is compared in int8, where 300 is 44."""
    x = torch.tensor([44, 43], dtype=torch.int8)
    check(lambda x, y: [*comparisons(x, y), x + y], (x, torch.tensor(300)))


@pytest.mark.parametrize("number", [True, 2, 2.5, 100])
def test_promotion_with_a_number(number: Any) -> None:
    """A Python number changes the category, and then to the default dtype."""
    operands = [numbers(dtype) for dtype in DTYPES]
    check(lambda *xs: [[*comparisons(x, number), x + number, x * number] for x in xs], tuple(operands))
