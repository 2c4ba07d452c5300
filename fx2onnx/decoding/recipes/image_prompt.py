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
from fx2onnx.decoding.cache.layout import Memory, Sizes, unmistakable_sizes
from fx2onnx.decoding.decoder import CachedDecoder, add_states, cached_decoder, prompt_of, text_inputs, trial
from fx2onnx.decoding.recipes.inner_language_model import language_of
from fx2onnx.manifest.names import BATCH, DECODER_FILE, IMAGE_FILE, PAST, PAST_SIZE, PRESENT, PROMPT_FILE, SEQUENCE
from fx2onnx.sources.hf.call import Call, Maker
from fx2onnx.sources.hf.samples import MAKERS
from fx2onnx.sources.source import Options, Source

_TEXT = ("input_ids", "attention_mask", "position_ids")
_PAST_SAMPLE = 6


def _tiled_images(call: Call) -> torch.Tensor:
    """One image a row, in as many tiles as the config allows."""
    return torch.randn(call.options.batch_or(), 1, _tiles(call), int(call.find("num_channels")), *call.image_size())


def _listed_images(call: Call) -> torch.Tensor:
    """A list of one image a row."""
    return MAKERS["pixel_values"].make(call)[:, None]


def _seen_images(call: Call) -> torch.Tensor:
    return torch.ones(call.options.batch_or(), call.options.seq_or(), 1, dtype=torch.int64)


def _tiles(call: Call) -> int:
    return int(call.find("max_num_tiles", default=1))


def _widest_ratio(call: Call) -> torch.Tensor:
    """The number of the last aspect ratio, which has all tiles; they count from 1."""
    return torch.full((call.options.batch_or(), 1), len(call.find("supported_aspect_ratios", default=[0])))


def _tile_mask(call: Call) -> torch.Tensor:
    return torch.ones(call.options.batch_or(), 1, _tiles(call), dtype=torch.int64)


def _seen_tiles(call: Call) -> torch.Tensor:
    return torch.ones(call.options.batch_or(), call.options.seq_or(), 1, _tiles(call), dtype=torch.int64)


def _image_tokens(call: Call) -> int:
    return int(call.find("latent_query_num", default=0))


def _image_places(call: Call) -> torch.Tensor:
    """1 where a token stands for a part of the image: all but the first of as many as there are parts."""
    mask = torch.zeros(call.options.batch_or(), call.options.seq_or(), dtype=torch.int64)
    mask[:, 1 : 1 + _image_tokens(call)] = 1
    return mask


_BATCH = {0: BATCH}
_BY_TOKEN = {0: BATCH, 1: SEQUENCE}
MEDIA: dict[str, tuple[Maker, ...]] = {
    "pixel_values": (
        Maker(MAKERS["pixel_values"].make, _BATCH),
        Maker(_tiled_images, _BATCH),
        Maker(_listed_images, _BATCH),
    ),
    "aspect_ratio_ids": (Maker(_widest_ratio, _BATCH),),
    "aspect_ratio_mask": (Maker(_tile_mask, _BATCH),),
    "cross_attention_mask": (Maker(_seen_tiles, _BY_TOKEN),),
    "flattened_patches": (Maker(MAKERS["flattened_patches"].make, _BATCH),),
    "image_embeds_position_mask": (Maker(_image_places, _BY_TOKEN),),
    "image_attention_mask": (Maker(_seen_images, _BY_TOKEN),),
}
"""Arguments of forward that bring images or what stands for them, with the forms to try."""


@dataclass(frozen=True)
class Findings:
    """What two trial runs say: the cache of a prompt with images, how many of its tokens the attention mask does not
    count, the states that the images alone decide, and what a later step takes beside tokens and cache.
    """

    cache_argument: str
    memory: Memory
    makers: Mapping[str, Maker]
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
        return {"logits": result["logits"]} | {PRESENT + name: value for name, value in states.items()}


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
        return {PRESENT + name: value for name, value in states.items() if name in self._findings.given}


def takes_images(model: Any) -> bool:
    """Whether forward has an argument that brings images."""
    return any(name in MEDIA for name in inspect.signature(model.forward).parameters)


def prompt_and_decoder(model: Any, name: str, options: Options) -> dict[str, Source]:
    """The parts of a model that takes images with its prompt, by file name.

    Raises:   UserError E601 where its arguments are not known, or it keeps nothing between calls.
    """
    found = _findings(model)
    if not found.given:
        makers = {PROMPT_FILE: _prompt_source, DECODER_FILE: _later_source}
        return {file: make(model, name, found, options) for file, make in makers.items()}
    later = {key: found.makers[key] for key in sorted(found.later)}
    decoder = CachedDecoder(model, found.cache_argument, found.memory, given=found.given)
    return {
        IMAGE_FILE: image_source(ImageStates(model, found), name, found.makers, options),
        DECODER_FILE: step_source(model, decoder, found.memory, name, options, later, {}),
    }


