"""Language models that read images or sound: one module for each encoder, one that puts features among the embedded
tokens, one for the language model with its cache.

The parts come from what such models have in common in transformers: ``get_image_features`` and ``get_audio_features``,
``get_input_embeddings``, and the token that stands for a feature (``config.image_token_id``). No model is named.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import cast

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.decoder import cached_decoder
from fx2onnx.decoding.mrope import GridLayout, ImageLayout, grid_layout, image_layout, image_positions, rope_index_of
from fx2onnx.decoding.probes import adds_features, sees_kinds, settle
from fx2onnx.decoding.recipes.modality import (
    DEEP,
    FILM,
    KINDS,
    PER_LAYER,
    Modality,
    deep_features,
    embedded_as,
    modalities_of,
    owner_of,
    parameters_of,
    per_layer_inputs,
    takes_deep_features,
    takes_kinds,
    token_of,
    width_of,
)
from fx2onnx.decoding.recipes.recipe import FolderPart, FolderRequest, ModelPart, TextOnly
from fx2onnx.manifest.form import Grid, Medium
from fx2onnx.manifest.names import BATCH, DECODER_FILE, EMBED_FILE, EMBEDDED, IMAGE_FILE, POSITIONS, SEQUENCE
from fx2onnx.sources.foreign_errors import summary
from fx2onnx.sources.hf.image_samples import OF_ALL_IMAGES, PIXELS, image_forms
from fx2onnx.sources.hf.inputs import GRIDS
from fx2onnx.sources.hf.sample_context import InputFactory, SampleContext, samples_of
from fx2onnx.sources.hf.samples import INPUT_FACTORIES
from fx2onnx.sources.hf.sound_processor import sound_forms
from fx2onnx.sources.hf.transformers_types import Inputs, Model, Shapes
from fx2onnx.sources.light_run import run_lightly
from fx2onnx.sources.source import Options, Source


class EmbedPart(torch.nn.Module):
    """Embedded tokens [batch, sequence, width] with features in the places of their tokens; with ``layout``, also the
    positions [axes, batch, sequence] of tokens among images of that layout, or of the sizes that the input ``grid`` says.
    And what the language model takes beside them [batch, sequence, layers, width].
    """

    def __init__(
        self,
        model: Model,
        modalities: list[Modality],
        layout: ImageLayout | GridLayout | None = None,
        grid: Grid | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self._tokens = {name: token_of(model, m) or 0 for m in modalities for name in (m.features, m.deep)}
        self.media = tuple(
            Medium(m.name, features=m.features, token=token_of(model, m), grid=grid if m.name == "image" else None)
            for m in modalities
        )
        self._layout = layout
        self._grid = "" if grid is None else grid.input
        self.axes = 0 if layout is None else layout.axes
        self._embedded_as = embedded_as(model)
        self._takes_kinds = takes_kinds(model) or (
            KINDS in inspect.signature(model.forward).parameters and sees_kinds(model, KINDS, width_of(model))
        )
        self._adds = {m.features for m in modalities if m.name == "image" and adds_features(model, token_of(model, m))}

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **features: torch.Tensor
    ) -> Inputs:
        grids = features.pop(self._grid, None)
        masks = {name: _places(input_ids == self._tokens[name], rows.shape[0]) for name, rows in features.items()}
        is_placeholder = torch.zeros_like(input_ids, dtype=torch.bool)
        for mask in (mask for name, mask in masks.items() if name not in self._adds):
            is_placeholder = is_placeholder | mask
        words = input_ids
        for token, other in self._embedded_as.items():
            words = words.masked_fill(input_ids == token, other)
        ids = words.masked_fill(is_placeholder, 0)  # placeholder tokens may lie beyond the embedding's rows
        embedded = self.model.get_input_embeddings()(ids)
        outputs: Inputs = {}
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
        if attention_mask is not None:
            is_image, is_shown = masks["image_features"], attention_mask != 0
            if isinstance(self._layout, GridLayout) and grids is not None:
                outputs[POSITIONS] = self._layout.positions(is_image, is_shown, grids)
            elif isinstance(self._layout, ImageLayout):
                outputs[POSITIONS] = image_positions(input_ids, is_image, is_shown, self._layout)
        return outputs


def _places(is_token: torch.Tensor, count: int) -> torch.Tensor:
    """The first ``count`` of the places [batch, sequence]: a token that was generated stands for no feature."""
    return is_token & (is_token.flatten().cumsum(0).reshape(is_token.shape) <= count)


def _spread(features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The rows of ``features`` in the places [batch, sequence] that ``mask`` shows, zeros in all others."""
    rows = torch.cat([features.new_zeros(1, *features.shape[1:]), features])  # so that there may be no feature at all
    order = (mask.flatten().cumsum(0) * mask.flatten()).reshape(mask.shape)
    return rows[order]


