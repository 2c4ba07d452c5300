"""The inputs of language models beside embedded tokens: a second embedding for every layer, and features of images that
are added to the states behind the first layers, or before those that the encoder names.

The names are those that transformers gives them: ``per_layer_inputs`` of forward, ``deepstack_features`` of what
``get_image_features`` returns.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.probes import first_call
from fx2onnx.sources.hf.transformers_types import Model

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
