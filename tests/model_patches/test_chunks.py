"""The beginning of the last chunks of a past: the patch cuts as the function does, at every length of the past."""

from __future__ import annotations

import pytest
import torch

from tests.support import check

pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.models.reformer.modeling_reformer import LocalSelfAttention


@pytest.mark.compares(f"{LocalSelfAttention.__module__}:LocalSelfAttention._retrieve_relevant_hidden_states")
@pytest.mark.parametrize("before", [0, 1, 2])
def test_the_chunks_before_the_next_token(before: int) -> None:
    def kept(past: torch.Tensor) -> torch.Tensor:
        return LocalSelfAttention._retrieve_relevant_hidden_states(past, 4, before) * 2

    others = [(torch.randn(2, length, 3),) for length in (1, 3, 4, 6, 8, 9, 12, 30)]
    check(kept, (torch.randn(2, 7, 3),), others=others, dynamic_shapes=({1: "past"},))
