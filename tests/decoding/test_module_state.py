"""Models that keep states in attributes of their modules: inputs and outputs of the graph, and the modules as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as T

from fx2onnx.generation import load
from tests.decoding.test_decoders import assert_same_tokens, assert_verified, exported, prompts


def _recurrent_gemma() -> Any:
    """Two recurrent layers and one of attention, whose window is shorter than some prompts."""
    return T.RecurrentGemmaForCausalLM(
        T.RecurrentGemmaConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            lru_width=32,
            vocab_size=60,
            attention_window_size=5,
            block_types=["recurrent", "recurrent", "attention"],
        )
    )


@pytest.mark.long
def test_states_that_modules_keep_are_inputs_and_outputs(tmp_path: Path) -> None:
    model, done = exported(_recurrent_gemma, tmp_path / "out")
    assert all(block.temporal_block.conv1d_state is None for block in model.model.layers[:2])
    source = done.sources["model.onnx"]
    assert_verified(done)
    states = [name.removeprefix("past_key_values.") for name in source.kwargs if name.startswith("past_key_values.")]
    assert {name.rpartition(".")[2] for name in states} == {"conv1d_state", "recurrent_state", "key", "value"}
    assert_same_tokens(model, done, prompts((4, 2)), prompts((9, 7, 3)))


@pytest.mark.long
def test_padding_reaches_the_convolution_as_it_does_in_the_model(tmp_path: Path) -> None:
    def build() -> Any:
        model = _recurrent_gemma()
        model.model.embed_tokens.weight.data[0] = torch.randn(32)  # of the token that pads, else zeros
        return model

    model, _ = exported(build, tmp_path / "out")
    inputs = prompts((5, 2))
    said = model.generate(**inputs, max_new_tokens=1, do_sample=False, output_logits=True, return_dict_in_generate=True)
    loaded, past = load(tmp_path / "out"), None
    for place in range(5):
        ids, mask = inputs["input_ids"][:, place : place + 1], inputs["attention_mask"][:, : place + 1]
        out = loaded(input_ids=ids, attention_mask=mask, past_key_values=past)
        past = out.past_key_values
    torch.testing.assert_close(out.logits[:, -1], said.logits[0], rtol=1e-4, atol=1e-4)
