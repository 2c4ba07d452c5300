"""Pairs of frames of images and videos whose number the grid tells."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tests.support import check

pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.models.ernie4_5_vl_moe import modeling_ernie4_5_vl_moe as ernie

SLICING = "Ernie4_5_VLMoeVariableResolutionResamplerModel._temporal_slicing"


class Slicing(torch.nn.Module):
    def forward(self, states: Tensor, grid: Tensor) -> Tensor:
        resampler = ernie.Ernie4_5_VLMoeVariableResolutionResamplerModel
        return resampler._temporal_slicing(SimpleNamespace(spatial_merge_size=2), states, grid)


def _given(*sizes: list[int]) -> tuple[Tensor, Tensor]:
    grid = torch.tensor(sizes)
    return torch.randn(int(grid.prod(1).sum()) // 4, 3, generator=torch.Generator().manual_seed(0)), grid


@pytest.mark.compares(f"transformers.models.ernie4_5_vl_moe.modeling_ernie4_5_vl_moe:{SLICING}")
def test_pairs_of_frames() -> None:
    grids = [([2, 4, 4], [1, 2, 2]), ([1, 2, 6], [4, 4, 2]), ([1, 8, 4], [1, 2, 2]), ([6, 2, 2], [2, 2, 4])]
    check(
        Slicing(),
        _given([1, 4, 6], [1, 8, 4]),
        others=[_given(*sizes) for sizes in grids],
        dynamic_shapes={"states": {0: "tokens"}, "grid": None},
    )
