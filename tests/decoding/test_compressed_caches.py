"""Caches that keep an entry for every so many tokens: one graph for prompts and steps, whether they end a group or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers as T

from fx2onnx.decoding.decoder import cached_decoder
from fx2onnx.sources.source import Options
from tests.decoding.test_decoders import assert_same_tokens, assert_verified, exported, prompts


def _deepseek() -> Any:
    """A layer of each kind: of the last tokens only, with sparse and with heavy compression."""
    return T.DeepseekV4ForCausalLM(
        T.DeepseekV4Config(
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            head_dim=16,
            q_lora_rank=16,
            o_lora_rank=8,
            o_groups=2,
            index_n_heads=12,  # two entries of score 0 would be in no order
            index_head_dim=16,
            index_topk=3,
            n_routed_experts=4,
            num_local_experts=4,
            num_experts_per_tok=2,
            hc_mult=2,
            sliding_window=5,
            vocab_size=60,
            layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
            mlp_layer_types=["moe"] * 3,
            compress_rates={"compressed_sparse_attention": 2, "heavily_compressed_attention": 3},
            initializer_range=0.4,
        )
    )


@pytest.mark.long
def test_entries_are_made_where_groups_end(tmp_path: Path) -> None:
    model, done = exported(_deepseek, tmp_path / "out")
    assert done.notes == ["prompt_model.onnx takes the prompt, model.onnx each later token"]
    source = done.sources["model.onnx"]
    assert_verified(done)
    assert source.dynamic_shapes["past_key_values.1.compressed_kv.indexer"][1] == "past_entries_2_length"
    assert_same_tokens(model, done, *map(prompts, ((1,), (4, 2), (13, 7, 3))), new=9)


@pytest.mark.long
def test_transformers_goes_on_with_its_own_layers() -> None:
    model = _deepseek().eval()
    assert "past_key_values.1.overlap_kv.indexer" in cached_decoder(model, "model", Options()).kwargs
    cache = T.DynamicCache(config=model.config)
    assert [type(layer).__module__ for layer in cache.layers[1:]] == [T.DeepseekV4ForCausalLM.__module__] * 2
