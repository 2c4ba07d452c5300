"""Frames of images and videos whose number the grid tells, put side by side in pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches

_ERNIE = "transformers.models.ernie4_5_vl_moe.modeling_ernie4_5_vl_moe"


@patches(f"{_ERNIE}:Ernie4_5_VLMoeVariableResolutionResamplerModel._temporal_slicing", around=True)
def pairs_of_frames(original: Callable[..., Tensor], self: Any, hidden_states: Tensor, grid_thw: Tensor) -> Tensor:
    """``_temporal_slicing``, whose ``range`` needs numbers: every second frame beside the one behind it, an image beside
    itself.

    Shapes:  hidden_states [tokens, width], grid_thw [images, 3] -> [tokens of pairs, 2 * width].
    """
    if all(type(number) is int for sizes in grid_thw.tolist() for number in sizes):
        return original(self, hidden_states, grid_thw)
    first, second, before = [], [], grid_thw.new_zeros(())
    for frames, rows, columns in grid_thw:
        size = rows * columns // self.spatial_merge_size**2
        pairs, inside = torch.arange((frames // 2).clamp(min=1).item()), torch.arange(size.item())
        places = (before + 2 * size * pairs[:, None] + inside).flatten()
        first.append(places)
        second.append(places + (frames - 1).clamp(max=1) * size)
        before = before + frames * size
    return torch.cat([hidden_states[torch.cat(places)] for places in (first, second)], dim=-1)
