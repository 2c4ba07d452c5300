"""Models whose images enter the language model itself: before the text, at places that a mask names, by cross attention.

What the cache holds after one run with images and one without says which. Where some of its states come with the images
only (cross attention), a graph of the images gives those, and one graph of the language model takes them. Else one graph
takes the prompt with its images, and another every later token.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.layout import CacheLayout, TrialSizes, unmistakable_sizes
from fx2onnx.decoding.cache.module_state import generated_argument
from fx2onnx.decoding.decoder import CachedDecoder, add_states, cached_decoder, prompt_of, text_inputs, trial
from fx2onnx.decoding.recipes.recipe import FolderRequest, ModelPart, language_of
from fx2onnx.manifest.names import BATCH, DECODER_FILE, IMAGE_FILE, PAST, PAST_SIZE, PRESENT, PROMPT_FILE, SEQUENCE
from fx2onnx.sizes.expr import Dim
from fx2onnx.sources.foreign_errors import summary
from fx2onnx.sources.hf.sample_context import InputFactory, SampleContext, samples_of
from fx2onnx.sources.hf.samples import INPUT_FACTORIES
from fx2onnx.sources.hf.transformers_types import Inputs, Model, Shapes
from fx2onnx.sources.source import Options, Source

_TEXT = ("input_ids", "attention_mask", "position_ids")
_PAST_SAMPLE = 6
_ones = partial(torch.ones, dtype=torch.int64)


def _tiled_images(context: SampleContext) -> torch.Tensor:
    """One image a row, in as many tiles as the config allows."""
    return torch.randn(context.batch, 1, _tiles(context), context.number("num_channels"), *context.image_size())


def _tiles(context: SampleContext) -> int:
    return context.number("max_num_tiles", default=1)


def _widest_ratio(context: SampleContext) -> torch.Tensor:
    """The number of the last aspect ratio, which has all tiles; they count from 1."""
    return torch.full((context.batch, 1), len(context.find("supported_aspect_ratios", default=[0])))


def _image_tokens(context: SampleContext) -> int:
    return context.number("latent_query_num", default=0)


def _image_places(context: SampleContext) -> torch.Tensor:
    """1 where a token stands for a part of the image: all but the first of as many as there are parts."""
    mask = torch.zeros(context.batch, context.seq, dtype=torch.int64)
    mask[:, 1 : 1 + _image_tokens(context)] = 1
    return mask


_BATCH = {0: BATCH}
_BY_TOKEN = {0: BATCH, 1: SEQUENCE}
MEDIA: dict[str, tuple[InputFactory, ...]] = {
    "pixel_values": (
        InputFactory(INPUT_FACTORIES["pixel_values"].make, _BATCH),
        InputFactory(_tiled_images, _BATCH),
        InputFactory(lambda context: INPUT_FACTORIES["pixel_values"].make(context)[:, None], _BATCH),  # a list of one
    ),
    "aspect_ratio_ids": (InputFactory(_widest_ratio, _BATCH),),
    "aspect_ratio_mask": (InputFactory(lambda context: _ones(context.batch, 1, _tiles(context)), _BATCH),),
    "cross_attention_mask": (
        InputFactory(lambda context: _ones(context.batch, context.seq, 1, _tiles(context)), _BY_TOKEN),
    ),
    "flattened_patches": (InputFactory(INPUT_FACTORIES["flattened_patches"].make, _BATCH),),
    "image_embeds_position_mask": (InputFactory(_image_places, _BY_TOKEN),),
    "image_attention_mask": (InputFactory(lambda context: _ones(context.batch, context.seq, 1), _BY_TOKEN),),
}
"""Arguments of forward that hold images or what stands for them, with the forms to try."""


@dataclass(frozen=True)
class ImagePromptTrials:
    """The findings of two trial runs: the cache of a prompt with images, how many of its tokens the attention mask does
    not count, the states that the images alone decide, and the inputs of a later step beside tokens and cache.
    """

    cache_argument: str
    layout: CacheLayout
    factories: Mapping[str, InputFactory]
    ahead: int
    given: frozenset[str]
    later: Mapping[str, InputFactory]


class PromptPart(ModelPart[ImagePromptTrials]):
    """A prompt with its images: logits of every place, and the cache that follows."""

    def forward(self, **inputs: torch.Tensor) -> Inputs:
        result = self.model(**inputs, use_cache=True, return_dict=True)
        states = self.facts.layout.taken_from(result[self.facts.cache_argument])
        return {"logits": result["logits"]} | {PRESENT + name: value for name, value in states.items()}


class ImageStates(ModelPart[ImagePromptTrials]):
    """The states of images that the layers of cross attention keep."""

    def forward(self, **media: torch.Tensor) -> Inputs:
        first = next(iter(media.values()))
        # One token fills the cache; what does not depend on the images alone is dropped from the graph.
        ids = torch.zeros(first.shape[0], 1, dtype=torch.int64, device=first.device)
        result = self.model(input_ids=ids, **media, use_cache=True, return_dict=True)
        states = self.facts.layout.taken_from(result[self.facts.cache_argument])
        return {PRESENT + name: value for name, value in states.items() if name in self.facts.given}


def takes_images(model: Model) -> bool:
    """Return whether forward has an argument for images."""
    return any(name in MEDIA for name in inspect.signature(model.forward).parameters)


def prompt_and_decoder(request: FolderRequest) -> dict[str, Source]:
    """The parts of a model that takes images with its prompt, by file name.

    Raises:   UserError E601 where its arguments are not known, or it keeps nothing between calls.
    """
    model, findings = request.model, _findings(request.model)
    if not findings.given:
        return {PROMPT_FILE: _prompt_source(request, findings), DECODER_FILE: _later_source(request, findings)}
    decoder = CachedDecoder(model, findings.cache_argument, findings.layout, given=findings.given)
    return {
        IMAGE_FILE: image_source(request, ImageStates(model, findings), findings.factories),
        DECODER_FILE: step_source(request, decoder, findings.layout, findings.later, {}),
    }


def _findings(model: Model) -> ImagePromptTrials:
    sizes = sizes_of(model)
    context = SampleContext(model.config, Options(batch=sizes.batch, seq=sizes.past), model)
    text = _text_of(model, prompt_of(model, sizes))
    _, plain = trial(language_of(model), text)
    growing = {
        key: state for key, state in CacheLayout(plain, sizes).states.items() if PAST_SIZE in state.axes.values()
    }
    reason: Exception | None = None
    for factories in choices_of(model):
        try:
            argument, cache = trial(model, text | samples_of(factories, context)[0])
        except UserError:
            raise
        except Exception as error:  # a model raises whatever an input of another shape leads to
            reason = reason or error
            continue
        states = CacheLayout(cache, sizes).states
        lengths = {
            states[key].shape[axis] - state.shape[axis]
            for key, state in growing.items()
            for axis, word in state.axes.items()
            if word == PAST_SIZE
        }
        if len(lengths) == 1:
            ahead = lengths.pop()
            layout = CacheLayout(cache if ahead == 0 else plain, sizes)
            given = frozenset(layout.states) - frozenset(CacheLayout(plain, sizes).states)
            return ImagePromptTrials(
                argument, layout, factories, ahead, given, _later(model, text, factories, context, cache)
            )
    raise UserError(
        "E601",
        f"{type(model).__name__} does not take the example images",
        why=summary(reason),
        next="export it as a model of text: --task text-generation-with-past",
    ) from reason


def sizes_of(model: Model) -> TrialSizes:
    """The trial sizes as of other models, with a prompt that has room for the image's places."""
    sizes = unmistakable_sizes(model.config)
    least = _image_tokens(SampleContext(model.config, Options(), model)) + 1
    if sizes.past > least:
        return sizes
    return replace(sizes, past=next(n for n in range(least + 1, 2 * least + 2) if all(n % k for k in range(2, n))))


