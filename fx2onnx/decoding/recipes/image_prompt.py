"""Models whose images enter the language model itself: before the text, at places that a mask names, by cross attention.

What the cache holds after one run with images and one without says which. Where some of its states come with the images
only (cross attention), a graph of the images gives those, and one graph of the language model takes them. Else one graph
takes the prompt with its images, and another every later token.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from fx2onnx.base.dims import Dim
from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.layout import PAST, Memory, Sizes, unmistakable_sizes
from fx2onnx.decoding.decoder import (
    BATCH,
    NEXT_PREFIX,
    PREFIX,
    SEQUENCE,
    CachedDecoder,
    add_states,
    cached_decoder,
    prompt_of,
    text_inputs,
    trial,
)
from fx2onnx.decoding.recipes.inner_language_model import language_of
from fx2onnx.sources.hf.sample_context import InputFactory, SampleContext
from fx2onnx.sources.hf.samples import INPUT_FACTORIES
from fx2onnx.sources.source import Options, Source

ENCODER_FILE, PROMPT_FILE, DECODER_FILE = "vision_encoder.onnx", "prompt_model.onnx", "decoder_model.onnx"
_TEXT = ("input_ids", "attention_mask", "position_ids")
_PAST_SAMPLE = 6


def _tiled_images(call: SampleContext) -> torch.Tensor:
    """One image a row, in as many tiles as the config allows."""
    return torch.randn(call.options.batch_or(), 1, _tiles(call), int(call.find("num_channels")), *call.image_size())


def _listed_images(call: SampleContext) -> torch.Tensor:
    """A list of one image a row."""
    return INPUT_FACTORIES["pixel_values"].make(call)[:, None]


def _seen_images(call: SampleContext) -> torch.Tensor:
    return torch.ones(call.options.batch_or(), call.options.seq_or(), 1, dtype=torch.int64)


def _tiles(call: SampleContext) -> int:
    return int(call.find("max_num_tiles", default=1))


def _widest_ratio(call: SampleContext) -> torch.Tensor:
    """The number of the last aspect ratio, which has all tiles; they count from 1."""
    return torch.full((call.options.batch_or(), 1), len(call.find("supported_aspect_ratios", default=[0])))


def _tile_mask(call: SampleContext) -> torch.Tensor:
    return torch.ones(call.options.batch_or(), 1, _tiles(call), dtype=torch.int64)


def _seen_tiles(call: SampleContext) -> torch.Tensor:
    return torch.ones(call.options.batch_or(), call.options.seq_or(), 1, _tiles(call), dtype=torch.int64)


def _image_tokens(call: SampleContext) -> int:
    return int(call.find("latent_query_num", default=0))


def _image_places(call: SampleContext) -> torch.Tensor:
    """1 where a token stands for a part of the image: all but the first of as many as there are parts."""
    mask = torch.zeros(call.options.batch_or(), call.options.seq_or(), dtype=torch.int64)
    mask[:, 1 : 1 + _image_tokens(call)] = 1
    return mask


_BATCH = {0: BATCH}
_BY_TOKEN = {0: BATCH, 1: SEQUENCE}
MEDIA: dict[str, tuple[InputFactory, ...]] = {
    "pixel_values": (
        InputFactory(INPUT_FACTORIES["pixel_values"].make, _BATCH),
        InputFactory(_tiled_images, _BATCH),
        InputFactory(_listed_images, _BATCH),
    ),
    "aspect_ratio_ids": (InputFactory(_widest_ratio, _BATCH),),
    "aspect_ratio_mask": (InputFactory(_tile_mask, _BATCH),),
    "cross_attention_mask": (InputFactory(_seen_tiles, _BY_TOKEN),),
    "flattened_patches": (InputFactory(INPUT_FACTORIES["flattened_patches"].make, _BATCH),),
    "image_embeds_position_mask": (InputFactory(_image_places, _BY_TOKEN),),
    "image_attention_mask": (InputFactory(_seen_images, _BY_TOKEN),),
}
"""Arguments of forward that bring images or what stands for them, with the forms to try."""


@dataclass(frozen=True)
class Findings:
    """What two trial runs say: the cache of a prompt with images, how many of its tokens the attention mask does not
    count, the states that the images alone decide, and what a later step takes beside tokens and cache.
    """

    cache_argument: str
    memory: Memory
    makers: Mapping[str, InputFactory]
    ahead: int
    given: frozenset[str]
    later: frozenset[str]


class PromptPart(torch.nn.Module):
    """A prompt with its images: logits of every place, and the cache that follows."""

    def __init__(self, model: Any, findings: Findings) -> None:
        super().__init__()
        self.model = model
        self._findings = findings

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        result = self.model(**inputs, use_cache=True, return_dict=True)
        states = self._findings.memory.taken_from(result[self._findings.cache_argument])
        return {"logits": result["logits"]} | {NEXT_PREFIX + name: value for name, value in states.items()}


class ImageStates(torch.nn.Module):
    """What the layers of cross attention keep of the images."""

    def __init__(self, model: Any, findings: Findings) -> None:
        super().__init__()
        self.model = model
        self._findings = findings

    def forward(self, **media: torch.Tensor) -> dict[str, torch.Tensor]:
        first = next(iter(media.values()))
        # One token fills the cache; what does not depend on the images alone is dropped from the graph.
        ids = torch.zeros(first.shape[0], 1, dtype=torch.int64, device=first.device)
        result = self.model(input_ids=ids, **media, use_cache=True, return_dict=True)
        states = self._findings.memory.taken_from(result[self._findings.cache_argument])
        return {NEXT_PREFIX + name: value for name, value in states.items() if name in self._findings.given}


class StepPart(CachedDecoder):
    """The language model with its cache, of which the images' part is given and stays."""

    def __init__(self, model: Any, findings: Findings) -> None:
        super().__init__(model, findings.cache_argument, findings.memory)
        self._given = {NEXT_PREFIX + name for name in findings.given}

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: value for name, value in super().forward(**inputs).items() if name not in self._given}


