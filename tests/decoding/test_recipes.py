"""The table of recipes, and what each does without a whole export."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.decoding import parts as table
from fx2onnx.decoding.cache import static
from fx2onnx.decoding.recipes import delay_pattern, encoder_decoder, image_prompt, plain_decoder
from fx2onnx.decoding.recipes.recipe import MANY_BLOCKS, FolderPart, FolderRequest, TextOnly
from fx2onnx.files.safetensors import WeightFile
from fx2onnx.sources.source import Options, Source


class Config(SimpleNamespace):
    model_type = "any"

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


class Model(torch.nn.Module):
    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self.config = Config(use_cache=False, **fields)
        self.base_model = self

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return input_ids


def recipe(fits: bool, result: list[FolderPart] | TextOnly) -> Any:
    return SimpleNamespace(fits=lambda _: fits, parts=lambda _: result)


def test_the_first_recipe_that_fits_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [FolderPart("first.onnx", ())], [FolderPart("second.onnx", ())]
    monkeypatch.setattr(table, "RECIPES", (recipe(False, []), recipe(True, first), recipe(True, second)))
    model = Model()
    assert table.cached_parts(Source("m", model)) == first
    assert model.config.use_cache, "which a source has switched off"


def test_why_a_recipe_made_nothing_is_noted_on_every_file_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    text = [FolderPart("a.onnx", ()), FolderPart("b.onnx", ())]
    monkeypatch.setattr(table, "RECIPES", (recipe(True, TextOnly("odd images")), recipe(True, text)))
    assert [part.note for part in table.cached_parts(Source("m", Model()))] == ["text only: odd images"] * 2


def test_the_last_recipe_fits_every_model_and_a_fixed_size_is_asked_for_first() -> None:
    assert table.RECIPES[-1] is plain_decoder
    assert plain_decoder.fits(FolderRequest(Source("m", Model())))
    assert table.RECIPES[0] is static
    assert [static.fits(FolderRequest(Source("m", Model()), cache)) for cache in ("static", "dynamic")] == [
        True,
        False,
    ]


def test_encoder_decoders_have_no_cache_of_fixed_size() -> None:
    request = FolderRequest(Source("m", Model(is_encoder_decoder=True)), "static")
    assert encoder_decoder.fits(request)
    with pytest.raises(UserError, match="only decoders have"):
        static.parts(request)


def test_files_keep_the_weights_and_the_origin_of_their_source() -> None:
    whole = Source("m", Model(), origin="somewhere", has_weights=False, weight_files=[WeightFile("w", 0, 1)])
    made = Source("m", Model())
    forms = [form() for form in FolderRequest(whole).part("model.onnx", made, lambda: made).forms]
    assert [(form.origin, form.has_weights, form.weight_files) for form in forms] == [
        ("somewhere", False, whole.weight_files)
    ] * 2
    assert forms[0].module is made.module


def test_a_decoder_is_tried_on_many_tokens_then_on_one() -> None:
    asked: list[dict[str, Any]] = []

    def make(**how: Any) -> Source:
        asked.append(how)
        return Source("m", Model())

    part = FolderRequest(Source("m", Model())).decoder_part("model.onnx", make)
    assert asked == [{}], "made at once, so that a model without cache says so before files are written"
    for form in part.forms:
        form()
    assert asked[1:] == [{"one_token": True}, {"one_token": True, "past": MANY_BLOCKS}]
    assert part.prompt is not None
    part.prompt()
    assert asked[3:] == [{"whole_prompt": True}]


def test_the_sizes_of_samples_are_those_of_the_request() -> None:
    request = FolderRequest(Source("m", Model()), options=Options(batch=3, seq=5))
    assert (request.context().batch, request.context().seq, request.context(seq=7).seq) == (3, 5, 7)


def test_codebooks_are_delayed_as_the_config_says_or_as_the_models_mask_shows() -> None:
    assert delay_pattern.delays_of(Model(delay_pattern=[0, 2, 3])) == [0, 2, 3]
    assert delay_pattern.delays_of(Model()) == []

    class Shifts(Model):
        def build_delay_pattern_mask(self, ids: torch.Tensor, pad_token_id: int, max_length: int) -> Any:
            mask = torch.full((len(ids), max_length), -1)
            for row in range(len(ids)):
                mask[row, : row + 1] = pad_token_id
            return ids, mask

    model = Shifts()
    model.config.get_text_config = lambda decoder: SimpleNamespace(num_codebooks=3)
    assert delay_pattern.delays_of(model) == [0, 1, 2]


def test_masks_of_an_encoder_differ_from_pooled_states_in_a_second_run() -> None:
    def run(length: int) -> dict[str, torch.Tensor]:
        return {
            "last_hidden_state": torch.zeros(1, length, 8),
            "mask": torch.zeros(1, length),
            "pooled": torch.zeros(1, 8),
        }

    sample = {f"encoder_{name}": value for name, value in run(8).items()} | {"last_hidden_state": torch.zeros(1, 8, 8)}
    del sample["encoder_last_hidden_state"]
    assert encoder_decoder._one_number_a_position(sample, run(5)) == {"encoder_mask"}


def test_ids_of_codebooks_become_columns() -> None:
    ids = torch.arange(12).reshape(4, 3)  # two rows for each of two codebooks
    assert encoder_decoder._in_columns(Model(delay_pattern=[0, 1]), ids)[1].tolist() == [[6, 9], [7, 10], [8, 11]]
    assert encoder_decoder._in_columns(Model(), ids) is ids


class Sees(Model):
    def forward(self, pixel_values: Any, aspect_ratio_ids: Any, input_ids: Any) -> Any: ...  # type: ignore[override]


def test_arguments_of_images_are_tried_in_every_form() -> None:
    model = Sees(latent_query_num=60)
    assert image_prompt.takes_images(model)
    assert not image_prompt.takes_images(Model())
    choices = list(image_prompt.choices_of(model))
    assert [list(choice) for choice in choices] == [["pixel_values", "aspect_ratio_ids"]] * 3
    assert len({id(choice["pixel_values"]) for choice in choices}) == 3


def test_a_trial_prompt_has_room_for_the_places_of_an_image() -> None:
    sizes = image_prompt.sizes_of(Sees(latent_query_num=60))
    assert sizes.past > 61
    assert all(sizes.past % k for k in range(2, sizes.past)), "a prime, so that it is known where it turns up"
