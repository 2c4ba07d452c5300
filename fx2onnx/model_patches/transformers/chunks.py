"""Patch of attention within chunks whose Python counts where the last chunks of the past begin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches


@patches("transformers.models.reformer.modeling_reformer:LocalSelfAttention._retrieve_relevant_hidden_states")
def last_chunks(previous_hidden_states: Tensor, chunk_length: int, num_chunks_before: int) -> Tensor:
    """``LocalSelfAttention._retrieve_relevant_hidden_states``, for a past of any length: also where the first chunk
    would begin before it, which to a slice of Python means so many of the last tokens.

    Shapes:  previous_hidden_states [batch, past, width] -> [batch, kept, width].
    """
    past: Any = previous_hidden_states.shape[1]
    start = (past // chunk_length - num_chunks_before) * chunk_length
    is_before = torch.sym_min(torch.sym_max(-start, 0), 1)  # type: ignore[no-untyped-call]
    from_the_end = torch.sym_max((past + start) * is_before, 0)  # type: ignore[no-untyped-call]
    return previous_hidden_states[:, torch.sym_max(start, 0) + from_the_end :]  # type: ignore[no-untyped-call]
