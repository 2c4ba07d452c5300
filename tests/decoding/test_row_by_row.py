"""Models whose own step adds the rows of a batch to one another: the truth is what each row gets alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as T

from fx2onnx.decoding.reference_generate import generate_eagerly, generate_rows
from fx2onnx.generation import load
from tests.decoding.test_decoders import DECODERS, ENGINES, exported, prompts


def _rwkv() -> Any:
    config = T.RwkvConfig(hidden_size=32, attention_hidden_size=32, num_hidden_layers=2, vocab_size=60)
    model = T.RwkvForCausalLM(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    return model


@pytest.mark.long
def test_rows_of_a_batch_get_what_each_gets_alone(tmp_path: Path) -> None:
    model, _ = exported(_rwkv, tmp_path / "out")
    inputs = prompts((5, 3, 4))
    expected, by_row = generate_rows(model, inputs, 8)
    assert by_row
    assert not torch.equal(generate_eagerly(model, inputs, 8), expected)  # else there would be nothing to say
    for engine in ENGINES:
        assert torch.equal(load(tmp_path / "out", engine).generate(**inputs, max_new_tokens=8), expected), engine


def test_other_models_are_taken_at_their_word() -> None:
    model = DECODERS["llama"]().eval()
    inputs = prompts((4, 2))
    tokens, by_row = generate_rows(model, inputs, 4)
    assert not by_row
    assert torch.equal(tokens, generate_eagerly(model, inputs, 4))
