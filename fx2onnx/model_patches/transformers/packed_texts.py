"""Texts packed one after another in a row, separated by jumps of their positions: at every length, without ``diff``.

transformers looks for jumps wherever it is given no mask and no cache, as in encoders of sound.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches


@patches("transformers.masking_utils:find_packed_sequence_indices", around=True)
def sequence_indices(original: Any, position_ids: Tensor) -> Tensor | None:
    """``transformers.masking_utils.find_packed_sequence_indices``, whose ``torch.diff`` takes plain lengths only.

    Shapes:  position_ids [batch, length] -> [batch, length], the text that each token belongs to, counted from 0.
    """
    if type(position_ids.shape[1]) is int:
        indices: Tensor | None = original(position_ids)
        return indices
    jumps = position_ids[:, 1:] - position_ids[:, :-1] != 1
    return torch.cat([torch.zeros_like(position_ids[:, :1]), jumps.cumsum(-1)], dim=-1)
