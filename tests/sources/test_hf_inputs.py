"""Sample inputs of models that need more than their main input, or need it in another form; no transformers model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fx2onnx.sources.hf.inputs import baked_inputs, sample_inputs
from fx2onnx.sources.source import Options


class Model(nn.Module):
    """What the sampler asks of a transformers model."""

    main_input_name = "input_ids"

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=50, model_type="none", **fields)
        self.layers = nn.ModuleList()


class WantsBoth(Model):
    def forward(
        self, input_ids: torch.Tensor | None = None, pixel_values: torch.Tensor | None = None, bbox: Any = None
    ) -> torch.Tensor:
        if pixel_values is None:
            raise ValueError("You have to specify pixel_values")
        return pixel_values.sum()


class ListensFirst(Model):
    main_input_name = "input_features"

    def __init__(self, stem: nn.Module) -> None:
        super().__init__(num_mel_bins=80)
        self.layers.append(stem)

    def forward(self, input_features: torch.Tensor) -> torch.Tensor:
        self.last = self.layers[0](input_features)
        return self.last


class TakesPatches(Model):
    main_input_name = "pixel_values"

    def __init__(self) -> None:
        super().__init__(patch_size=4)
        self.layers.append(nn.Linear(96, 8))

    def forward(self, pixel_values: torch.Tensor, grid_thw: torch.Tensor) -> torch.Tensor:
        return self.layers[0](pixel_values)


class TakesTokens(Model):
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> None:
        raise AssertionError("there is one way to call this model, so nothing has to be tried")


def test_inputs_that_a_model_cannot_do_without_are_added() -> None:
    samples, axes = sample_inputs(WantsBoth(image_size=8), Options())
    assert {name: list(value.shape) for name, value in samples.items()} == {
        "input_ids": [2, 16],
        "pixel_values": [2, 3, 8, 8],
        "bbox": [2, 16, 4],
    }
    assert axes["pixel_values"] == {0: "batch"}


@pytest.mark.parametrize(
    ("stem", "expected"), [(nn.Conv1d(24, 4, 3), [2, 24, 128]), (nn.Linear(320, 4), [2, 64, 320]), (nn.Linear(80, 4), [2, 64, 80])]
)  # fmt: skip
def test_frames_are_as_wide_as_the_first_layer(stem: nn.Module, expected: list[int]) -> None:
    samples, _ = sample_inputs(ListensFirst(stem), Options())
    assert list(samples["input_features"].shape) == expected


def test_patches_are_as_wide_as_the_layer_that_embeds_them() -> None:
    samples, _ = sample_inputs(TakesPatches(), Options())
    assert {name: list(value.shape) for name, value in samples.items()} == {
        "pixel_values": [16, 96],
        "grid_thw": [1, 3],
    }
    assert baked_inputs(samples) == ("grid_thw",)


def test_the_trial_leaves_nothing_in_the_module() -> None:
    module = ListensFirst(nn.Linear(320, 4))
    sample_inputs(module, Options())
    assert not hasattr(module, "last")


def test_one_way_to_call_a_model_is_not_tried() -> None:
    samples, _ = sample_inputs(TakesTokens(), Options())
    assert list(samples) == ["input_ids", "attention_mask"]


class Speaks(Model):
    """As SpeechT5: without its own frames the decoder fails, and a voice is what its users give."""

    def forward(
        self,
        input_ids: torch.Tensor,
        decoder_input_values: torch.Tensor | None = None,
        speaker_embeddings: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert decoder_input_values is not None
        assert speaker_embeddings is not None
        return decoder_input_values


def test_a_decoder_of_sound_gets_its_frames_and_a_voice() -> None:
    model = Speaks(is_encoder_decoder=True, num_mel_bins=4, speaker_embedding_dim=6)
    samples, axes = sample_inputs(model, Options(batch=3))
    assert list(samples) == ["input_ids", "decoder_input_values", "speaker_embeddings"]
    assert samples["decoder_input_values"].shape[::2] == (3, 4)
    assert samples["speaker_embeddings"].shape == (3, 6)
    assert axes["decoder_input_values"] == {0: "batch", 1: "decoder_sequence"}
