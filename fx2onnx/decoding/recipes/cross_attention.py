"""Models that hand what they make of their images to the language model at every step.

IDEFICS gives states of its images with the first step and takes them back with each later one; BLIP's own ``generate``
gives its language model the states that cross attention reads. ``vision_encoder.onnx`` gives them under the names of the
language model's arguments, and with them what cross attention keeps of them; ``decoder_model.onnx`` takes both at every
step. No model is named: what a later step takes is what the model's own ``prepare_inputs_for_generation`` makes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.layout import CacheLayout
from fx2onnx.decoding.cache.module_state import CACHE_ARGUMENTS
from fx2onnx.decoding.decoder import CachedDecoder, prompt_of, trial
from fx2onnx.decoding.probes import EnoughSeen
from fx2onnx.decoding.recipes.encoder_decoder import encoder_states
from fx2onnx.decoding.recipes.image_prompt import (
    choices_of,
    image_source,
    prompt_and_decoder,
    sizes_of,
    step_source,
    takes_images,
)
from fx2onnx.decoding.recipes.modality import modalities_of
from fx2onnx.decoding.recipes.recipe import FolderPart, FolderRequest, ModelPart, TextOnly, language_of
from fx2onnx.manifest.form import PromptRewrite
from fx2onnx.manifest.names import DECODER_FILE, IMAGE_FILE, PRESENT, SEQUENCE
from fx2onnx.sources.hf.sample_context import InputFactory, SampleContext, samples_of
from fx2onnx.sources.hf.transformers_types import Inputs, Model
from fx2onnx.sources.light_run import run_lightly
from fx2onnx.sources.source import Options, Source

_TEXT = ("input_ids", "attention_mask", "position_ids", "inputs_embeds")


@dataclass(frozen=True)
class CrossAttentionTrials:
    """Trials of a model with cross-attention to images: the functions that make images, the tensors made of them by the
    name of the language model's argument, and the cache of a prompt with them, in which some tensors are the images'
    alone."""

    factories: Mapping[str, InputFactory]
    made: Mapping[str, torch.Tensor]
    cache_argument: str
    layout: CacheLayout

    @property
    def given(self) -> list[str]:
        return encoder_states(self.layout)

    @property
    def by_token(self) -> dict[str, InputFactory]:
        """The factories of arguments beside the images that have a row for each token."""
        return {name: factory for name, factory in self.factories.items() if SEQUENCE in factory.axes.values()}


class ImagePart(ModelPart[CrossAttentionTrials]):
    """Images [batch, ...] as what the language model takes at every step, and what its cross attention keeps."""

    def forward(self, **images: torch.Tensor) -> Inputs:
        first = next(iter(images.values()))
        # One token is enough: what depends on it is dropped from the graph.
        ids = torch.zeros(first.shape[0], 1, dtype=torch.int64, device=first.device)
        one = SampleContext(self.model.config, Options(batch=1, seq=1), self.model)
        masks, _ = samples_of(self.facts.by_token, one)
        spread = {name: mask.expand(first.shape[0], *mask.shape[1:]) for name, mask in masks.items()}
        made = made_of(self.model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), **images, **spread})
        if not self.facts.given:
            return made
        result = language_of(self.model)(input_ids=ids, **made, use_cache=True, return_dict=True)
        states = self.facts.layout.taken_from(result[self.facts.cache_argument])
        return made | {PRESENT + name: states[name] for name in self.facts.given}


class CarryingDecoder(CachedDecoder):
    """The language model with its cache, of which the images' part is given and stays."""

    def __init__(self, language: Model, carried: CrossAttentionTrials) -> None:
        super().__init__(language, carried.cache_argument, carried.layout, given=carried.given)
        self._made = carried.made

    def arguments(self, plain: Mapping[str, torch.Tensor], _: Mapping[str, torch.Tensor]) -> dict[str, object]:
        """States of the encoder that only cross attention reads are in the cache, and dropped from the graph."""
        ids = plain["input_ids"]
        unread = {
            name: torch.zeros(ids.shape[0], *sample.shape[1:], dtype=sample.dtype, device=ids.device)
            for name, sample in self._made.items()
            if name not in plain
        }
        return {**plain, **unread}


def fits(request: FolderRequest) -> bool:
    return request.images and takes_images(request.model) and not modalities_of(request.model)


def parts(request: FolderRequest) -> list[FolderPart] | TextOnly:
    try:
        return [request.part(file, form) for file, form in image_parts(request).items()]
    except UserError as error:
        return TextOnly(error.what)


def image_parts(request: FolderRequest) -> dict[str, Source]:
    """The parts of a model whose images enter the language model itself, by file name.

    Raises:   UserError E601 where its arguments are not known, or it keeps nothing between calls.
    """
    model = request.model
    carried = None if runs_on_text(model) else _carried(model)
    if carried is None:
        return prompt_and_decoder(request)
    return {
        IMAGE_FILE: image_source(request, ImagePart(model, carried), carried.factories),
        DECODER_FILE: _decoder_source(request, carried),
    }


