"""Models that keep a part of their state in attributes of their modules, and hand over none of it (RecurrentGemma).

A trial run shows which attributes hold tensors of the batch. They become part of the cache: put into the modules before
a step, and taken out again behind it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypedDict, TypeGuard

import torch

from fx2onnx.sources.hf.transformers_types import Model

CACHE_ARGUMENTS = ("cache", "past_key_values")
"""What models' forward calls the cache: transformers since 5.24, and before."""

Path: TypeAlias = tuple[str | int, ...]
"""Of an attribute: the words of its module's path, and its name."""


class HeldCache(TypedDict):
    layers: object
    held: dict[str | int, Any]
    """Attributes of modules, nested as the modules are."""


def is_holding(cache: object) -> TypeGuard[HeldCache]:
    """Return whether ``cache`` is one that ``state_behind`` made."""
    return isinstance(cache, dict) and "held" in cache


def may_hold(model: Model) -> bool:
    return bool(getattr(model, "_is_stateful", False)) and cache_argument(model.forward) is not None


def cache_argument(function: Callable[..., object]) -> str | None:
    """The one of ``CACHE_ARGUMENTS`` that ``function`` takes by name."""
    parameters = inspect.signature(function).parameters
    return next((name for name in CACHE_ARGUMENTS if name in parameters), None)


def generated_argument(model: Model) -> str:
    """The one of ``CACHE_ARGUMENTS`` that ``prepare_inputs_for_generation`` takes; an override may leave it to the method that
    it calls.
    """
    methods = (vars(kind).get("prepare_inputs_for_generation") for kind in type(model).__mro__)
    names = (cache_argument(method) for method in methods if method is not None)
    return next((name for name in names if name), CACHE_ARGUMENTS[0])


def state_behind(model: Model, inputs: Mapping[str, object]) -> tuple[Mapping[str, torch.Tensor], HeldCache]:
    """The outputs of ``model`` for a prompt, and the state behind it: the cache that it was handed, and the tensors
    that modules hold.
    """
    from transformers import DynamicCache

    return step(model, {**inputs, "return_dict": True}, {"layers": DynamicCache(config=model.config), "held": {}})


def step(model: Model, inputs: Mapping[str, object], state: HeldCache) -> tuple[Mapping[str, torch.Tensor], HeldCache]:
    """The outputs of ``model`` after ``state``, and the state behind that."""
    with untouched(model):
        for path, value in _flat(state["held"]):
            *parents, attribute = path
            setattr(model.get_submodule(".".join(map(str, parents))), str(attribute), value)
        name = cache_argument(model.forward) or generated_argument(model)
        result = model(**inputs, **{name: state["layers"]}, use_cache=True)
        return result, {"layers": state["layers"], "held": _nested(_held(model))}


@contextlib.contextmanager
def untouched(model: torch.nn.Module) -> Iterator[None]:
    """Behind it, the modules' attributes are those of before."""
    before = [(module, dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes in before:
            vars(module).update(attributes)


def _held(model: torch.nn.Module) -> dict[Path, torch.Tensor]:
    """Tensors in plain attributes, by their path; neither weights nor buffers are."""
    return {
        (*(int(word) if word.isdigit() else word for word in name.split(".") if word), attribute): value
        for name, module in model.named_modules()
        for attribute, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }


def _nested(values: Mapping[Path, torch.Tensor]) -> dict[str | int, Any]:
    """``{(a, 0, b): tensor}`` -> ``{a: {0: {b: tensor}}}``, which names of states are made of."""
    nested: dict[str | int, Any] = {}
    for path, value in values.items():
        place = nested
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value
    return nested


def _flat(nested: Mapping[str | int, Any], path: Path = ()) -> Iterator[tuple[Path, torch.Tensor]]:
    for key, value in nested.items():
        if isinstance(value, dict):
            yield from _flat(value, (*path, key))
        else:
            yield (*path, key), value
