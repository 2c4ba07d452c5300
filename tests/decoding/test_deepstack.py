"""What language models take beside embedded tokens: features behind the first layers, a second embedding per layer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.parts import Assembly, cached_parts
from fx2onnx.decoding.recipes.modality import DEEP, KINDS, PER_LAYER, behind_layers, deep_features, embedded_as
from fx2onnx.decoding.reference_generate import generate_eagerly
from fx2onnx.exporting.folder import export_assembly
from fx2onnx.generation import load
from fx2onnx.sources.source import Source
from studies import coverage_generation, coverage_prompts


@pytest.mark.long
@pytest.mark.parametrize(("name", "beside"), [("qwen3_vl", DEEP), ("gemma4", PER_LAYER), ("gemma4_unified", KINDS)])
def test_what_comes_beside_embedded_tokens_reaches_the_layers(name: str, beside: str, tmp_path: Path) -> None:
    model = coverage_generation._model("image-text-to-text", name, "small")
    for weight in model.parameters():
        weight.data.mul_(4 if weight.dim() > 1 else 1)  # so that tokens tell a wrong feature
    inputs = coverage_prompts.with_images(model)
    expected = generate_eagerly(model, inputs, 6)
    done = export_assembly(Assembly(model, cached_parts(Source("model", model)), None, ""), tmp_path / "out")
    assert beside in done.sources["decoder_model.onnx"].kwargs
    for engine in ("onnxruntime", "runner"):
        loaded = load(tmp_path / "out", engine)
        known = {"input_ids", "attention_mask", *loaded.graphs["vision_encoder"].inputs}
        given = {key: value for key, value in inputs.items() if key in known}
        assert torch.equal(loaded.generate(**given, max_new_tokens=6), expected), engine
    decoder = done.sources["decoder_model.onnx"]
    empty = {key: value[:, :, :0] for key, value in decoder.kwargs.items() if key.startswith("past_key_values")}
    prompt = {**decoder.kwargs, **empty, "attention_mask": torch.ones_like(decoder.kwargs["attention_mask"][:, -4:])}
    given = prompt.pop(beside)
    logits = [decoder.module(**prompt, **{beside: fill(given)}) for fill in (torch.zeros_like, torch.ones_like)]
    assert not torch.allclose(*(found["logits"] for found in logits))


class Adding(torch.nn.Module):
    def _deepstack_process(self, states: Any, mask: Any, added: Any) -> Any:
        raise AssertionError("the class's own method selects rows by a mask")

    def forward(self, states: torch.Tensor, deepstack_visual_embeds: Any = None) -> torch.Tensor:
        for added in deepstack_visual_embeds or ():
            states = self._deepstack_process(2 * states, None, added)
        return states


def test_features_are_added_behind_each_layer_and_the_model_stays_as_it_was() -> None:
    model = torch.nn.Sequential(Adding())
    features = torch.tensor([[[[1.0], [10.0]]]])
    with behind_layers(model, features):
        assert model(torch.ones(1, 1, 1)).item() == 2 * (2 + 1) + 10
    assert model(torch.ones(1, 1, 1)).item() == 1
    assert "_deepstack_process" not in vars(model[0])
    assert not model[0]._forward_pre_hooks


def test_features_for_later_layers_are_not_dropped_in_silence() -> None:
    levels = {DEEP: [(torch.ones(2, 3), torch.ones(1, 3)), (torch.zeros(3, 3),)]}
    found = deep_features(torch.nn.Sequential(Adding()), levels)
    assert found is not None
    assert found[:, 0].sum() == 9
    assert found.shape == (3, 2, 3)
    with pytest.raises(UserError, match="later layers by rules of its own"):
        deep_features(torch.nn.Linear(1, 1), levels)
    assert deep_features(torch.nn.Linear(1, 1), {DEEP: []}) is None


class Replaces(torch.nn.Module):
    """Embeds the token of videos as 0, as models do whose placeholders lie beyond their embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(image_token_id=7, video_token_id=8, eos_token_id=[1, 2], pad_token_id=None)
        self.words = torch.nn.Embedding(10, 4)
        self.calls = 0

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.words

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        found = self.words(input_ids.masked_fill(input_ids == 8, 0))
        self.calls += 1
        return found


def test_tokens_that_a_model_embeds_as_others_are_seen_without_running_it() -> None:
    model = Replaces()
    assert embedded_as(model) == {8: 0}
    assert model.calls == 0
    assert not model.words._forward_pre_hooks


class _Encoder(torch.nn.Module):
    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.config, self.base_model, self.mixes = SimpleNamespace(image_token_id=9), self, mixes

    def get_image_features(self, pixel_values: torch.Tensor, target_sizes: torch.Tensor, **_: Any) -> torch.Tensor:
        images = torch.stack(pixel_values.split(int(target_sizes[0, 0]), dim=-1))
        return images - images.mean(0) if self.mixes else images + 1


@pytest.mark.parametrize("mixes", [True, False])
def test_coverage_knows_features_that_depend_on_the_other_images(mixes: bool) -> None:
    inputs = {"input_ids": torch.arange(6).reshape(3, 2), "target_sizes": torch.full((3, 2), 4)}
    inputs["pixel_values"] = torch.arange(24.0).reshape(2, 12) ** 2
    row = coverage_prompts.row_of(inputs, 1)
    assert row["input_ids"].tolist() == [[2, 3]]
    assert torch.equal(row["pixel_values"], inputs["pixel_values"][:, 4:8])
    assert coverage_prompts.mixes_images(_Encoder(mixes), inputs) is mixes
