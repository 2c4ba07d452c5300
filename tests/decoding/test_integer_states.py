"""Decoders that keep their last tokens as whole numbers, and keys that they choose from (Qwen4-Exp)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as T

from tests.decoding.test_decoders import assert_same_tokens, assert_verified, exported, prompts


def _qwen4_exp() -> Any:
    model = T.Qwen4ExpForCausalLM(
        T.Qwen4ExpTextConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            vocab_size=60,
            layer_types=["linear_attention", "indexed_attention"],
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            num_experts=4,
            num_experts_per_tok=2,
            indexer_n_heads=12,  # two blocks of score 0 would be in no order
            indexer_kv_heads=1,
            indexer_head_dim=8,
            indexer_budget=4,
            indexer_compress_ratio=2,
            hc_count=2,
            hc_lowrank=8,
            ple_layer_ids=[1],
            ple_embed_dim=32,
            ngram_size=3,
            heads_per_ngram=2,
            ngram_vocab_size_base=40,
            make_ngram_vocab_size_divisible_by=8,
            split_ngram_parts=1,
            eos_token_id=5,
            initializer_range=0.4,
        )
    )
    torch.nn.init.normal_(model.model.layers[0].ple.conv1d.weight)  # zeros in a new model
    return model


@pytest.mark.long
def test_the_tokens_before_the_first_are_those_of_the_model(tmp_path: Path) -> None:
    model, done = exported(_qwen4_exp, tmp_path / "out")
    source = done.sources["model.onnx"]
    assert_verified(done, seeds=())  # other values would hide the token itself, which no step does
    assert source.kwargs["past_key_values.0.conv_state.2"].dtype == torch.int64
    assert_same_tokens(model, done, *map(prompts, ((1,), (4, 2), (9, 7, 3))))
