"""Models whose own ``generate`` hands over to a language model inside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationMixin

from fx2onnx.decoding.recipes.modality import modalities_of
from fx2onnx.decoding.recipes.recipe import language_of
from studies.coverage_generation import examine


class Language(torch.nn.Module, GenerationMixin):
    pass


class Whole(torch.nn.Module, GenerationMixin):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(1, 1)
        self.language = Language()


class HandsOver(Whole):
    @torch.no_grad()
    def generate(self, pixel_values: Any) -> Any:  # type: ignore[override]
        return self.language.generate(inputs_embeds=self.encoder(pixel_values))


class GoesOn(Whole):
    def generate(self, pixel_values: Any) -> Any:  # type: ignore[override]
        return super().generate(inputs_embeds=self.language(self.encoder(pixel_values)))


class DoesItself(Whole):
    def generate(self, pixel_values: Any) -> Any:  # type: ignore[override]
        return self.encoder(pixel_values)


def test_the_child_that_generate_calls_is_the_language_model() -> None:
    model = HandsOver()
    assert language_of(model) is model.language


@pytest.mark.parametrize("kind", [Whole, GoesOn, DoesItself])
def test_others_generate_themselves(kind: type[Whole]) -> None:
    model = kind()
    assert language_of(model) is model


class Config:
    vision_config = audio_config = object()
    image_token_id, video_token_id = 9, 8


class SeesFilms(torch.nn.Module):
    config = Config
    base_model = None

    def get_video_features(self, pixel_values: Any) -> Any: ...


class SeesBoth(torch.nn.Module):
    config = Config
    base_model = None

    def get_image_features(self, pixel_values: Any) -> Any: ...

    def get_video_features(self, pixel_values_videos: Any) -> Any: ...


@pytest.mark.parametrize(("kind", "method"), [(SeesFilms, "get_video_features"), (SeesBoth, "get_image_features")])
def test_videos_are_the_images_of_models_that_see_nothing_else(kind: type[torch.nn.Module], method: str) -> None:
    (found,) = modalities_of(kind())
    assert (found.name, found.method, found.argument) == ("image", method, "pixel_values")


@pytest.mark.long
def test_features_that_depend_on_a_text_of_their_own() -> None:
    row = examine("image-text-to-text", "instructblip")
    assert row["passed"] == "tokens", row
    notes = ["vision_encoder.onnx is right while qformer_sequence_length <= 512"]  # rows of its table of positions
    assert (row["form"], row["notes"]) == ("small", notes)


@pytest.mark.slow  # a whole export and two generations each
@pytest.mark.parametrize("name", ["kosmos-2"])
def test_tokens_are_those_of_transformers(name: str) -> None:
    row = examine("image-text-to-text", name)
    assert row["passed"] == "tokens", row
