"""Products of matrices in groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support import check


class Grouped(nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor, offs: torch.Tensor | None = None) -> torch.Tensor:
        return torch._grouped_mm(left, right, offs=offs)


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "rows in groups": ((8, 4), (3, 4, 8)),
    "inner axis in groups": ((4, 8), (8, 8)),
    "columns in groups": ((3, 8, 4), (4, 8)),
}


@pytest.mark.parametrize("opset", [13, None])
@pytest.mark.parametrize("name", CASES)
def test_grouped_product(name: str, opset: int | None) -> None:
    torch.manual_seed(0)
    left, right = map(torch.randn, CASES[name])

    def sample(*ends: int) -> tuple[torch.Tensor, ...]:
        return left, right, torch.tensor(ends, dtype=torch.int32)

    others = [sample(8, 8, 8), sample(0, 0, 8), sample(4, 5, 8)]
    check(Grouped(), sample(1, 3, 8), others=others, opset_version=opset)


def test_stacks_of_matrices() -> None:
    check(Grouped(), (torch.randn(3, 8, 4), torch.randn(3, 4, 8)))


def test_any_number_of_rows() -> None:
    torch.manual_seed(0)
    right = torch.randn(3, 4, 8)

    def sample(*ends: int) -> tuple[Any, ...]:
        return torch.randn(ends[-1], 4), right, torch.tensor(ends, dtype=torch.int32)

    result = check(Grouped(), sample(1, 3, 8), others=[sample(2, 2, 11), sample(0, 1, 1)],
                   dynamic_shapes={"left": {0: "rows"}, "right": None, "offs": None})  # fmt: skip
    assert "Loop" in {node.op_type for node in result.model.graph}, "one node whatever the number of groups"
