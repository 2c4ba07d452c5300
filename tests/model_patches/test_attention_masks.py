"""Masks of padding: kept where a single token may be one of padding, and as transformers makes them everywhere else."""

from __future__ import annotations

import pytest
import torch

from tests.model_patches.support import patched

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.cache_utils import DynamicCache, DynamicIndexedLayer  # noqa: E402
from transformers.masking_utils import create_recurrent_attention_mask  # noqa: E402


@pytest.mark.compares("transformers.masking_utils:create_recurrent_attention_mask")
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("tokens", [1, 2])
def test_padding_that_comes_as_a_single_token_reaches_the_indexer(tokens: int, indexed: bool) -> None:
    cache = DynamicCache()
    cache.layers.append(DynamicIndexedLayer())
    if indexed:
        cache.layers[0].update_indexer(torch.zeros(2, 3, 4))
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]])
    given = transformers.LlamaConfig(), torch.zeros(2, tokens, 4), mask, cache
    want = create_recurrent_attention_mask(*given)
    with patched():
        got = create_recurrent_attention_mask(*given)
    if tokens == 1 and indexed:
        assert want is None
        assert got is not None
        assert got.tolist() == [[1], [0]]
    else:
        assert (want is None) == (tokens == 1)
        assert (got is None and want is None) or torch.equal(got, want)
