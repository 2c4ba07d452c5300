"""States of decoders that are no keys and values of each token: in attributes of modules, and of groups of tokens (DeepSeek V4).

A trial run shows which attributes hold tensors of the batch. They become part of the cache: put into the modules before
a step, and taken out again behind it.

Layers with one entry for every so many tokens hold, by name, the tokens behind the last whole group (``buffer_kv``,
``buffer_gate``: fewer than ``compress_rate``), the entries made so far (``compressed_kv``), and where groups overlap what the
last of them leaves to the next (``overlap_kv``, ``overlap_gate``). Here the numbers of both are sizes, and nothing is decided by them.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypedDict, TypeGuard

import torch

from fx2onnx.sources.hf.transformers_types import Model

OWN_SIZES = ("past_buffer_", "past_entries_")
"""The beginnings of the names of sizes that are not a number of past tokens."""
_BUFFERS, _ENTRIES = ("buffer_kv", "buffer_gate"), ("compressed_kv",)


def compresses(kind: type) -> bool:
    """Return whether ``kind`` is a layer of this sort: by the methods that its model calls."""
    return hasattr(kind, "store_compression_weights") and hasattr(kind, "update_compressor_states")


def tokens_for_an_entry(layer: Compressing) -> int:
    """The number of tokens until the layer holds all that it may hold; 0 for other layers."""
    return int(layer.compress_rate) if compresses(type(layer)) else 0


def sizes_of_their_own(layer: Compressing) -> Iterator[tuple[torch.Tensor, str, int]]:
    """The tensors whose axis 1 is no number of past tokens, the name of that size, and a sample that makes no entry or
    group the only one.
    """
    ratio = layer.compress_rate
    for fields, word, sample in ((_BUFFERS, OWN_SIZES[0], 2 * ratio + 1), (_ENTRIES, OWN_SIZES[1], 3)):
        for field in fields:
            for tensor in getattr(layer, field).values():
                yield tensor, f"{word}{ratio}_length", sample


class Compressing:
    """A base that goes before such a layer's class, for any number of tokens and of entries, none included."""

    compress_rate: int
    buffer_kv: dict[str, torch.Tensor]
    buffer_gate: dict[str, torch.Tensor]
    compressed_kv: dict[str, torch.Tensor]
    overlap_kv: dict[str, torch.Tensor]
    overlap_gate: dict[str, torch.Tensor]

    def store_compression_weights(
        self, name: str, kv: torch.Tensor, gate: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Shapes: kv, gate [batch, tokens, width] -> those of whole groups twice, and the place of the first token."""
        kv, gate = torch.cat([self.buffer_kv[name], kv], dim=1), torch.cat([self.buffer_gate[name], gate], dim=1)
        whole = kv.shape[1] // self.compress_rate * self.compress_rate
        self.buffer_kv[name], self.buffer_gate[name] = kv[:, whole:], gate[:, whole:]
        return kv[:, :whole], gate[:, :whole], self.compressed_kv[name].shape[1] * self.compress_rate

    def update_compressor_states(self, name: str, compressed: torch.Tensor) -> torch.Tensor:
        """Shapes: compressed [batch, new entries, width] -> [batch, all entries, width]."""
        self.compressed_kv[name] = torch.cat([self.compressed_kv[name], compressed], dim=1)
        return self.compressed_kv[name]

    def update_overlap_state(
        self, name: str, chunk_kv: torch.Tensor, chunk_gate: torch.Tensor, head_dim: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The state that the last group left, which has no weight where there was none.

        Shapes:  chunk_kv, chunk_gate [batch, groups, tokens of one, 2 * head_dim] -> twice [batch, tokens of one, head_dim].
        """
        is_first = torch.scalar_tensor(self.compressed_kv[name].shape[1]) == 0
        kv, gate = self.overlap_kv[name], torch.where(is_first, -torch.inf, self.overlap_gate[name])
        self.overlap_kv[name] = torch.cat([kv[:, None], chunk_kv[..., :head_dim]], dim=1)[:, -1]
        self.overlap_gate[name] = torch.cat([gate[:, None], chunk_gate[..., :head_dim]], dim=1)[:, -1]
        return kv, gate


CACHE_ARGUMENTS = ("cache", "past_key_values")
"""The names of the cache among forward's arguments: in transformers since 5.24, and before."""

Path: TypeAlias = tuple[str | int, ...]
"""The path of an attribute: the words of its module's path, and its name."""


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
    """Keep the modules' attributes: behind it they are those of before."""
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
