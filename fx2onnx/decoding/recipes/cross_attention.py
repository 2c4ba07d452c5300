"""Models that hand what they make of their images to the language model at every step.

IDEFICS gives states of its images with the first step and takes them back with each later one; BLIP's own ``generate``
gives its language model the states that cross attention reads. ``vision_encoder.onnx`` gives them under the names of the
language model's arguments, and with them what cross attention keeps of them; ``decoder_model.onnx`` takes both at every
step. No model is named: what a later step takes is what the model's own ``prepare_inputs_for_generation`` makes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.layout import Memory
from fx2onnx.decoding.decoder import (
    BATCH,
    NEXT_PREFIX,
    SEQUENCE,
    CachedDecoder,
    add_states,
    prompt_of,
    text_inputs,
    trial,
)
from fx2onnx.decoding.recipes.image_prompt import (
    DECODER_FILE,
    ENCODER_FILE,
    choices_of,
    prompt_and_decoder,
    sizes_of,
    takes_images,
)
from fx2onnx.decoding.recipes.inner_language_model import language_of
from fx2onnx.decoding.recipes.multimodal import modalities_of
from fx2onnx.sources.hf.sample_context import InputFactory, SampleContext
from fx2onnx.sources.light_run import run_lightly
from fx2onnx.sources.source import Options, Source

_CACHE = "past_key_values"
_TEXT = ("input_ids", "attention_mask", "position_ids", "inputs_embeds")


@dataclass(frozen=True)
class Carried:
    """How images are made, what is made of them by the name of the language model's argument, the cache of a prompt with
    them, and what of that is the images' alone."""

    makers: Mapping[str, InputFactory]
    made: Mapping[str, torch.Tensor]
    cache_argument: str
    memory: Memory

    @property
    def given(self) -> frozenset[str]:
        return frozenset(name for name, state in self.memory.states.items() if state.is_encoder)

    @property
    def by_token(self) -> dict[str, InputFactory]:
        """Those arguments beside the images that have a row for each token."""
        return {name: maker for name, maker in self.makers.items() if SEQUENCE in maker.axes.values()}


class ImagePart(torch.nn.Module):
    """Images [batch, ...] as what the language model takes at every step, and what its cross attention keeps."""

    def __init__(self, model: Any, carried: Carried) -> None:
        super().__init__()
        self.model = model
        self._carried = carried

    def forward(self, **images: torch.Tensor) -> dict[str, torch.Tensor]:
        first = next(iter(images.values()))
        # One token is enough: what depends on it is dropped from the graph.
        ids = torch.zeros(first.shape[0], 1, dtype=torch.int64, device=first.device)
        one = SampleContext(self.model.config, Options(batch=1, seq=1), self.model)
        masks = {name: maker.make(one) for name, maker in self._carried.by_token.items()}
        spread = {name: mask.expand(first.shape[0], *mask.shape[1:]) for name, mask in masks.items()}
        made = made_of(self.model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), **images, **spread})
        if not self._carried.given:
            return made
        result = language_of(self.model)(input_ids=ids, **made, use_cache=True, return_dict=True)
        states = self._carried.memory.taken_from(result[self._carried.cache_argument])
        return made | {NEXT_PREFIX + name: states[name] for name in self._carried.given}


class CarryingDecoder(CachedDecoder):
    """The language model with its cache, of which the images' part is given and stays."""

    def __init__(self, language: Any, carried: Carried) -> None:
        super().__init__(language, carried.cache_argument, carried.memory)
        self._given = {NEXT_PREFIX + name for name in carried.given}
        self._made = carried.made

    def arguments(self, plain: Mapping[str, torch.Tensor], _: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """States of the encoder that only cross attention reads are in the cache, and dropped from the graph."""
        ids = plain["input_ids"]
        unread = {
            name: torch.zeros(ids.shape[0], *sample.shape[1:], dtype=sample.dtype, device=ids.device)
            for name, sample in self._made.items()
            if name not in plain
        }
        return {**plain, **unread}

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: value for name, value in super().forward(**inputs).items() if name not in self._given}


def image_parts(model: Any, name: str, options: Options) -> dict[str, Source]:
    """The parts of a model whose images enter the language model itself, by file name.

    Raises:   UserError E601 where its arguments are not known, or it keeps nothing between calls.
    """
    carried = None if runs_on_text(model) else _carried(model)
    if carried is None:
        return prompt_and_decoder(model, name, options)
    return {
        ENCODER_FILE: _image_source(model, name, carried, options),
        DECODER_FILE: _decoder_source(model, name, carried, options),
    }