def choices_of(model: Model) -> Iterator[dict[str, InputFactory]]:
    names = [name for name in inspect.signature(model.forward).parameters if name in MEDIA]
    for chosen in product(*(MEDIA[name] for name in names)):
        yield dict(zip(names, chosen, strict=True))


def _text_of(model: Model, inputs: Mapping[str, torch.Tensor]) -> Inputs:
    """The inputs that generation hands to forward: some models count positions themselves."""
    kept = _handed_on(model, inputs, is_first_iteration=True)
    return {key: value for key, value in inputs.items() if key in kept}


def _handed_on(model: Model, inputs: Mapping[str, object], **step: object) -> set[str]:
    """The arguments that the model's own ``prepare_inputs_for_generation`` makes of ``inputs``."""
    language = language_of(model)
    try:
        made: dict[str, object] = language.prepare_inputs_for_generation(**inputs, use_cache=True, **step)
    except Exception:  # a model's own code, called as generation would
        return set(inputs)
    known = inputs if language is model else inspect.signature(language.forward).parameters
    return {key for key, value in made.items() if value is not None and key in known}


def _later(
    model: Model, text: Inputs, factories: Mapping[str, InputFactory], context: SampleContext, cache: object
) -> dict[str, InputFactory]:
    media, _ = samples_of(factories, context)
    step = {generated_argument(language_of(model)): cache, "is_first_iteration": False, "next_sequence_length": 1}
    return {key: factories[key] for key in sorted(_handed_on(model, {**text, **media}, **step) & set(factories))}


