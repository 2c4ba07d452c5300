"""Caches that keep an entry for every so many tokens: one graph for prompts and steps, whether they end a group or not; and caches that keep
the whole prompt and a window of what follows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as T

from fx2onnx.decoding.decoder import cached_decoder
from fx2onnx.decoding.parts import Assembly, cached_parts
from fx2onnx.decoding.reference_generate import generate_eagerly
from fx2onnx.exporting.folder import export_assembly
from fx2onnx.generation import load
from fx2onnx.sources.source import Options, Source
from studies import coverage_generation, coverage_prompts
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


NEW = 10


@pytest.mark.long
def test_the_prompt_stays_and_the_window_moves(tmp_path: Path) -> None:
    model = coverage_generation._model("image-text-to-text", "unlimited_ocr", "small")
    model.config.get_text_config().sliding_window = 4  # less than the prompt, less than what is generated
    for weight in model.parameters():
        weight.data.mul_(4 if weight.dim() > 1 else 1)  # so that tokens tell a wrong window
    inputs = coverage_prompts.with_images(model)
    expected = generate_eagerly(model, inputs, NEW)
    done = export_assembly(Assembly(model, cached_parts(Source("model", model)), None, ""), tmp_path / "out")
    decoder = done.sources["decoder_model.onnx"]
    sizes = {str(word) for axes in (decoder.dynamic_shapes or {}).values() for word in axes.values()}
    assert {"past_prompt_length", "past_window_4_length"} <= sizes
    for engine in ("onnxruntime", "runner"):
        loaded = load(tmp_path / "out", engine)
        assert torch.equal(loaded.generate(**inputs, max_new_tokens=NEW), expected), engine
    past = load(tmp_path / "out", "runner")(**inputs).past_key_values
    assert past["0.prefill_keys"].shape()[2] == inputs["input_ids"].shape[1]
    assert past["0.key"].shape()[2] == 0


@pytest.mark.parametrize("window", [3, 6])
def test_layers_do_as_those_of_transformers(window: int) -> None:
    from transformers.models.unlimited_ocr.modeling_unlimited_ocr import UnlimitedOcrDynamicReferenceSlidingWindowLayer

    from fx2onnx.decoding.cache.layout import answering_by_shape

    theirs = UnlimitedOcrDynamicReferenceSlidingWindowLayer(sliding_window=window)
    own = object.__new__(answering_by_shape(type(theirs)))
    own.sliding_window, own.prefill_cumulative_length = window, 0
    own.prefill_keys = own.prefill_values = own.keys = own.values = torch.zeros(2, 1, 0, 4)
    for tokens in (5, 1, 1, 2, 1, 1):
        key, value = torch.randn(2, 2, 1, tokens, 4)
        assert own.get_mask_sizes(tokens) == theirs.get_mask_sizes(tokens)
        for mine, given in zip(own.update(key, value), theirs.update(key, value), strict=True):
            assert torch.equal(mine, given)
        assert own.get_seq_length() == theirs.get_seq_length()
    assert own.prefill_length == theirs.prefill_length == 5