def made_of(model: Any, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the language model takes at a later step of what was made of the images in ``inputs``, by argument."""
    language, ids = language_of(model), inputs["input_ids"]
    if language is model:
        result = model(**inputs, use_cache=True, return_dict=True)
        beside = {name: value for name, value in inputs.items() if name != "input_ids"}
        handed = model._update_model_kwargs_for_generation(result, {**beside, "use_cache": True})
        ids = torch.cat([ids, ids[:, -1:]], dim=1)
    else:
        handed = handed_over(model, language, inputs)
        ids = handed.pop("input_ids", ids)
    handed = {name: value for name, value in handed.items() if isinstance(value, torch.Tensor) or name == _CACHE}
    handed["use_cache"] = True
    step = language.prepare_inputs_for_generation(ids, **handed, is_first_iteration=False, next_sequence_length=1)
    known = inspect.signature(language.forward).parameters
    return {
        name: value
        for name, value in step.items()
        if isinstance(value, torch.Tensor) and name in known and name not in (*_TEXT, *inputs)
    }


class _Seen(Exception):
    """Ends a run where the language model would generate."""


def handed_over(model: Any, language: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with which the model's own ``generate`` calls that of the language model inside."""
    seen: dict[str, Any] = {}

    def look(**arguments: Any) -> None:
        seen.update(arguments)
        raise _Seen

    with _replaced(language, look), suppress(_Seen):
        model.generate(**inputs)
    return seen


_PROBE_TOKENS = 5
_SAID = ("eos_token_id", "pad_token_id")


def own_prompt(model: Any) -> dict[str, int]:
    """How the model's own ``generate`` changes the prompt that it hands over with images, and the tokens that end it.

    ``first_token`` stands in the place of the first, ``left_out`` is how many of the last are missing; both only where
    it does so. Read from one call with a prompt of distinct tokens.
    Raises:   UserError E601 where it changes prompts in another way.
    """
    language = language_of(model)
    if language is model or not takes_images(model) or modalities_of(model):
        return {}
    if any(value.is_meta for value in model.parameters()):  # no numbers to read it from
        return {}
    ids = torch.arange(10, 10 + _PROBE_TOKENS)[None]
    call = SampleContext(model.config, Options(batch=1, seq=_PROBE_TOKENS), model)
    media = {name: maker.make(call) for name, maker in next(choices_of(model)).items()}
    seen = handed_over(model, language, {"input_ids": ids.clone(), "attention_mask": torch.ones_like(ids), **media})
    told = {name: seen[name] for name in _SAID if isinstance(seen.get(name), int)}
    handed = seen["input_ids"]
    kept = handed.shape[1]
    if kept > _PROBE_TOKENS or not torch.equal(handed[:, 1:], ids[:, 1:kept]):
        raise UserError(
            "E601",
            f"{type(model).__name__} changes a prompt by rules of its own",
            why=f"its generate makes {handed.tolist()} of {ids.tolist()}",
        )
    told |= {"left_out": _PROBE_TOKENS - kept} if kept < _PROBE_TOKENS else {}
    return told | ({"first_token": int(handed[0, 0])} if handed[0, 0] != ids[0, 0] else {})


@contextmanager
def _replaced(language: Any, generate: Any) -> Iterator[None]:
    language.generate = generate
    try:
        yield
    finally:
        del language.generate


def runs_on_text(model: Any) -> bool:
    """Whether forward takes a prompt without images."""
    if language_of(model) is not model:
        return False
    try:
        trial(model, prompt_of(model, sizes_of(model)))
    except UserError:
        return True  # for others to tell
    except Exception:  # a model raises whatever the lack of images leads to
        return False
    return True


def _carried(model: Any) -> Carried | None:
    """What a trial run with images says; None where later steps take nothing that was made of them."""
    language, sizes = language_of(model), sizes_of(model)
    call = SampleContext(model.config, Options(batch=sizes.batch, seq=sizes.past), model)
    text = {name: value for name, value in prompt_of(language, sizes).items() if name != "position_ids"}
    for makers in choices_of(model):
        media = {name: maker.make(call) for name, maker in makers.items()}
        try:
            made = run_lightly(model, lambda **inputs: made_of(model, inputs), {**text, **media})
        except Exception:  # a model raises whatever an input of another shape leads to
            continue
        if not made:
            return None
        samples = {name: torch.ones(value.shape, dtype=value.dtype) for name, value in made.items()}
        masks = {name: media[name] for name, maker in makers.items() if SEQUENCE in maker.axes.values()}
        cache_argument, cache = trial(language, {**text, **samples, **masks})
        return Carried(makers, samples, cache_argument, Memory(cache, sizes))
    return None


def _image_source(model: Any, name: str, carried: Carried, options: Options) -> Source:
    call = SampleContext(model.config, options, model)
    makers = {key: maker for key, maker in carried.makers.items() if key not in carried.by_token}
    samples = {key: maker.make(call) for key, maker in makers.items()}
    shapes = {key: dict(maker.axes) for key, maker in makers.items()}
    return Source(name, ImagePart(model, carried).eval(), (), samples, shapes)


def _decoder_source(model: Any, name: str, carried: Carried, options: Options) -> Source:
    language, batch, new = language_of(model), options.batch_or(), options.seq_or(4)
    kwargs, shapes = text_inputs(language, carried.memory, batch, new)
    for key, sample in carried.made.items():
        sized = torch.randn if sample.dtype.is_floating_point else partial(torch.ones, dtype=sample.dtype)
        kwargs[key], shapes[key] = sized(batch, *sample.shape[1:]), {0: BATCH}
    call = SampleContext(model.config, replace(options, batch=batch, seq=new), model)
    for key, maker in carried.by_token.items():
        kwargs[key], shapes[key] = maker.make(call), dict(maker.axes)
    add_states(kwargs, shapes, carried.memory, batch)
    return Source(name, CarryingDecoder(language, carried).eval(), (), kwargs, shapes)
