"""Model types of image and text whose generation asks for a mechanism of its own, as the coverage measures them."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.parts import cached_parts
from fx2onnx.decoding.probes import adds_features, sees_kinds, settle
from fx2onnx.decoding.recipes.modality import KINDS
from fx2onnx.generation.media import drop_baked
from fx2onnx.sources.source import Source
from studies.coverage_generation import _model, examine

SLOW = ("chameleon", "glm5_next", "minicpmv4_7", "qwen4_exp", "emu3")  # prompts token by token, images of many tokens
CASES = (
    "udop",
    "pix2struct",
    "unlimited_ocr",
    "molmo2",
    "evolla",
    "granite4_vision",
    *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
)


@pytest.mark.long_cases(but=["chameleon", "glm5_next", "minicpmv4_7", "qwen4_exp", "emu3"])
@pytest.mark.parametrize("name", CASES)
def test_tokens_are_those_of_transformers(name: str) -> None:
    row = examine("image-text-to-text", name)
    assert row["passed"] == "tokens", row


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("name", "adds"), [("molmo2", True), ("qwen3_vl", False)])
def test_what_becomes_of_features_and_kinds_is_seen_without_running_layers(name: str, adds: bool, device: str) -> None:
    model = _model("image-text-to-text", name, "small").to(device)
    assert adds_features(model, model.config.image_token_id) is adds
    assert sees_kinds(model, KINDS, 64) is adds
    assert not model.get_input_embeddings()._forward_hooks
    assert not model.model.language_model._forward_pre_hooks


def test_the_last_form_of_a_decoder_has_a_past_of_several_blocks() -> None:
    model = _model("text-generation", "llama", "small")
    whole, one, long = (form() for form in cached_parts(Source("model", model))[-1].forms)
    for form, new, past in ((whole, 4, 6), (one, 1, 6), (long, 1, 1031)):
        assert form.kwargs["input_ids"].shape[1] == new
        assert form.kwargs["attention_mask"].shape[1] == new + past
        assert form.kwargs["past_key_values.0.key"].shape[2] == past


class _Helper:
    @functools.cached_property
    def table(self) -> torch.Tensor:
        return torch.arange(3)

    @functools.cached_property
    def missing(self) -> torch.Tensor:
        raise KeyError("a code without a token")


class _Mapping(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.helper = _Helper()


def test_what_helpers_keep_is_made_of_data() -> None:
    model = _Mapping()
    settle(torch.nn.Sequential(model))
    with FakeTensorMode():
        assert type(model.helper.table) is torch.Tensor


def test_places_that_count_through_the_images_of_a_call_are_those_of_each_alone() -> None:
    baked = [[0, 1, 2, 3], [4, -1, -1, -1]]
    constants = {"image_token_pooling": baked}
    second = [[10, 11, 12, 13], [14, -1, -1, -1]]
    drop_baked(constants, {"image_token_pooling": np.array(baked + second)})
    wrong = [[10, 11, 12, 13], [15, -1, -1, -1]]
    with pytest.raises(UserError, match="was exported for"):
        drop_baked(constants, {"image_token_pooling": np.array(baked + wrong)})
    with pytest.raises(UserError, match="was exported for"):
        drop_baked(constants, {"image_token_pooling": np.array(second[:1])})
