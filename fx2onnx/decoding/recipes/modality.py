"""The inputs of a model beside text: how images and sound are encoded, and the token that stands for a feature.

All is found by what such models have in common in transformers: ``get_image_features`` and ``get_audio_features``,
``config.image_token_id``. No model is named. Beside embedded tokens, language models take a second embedding for every layer
(``per_layer_inputs`` of forward), and features of images that are added to the states behind the first layers
(``deepstack_features`` of what ``get_image_features`` returns).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import nn

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.probes import first_call
from fx2onnx.manifest.names import AUDIO_FILE, IMAGE_FILE
from fx2onnx.sources.hf.transformers_types import Model
from fx2onnx.sources.light_run import run_lightly

PER_LAYER, DEEP, KINDS = "per_layer_inputs", "deepstack_features", "mm_token_type_ids"
_ADDING = "_deepstack_process"  # the method of language models that adds features behind a layer
_EMBED = "get_per_layer_inputs"
_NAMED: WeakKeyDictionary[nn.Module, list[int]] = WeakKeyDictionary()
"""The numbers of the layers before which features are added, by language model, if its encoder names them."""


def deep_features(model: nn.Module, encoded: object) -> torch.Tensor | None:
    """Features for later layers [tokens, layers, width] of an encoder's output, if it has any.

    Raises:   UserError E601 where the language model does not take them as others do.
    """
    levels = encoded.get(DEEP) if isinstance(encoded, Mapping) else None
    if not levels:
        return None
    language = _named(model)
    if language is not None and all(isinstance(level, tuple) and isinstance(level[0], int) for level in levels):
        # The last one counts of several for a layer, and there may be layers that the language model has not.
        by_layer = {layer: features for layer, features in levels if layer < len(language.layers)}
        _NAMED[language], levels = list(by_layer), list(by_layer.values())
    elif _adding(model) is None:
        raise UserError(
            "E601",
            f"{type(model).__name__} hands features of images to later layers by rules of its own",
            why=f"its encoder gives {DEEP}, but its language model has no {_ADDING}",
        )
    joined = [torch.cat(list(level)) if isinstance(level, list | tuple) else level.flatten(0, -2) for level in levels]
    return torch.stack(joined, dim=1)


def embedded_as(model: Model) -> dict[int, int]:
    """Special tokens that the model's forward embeds as another token, and that token: what it does with placeholders."""
    config = vars(model.config)
    named = [word for key, word in config.items() if key.endswith(("_token_id", "_token_index"))]
    ids = torch.tensor([sorted({word for word in named if isinstance(word, int) and word >= 0})])
    run = partial(model, input_ids=ids.clone(), attention_mask=torch.ones_like(ids))
    args, _ = first_call(model.get_input_embeddings(), run)
    words = args[0] if args else None
    if not isinstance(words, torch.Tensor) or words.shape != ids.shape:
        return {}
    pairs = zip(ids.flatten().tolist(), words.flatten().tolist(), strict=True)
    return {token: other for token, other in pairs if token != other}


def per_layer_inputs(model: Model, ids: torch.Tensor) -> torch.Tensor | None:
    """The second embedding [batch, sequence, layers, width] of every token; None for models without."""
    if PER_LAYER not in inspect.signature(model.forward).parameters:
        return None
    if not getattr(model.config.get_text_config(decoder=True), "hidden_size_per_layer_input", None):
        return None
    owner = next(part for part in model.modules() if hasattr(part, _EMBED))
    embedded: torch.Tensor = getattr(owner, _EMBED)(ids)
    return embedded


def takes_kinds(model: Model) -> bool:
    """Return whether the tokens of an image see each other in both directions, which forward finds by the kind of each token."""
    text = model.config.get_text_config(decoder=True)
    bidirectional = getattr(text, "use_bidirectional_attention", None) == "vision"
    return bidirectional and KINDS in inspect.signature(model.forward).parameters


@contextlib.contextmanager
def behind_layers(model: nn.Module, features: torch.Tensor | None) -> Iterator[None]:
    """Within, ``model`` adds ``features`` [batch, sequence, layers, width] to the states behind its first layers, or before
    those that its encoder named.

    The language model gets them as its outer class would hand them on, spread over all tokens: those of text have zeros.
    """
    if features is None:
        yield
        return
    language: Model = _adding(model)
    with contextlib.ExitStack() as stack:
        if language is not None:

            def hand_on(
                _: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
            ) -> tuple[tuple[object, ...], dict[str, object]]:
                return args, {**kwargs, "deepstack_visual_embeds": list(features.unbind(2))}

            setattr(language, _ADDING, lambda states, _, added: states + added.to(states.dtype))
            stack.callback(delattr, language, _ADDING)
            stack.callback(language.register_forward_pre_hook(hand_on, with_kwargs=True).remove)
        else:
            language = _named(model)
            for place, layer in enumerate(_NAMED[language]):
                adding = partial(_add_before, features[:, :, place])
                stack.callback(language.layers[layer].register_forward_pre_hook(adding).remove)
        yield


def _add_before(features: torch.Tensor, _: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    states, *others = args
    return states + features.to(states.dtype), *others


def takes_deep_features(model: nn.Module) -> bool:
    """Return whether the language model adds features of images to the states of its layers."""
    return _adding(model) is not None or _named(model) is not None


def _adding(model: nn.Module) -> Any:
    return next((part for part in model.modules() if hasattr(part, _ADDING)), None)


def _named(model: nn.Module) -> Any:
    """The language model that takes features by the number of a layer."""
    parts = (part for part in model.modules() if hasattr(part, "layers"))
    return next((part for part in parts if DEEP in inspect.signature(part.forward).parameters), None)


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
