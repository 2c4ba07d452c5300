"""Models whose later steps take more than the last token: a graph for the prompt, and one for all tokens so far."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as T

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.parts import cached_parts
from fx2onnx.decoding.recipes.prepared_inputs import fits
from fx2onnx.decoding.recipes.recipe import FolderRequest
from fx2onnx.generation import load
from fx2onnx.sources.source import Source
from tests.decoding.test_decoders import DECODERS, assert_same_tokens, assert_verified, exported, prompts

MODELS: dict[str, Callable[[], Any]] = {
    # Feeds back two tokens and one that stands for the next; its cache counts that one, too.
    "xlnet": lambda: T.XLNetLMHeadModel(T.XLNetConfig(vocab_size=60, d_model=32, n_layer=2, n_head=4, d_inner=64)),
    # Takes all tokens and cuts off what the cache holds, behind a learned prompt that the cache holds, too.
    "cpmant": lambda: T.CpmAntForCausalLM(
        T.CpmAntConfig(
            vocab_size=60,
            hidden_size=32,
            num_attention_heads=4,
            dim_head=8,
            dim_ff=64,
            num_hidden_layers=2,
            prompt_length=9,
            prompt_types=4,
        )
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_models_that_prepare_their_steps_generate_what_transformers_does(name: str, tmp_path: Path) -> None:
    model, done = exported(MODELS[name], tmp_path / "out")
    assert set(done.reports) == {"prompt_model.onnx", "decoder_model.onnx"}
    assert_verified(done)
    assert_same_tokens(model, done, *map(prompts, ((1,), (4, 2), (9, 7, 3))))


@pytest.mark.long
def test_a_call_without_a_cache_is_the_prompt_and_one_with_it_takes_all_tokens(tmp_path: Path) -> None:
    model, _ = exported(MODELS["cpmant"], tmp_path / "out")
    ids = prompts((5, 3))["input_ids"]
    loaded = load(tmp_path / "out")
    first = loaded(input_ids=ids[:, :4])
    later = loaded(input_ids=ids, past_key_values=first.past_key_values)
    with torch.no_grad():
        prompt = model(input_ids=ids[:, :4], use_cache=True)
        step = model(input_ids=ids, past_key_values=prompt.past_key_values)
    for seen, expected in ((first.logits, prompt.logits), (later.logits, step.logits)):
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_caches_of_fixed_size_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="no cache of fixed size"):
        cached_parts(Source("model", MODELS[name]().eval()), "static")


@pytest.mark.long_cases("mamba")
@pytest.mark.parametrize("name", ["gpt2", "mamba", "xlstm"])
def test_other_decoders_take_the_last_token(name: str) -> None:
    assert not fits(FolderRequest(Source("model", DECODERS[name]())))
