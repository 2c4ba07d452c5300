"""Parts of a size that is rounded up: at some sizes there are fewer parts, where eager PyTorch runs, too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support import check


def turned(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat([part.cumsum(0) * len(parts) for part in parts[::-1]])


SPLITS: dict[str, Callable[[torch.Tensor], Any]] = {
    "of three": lambda x: turned(x.split((x.shape[0] + 2) // 3)),
    "of two": lambda x: turned(x.split((x.shape[0] + 1) // 2)),
    "of four, by ceil": lambda x: turned(x.split(math.ceil(x.shape[0] / 4))),
    "of three, by a negative quotient": lambda x: turned(torch.split(x, -(-x.shape[0] // 3))),
    "of a half": lambda x: turned(x[: x.shape[0] // 2 + 1].split((x.shape[0] // 2 + 3) // 3)),
    "of the columns": lambda x: turned(x.t().split((x.shape[0] + 2) // 3, dim=1)[:1]),
}


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_parts_of_a_size_that_is_rounded_up(name: str, dtype: torch.dtype) -> None:
    def sample(size: int) -> torch.Tensor:
        return (torch.arange(2.0 * size).reshape(size, 2) - 3).to(dtype)

    others = [(sample(size),) for size in (*range(1, 10), 14, 25)]
    result = check(SPLITS[name], (sample(10),), others=others, dynamic_shapes=({0: "n"},))
    assert not [found for found in result.report.assumptions if found.kind in ("condition", "specialization")]
