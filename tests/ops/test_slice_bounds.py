"""Slices whose bounds lie outside of a dynamic axis, read and written, at sizes on both sides of each bound."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tests.support import check

SIZES = (1, 3, 5, 8, 11)
BOUNDS = [
    (start, end, step)
    for start, end, step in itertools.product((-999, -6, -1, 2), (-3, 5, None), (1, 2))
    if torch.empty(8)[start:end:step].numel()
]


@pytest.mark.parametrize(("start", "end", "step"), BOUNDS)
def test_a_slice_is_written_within_the_axis(start: int, end: int | None, step: int) -> None:
    def written(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return torch.slice_scatter(x, value[:, : x[:, start:end:step].shape[1]], 1, start, end, step)

    calls = [(torch.rand(2, size), -torch.rand(2, 20)) for size in SIZES]
    fitting: list[tuple[Any, ...]] = [each for each in calls if each[0][:, start:end:step].numel()]
    check(written, calls[3], others=fitting, dynamic_shapes=({1: "n"}, None))
