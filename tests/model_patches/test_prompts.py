"""Embeddings of prompts: as those that the model keeps by their tokens, for other tokens too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fx2onnx.sources.seeding import seeded
from tests.support import check

pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.models.omdet_turbo import modeling_omdet_turbo as omdet

Model = omdet.OmDetTurboPreTrainedModel


class Backbone(torch.nn.Module):
    """Embeddings of a class are their sum; of a task each token's, beside the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(20, 3)

    def forward(self, ids: torch.Tensor, mask: Any = None, encode_type: str = "") -> Any:
        embedded = self.table(ids)
        return embedded.sum(1) if encode_type == "class" else (embedded.transpose(0, 1), mask)


class Prompted(torch.nn.Module):
    device = torch.device("cpu")

    def __init__(self, embeddings: Callable[..., Any]) -> None:
        super().__init__()
        with seeded(0):
            self.language_backbone = Backbone()
        self.language_cache_class = self.language_cache_prompt = omdet.OmDetTurboLRUCache(10)
        self.embeddings = embeddings

    def _get_cache_key_at_index(self, ids: torch.Tensor, mask: torch.Tensor, index: int) -> Any:
        return Model._get_cache_key_at_index(ids, mask, index)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.embeddings(self, ids, mask)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.compares(f"{omdet.__name__}:{Model.__name__}.{name}"))
        for name in ("get_cached_class_embeddings", "get_cached_task_embeddings")
    ],
)
def test_prompts_are_an_input(name: str) -> None:
    def sample(count: int) -> tuple[torch.Tensor, ...]:
        with seeded(count):
            return torch.randint(0, 20, (count, 4)), torch.randint(0, 2, (count, 4))

    axes = {0: "prompts"}
    result = check(
        Prompted(getattr(Model, name)), sample(2), others=[sample(1), sample(5)], dynamic_shapes=(axes, axes)
    )
    assert any("computed anew" in str(note) for note in result.report.assumptions)