def takes_images(model: Any) -> bool:
    """Whether forward has an argument that brings images."""
    return any(name in MEDIA for name in inspect.signature(model.forward).parameters)


def prompt_and_decoder(model: Any, name: str, options: Options) -> dict[str, Source]:
    """The parts of a model that takes images with its prompt, by file name.

    Raises:   UserError E601 where its arguments are not known, or it keeps nothing between calls.
    """
    found = _findings(model)
    makers = {ENCODER_FILE: _image_source, DECODER_FILE: _step_source}
    if not found.given:
        makers = {PROMPT_FILE: _prompt_source, DECODER_FILE: _later_source}
    return {file: make(model, name, found, options) for file, make in makers.items()}


def _findings(model: Any) -> Findings:
    sizes = sizes_of(model)
    call = SampleContext(model.config, Options(batch=sizes.batch, seq=sizes.past), model)
    text = _text_of(model, prompt_of(model, sizes))
    _, plain = trial(language_of(model), text)
    growing = {key: state for key, state in Memory(plain, sizes).states.items() if PAST in state.axes.values()}
    reason: Exception | None = None
    for makers in choices_of(model):
        try:
            argument, cache = trial(model, text | {key: maker.make(call) for key, maker in makers.items()})
        except UserError:
            raise
        except Exception as error:  # a model raises whatever an input of another shape leads to
            reason = reason or error
            continue
        states = Memory(cache, sizes).states
        lengths = {
            states[key].shape[axis] - state.shape[axis]
            for key, state in growing.items()
            for axis, word in state.axes.items()
            if word == PAST
        }
        if len(lengths) == 1:
            ahead = lengths.pop()
            memory = Memory(cache if ahead == 0 else plain, sizes)
            given = frozenset(memory.states) - frozenset(Memory(plain, sizes).states)
            return Findings(argument, memory, makers, ahead, given, _later(model, text, makers, call, cache))
    raise UserError(
        "E601",
        f"{type(model).__name__} does not take the sample of its images",
        why="" if reason is None else f"{type(reason).__name__}: {(str(reason).splitlines() or [''])[0][:200]}",
        next="export it as a model of text: --task text-generation-with-past",
    ) from reason


def sizes_of(model: Any) -> Sizes:
    """As of other models, with a prompt that has room for the image's places."""
    sizes = unmistakable_sizes(model.config)
    least = _image_tokens(SampleContext(model.config, Options(), model)) + 1
    if sizes.past > least:
        return sizes
    return replace(sizes, past=next(n for n in range(least + 1, 2 * least + 2) if all(n % k for k in range(2, n))))


def choices_of(model: Any) -> Iterator[dict[str, InputFactory]]:
    names = [name for name in inspect.signature(model.forward).parameters if name in MEDIA]
    for chosen in product(*(MEDIA[name] for name in names)):
        yield dict(zip(names, chosen, strict=True))


