"""Language models that read images or sound: one module for each encoder, one that puts features among the embedded
tokens, one for the language model with its cache.

The parts come from what such models have in common in transformers: ``get_image_features`` and ``get_audio_features``,
``get_input_embeddings``, and the token that stands for a feature (``config.image_token_id``). No model is named.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.decoder import BATCH, EMBEDDED, SEQUENCE
from fx2onnx.decoding.mrope import Layout, image_layout, image_positions
from fx2onnx.decoding.probes import adds_features, sees_kinds, settle
from fx2onnx.decoding.recipes.deepstack import (
    DEEP,
    KINDS,
    PER_LAYER,
    deep_features,
    embedded_as,
    per_layer_inputs,
    takes_deep_features,
    takes_kinds,
)
from fx2onnx.sources.hf.image_samples import OF_ALL_IMAGES, PIXELS, image_forms
from fx2onnx.sources.hf.sample_context import InputFactory, SampleContext, samples_of
from fx2onnx.sources.hf.samples import INPUT_FACTORIES
from fx2onnx.sources.hf.sound_samples import sound_forms
from fx2onnx.sources.hf.transformers_types import Inputs, Shapes
from fx2onnx.sources.light_run import run_lightly
from fx2onnx.sources.source import Options, Source


@dataclass(frozen=True)
class Modality:
    """How one kind of input is encoded: the method, its main argument, the config fields that name its token,
    the field of its part of the config."""

    name: str
    file: str
    method: str
    argument: str
    tokens: tuple[str, ...]
    config: str

    @property
    def features(self) -> str:
        return f"{self.name}_features"

    @property
    def deep(self) -> str:
        return f"{self.name}_{DEEP}"


MODALITIES = (
    Modality(
        "image",
        "vision_encoder.onnx",
        "get_image_features",
        "pixel_values",
        ("image_token_id", "image_token_index"),
        "vision_config",
    ),
    Modality(
        "audio",
        "audio_encoder.onnx",
        "get_audio_features",
        "input_features",
        ("audio_token_id", "audio_token_index"),
        "audio_config",
    ),
)
_FILM = Modality(
    "image",
    "vision_encoder.onnx",
    "get_video_features",
    "pixel_values",
    ("video_token_id", "video_token_index"),
    "vision_config",
)
"""Of models that see nothing but videos: others call theirs ``pixel_values_videos``."""


def modalities_of(model: Any) -> list[Modality]:
    """Those that ``model`` has an encoder and a token for."""
    without = {m.name for m in MODALITIES if getattr(model.config, m.config, "") is None}
    sees = _owner(model, MODALITIES[0]) is not None
    films = [] if sees or _FILM.argument not in _parameters(model, _FILM) else [_FILM]
    return [
        m
        for m in (*films, *MODALITIES)
        if m.name not in without and _owner(model, m) is not None and _token(model, m) is not None
    ]


class FeaturePart(torch.nn.Module):
    """An encoder with its projector: features [tokens, width], one row for each placeholder token, in order; of encoders
    that have some for later layers, too, those [tokens, layers, width].
    """

    def __init__(self, model: Any, modality: Modality) -> None:
        super().__init__()
        self.model = model
        self._modality = modality

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        encode: Any = getattr(_owner(self.model, self._modality), self._modality.method)
        found = encode(**inputs, return_dict=True)
        rows = found if isinstance(found, torch.Tensor | list | tuple) else found.get("pooler_output")
        deep = deep_features(self.model, found)
        if rows is None and deep is not None and found.get("last_hidden_state") is None:
            rows = torch.zeros_like(deep[:, 0])  # forward embeds the tokens of images as nothing
        if rows is None:  # left to forward
            rows = found["last_hidden_state"]
            projector: Any = getattr(_owner(self.model, self._modality), "multi_modal_projector", None)
            rows = rows if projector is None else projector(rows)
        if isinstance(rows, list | tuple):
            rows = torch.cat([row.flatten(0, -2) for row in rows])
        outputs = {self._modality.features: rows.flatten(0, -2)}
        return outputs if deep is None else outputs | {self._modality.deep: deep}


class EmbedPart(torch.nn.Module):
    """Embedded tokens [batch, sequence, width] with features in the places of their tokens; with ``layout``, also the
    positions [axes, batch, sequence] of tokens among images of that layout. And what the language
    model takes beside them [batch, sequence, layers, width].
    """

    def __init__(self, model: Any, modalities: list[Modality], layout: Layout | None = None) -> None:
        super().__init__()
        self.model = model
        self._tokens: dict[str, Any] = {name: _token(model, m) for m in modalities for name in (m.features, m.deep)}
        self._layout = layout
        self.axes = 0 if layout is None else layout.axes
        self._embedded_as = embedded_as(model)
        self._takes_kinds = takes_kinds(model) or (
            KINDS in inspect.signature(model.forward).parameters and sees_kinds(model, KINDS, width_of(model))
        )
        self._adds = {m.features for m in modalities if m.name == "image" and adds_features(model, _token(model, m))}

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **features: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        masks = {name: _places(input_ids == self._tokens[name], rows.shape[0]) for name, rows in features.items()}
        is_placeholder = torch.zeros_like(input_ids, dtype=torch.bool)
        for mask in (mask for name, mask in masks.items() if name not in self._adds):
            is_placeholder = is_placeholder | mask
        words = input_ids
        for token, other in self._embedded_as.items():
            words = words.masked_fill(input_ids == token, other)
        ids = words.masked_fill(is_placeholder, 0)  # placeholder tokens may lie beyond the embedding's rows
        embedded = self.model.get_input_embeddings()(ids)
        outputs: dict[str, torch.Tensor] = {}
        for name, mask in masks.items():
            spread = _spread(features[name].to(embedded.dtype), mask)
            if name.endswith(DEEP):
                outputs[DEEP] = spread
            else:
                shown = embedded + spread if name in self._adds else spread
                embedded = torch.where(mask[..., None], shown, embedded)
        outputs[EMBEDDED] = embedded
        per_layer = per_layer_inputs(self.model, words)
        if per_layer is not None:
            outputs[PER_LAYER] = per_layer
        if self._takes_kinds:
            outputs[KINDS] = masks["image_features"].long()
        if self._layout is not None and attention_mask is not None:
            outputs["position_ids"] = image_positions(
                input_ids, masks["image_features"], attention_mask != 0, self._layout
            )
        return outputs


def _places(is_token: torch.Tensor, count: int) -> torch.Tensor:
    """The first ``count`` of the places [batch, sequence]: a token that was generated stands for no feature."""
    return is_token & (is_token.flatten().cumsum(0).reshape(is_token.shape) <= count)


def _spread(features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The rows of ``features`` in the places [batch, sequence] that ``mask`` shows, zeros in all others."""
    rows = torch.cat([features.new_zeros(1, *features.shape[1:]), features])  # so that there may be no feature at all
    order = (mask.flatten().cumsum(0) * mask.flatten()).reshape(mask.shape)
    return rows[order]