class FeaturePart(ModelPart[Modality]):
    """An encoder with its projector: features [tokens, width], one row for each placeholder token, in order; of encoders
    that have some for later layers, too, those [tokens, layers, width].
    """

    grid: Grid | None = None
    """The argument that may say another size of an image than the example's, if there is one."""

    def forward(self, **inputs: torch.Tensor) -> Inputs:
        owner = owner_of(self.model, self.facts)
        encoded = getattr(owner, self.facts.method)(**inputs, return_dict=True)
        rows = encoded if isinstance(encoded, torch.Tensor | list | tuple) else encoded.get("pooler_output")
        deep = deep_features(self.model, encoded)
        if rows is None and deep is not None and encoded.get("last_hidden_state") is None:
            rows = torch.zeros_like(deep[:, 0])  # forward embeds the tokens of images as nothing
        if rows is None:  # left to forward
            rows = encoded["last_hidden_state"]
            projector = getattr(owner, "multi_modal_projector", None)
            rows = rows if projector is None else projector(rows)
        if isinstance(rows, list | tuple):
            rows = torch.cat([row.flatten(0, -2) for row in rows])
        outputs = {self.facts.features: rows.flatten(0, -2)}
        return outputs if deep is None else outputs | {self.facts.deep: deep}


def fits(request: FolderRequest) -> bool:
    return bool(modalities_of(request.model))


def parts(request: FolderRequest) -> list[FolderPart] | TextOnly:
    model, left_out = request.model, list[str]()
    try:
        forms = encoders_and_embedding(model, request.name, request.options, left_out)
    except UserError as error:
        return TextOnly(error.what)
    made = [request.part(file, *choices, narrow=_narrow(choices)) for file, choices in forms.items()]
    made[-1] = replace(made[-1], note="; ".join(left_out))
    (embed,) = forms[EMBED_FILE]
    decoder = partial(
        cached_decoder,
        request.language,
        request.name,
        request.options,
        width=width_of(model),
        axes=cast(EmbedPart, embed.module).axes,
        beside=beside_embedded(embed),
    )
    return [*made, request.decoder_part(DECODER_FILE, decoder)]


def _narrow(forms: list[Source]) -> str:
    """The inputs that the last of ``forms`` takes in one call, where these are fewer than those of the first."""
    grid = getattr(forms[0].module, "grid", None)
    return "one image or recording" if grid is None else "an image of the sample's size"


