"""Language models that read images or sound: one module for each encoder, one that puts features among the embedded
tokens, one for the language model with its cache.

The parts come from what such models have in common in transformers: ``get_image_features`` and ``get_audio_features``,
``get_input_embeddings``, and the token that stands for a feature (``config.image_token_id``). No model is named.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.sources.generation import BATCH, SEQUENCE, run_lightly
from fx2onnx.sources.hf_inputs import sample_inputs
from fx2onnx.sources.source import Options, Source


@dataclass(frozen=True)
class Modality:
    """How one kind of input is encoded: the method, its main argument, the config fields that name its token."""

    name: str
    file: str
    method: str
    argument: str
    tokens: tuple[str, ...]

    @property
    def features(self) -> str:
        return f"{self.name}_features"


MODALITIES = (
    Modality(
        "image", "vision_encoder.onnx", "get_image_features", "pixel_values", ("image_token_id", "image_token_index")
    ),
    Modality(
        "audio", "audio_encoder.onnx", "get_audio_features", "input_features", ("audio_token_id", "audio_token_index")
    ),
)


def modalities_of(model: Any) -> list[Modality]:
    """Those that ``model`` has an encoder and a token for."""
    return [m for m in MODALITIES if _owner(model, m) is not None and _token(model, m) is not None]


class FeaturePart(torch.nn.Module):
    """An encoder with its projector: features [tokens, width], one row for each placeholder token, in order."""

    def __init__(self, model: Any, modality: Modality) -> None:
        super().__init__()
        self.model = model
        self._modality = modality

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        encode: Any = getattr(_owner(self.model, self._modality), self._modality.method)
        found = encode(**inputs, return_dict=True)
        rows = found if isinstance(found, torch.Tensor | list | tuple) else found["pooler_output"]
        if isinstance(rows, list | tuple):
            rows = torch.cat([row.flatten(0, -2) for row in rows])
        return {self._modality.features: rows.flatten(0, -2)}


class EmbedPart(torch.nn.Module):
    """Embedded tokens [batch, sequence, width] with features in the places of their tokens."""

    def __init__(self, model: Any, modalities: list[Modality]) -> None:
        super().__init__()
        self.model = model
        self._tokens: dict[str, Any] = {m.features: _token(model, m) for m in modalities}

    def forward(self, input_ids: torch.Tensor, **features: torch.Tensor) -> dict[str, torch.Tensor]:
        masks: dict[str, Any] = {name: input_ids == self._tokens[name] for name in features}
        ids = input_ids
        for mask in masks.values():
            ids = ids.masked_fill(mask, 0)  # placeholder tokens may lie beyond the embedding's rows
        embedded = self.model.get_input_embeddings()(ids)
        for name, mask in masks.items():
            # Row 0 is for all that is no placeholder, so that there may be no feature at all.
            rows = torch.cat([embedded.new_zeros(1, embedded.shape[-1]), features[name].to(embedded.dtype)])
            order = (mask.flatten().cumsum(0) * mask.flatten()).reshape(mask.shape)
            embedded = torch.where(mask[..., None], rows[order], embedded)
        return {"inputs_embeds": embedded}


def encoders_and_embedding(model: Any, name: str, options: Options) -> dict[str, list[Source]]:
    """The parts before the language model, by file name; of each the forms to try, the more general one first.

    Raises:   UserError E601 for an encoder whose arguments are not known.
    """
    modalities = modalities_of(model)
    parts = {m.file: [_feature_source(model, m, name, options, one=one) for one in (False, True)] for m in modalities}
    width = width_of(model)
    ids = torch.randint(3, 9, (options.batch_or(), options.seq_or(7)))
    kwargs: dict[str, Any] = {"input_ids": ids}
    shapes: dict[str, Any] = {"input_ids": {0: BATCH, 1: SEQUENCE}}
    for place, modality in enumerate(modalities):
        ids[:, 2 * place] = _token(model, modality) or 0
        kwargs[modality.features] = torch.randn(options.batch_or(), width)
        shapes[modality.features] = {0: f"{modality.name}_tokens"}
    parts["embed_tokens.onnx"] = [Source(name, EmbedPart(model, modalities).eval(), (), kwargs, shapes)]
    return parts


def _feature_source(model: Any, modality: Modality, name: str, options: Options, *, one: bool) -> Source:
    """The encoder for a batch, or for ``one`` image or recording a call: many models make a list of their batch."""
    part = FeaturePart(model, modality).eval()
    parameters = _parameters(model, modality)
    needed = [
        key
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    unknown = [key for key in needed if key != modality.argument]
    if unknown or modality.argument not in parameters:
        raise UserError(
            "E601",
            f"no sample input is known for '{(unknown or [modality.argument])[0]}' of {modality.method}",
            next="export the encoder from a factory of your own: fx2onnx export package.module:factory",
        )
    samples, _ = sample_inputs(_Asking(model, modality.argument), options)
    sample = _accepted(model, part, modality, samples[modality.argument])
    if one:
        return Source(name, part, (), {modality.argument: sample[:1]})
    return Source(name, part, (), {modality.argument: sample}, {modality.argument: {0: BATCH}})


def _accepted(model: Any, part: FeaturePart, modality: Modality, sample: torch.Tensor) -> torch.Tensor:
    """``sample`` as the encoder takes it: as it is, or with an axis of several images for each prompt."""
    reason: Exception | None = None
    for form in (sample, sample[:, None]):
        try:
            run_lightly(model, part, {modality.argument: form})
            return form
        except Exception as error:  # a model raises whatever an input of another shape leads to
            reason = reason or error
    raise UserError(
        "E601",
        f"{modality.method} does not take the sample of {modality.argument}",
        why=f"{type(reason).__name__}: {(str(reason).splitlines() or [''])[0][:200]}",
        next="export the encoder from a factory of your own: fx2onnx export package.module:factory",
    ) from reason


def _owners(model: Any, modality: Modality) -> list[Any]:
    """The modules that have the method: the model itself, or the one inside that its outer classes wrap."""
    found = (model, getattr(model, "model", None), model.base_model)
    return [owner for owner in found if hasattr(owner, modality.method)]


def _owner(model: Any, modality: Modality) -> Any:
    return next(iter(_owners(model, modality)), None)


def _parameters(model: Any, modality: Modality) -> Mapping[str, inspect.Parameter]:
    """Of the encoder's method; outer classes hand theirs on as ``*args, **kwargs``."""
    for owner in _owners(model, modality):
        parameters = inspect.signature(getattr(owner, modality.method)).parameters
        if modality.argument in parameters:
            return parameters
    return {}


class _Asking:
    """Stands for the model before ``sample_inputs``, with a forward of one argument."""

    def __init__(self, model: Any, argument: str) -> None:
        self.config = model.config
        self.main_input_name = argument
        self.forward = _FORWARDS[argument]


def _with_pixels(pixel_values: torch.Tensor) -> None: ...


def _with_sound(input_features: torch.Tensor) -> None: ...


_FORWARDS = {"pixel_values": _with_pixels, "input_features": _with_sound}


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
