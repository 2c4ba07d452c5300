"""Probes of a model: how it handles the features and the places of images before its language model runs, found by
calling it.

The calls end where the language model begins, so no layer runs and no weight is read but those of the embedding.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from fx2onnx.sources.hf.transformers_types import Model

FEATURES_GIVEN = "mm_encoder_outputs"  # forward's argument for features that are there already
_SAMPLE = 4  # tokens


class EnoughSeen(Exception):
    """Ends a run where what it was made for has been seen."""


def first_call(module: nn.Module, run: Callable[[], object]) -> tuple[tuple[object, ...], dict[str, Any]]:
    """The arguments with which ``run()`` first calls ``module``, by place and by name; none where it does not."""
    seen: list[tuple[tuple[object, ...], dict[str, Any]]] = []

    def look(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        seen.append((args, kwargs))
        raise EnoughSeen

    handle = module.register_forward_pre_hook(look, with_kwargs=True)
    try:
        with torch.no_grad():
            run()
    except Exception:  # Seen, or a model that wants something else
        pass
    finally:
        handle.remove()
    return seen[0] if seen else ((), {})


def adds_features(model: Model, token: int | None) -> bool:
    """Return whether a feature is added to the embedded placeholder ``token``; in most models it takes its place."""
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    language = _language_of(model)
    if language is None or token is None or FEATURES_GIVEN not in inspect.signature(model.forward).parameters:
        return False
    ids = torch.tensor([[token]])

    def embedded_as_ones(_: object, __: object, output: torch.Tensor) -> torch.Tensor:
        return torch.ones(output.shape)

    embedding = model.get_input_embeddings()
    handle = embedding.register_forward_hook(embedded_as_ones)
    try:
        feature = torch.full((1, embedding(ids).shape[-1]), 2.0)
        for pooled in ((feature,), feature):
            given = {"image": BaseModelOutputWithPooling(pooler_output=pooled)}
            _, seen = first_call(language, partial(model, **{"input_ids": ids, FEATURES_GIVEN: given}))
            if seen.get("inputs_embeds") is not None:
                return bool((seen["inputs_embeds"] == 3).all())
    finally:
        handle.remove()
    return False


def sees_kinds(model: Model, argument: str, width: int) -> bool:
    """Return whether the kinds of tokens [batch, sequence], which forward takes as ``argument``, decide who sees whom."""
    language = _language_of(model)
    if language is None:
        return False
    given = {"inputs_embeds": torch.zeros(1, _SAMPLE, width), "attention_mask": torch.ones(1, _SAMPLE).long()}
    masks = []
    for kinds in ([0, 0, 0, 0], [0, 1, 1, 0]):
        _, seen = first_call(language, partial(model, **given, **{argument: torch.tensor([kinds])}))
        if "attention_mask" not in seen:
            return False
        masks.append(seen["attention_mask"])
    return _differ(*masks)


def settle(model: Model) -> None:
    """Have the helper objects of modules compute what they keep from then on (``cached_property``).

    A tensor that is first computed in a run on tensors without data would stay without.
    """
    for part in model.modules():
        for helper in [value for value in vars(part).values() if type(value).__module__ == type(part).__module__]:
            for name, member in vars(type(helper)).items():
                if isinstance(member, cached_property):
                    with contextlib.suppress(Exception):  # a helper may lack what the property is made of
                        getattr(helper, name)


def before_the_prompt(cache: object) -> object:
    """``cache``, saying that nothing has been put in: some models look at the kinds of tokens only then."""
    kind = type(cache)
    if hasattr(kind, "is_initialized"):
        cache.__class__ = type(kind.__name__, (kind,), {"is_initialized": property(lambda _: False)})
    return cache


def _language_of(model: Model) -> nn.Module | None:
    return getattr(model.base_model, "language_model", None)


def _differ(one: object, other: object) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() != other.keys() or any(_differ(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return not torch.equal(one, other)
    return type(one) is not type(other)
