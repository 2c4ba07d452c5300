"""Indexers whose Python goes through the queries one by one: the patch keeps the keys that they keep."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fx2onnx.sources.seeding import seeded
from tests.support import check

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.models.qwen4_exp import modeling_qwen4_exp as qwen4_exp  # noqa: E402

WIDTH, HEAD = 16, 8


def _sample(queries: int, keys: int, padded: int = 0, holes: bool = False) -> tuple[torch.Tensor, ...]:
    """Hidden states of the last ``queries`` of ``keys`` tokens, angles of all, and who sees whom."""
    with seeded(queries * 100 + keys):
        angles = torch.rand(2, keys, HEAD // 2).repeat(1, 1, 2)
        seen = torch.ones(2, 1, queries, keys, dtype=torch.bool).tril(keys - queries)
        seen[1, :, :, :padded] = False
        if holes:
            seen &= torch.rand(2, 1, queries, keys) < 0.7
        return torch.randn(2, queries, WIDTH), angles.cos(), angles.sin(), seen


@pytest.mark.long
@pytest.mark.compares(f"{qwen4_exp.__name__}:Qwen4ExpTextQSAIndexer.forward")
@pytest.mark.parametrize(("ratio", "budget"), [(2, 4), (3, 9), (4, 4)])
def test_every_query_keeps_its_best_blocks_and_the_tail(ratio: int, budget: int) -> None:
    config = transformers.Qwen4ExpTextConfig(
        hidden_size=WIDTH,
        indexer_n_heads=3,
        indexer_kv_heads=1,
        indexer_head_dim=HEAD,
        indexer_budget=budget,
        indexer_compress_ratio=ratio,
        head_dim=HEAD,
    )
    with seeded(0):
        indexer = qwen4_exp.Qwen4ExpTextQSAIndexer(config, 0)

    class OfAllKeys(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.indexer = indexer

        def forward(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, seen: torch.Tensor) -> Any:
            return self.indexer(states, (cos, sin), seen, None)

    others = [
        _sample(13, 13), _sample(1, 1), _sample(ratio, ratio), _sample(17, 17, padded=3), _sample(9, 9, holes=True),
        _sample(40, 40, holes=True),
    ]  # fmt: skip
    axes = {1: "tokens"}
    result = check(
        OfAllKeys(), _sample(11, 11), others=others, dynamic_shapes=(axes, axes, axes, {2: "tokens", 3: "tokens"})
    )
    assert not result.report.assumptions  # nothing was decided by the number of tokens or blocks