def encoders_and_embedding(
    model: Model, name: str, options: Options, left_out: list[str] | None = None
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
    layout: ImageLayout | GridLayout | None = None
    grid = None
    for form in parts.get(IMAGE_FILE, [])[-1:]:
        grid = cast(FeaturePart, form.module).grid
        layout = None if grid is None else grid_layout(model, form.kwargs)
        layout = layout or image_layout(model, form.kwargs, partial(_features_of, model, form))
    width = width_of(model)
    tokens = {token_of(model, modality) for modality in modalities}
    words = torch.tensor([word for word in range(3, 12) if word not in tokens])
    ids = words[torch.randint(0, len(words), (options.batch_or(), options.seq_or(7)))]
    kwargs: Inputs = {"input_ids": ids}
    shapes: Shapes = {"input_ids": {0: BATCH, 1: SEQUENCE}}
    if layout is not None:
        kwargs["attention_mask"], shapes["attention_mask"] = torch.ones_like(ids), {0: BATCH, 1: SEQUENCE}
    if grid is not None and isinstance(layout, GridLayout):
        kwargs[grid.input] = torch.tensor([[1, layout.merge_size, layout.merge_size]] * options.batch_or())
        shapes[grid.input] = {0: "images"}
    for place, modality in enumerate(modalities):
        ids[:, 2 * place] = token_of(model, modality) or 0
        for key, sizes in _sizes_of_features(model, modality, parts[modality.file][-1], width).items():
            kwargs[key] = torch.randn(options.batch_or(), *sizes)
            shapes[key] = {0: f"{modality.name}_tokens"}
    parts[EMBED_FILE] = [Source.of_part(name, EmbedPart(model, modalities, layout, grid).eval(), kwargs, shapes)]
    return parts


def _features_of(model: Model, form: Source) -> int:
    """The number of features that the encoder gives for an image; integer arguments of ``form`` have a row for each."""
    images = next((len(form.kwargs[name]) for name in form.bake), 1)
    rows: Inputs = run_lightly(model, form.module, form.kwargs)
    return next(iter(rows.values())).shape[0] // images


def _grid_of(model: Model, form: Source) -> Grid | None:
    """The argument of ``form``, an encoder for one image, that may say another size of the image: a grid that counts its
    patches, a square of which makes a feature, where positions follow from it or are those of text.
    """
    name = next((name for name in form.kwargs if name in GRIDS), None)
    if name is None or (rope_index_of(model) is not None and grid_layout(model, form.kwargs) is None):
        return None
    patches, features = int(form.kwargs[name].prod()), _features_of(model, form)
    merge = math.isqrt(patches // max(features, 1))
    is_counted = len(form.kwargs[PIXELS]) == patches == features * merge**2
    return Grid(name, merge) if is_counted else None


def _sizes_of_features(model: Model, modality: Modality, form: Source, width: int) -> dict[str, tuple[int, ...]]:
    """The sizes of a row of each output of the encoder, by the output's name."""
    if not takes_deep_features(model):
        return {modality.features: (width,)}
    outputs: Inputs = run_lightly(model, form.module, form.kwargs)
    return {key: tuple(value.shape[1:]) for key, value in outputs.items()}


def beside_embedded(embed: Source) -> dict[str, tuple[int, ...]]:
    """The sizes behind [batch, sequence] of what the language model takes beside embedded tokens, by name."""
    outputs: Inputs = run_lightly(embed.module, embed.module, embed.kwargs)
    return {key: tuple(value.shape[2:]) for key, value in outputs.items() if key in (PER_LAYER, DEEP, KINDS)}


def feature_forms(model: Model, modality: Modality, name: str, options: Options) -> list[Source]:
    """The encoder for a batch, and for one image or recording a call: many models make a list of their batch.

    A grid that says the size of an image is an input, in the first form; else sizes, places and masks beside the images
    are constants: their values decide shapes. A text beside them is an input.
    """
    settle(model)
    part = FeaturePart(model, modality).eval()
    parameters = parameters_of(model, modality)
    samples, axes = _accepted(model, part, modality, parameters, options)
    texts = {key: {**axes[key], 0: BATCH} for key in samples if 1 in axes[key]}
    bake = tuple(key for key, value in samples.items() if not value.is_floating_point() and key not in texts)
    if any(name in OF_ALL_IMAGES for name in samples):
        whole = Source.of_part(name, part, samples, bake=bake)
        part.grid = _grid_of(model, whole)
        if part.grid is None:
            return [whole]
        free = tuple(key for key in bake if key != part.grid.input)
        return [Source.of_part(name, part, samples, {PIXELS: {0: "patches"}}, bake=free), whole]
    lengths = {key: {axis: word for axis, word in axes.items() if axis} for key, axes in texts.items()}
    one = Source.of_part(name, part, {key: value[:1] for key, value in samples.items()}, lengths or None, bake=bake)
    return [one] if bake else [Source.of_part(name, part, samples, {modality.argument: {0: BATCH}, **texts}), one]


def _accepted(
    model: Model, part: FeaturePart, modality: Modality, parameters: Mapping[str, inspect.Parameter], options: Options
) -> tuple[Inputs, Shapes]:
    """The first sample of the encoder's arguments that it takes, and the names of their axes."""
    needed = [
        key
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    reason: Exception | None = None
    context = SampleContext(model.config, options, model)
    for factories in _choices(modality, parameters, context):
        if not set(needed) <= set(factories):
            continue
        samples, shapes = samples_of(factories, context)
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
        why=summary(reason),
        next="export the encoder from a factory of your own: fx2onnx export package.module:factory",
    ) from reason


def _choices(
    modality: Modality, parameters: Mapping[str, inspect.Parameter], context: SampleContext
) -> Iterator[dict[str, InputFactory]]:
    """Arguments to try, in their usual forms first."""
    argument = modality.argument
    if modality is FILM:
        yield from (
            {**form, PIXELS: INPUT_FACTORIES["pixel_values_videos"]} for form in image_forms(parameters, context)
        )
    elif argument == PIXELS:
        yield from image_forms(parameters, context)
    elif argument in parameters:
        yield from sound_forms(argument, parameters, context)
