"""Steps of a decoder with sliding and full layers through ``fx2onnx.export``: caches are inputs, and all lengths dynamic."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fx2onnx.base.assumptions import Guard
from fx2onnx.sources.torchvision_compat import prepare
from tests.support import check

pytest.importorskip("transformers")
WINDOW = 4
KINDS = ["sliding_attention", "full_attention"]


class Step(torch.nn.Module):
    """A shrunk Gemma 3 that goes on from tensors of each layer's keys and values."""

    def __init__(self) -> None:
        super().__init__()
        prepare()
        import transformers

        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(
            "gemma3_text", vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=WINDOW, layer_types=KINDS,
        )  # fmt: skip
        self.model = transformers.AutoModelForCausalLM.from_config(config).eval()
        self.new_cache = transformers.DynamicCache

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, past: list[Any]) -> Any:
        cache = self.new_cache(config=self.model.config)
        for index, (keys, values) in enumerate(past):
            cache.update(keys, values, index)
        for layer in cache.layers:
            if hasattr(layer, "cumulative_length"):  # more than a sliding layer keeps
                layer.cumulative_length = past[1][0].shape[2]
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache)
        return out.logits, [(layer.keys, layer.values) for layer in cache.layers]


def sample(batch: int, past: int, new: int, *, whole: bool = False) -> tuple[Any, ...]:
    """``whole``: sliding layers are given all that was before, too."""
    lengths = [past if whole or kind == "full_attention" else min(past, WINDOW - 1) for kind in KINDS]
    caches = [(torch.randn(batch, 2, length, 8), torch.randn(batch, 2, length, 8)) for length in lengths]
    return torch.randint(1, 60, (batch, new)), torch.ones(batch, past + new, dtype=torch.long), caches


def axes(*names: str) -> tuple[Any, ...]:
    """``names``: of the length of a sliding and of a full layer's cache."""
    caches = [[{0: "batch", 2: names[kind == "full_attention"]}] * 2 for kind in KINDS]
    return {0: "batch", 1: "new"}, {0: "batch", 1: "total"}, caches


SIZES = [(1, 5, 1), (3, 17, 2), (1, 4, 6), (1, 2, 1), (2, 3, 1)]


def test_each_layer_keeps_what_its_window_needs() -> None:
    others = [sample(*sizes) for sizes in SIZES]
    result = check(Step(), sample(2, 9, 3), others=others, dynamic_shapes=axes("window", "past"))
    assert result.report.attempts == ["fake"]  # a difference of sizes is no question whether one is 1
    (guard,) = [
        found for found in result.report.assumptions if isinstance(found, Guard) and "past < 4" in found.expression
    ]
    assert [guard.relation.holds({"past": past, "window": 3, "new": 1}) for past in (2, 9)] == [True, True]
    assert not guard.relation.holds({"past": 9, "window": 2, "new": 1})


def test_each_layer_is_given_all_that_was_before() -> None:
    others = [sample(*sizes, whole=True) for sizes in SIZES]
    result = check(Step(), sample(2, 9, 3, whole=True), others=others, dynamic_shapes=axes("past", "past"))
    assert not [found for found in result.report.assumptions if " or " in found.expression]