def encoders_and_embedding(
    model: Any, name: str, options: Options, left_out: list[str] | None = None
) -> dict[str, list[Source]]:
    """The parts before the language model, by file name; of each the forms to try, the more general one first.

    Of several encoders, one whose arguments are not known is left out; ``left_out`` gets the reason.
    Raises:   UserError E601 where none is left, or for positions of a model's own.
    """
    parts: dict[str, list[Source]] = {}
    modalities: list[Modality] = []
    problems: dict[str, UserError] = {}
    for modality in modalities_of(model):
        try:
            parts[modality.file] = feature_forms(model, modality, name, options)
        except UserError as error:
            problems[modality.name] = error
        else:
            modalities.append(modality)
    if not modalities:
        raise next(iter(problems.values()))
    if left_out is not None:
        left_out += [f"without {kind}: {error.what}" for kind, error in problems.items()]
    layout = None
    for form in parts.get("vision_encoder.onnx", [])[-1:]:
        layout = image_layout(model, form.kwargs, partial(_features_of, model, form))
    width = width_of(model)
    tokens = {_token(model, modality) for modality in modalities}
    words = torch.tensor([word for word in range(3, 12) if word not in tokens])
    ids = words[torch.randint(0, len(words), (options.batch_or(), options.seq_or(7)))]
    kwargs: dict[str, Any] = {"input_ids": ids}
    shapes: dict[str, Any] = {"input_ids": {0: BATCH, 1: SEQUENCE}}
    if layout is not None:
        kwargs["attention_mask"], shapes["attention_mask"] = torch.ones_like(ids), {0: BATCH, 1: SEQUENCE}
    for place, modality in enumerate(modalities):
        ids[:, 2 * place] = _token(model, modality) or 0
        for key, sizes in _sizes_of_features(model, modality, parts[modality.file][-1], width).items():
            kwargs[key] = torch.randn(options.batch_or(), *sizes)
            shapes[key] = {0: f"{modality.name}_tokens"}
    parts["embed_tokens.onnx"] = [Source(name, EmbedPart(model, modalities, layout).eval(), (), kwargs, shapes)]
    return parts


def _features_of(model: Any, form: Source) -> int:
    """How many features the encoder gives for an image, of which integer arguments of ``form`` have a row each."""
    images = next((len(form.kwargs[name]) for name in form.bake), 1)
    rows: Mapping[str, torch.Tensor] = run_lightly(model, form.module, form.kwargs)
    return next(iter(rows.values())).shape[0] // images


