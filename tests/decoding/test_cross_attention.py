"""Models that hand what they make of their images to the language model at every step."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationMixin

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.parts import Assembly, cached_parts
from fx2onnx.decoding.recipes import cross_attention
from fx2onnx.decoding.recipes.cross_attention import handed_over, made_of, prompt_rewrite
from fx2onnx.exporting.folder import export_assembly
from fx2onnx.generation import load
from fx2onnx.generation.prompt import rewritten
from fx2onnx.manifest.form import PromptRewrite
from fx2onnx.sources.source import Source
from studies.coverage_generation import _model, examine
from studies.coverage_prompts import with_images


class Language(torch.nn.Module, GenerationMixin):
    def forward(
        self, input_ids: Any = None, attention_mask: Any = None, encoder_states: Any = None, at_first: Any = None
    ) -> Any: ...

    def prepare_inputs_for_generation(self, input_ids: Any, **given: Any) -> dict[str, Any]:  # type: ignore[override]
        if given.pop("use_cache", False) and not given.pop("is_first_iteration", True):
            given["at_first"] = None  # a cache holds what was made of it
        return {"input_ids": input_ids, **given}


class HandsOver(torch.nn.Module, GenerationMixin):
    """Its own ``generate`` leaves out the last token."""

    def __init__(self) -> None:
        super().__init__()
        self.language = Language()

    def generate(self, pixel_values: Any, input_ids: Any, attention_mask: Any = None) -> Any:  # type: ignore[override]
        return self.language.generate(
            input_ids=input_ids[:, :-1],
            attention_mask=attention_mask[:, :-1],
            encoder_states=pixel_values * 2,
            at_first=pixel_values,
            unread=pixel_values,
            eos_token_id=3,
        )


class ChangesPrompts(HandsOver):
    """Its own ``generate`` begins every prompt with a token."""

    config = object()

    def forward(self, pixel_values: Any, input_ids: Any) -> Any: ...

    def generate(self, pixel_values: Any, input_ids: Any, attention_mask: Any = None) -> Any:  # type: ignore[override]
        input_ids[:, 0] = 99
        return self.language.generate(input_ids=input_ids[:, :-2], encoder_states=pixel_values, pad_token_id=8)


class MixesPrompts(ChangesPrompts):
    def generate(self, pixel_values: Any, input_ids: Any, attention_mask: Any = None) -> Any:  # type: ignore[override]
        return self.language.generate(input_ids=input_ids.flip(1))


class GivesBack(torch.nn.Module, GenerationMixin):
    """Gives states of its images with a step, and takes them as another argument at later ones."""

    def forward(self, input_ids: Any, pixel_values: Any = None, states: Any = None, **_: Any) -> Any:
        return {"logits": input_ids, "image_states": pixel_values + 1}

    def _update_model_kwargs_for_generation(self, outputs: Any, given: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        return {"past": outputs["image_states"], **given}

    def prepare_inputs_for_generation(self, input_ids: Any, past: Any, **_: Any) -> dict[str, Any]:  # type: ignore[override]
        return {"input_ids": input_ids, "states": past}


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.tensor([[5, 6, 7]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.full((1, 2), 4.0)}


def test_what_a_models_own_generate_hands_over() -> None:
    model = HandsOver()
    seen = handed_over(model, model.language, inputs())
    assert seen["input_ids"].tolist() == [[5, 6]]
    assert seen["eos_token_id"] == 3
    assert "generate" not in vars(model.language), "its own again"


def test_the_language_model_takes_what_its_forward_names() -> None:
    found = made_of(HandsOver(), inputs())
    assert {name: value.tolist() for name, value in found.items()} == {"encoder_states": [[8.0, 8.0]]}


def test_states_that_come_back_at_a_later_step() -> None:
    found = made_of(GivesBack(), inputs())
    assert {name: value.tolist() for name, value in found.items()} == {"states": [[5.0, 5.0]]}


def test_how_a_models_own_generate_changes_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_attention, "modalities_of", lambda _: [])
    monkeypatch.setattr(cross_attention, "choices_of", lambda _: iter([{}]))
    given = partial(ChangesPrompts.generate, pixel_values=torch.zeros(1, 2))
    model = ChangesPrompts()
    monkeypatch.setattr(model, "generate", partial(given, model))
    assert prompt_rewrite(model) == PromptRewrite(left_out=2, first_token=99, pad_token_id=8)


def test_prompts_that_are_changed_in_another_way_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_attention, "modalities_of", lambda _: [])
    monkeypatch.setattr(cross_attention, "choices_of", lambda _: iter([{}]))
    model = MixesPrompts()
    monkeypatch.setattr(model, "generate", partial(model.generate, torch.zeros(1, 2)))
    with pytest.raises(UserError, match="rules of its own"):
        prompt_rewrite(model)


def test_a_prompt_is_changed_as_the_model_would() -> None:
    ids = np.array([[5, 6, 7], [0, 8, 9]])
    found = rewritten(PromptRewrite(1, 99), {"input_ids": ids, "attention_mask": ids != 0, "other": ids})
    assert found["input_ids"].tolist() == [[99, 6], [99, 8]]
    assert found["attention_mask"].tolist() == [[True, True], [False, True]]
    assert found["other"] is ids
    assert rewritten(None, {"input_ids": ids})["input_ids"] is ids
    with pytest.raises(UserError, match="too short"):
        rewritten(PromptRewrite(3), {"input_ids": ids})


@pytest.mark.long
def test_one_call_of_the_whole_shows_each_token_the_images_that_its_mask_says(tmp_path: Path) -> None:
    model = _model("image-text-to-text", "idefics", "small")
    given = with_images(model)
    assert not given["image_attention_mask"][1].all()
    export_assembly(Assembly(model, cached_parts(Source("idefics", model)), None, ""), tmp_path / "out")
    with torch.no_grad():
        expected = model(**given)["logits"]
    found = load(tmp_path / "out", "runner")(**given)["logits"]
    seen = given["attention_mask"].bool()
    torch.testing.assert_close(found[seen], expected[seen], rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # a whole export and two generations each
@pytest.mark.parametrize("name", ["blip", "idefics"])
def test_tokens_are_those_of_transformers(name: str) -> None:
    row = examine("image-text-to-text", name)
    assert row["passed"] == "tokens", row
