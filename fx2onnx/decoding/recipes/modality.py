"""The inputs of a model beside text: how images and sound are encoded, and the token that stands for a feature.

All is found by what such models have in common in transformers: ``get_image_features`` and ``get_audio_features``,
``config.image_token_id``. No model is named.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from fx2onnx.decoding.recipes.deepstack import DEEP
from fx2onnx.manifest.names import AUDIO_FILE, IMAGE_FILE
from fx2onnx.sources.hf.transformers_types import Model
from fx2onnx.sources.light_run import run_lightly


@dataclass(frozen=True)
class Modality:
    """The encoding of one kind of input: the method, its main argument, the config fields that name its token, and the
    field of its part of the config."""

    name: Literal["image", "audio"]
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
        IMAGE_FILE,
        "get_image_features",
        "pixel_values",
        ("image_token_id", "image_token_index"),
        "vision_config",
    ),
    Modality(
        "audio",
        AUDIO_FILE,
        "get_audio_features",
        "input_features",
        ("audio_token_id", "audio_token_index"),
        "audio_config",
    ),
)
FILM = Modality(
    "image",
    IMAGE_FILE,
    "get_video_features",
    "pixel_values",
    ("video_token_id", "video_token_index"),
    "vision_config",
)
"""The modality of models that take nothing but videos: others call theirs ``pixel_values_videos``."""


def modalities_of(model: Model) -> list[Modality]:
    """The modalities for which ``model`` has an encoder and a token."""
    without = {m.name for m in MODALITIES if getattr(model.config, m.config, "") is None}
    sees = owner_of(model, MODALITIES[0]) is not None
    films = [] if sees or FILM.argument not in parameters_of(model, FILM) else [FILM]
    return [
        m
        for m in (*films, *MODALITIES)
        if m.name not in without and owner_of(model, m) is not None and token_of(model, m) is not None
    ]


def _owners(model: Model, modality: Modality) -> list[object]:
    """The modules that have the method: the model itself, or the one inside that its outer classes wrap."""
    owners: tuple[object, ...] = (model, getattr(model, "model", None), model.base_model)
    return [owner for owner in owners if hasattr(owner, modality.method)]


def owner_of(model: Model, modality: Modality) -> object:
    return next(iter(_owners(model, modality)), None)


def parameters_of(model: Model, modality: Modality) -> Mapping[str, inspect.Parameter]:
    """The parameters of the encoder's method; outer classes hand theirs on as ``*args, **kwargs``, some of them or
    all.
    """
    known: dict[str, inspect.Parameter] = {}
    for owner in _owners(model, modality):
        parameters = inspect.signature(getattr(owner, modality.method)).parameters
        known = {**parameters, **known}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return known


def token_of(model: Model, modality: Modality) -> int | None:
    values = (getattr(model.config, field, None) for field in modality.tokens)
    return next((value for value in values if isinstance(value, int)), None)


def width_of(model: Model) -> int:
    """Numbers of an embedded token."""
    embedding = model.get_input_embeddings()
    ids = torch.zeros(1, 1, dtype=torch.int64)
    embedded: torch.Tensor = run_lightly(model, lambda ids: embedding(ids), {"ids": ids})
    return embedded.shape[-1]