def made_of(model: Model, inputs: Mapping[str, torch.Tensor]) -> Inputs:
    """The arguments that the language model takes at a later step and that were made of the images in ``inputs``."""
    language, ids = language_of(model), inputs["input_ids"]
    if language is model:
        result = model(**inputs, use_cache=True, return_dict=True)
        beside = {name: value for name, value in inputs.items() if name != "input_ids"}
        handed: dict[str, Any] = model._update_model_kwargs_for_generation(result, {**beside, "use_cache": True})
        ids = torch.cat([ids, ids[:, -1:]], dim=1)
    else:
        handed = handed_over(model, language, inputs)
        ids = handed.pop("input_ids", ids)
    handed = {
        name: value for name, value in handed.items() if isinstance(value, torch.Tensor) or name in CACHE_ARGUMENTS
    }
    handed["use_cache"] = True
    step = language.prepare_inputs_for_generation(ids, **handed, is_first_iteration=False, next_sequence_length=1)
    known = inspect.signature(language.forward).parameters
    return {
        name: value
        for name, value in step.items()
        if isinstance(value, torch.Tensor) and name in known and name not in (*_TEXT, *inputs)
    }


def handed_over(model: Model, language: Model, inputs: Mapping[str, object]) -> dict[str, Any]:
    """The arguments with which the model's own ``generate`` calls that of the language model inside."""
    seen: dict[str, Any] = {}

    def look(**arguments: object) -> NoReturn:
        seen.update(arguments)
        raise EnoughSeen

    language.generate = look
    try:
        with suppress(EnoughSeen):
            model.generate(**inputs)
    finally:
        del language.generate
    return seen


_PROBE_TOKENS = 5


def prompt_rewrite(model: Model) -> PromptRewrite | None:
    """The change that the model's own ``generate`` makes to the prompt that it hands over with images; None where
    nothing of an image is handed over. Read from one call with a prompt of distinct tokens.

    Raises:   UserError E601 where it changes prompts in another way.
    """
    language = language_of(model)
    if language is model or not takes_images(model) or modalities_of(model):
        return None
    if any(value.is_meta for value in model.parameters()):  # no numbers to read it from
        return None
    ids = torch.arange(10, 10 + _PROBE_TOKENS)[None]
    context = SampleContext(model.config, Options(batch=1, seq=_PROBE_TOKENS), model)
    media, _ = samples_of(next(choices_of(model)), context)
    seen = handed_over(model, language, {"input_ids": ids.clone(), "attention_mask": torch.ones_like(ids), **media})
    handed = seen["input_ids"]
    kept = handed.shape[1]
    if kept > _PROBE_TOKENS or not torch.equal(handed[:, 1:], ids[:, 1:kept]):
        raise UserError(
            "E601",
            f"{type(model).__name__} changes a prompt by rules of its own",
            why=f"its generate makes {handed.tolist()} of {ids.tolist()}",
        )
    first = int(handed[0, 0]) if handed[0, 0] != ids[0, 0] else None
    end, pad = (seen[name] if isinstance(seen.get(name), int) else None for name in ("eos_token_id", "pad_token_id"))
    return PromptRewrite(_PROBE_TOKENS - kept, first, end, pad)


def runs_on_text(model: Model) -> bool:
    """Return whether forward takes a prompt without images."""
    if language_of(model) is not model:
        return False
    try:
        trial(model, prompt_of(model, sizes_of(model)))
    except UserError:
        return True  # which other recipes report
    except Exception:  # a model raises whatever the lack of images leads to
        return False
    return True


def _carried(model: Model) -> CrossAttentionTrials | None:
    """The findings of a trial run with images; None where later steps take nothing that was made of them."""
    language, sizes = language_of(model), sizes_of(model)
    context = SampleContext(model.config, Options(batch=sizes.batch, seq=sizes.past), model)
    text = {name: value for name, value in prompt_of(language, sizes).items() if name != "position_ids"}
    for factories in choices_of(model):
        media, _ = samples_of(factories, context)
        try:
            made = run_lightly(model, lambda **inputs: made_of(model, inputs), {**text, **media})
        except Exception:  # a model raises whatever an input of another shape leads to
            continue
        if not made:
            return None
        samples = {name: torch.ones(value.shape, dtype=value.dtype) for name, value in made.items()}
        masks = {name: media[name] for name, factory in factories.items() if SEQUENCE in factory.axes.values()}
        cache_argument, cache = trial(language, {**text, **samples, **masks})
        return CrossAttentionTrials(factories, samples, cache_argument, CacheLayout(cache, sizes))
    return None


def _decoder_source(request: FolderRequest, carried: CrossAttentionTrials) -> Source:
    decoder = CarryingDecoder(request.language, carried)
    made: Inputs = {}
    for key, sample in carried.made.items():
        sized = torch.randn if sample.dtype.is_floating_point else partial(torch.ones, dtype=sample.dtype)
        made[key] = sized(request.options.batch_or(), *sample.shape[1:])
    return step_source(request, decoder, carried.layout, carried.by_token, made)
