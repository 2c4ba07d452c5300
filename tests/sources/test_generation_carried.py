"""Models that hand what they make of their images to the language model at every step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.coverage_generation import examine
from fx2onnx.sources.generation_carried import handed_over, made_of
from fx2onnx.sources.torchvision_compat import prepare

prepare()
from transformers import GenerationMixin  # noqa: E402   after prepare(), which lets it find torchvision


class Language(torch.nn.Module, GenerationMixin):
    def forward(self, input_ids: Any = None, attention_mask: Any = None, encoder_states: Any = None) -> Any: ...

    def prepare_inputs_for_generation(self, input_ids: Any, **given: Any) -> dict[str, Any]:  # type: ignore[override]
        del given["is_first_iteration"], given["next_sequence_length"]
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
            unread=pixel_values,
            eos_token_id=3,
        )


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


@pytest.mark.slow  # a whole export and two generations each
@pytest.mark.parametrize("name", ["idefics"])
def test_tokens_are_those_of_transformers(name: str) -> None:
    row = examine("image-text-to-text", name)
    assert row["passed"] == "tokens", row
