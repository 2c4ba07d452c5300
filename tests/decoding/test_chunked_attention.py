"""Decoders that attend within chunks and keep the states of their tokens (Reformer)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as T

from fx2onnx.base.errors import UserError
from fx2onnx.generation import load
from fx2onnx.manifest.form import read_manifest
from tests.decoding.test_decoders import ENGINES, assert_same_tokens, assert_verified, exported, prompts

HASHED_FROM = 64


def _reformer() -> Any:
    return T.ReformerModelWithLMHead(
        T.ReformerConfig(
            hidden_size=32,
            feed_forward_size=32,
            num_attention_heads=2,
            attention_head_size=16,
            attn_layers=["local", "lsh", "local"],
            local_attn_chunk_length=4,
            lsh_attn_chunk_length=HASHED_FROM,
            axial_pos_shape=[4, 16],
            axial_pos_embds_dim=[8, 24],
            is_decoder=True,
            vocab_size=60,
            initializer_range=0.4,
        )
    )


@pytest.mark.long
def test_chunks_of_the_past_end_where_the_model_ends_them(tmp_path: Path) -> None:
    model, done = exported(_reformer, tmp_path / "out")
    source = done.sources["model.onnx"]
    assert set(source.kwargs) == {"input_ids", *(f"past_key_values.{layer}.states_cache" for layer in range(3))}
    assert any(note.endswith(f"past_sequence_length + 1 < {HASHED_FROM}") for note in done.notes)
    assert_verified(done)
    assert_same_tokens(model, done, prompts((3, 1)), prompts((11, 7)), new=18)


@pytest.mark.long
def test_a_past_that_is_too_long_is_refused_with_the_line(tmp_path: Path) -> None:
    exported(_reformer, tmp_path / "out")
    (graph,) = read_manifest(tmp_path / "out").graphs
    limit = next(stated for stated in graph.conditions if stated.condition.endswith(f"< {HASHED_FROM}"))
    assert "modeling_reformer.py" in limit.where
    for engine in ENGINES:
        loaded = load(tmp_path / "out", engine)
        tokens = loaded.generate(torch.full((1, 55), 7), max_new_tokens=8)
        assert tokens.shape == (1, 63)
        with pytest.raises(UserError, match=r"E401.*model.onnx is for sizes with past_sequence_length") as caught:
            loaded.generate(torch.full((1, 55), 7), max_new_tokens=12)
        assert caught.value.why.startswith("past_sequence_length is 63 (axis 1 of past_key_values.")
        assert caught.value.why.endswith(f"{limit.where} asks for it")
