"""Steps of a decoder with sliding and full layers through ``fx2onnx.export``: caches are inputs, and all lengths dynamic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import fx2onnx
from fx2onnx.capture.driver import capture
from fx2onnx.capture.options import CaptureOptions
from fx2onnx.sizes.assumptions import Guard
from tests.support import agree, check, run_engines

pytest.importorskip("transformers")
WINDOW = 4
KINDS = ["sliding_attention", "full_attention"]


class Step(torch.nn.Module):
    """A shrunk Gemma 3 that goes on from tensors of each layer's keys and values."""

    def __init__(self) -> None:
        super().__init__()
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


@pytest.mark.long
def test_each_layer_keeps_what_its_window_needs() -> None:
    others = [sample(*sizes) for sizes in SIZES]
    result = check(Step(), sample(2, 9, 3), others=others, dynamic_shapes=axes("window", "past"))
    asked = [attempt for attempt in result.report.attempts[1:] if attempt != "fake: Python decides as where batch is 0"]
    assert asked == []  # a difference of sizes is no question whether one is 1
    (guard,) = [
        found for found in result.report.assumptions if isinstance(found, Guard) and "past < 4" in found.expression
    ]
    assert [guard.relation.holds({"past": past, "window": 3, "new": 1}) for past in (2, 9)] == [True, True]
    assert not guard.relation.holds({"past": 9, "window": 2, "new": 1})


@pytest.mark.long
def test_each_layer_is_given_all_that_was_before() -> None:
    others = [sample(*sizes, whole=True) for sizes in SIZES]
    result = check(Step(), sample(2, 9, 3, whole=True), others=others, dynamic_shapes=axes("past", "past"))
    assert not [found for found in result.report.assumptions if " or " in found.expression]


class Cached(torch.nn.Module):
    """As decoders of transformers are: places of tokens from the mask, a mask where there are several tokens, a cache of keys and
    one of values.
    """

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        places = mask.cumsum(1)[:, key.shape[2] :]
        query = (x + places[..., None]).unsqueeze(1).expand(-1, 2, -1, -1)
        key, value = torch.cat([key, query], 2), torch.cat([value, query], 2)
        allowed = mask[:, None, None, :].bool().expand(-1, -1, query.shape[2], -1)
        if query.shape[2] > 1:
            allowed = allowed & torch.ones_like(allowed).tril(key.shape[2] - query.shape[2])
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed), key, value


@pytest.mark.long
def test_a_cache_of_keys_and_one_of_values_with_every_size_free() -> None:
    def call(batch: int, new: int, past: int) -> tuple[torch.Tensor, ...]:
        caches = [torch.randn(batch, 2, past, 4) for _ in range(2)]
        return torch.randn(batch, new, 4), torch.ones(batch, past + new), *caches

    result = fx2onnx.export(Cached(), call(2, 3, 5), dynamic_shapes="auto")
    agree(Cached(), result.model_proto, *(call(*sizes) for sizes in ((2, 3, 5), (1, 2, 4), (3, 4, 6))))


def test_sizes_that_operators_find_equal_are_settled_in_one_run() -> None:
    def total(*caches: torch.Tensor) -> torch.Tensor:
        return sum(caches[1:], caches[0])  # type: ignore[return-value]

    captured = capture(
        total, tuple(torch.randn(2, 3, 4) for _ in range(12)), None, CaptureOptions(dynamic_shapes="auto")
    )
    assert len({str(each.info.dims) for each in captured.inputs}) == 1
    assert len(captured.symbols) == 3
    assert len(captured.attempts) <= 3


@pytest.mark.long
def test_opt_with_a_cache_and_every_size_free() -> None:
    """Keys and values have one length in both branches of its decision by the number of tokens."""
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "opt", vocab_size=40, hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=32, word_embed_proj_dim=16,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).eval()

    def call(batch: int, new: int, past: int) -> dict[str, Any]:
        cache = transformers.DynamicCache(config=config)
        for layer in range(2):
            cache.update(torch.randn(batch, 2, past, 8), torch.randn(batch, 2, past, 8), layer)
        ids, mask = torch.randint(0, 40, (batch, new)), torch.ones(batch, past + new, dtype=torch.long)
        return {"input_ids": ids, "attention_mask": mask, "past_key_values": cache}

    result = fx2onnx.export(model, (), kwargs=call(2, 3, 5), dynamic_shapes="auto")
    for sizes in ((2, 3, 5), (3, 4, 6)):
        kwargs = call(*sizes)
        caches = [each for layer in kwargs["past_key_values"].layers for each in (layer.keys, layer.values)]
        feeds = [kwargs["input_ids"], kwargs["attention_mask"], *caches]
        outputs = run_engines(result.model_proto, [feed.clone() for feed in feeds])
        with torch.no_grad():
            wanted = model(**kwargs).logits
        for got in outputs.values():
            torch.testing.assert_close(torch.from_numpy(got[0]), wanted, rtol=1e-4, atol=1e-5)