def _sizes_of_features(model: Any, modality: Modality, form: Source, width: int) -> dict[str, tuple[int, ...]]:
    """By the name of an output of the encoder, the sizes of a row of it."""
    if not takes_deep_features(model):
        return {modality.features: (width,)}
    found = run_lightly(model, form.module, form.kwargs)
    return {key: tuple(value.shape[1:]) for key, value in found.items()}


def beside_embedded(embed: Source) -> dict[str, tuple[int, ...]]:
    """By name, the sizes behind [batch, sequence] of what the language model takes beside embedded tokens."""
    found = run_lightly(embed.module, embed.module, embed.kwargs)
    return {key: tuple(value.shape[2:]) for key, value in found.items() if key in (PER_LAYER, DEEP, KINDS)}


def feature_forms(model: Any, modality: Modality, name: str, options: Options) -> list[Source]:
    """The encoder for a batch, and for one image or recording a call: many models make a list of their batch.

    Sizes, places and masks beside the images are baked: their values decide shapes. A text beside them is an input.
    """
    settle(model)
    part = FeaturePart(model, modality).eval()
    parameters = _parameters(model, modality)
    samples, axes = _accepted(model, part, modality, parameters, options)
    texts = {key: {**axes[key], 0: BATCH} for key in samples if 1 in axes[key]}
    bake = tuple(key for key, value in samples.items() if not value.is_floating_point() and key not in texts)
    if any(name in OF_ALL_IMAGES for name in samples):
        return [Source(name, part, (), samples, bake=bake)]
    lengths = {key: {axis: word for axis, word in axes.items() if axis} for key, axes in texts.items()}
    one = Source(name, part, (), {key: value[:1] for key, value in samples.items()}, lengths or None, bake=bake)
    return [one] if bake else [Source(name, part, (), samples, {modality.argument: {0: BATCH}, **texts}), one]


def _accepted(
    model: Any, part: FeaturePart, modality: Modality, parameters: Mapping[str, inspect.Parameter], options: Options
) -> tuple[Inputs, Shapes]:
    """The first sample of the encoder's arguments that it takes, and the names of their axes."""
    needed = [
        key
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    reason: Exception | None = None
    call = SampleContext(model.config, options, model)
    for makers in _choices(modality, parameters, call):
        if not set(needed) <= set(makers):
            continue
        samples, shapes = samples_of(makers, call)
        try:
            run_lightly(model, part, samples)
            return samples, shapes
        except UserError:
            raise
        except Exception as error:  # a model raises whatever an input of another shape leads to
            reason = reason or error
    unknown = [key for key in needed if key != modality.argument]
    what = (
        f"no sample input is known for '{(unknown or [modality.argument])[0]}' of {modality.method}"
        if reason is None
        else f"{modality.method} does not take the sample of {modality.argument}"
    )
    raise UserError(
        "E601",
        what,
        why="" if reason is None else f"{type(reason).__name__}: {(str(reason).splitlines() or [''])[0][:200]}",
        next="export the encoder from a factory of your own: fx2onnx export package.module:factory",
    ) from reason


def _choices(
    modality: Modality, parameters: Mapping[str, Any], call: SampleContext
) -> Iterator[dict[str, InputFactory]]:
    """Arguments to try, in their usual forms first."""
    argument = modality.argument
    if modality is _FILM:
        yield from ({**form, PIXELS: INPUT_FACTORIES["pixel_values_videos"]} for form in image_forms(parameters, call))
    elif argument == PIXELS:
        yield from image_forms(parameters, call)
    elif argument in parameters:
        yield from sound_forms(argument, parameters, call)


def _owners(model: Any, modality: Modality) -> list[Any]:
    """The modules that have the method: the model itself, or the one inside that its outer classes wrap."""
    found = (model, getattr(model, "model", None), model.base_model)
    return [owner for owner in found if hasattr(owner, modality.method)]


def _owner(model: Any, modality: Modality) -> Any:
    return next(iter(_owners(model, modality)), None)


def _parameters(model: Any, modality: Modality) -> Mapping[str, inspect.Parameter]:
    """Of the encoder's method; outer classes hand theirs on as ``*args, **kwargs``, some of them or all."""
    known: dict[str, inspect.Parameter] = {}
    for owner in _owners(model, modality):
        parameters = inspect.signature(getattr(owner, modality.method)).parameters
        known = {**parameters, **known}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return known


def _token(model: Any, modality: Modality) -> int | None:
    for field in modality.tokens:
        value = getattr(model.config, field, None)
        if isinstance(value, int):
            return value
    return None


def width_of(model: Any) -> int:
    """Numbers of an embedded token."""
    embedding = model.get_input_embeddings()
    found: Mapping[str, torch.Tensor] = run_lightly(
        model, lambda ids: {"x": embedding(ids)}, {"ids": torch.zeros(1, 1, dtype=torch.int64)}
    )
    return int(found["x"].shape[-1])