def image_source(request: FolderRequest, module: torch.nn.Module, factories: Mapping[str, InputFactory]) -> Source:
    """``module`` with images as inputs: those of ``factories`` that have no row for each token."""
    images = {key: factory for key, factory in factories.items() if SEQUENCE not in factory.axes.values()}
    samples, shapes = samples_of(images, request.context())
    return Source.of_part(request.name, module.eval(), samples, shapes)


def step_source(
    request: FolderRequest,
    decoder: CachedDecoder,
    layout: CacheLayout,
    factories: Mapping[str, InputFactory],
    made: Mapping[str, torch.Tensor],
) -> Source:
    """The language model, which at every step takes what was ``made`` of the images and what ``factories`` make."""
    batch, new = request.options.batch_or(), request.options.seq_or(4)
    kwargs, shapes = text_inputs(decoder.model, layout, batch, new)
    kwargs |= made
    shapes |= {key: {0: BATCH} for key in made}
    samples, axes = samples_of(factories, request.context(seq=new))
    kwargs |= samples
    shapes |= axes
    add_states(kwargs, shapes, layout, batch)
    return Source.of_part(request.name, decoder.eval(), kwargs, shapes)


def _prompt_source(request: FolderRequest, findings: ImagePromptTrials) -> Source:
    model = request.model
    context = request.context(seq=request.options.seq_or(4) + _image_tokens(request.context()))
    ids = INPUT_FACTORIES["input_ids"].make(context)
    mask = torch.ones_like(ids)
    text = {"input_ids": ids, "attention_mask": mask, "position_ids": mask.cumsum(1) - 1}
    known = inspect.signature(model.forward).parameters
    kwargs = _text_of(model, {key: value for key, value in text.items() if key in known})
    samples, axes = samples_of(findings.factories, context)
    shapes: Shapes = {key: dict(_BY_TOKEN) for key in kwargs}
    return Source.of_part(request.name, PromptPart(model, findings).eval(), kwargs | samples, shapes | axes)


def _later_source(request: FolderRequest, findings: ImagePromptTrials) -> Source:
    """The language model after a prompt: its attention mask does not count what the images put before the text."""
    model = request.model
    source = cached_decoder(request.language, request.name, request.options)
    kwargs: Inputs = dict(source.kwargs)
    shapes: Shapes = {key: dict(axes) for key, axes in (source.dynamic_shapes or {}).items()}
    kept = _text_of(model, {key: kwargs[key] for key in _TEXT if key in kwargs})
    for key in set(_TEXT) & set(kwargs) - set(kept):
        del kwargs[key], shapes[key]
    if findings.ahead:
        new = kwargs["input_ids"].shape[1]
        for key, value in kwargs.items():
            for axis, word in shapes[key].items():
                if key.startswith(PAST) and word == PAST_SIZE:
                    kwargs[key] = torch.cat([value] * (1 + findings.ahead // _PAST_SAMPLE + 1), dim=axis)
                    past = kwargs[key].shape[axis]
        kwargs["attention_mask"] = torch.ones(len(kwargs["input_ids"]), past + new - findings.ahead, dtype=torch.int64)
        shapes["attention_mask"] = {0: BATCH, 1: Dim.symbol(PAST_SIZE) + Dim.symbol(SEQUENCE) - findings.ahead}
    samples, axes = samples_of(findings.later, request.context(seq=request.options.seq_or(4)))
    return replace(source, kwargs=kwargs | samples, dynamic_shapes=shapes | axes)