def _text_of(model: Any, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those of the inputs that generation hands to forward: some models count positions themselves."""
    kept = _handed_on(model, inputs, is_first_iteration=True)
    return {key: value for key, value in inputs.items() if key in kept}


def _handed_on(model: Any, inputs: Mapping[str, Any], **step: Any) -> set[str]:
    """The arguments that the model's own ``prepare_inputs_for_generation`` makes of ``inputs``."""
    language = language_of(model)
    try:
        made = language.prepare_inputs_for_generation(**inputs, use_cache=True, **step)
    except Exception:  # a model's own code, called as generation would
        return set(inputs)
    known = inputs if language is model else inspect.signature(language.forward).parameters
    return {key for key, value in made.items() if value is not None and key in known}


def _later(
    model: Any, text: Any, makers: Mapping[str, InputFactory], call: SampleContext, cache: Any
) -> frozenset[str]:
    media = {key: maker.make(call) for key, maker in makers.items()}
    step = {"past_key_values": cache, "is_first_iteration": False, "next_sequence_length": 1}
    return frozenset(_handed_on(model, {**text, **media}, **step)) & frozenset(makers)


def _image_source(model: Any, name: str, found: Findings, options: Options) -> Source:
    makers = {key: maker for key, maker in found.makers.items() if SEQUENCE not in maker.axes.values()}
    call = SampleContext(model.config, options, model)
    samples = {key: maker.make(call) for key, maker in makers.items()}
    shapes = {key: dict(maker.axes) for key, maker in makers.items()}
    return Source(name, ImageStates(model, found).eval(), (), samples, shapes)


def _step_source(model: Any, name: str, found: Findings, options: Options) -> Source:
    batch, new = options.batch_or(), options.seq_or(4)
    kwargs, shapes = text_inputs(model, found.memory, batch, new)
    call = SampleContext(model.config, replace(options, batch=batch, seq=new), model)
    for key in sorted(found.later):
        kwargs[key], shapes[key] = found.makers[key].make(call), dict(found.makers[key].axes)
    add_states(kwargs, shapes, found.memory, batch)
    return Source(name, StepPart(model, found).eval(), (), kwargs, shapes)


def _prompt_source(model: Any, name: str, found: Findings, options: Options) -> Source:
    batch = options.batch_or()
    call = SampleContext(
        model.config, replace(options, batch=batch, seq=options.seq_or(4) + _image_tokens_of(model)), model
    )
    ids = INPUT_FACTORIES["input_ids"].make(call)
    mask = torch.ones_like(ids)
    text = {"input_ids": ids, "attention_mask": mask, "position_ids": mask.cumsum(1) - 1}
    known = inspect.signature(model.forward).parameters
    kwargs = _text_of(model, {key: value for key, value in text.items() if key in known})
    shapes: dict[str, Any] = {key: dict(_BY_TOKEN) for key in kwargs}
    for key, maker in found.makers.items():
        kwargs[key], shapes[key] = maker.make(call), dict(maker.axes)
    return Source(name, PromptPart(model, found).eval(), (), kwargs, shapes)


def _image_tokens_of(model: Any) -> int:
    return _image_tokens(SampleContext(model.config, Options(), model))


def _later_source(model: Any, name: str, found: Findings, options: Options) -> Source:
    """The language model after a prompt: its attention mask does not count what the images put before the text."""
    source = cached_decoder(language_of(model), name, options)
    kwargs, shapes = dict(source.kwargs), dict(source.dynamic_shapes or {})
    kept = _text_of(model, {key: kwargs[key] for key in _TEXT if key in kwargs})
    for key in set(_TEXT) & set(kwargs) - set(kept):
        del kwargs[key], shapes[key]
    if found.ahead:
        new = kwargs["input_ids"].shape[1]
        for key, value in kwargs.items():
            for axis, word in shapes[key].items():
                if key.startswith(PREFIX) and word == PAST:
                    kwargs[key] = torch.cat([value] * (1 + found.ahead // _PAST_SAMPLE + 1), dim=axis)
                    past = kwargs[key].shape[axis]
        kwargs["attention_mask"] = torch.ones(len(kwargs["input_ids"]), past + new - found.ahead, dtype=torch.int64)
        shapes["attention_mask"] = {0: BATCH, 1: Dim.symbol(PAST) + Dim.symbol(SEQUENCE) - found.ahead}
    call = SampleContext(model.config, replace(options, batch=options.batch_or(), seq=options.seq_or(4)), model)
    for key in sorted(found.later):
        kwargs[key], shapes[key] = found.makers[key].make(call), dict(found.makers[key].axes)
    return replace(source, kwargs=kwargs, dynamic_shapes=shapes)
