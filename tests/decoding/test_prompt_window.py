"""Caches that keep the whole prompt and a window of what follows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fx2onnx.decoding.parts import Assembly, cached_parts
from fx2onnx.decoding.reference_generate import generate_eagerly
from fx2onnx.exporting.folder import export_assembly
from fx2onnx.generation import load
from fx2onnx.sources.source import Source
from studies import coverage_generation, coverage_prompts

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