def _findings(model: Any) -> Findings:
    sizes = sizes_of(model)
    call = Call(model.config, Options(batch=sizes.batch, seq=sizes.past), model)
    text = _text_of(model, prompt_of(model, sizes))
    _, plain = trial(language_of(model), text)
    growing = {key: state for key, state in Memory(plain, sizes).states.items() if PAST_SIZE in state.axes.values()}
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
            if word == PAST_SIZE
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
    least = _image_tokens(Call(model.config, Options(), model)) + 1
    if sizes.past > least:
        return sizes
    return replace(sizes, past=next(n for n in range(least + 1, 2 * least + 2) if all(n % k for k in range(2, n))))


def choices_of(model: Any) -> Iterator[dict[str, Maker]]:
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


def _later(model: Any, text: Any, makers: Mapping[str, Maker], call: Call, cache: Any) -> frozenset[str]:
    media = {key: maker.make(call) for key, maker in makers.items()}
    step = {"past_key_values": cache, "is_first_iteration": False, "next_sequence_length": 1}
    return frozenset(_handed_on(model, {**text, **media}, **step)) & frozenset(makers)


def image_source(part: Any, name: str, makers: Mapping[str, Maker], options: Options) -> Source:
    """The graph of the images; ``makers`` that have a row for each token are of the prompt."""
    call = Call(part.model.config, options, part.model)
    own = {key: maker for key, maker in makers.items() if SEQUENCE not in maker.axes.values()}
    samples = {key: maker.make(call) for key, maker in own.items()}
    return Source(name, part.eval(), (), samples, {key: dict(maker.axes) for key, maker in own.items()})


def step_source(
    model: Any,
    decoder: CachedDecoder,
    memory: Memory,
    name: str,
    options: Options,
    makers: Mapping[str, Maker],
    made: Mapping[str, torch.Tensor],
) -> Source:
    """The graph of the language model, which at every step takes what was ``made`` of the images and what ``makers`` make."""
    batch, new = options.batch_or(), options.seq_or(4)
    kwargs, shapes = text_inputs(decoder.model, memory, batch, new)
    kwargs |= made
    shapes |= {key: {0: BATCH} for key in made}
    call = Call(model.config, replace(options, batch=batch, seq=new), model)
    for key, maker in makers.items():
        kwargs[key], shapes[key] = maker.make(call), dict(maker.axes)
    add_states(kwargs, shapes, memory, batch)
    return Source(name, decoder.eval(), (), kwargs, shapes)


def _prompt_source(model: Any, name: str, found: Findings, options: Options) -> Source:
    batch = options.batch_or()
    call = Call(model.config, replace(options, batch=batch, seq=options.seq_or(4) + _image_tokens_of(model)), model)
    ids = MAKERS["input_ids"].make(call)
    mask = torch.ones_like(ids)
    text = {"input_ids": ids, "attention_mask": mask, "position_ids": mask.cumsum(1) - 1}
    known = inspect.signature(model.forward).parameters
    kwargs = _text_of(model, {key: value for key, value in text.items() if key in known})
    shapes: dict[str, Any] = {key: dict(_BY_TOKEN) for key in kwargs}
    for key, maker in found.makers.items():
        kwargs[key], shapes[key] = maker.make(call), dict(maker.axes)
    return Source(name, PromptPart(model, found).eval(), (), kwargs, shapes)


def _image_tokens_of(model: Any) -> int:
    return _image_tokens(Call(model.config, Options(), model))


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
                if key.startswith(PAST) and word == PAST_SIZE:
                    kwargs[key] = torch.cat([value] * (1 + found.ahead // _PAST_SAMPLE + 1), dim=axis)
                    past = kwargs[key].shape[axis]
        kwargs["attention_mask"] = torch.ones(len(kwargs["input_ids"]), past + new - found.ahead, dtype=torch.int64)
        shapes["attention_mask"] = {0: BATCH, 1: Dim.symbol(PAST_SIZE) + Dim.symbol(SEQUENCE) - found.ahead}
    call = Call(model.config, replace(options, batch=options.batch_or(), seq=options.seq_or(4)), model)
    for key in sorted(found.later):
        kwargs[key], shapes[key] = found.makers[key].make(call), dict(found.makers[key].axes)
    return replace(source, kwargs=kwargs, dynamic_shapes=shapes)
