"""The state of a model between two steps of text generation, as named tensors.

A cache is taken apart into its tensors after one run of the model (``CacheLayout``), and put together again from other
tensors (``CacheLayout.rebuilt``), whatever its class: attention caches, windows, states of recurrent layers. No model is
named here, and none is changed: it is handed a cache whose layers answer questions about length by the shapes of
their tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from fx2onnx.base.cache_names import FIELD_NAMES, cache_name
from fx2onnx.base.errors import UserError
from fx2onnx.base.memoized import Bounded
from fx2onnx.decoding.cache.module_state import (
    Compressing,
    compresses,
    is_holding,
    sizes_of_their_own,
    tokens_for_an_entry,
)
from fx2onnx.manifest.names import BATCH, ENCODER_SIZE, PAST_SIZE, window_size
from fx2onnx.sources.hf.transformers_types import Config

PROMPT_LENGTH = "past_prompt_length"
PROMPT_FIELDS = {"prefill_keys": "keys", "prefill_values": "values"}
"""The fields that hold the prompt, and those of the window that belong to them."""
_WITHOUT_END = 2**31


def keeps_prompt(kind: type) -> bool:
    """Return whether ``kind`` is a layer of this sort: by the method that says how long the prompt is."""
    from transformers.cache_utils import DynamicLayer

    return issubclass(kind, DynamicLayer) and hasattr(kind, "set_prefill_length")


class KeepingPrompt:
    """A base that goes before such a layer's class, for a prompt and a window of any length, none included."""

    prefill_keys: torch.Tensor
    prefill_values: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    prefill_cumulative_length: int
    """The number of all tokens so far, here."""
    sliding_window: int

    @property
    def prefill_length(self) -> int:
        """The number of keys that no window hides; before the prompt, all of them."""
        return self._kept + _WITHOUT_END * self._is_first

    @property
    def _kept(self) -> int:
        return self.prefill_keys.shape[-2]

    @property
    def _is_first(self) -> int:
        """1 before the prompt, 0 behind it."""
        kept: int = torch.sym_min(self._kept, 1)  # type: ignore[no-untyped-call]
        return 1 - kept

    def get_seq_length(self) -> int:
        return self.prefill_cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        length = self._kept + self.keys.shape[-2]
        return length + query_length, self.prefill_cumulative_length - length

    def update(
        self, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Shapes: key, value [batch, heads, tokens, size] -> those of the prompt, the window and the tokens."""
        keys = torch.cat([self.prefill_keys, self.keys, key], dim=-2)
        values = torch.cat([self.prefill_values, self.values, value], dim=-2)
        total = keys.shape[-2]
        end = self._kept + total * self._is_first
        first = torch.sym_max(total - (self.sliding_window - 1), end)  # type: ignore[no-untyped-call]
        self.prefill_keys, self.prefill_values = keys[:, :, :end], values[:, :, :end]
        self.keys, self.values = keys[:, :, first:], values[:, :, first:]
        self.prefill_cumulative_length = self.prefill_cumulative_length + key.shape[-2]
        return keys, values


_SAMPLE = 3  # of a length that has no other
Keys: TypeAlias = tuple[str | int, ...]
"""The path to a tensor in a cache: attributes, keys and indices of lists."""
_CONVOLUTION = "conv_state"


@dataclass(frozen=True)
class TrialSizes:
    """Sizes of a trial run, none of which is a number of the config, so that each is known where it turns up."""

    batch: int
    past: int
    encoder: int

    def name_of(self, size: int) -> str | None:
        return {self.batch: BATCH, self.past: PAST_SIZE, self.encoder: ENCODER_SIZE}.get(size)


def unmistakable_sizes(config: Config, least: int = 3) -> TrialSizes:
    """Three small primes from ``least`` on that are no number of ``config`` nor one less (a convolution keeps one less than
    it is wide), and no square of patches with a few tokens beside it.
    """
    taken = {number - less for number in _numbers(config.to_dict()) for less in (0, 1)}
    beside = {side * side + more for side in range(2, 100) for more in range(1, 6)}
    numbers = (n for n in range(max(least, 3), 10_000) if n not in taken and n not in beside)
    primes = (n for n in numbers if all(n % k for k in range(2, int(n**0.5) + 1)))
    batch, past, encoder = next(primes), next(primes), next(primes)
    return TrialSizes(batch, past, encoder)


def _numbers(value: object) -> set[int]:
    if isinstance(value, Mapping):
        return set().union(*(_numbers(item) for item in value.values()))
    if isinstance(value, list | tuple):
        return set().union(*(_numbers(item) for item in value))
    return {value} if isinstance(value, int) else set()


@dataclass(frozen=True)
class CacheTensor:
    """One tensor of a cache: its name without prefix (``0.key``), shape and dtype in the trial run, dynamic axes.

    The shape of an axis that is named neither batch nor past is a sample's, too.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    axes: dict[int, str]

    @property
    def is_row_of_numbers(self) -> bool:
        """True if the tensor is so many whole numbers for each row."""
        return len(self.shape) == 2 and not self.dtype.is_floating_point and list(self.axes.values()) == ["batch_size"]

    @property
    def is_of_all_tokens(self) -> bool:
        """True if the tensor has the same size after any number of tokens, and holds more than the last of them."""
        is_constant = list(self.axes.values()) == [BATCH] and self.dtype.is_floating_point
        return is_constant and _CONVOLUTION not in self.name and not self.is_encoder

    @property
    def is_encoder(self) -> bool:
        """True if the tensor comes from the encoder alone and stays the same at every step."""
        return ".encoder." in self.name


@dataclass(frozen=True)
class _Slot:
    """The destination of a tensor. Without a name it is no state: an empty tensor, a counter of the tokens so far, or a
    constant that is left out.
    """

    name: str | None
    empty: torch.Tensor | None = None
    counter: torch.dtype | None = None
    """The dtype of a counter, a tensor of one number; None for other tensors."""


class CacheLayout:
    """The tensors of a cache by name, and how to make such a cache of others."""

    def __init__(self, cache: object, sizes: TrialSizes) -> None:
        self._sizes = sizes
        self.states: dict[str, CacheTensor] = {}
        names: dict[int, str] = {}
        _walk(cache, (), lambda keys, tensor: self._add(keys, tensor, names), set())
        for layer in _structures(cache, set()):
            if issubclass(answering_by_shape(type(layer)), _Window):
                self._name_window(layer, names)
            for tensor, word, sample in sizes_of_their_own(layer) if compresses(type(layer)) else ():
                state = self.states[names[id(tensor)]]
                shape = (state.shape[0], sample, *state.shape[2:])
                self.states[state.name] = replace(state, shape=shape, axes={**state.axes, 1: word})
            if keeps_prompt(type(layer)):
                self._add_prompt_and_window(layer, names)

        def slot(value: object) -> object:
            if not isinstance(value, torch.Tensor):
                return value
            empty = torch.empty(tuple(value.shape), dtype=value.dtype) if value.numel() == 0 else None
            is_counter = tuple(value.shape) == (1,) and not value.dtype.is_floating_point
            return _Slot(names.get(id(value)), empty, value.dtype if is_counter else None)

        self._template = _copied(cache, slot, {})

    @property
    def is_of_modules(self) -> bool:
        """True if modules hold a part of the state."""
        return is_holding(self._template)

    def rebuilt(self, tensors: Mapping[str, torch.Tensor], past: int) -> object:
        """A cache like the one of the trial, holding ``tensors`` after ``past`` tokens."""

        def leaf(value: object) -> object:
            if isinstance(value, _Slot):
                if value.name is None and value.counter is not None:
                    return torch.full((1,), past, dtype=value.counter)
                # Recurrent layers write into their states.
                return value.empty if value.name is None else tensors[value.name].clone()
            return past if type(value) is int and value == self._sizes.past else value

        return _copied(self._template, leaf, {})

    def taken_from(self, cache: object) -> dict[str, torch.Tensor]:
        """The tensors of ``cache``, which has the structure of the trial's, by name."""
        tensors = tensors_of(cache)
        return {name: tensors[name] for name in self.states}

    def _add(self, keys: Keys, tensor: torch.Tensor, names: dict[int, str]) -> None:
        if id(tensor) in names or self._sizes.batch not in tensor.shape:
            return
        axes = {axis: self._sizes.name_of(size) for axis, size in enumerate(tensor.shape)}
        named = {axis: word for axis, word in axes.items() if word is not None}
        name = names[id(tensor)] = cache_name(keys)
        self.states[name] = CacheTensor(name, tuple(tensor.shape), tensor.dtype, named)

    def _add_prompt_and_window(self, layer: KeepingPrompt, names: dict[int, str]) -> None:
        """The lengths of both are sizes of their own; the window, which is empty behind a prompt, is shaped as that."""
        for field, beside in PROMPT_FIELDS.items():
            prompt = self.states[names[id(getattr(layer, field))]]
            name = names[id(getattr(layer, beside))] = prompt.name.replace(field, FIELD_NAMES[beside])
            shape = (*prompt.shape[:2], _SAMPLE, *prompt.shape[3:])
            for key, word in ((prompt.name, PROMPT_LENGTH), (name, window_size(layer.sliding_window))):
                self.states[key] = replace(prompt, name=key, shape=shape, axes={**prompt.axes, 2: word})

    def _name_window(self, layer: _Window, names: Mapping[int, str]) -> None:
        """The length of a window is a size of its own: at most one less than the window, whatever the past."""
        for tensor in vars(layer).values():
            if id(tensor) in names:
                self.states[names[id(tensor)]].axes[2] = window_size(layer.sliding_window)


def tokens_for_every_state(cache: object) -> int:
    """The number of tokens that have to be behind ``cache`` until it holds every tensor that it may hold."""
    return max((tokens_for_an_entry(layer) for layer in _structures(cache, set())), default=0)


def tensors_of(cache: object) -> dict[str, torch.Tensor]:
    """Every tensor of ``cache`` by name."""
    tensors: dict[str, torch.Tensor] = {}
    _walk(cache, (), lambda keys, value: tensors.setdefault(cache_name(keys), value), set())
    return tensors


def _is_structure(value: object) -> bool:
    """Return whether ``value`` is an object of a library's cache classes, whose attributes may hold tensors."""
    kind = type(value)
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, torch.nn.Module | torch.Tensor | type)
        and not callable(value)
        and bool(re.search(r"cache|layer|state", kind.__name__, re.IGNORECASE))
    )


def _walk(value: object, keys: Keys, visit: Callable[[Keys, torch.Tensor], object], seen: set[int]) -> None:
    if isinstance(value, torch.Tensor):
        visit(keys, value)
        return
    if id(value) in seen:
        return
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    elif _is_structure(value):
        items = list(vars(value).items())
    else:
        return
    seen.add(id(value))
    for key, item in items:
        _walk(item, (*keys, key), visit, seen)


def _structures(value: object, seen: set[int]) -> Iterator[Any]:
    if id(value) in seen or isinstance(value, torch.Tensor):
        return
    seen.add(id(value))
    if _is_structure(value):
        yield value
    items = vars(value) if _is_structure(value) else value
    if isinstance(items, Mapping):
        items = list(items.values())
    for item in items if isinstance(items, list | tuple) else ():
        yield from _structures(item, seen)


def _copied(value: object, leaf: Callable[[object], object], copies: dict[int, object]) -> object:
    """A copy of the structure with ``leaf`` of every value that holds no others."""
    if id(value) in copies and not isinstance(value, int):
        return copies[id(value)]
    if isinstance(value, dict):
        made = {key: _copied(item, leaf, copies) for key, item in value.items()}
        result: object = made if type(value) is dict else type(value)(made)
    elif isinstance(value, list | tuple):
        result = type(value)(_copied(item, leaf, copies) for item in value)
    elif _is_structure(value):
        result = object.__new__(answering_by_shape(type(value)))
        copies[id(value)] = result
        for key, item in vars(value).items():
            result.__dict__[key] = _copied(item, leaf, copies)
        return result
    else:
        return leaf(value)
    copies[id(value)] = result
    return result


class _Growing:
    """A layer of a dynamic cache that is never empty-and-special: its length is that of its keys."""

    keys: torch.Tensor | None

    def get_seq_length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[-2]


class _Window:
    """A layer that keeps the last ``sliding_window - 1`` tokens, fewer at the start, without asking which it is."""

    keys: torch.Tensor
    values: torch.Tensor
    cumulative_length: int
    sliding_window: int

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        kept = self.keys.shape[-2]
        return kept + query_length, self.cumulative_length - kept

    def update(
        self, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = torch.cat([self.keys, key], dim=-2), torch.cat([self.values, value], dim=-2)
        self.cumulative_length = self.cumulative_length + key.shape[-2]
        first = torch.sym_max(  # type: ignore[no-untyped-call]
            keys.shape[-2] - (self.sliding_window - 1), 0
        )
        self.keys, self.values = keys[:, :, first:], values[:, :, first:]
        return keys, values


_ANSWERING: Bounded[type, type] = Bounded(64)


def answering_by_shape(kind: type) -> type:
    """``kind``, or where it is a layer of a dynamic cache, a subclass that decides nothing by the lengths."""
    if kind not in _ANSWERING:
        _ANSWERING[kind] = _subclass(kind)
    return _ANSWERING[kind]


def _unlisted(kind: Any, *before: type) -> type:
    """A subclass that transformers does not make every new cache of."""
    made: Any = type(kind.__name__, (*before, kind), {"_layer_type": None})
    made._layer_type = kind._layer_type
    return made  # type: ignore[no-any-return]


def _subclass(kind: type) -> type:
    from transformers import cache_utils

    if issubclass(kind, _Window | _Growing | KeepingPrompt):
        return kind
    if keeps_prompt(kind):
        return _unlisted(kind, KeepingPrompt)
    if compresses(kind):
        return _unlisted(kind, Compressing, _Window)
    if issubclass(kind, cache_utils.DynamicSlidingWindowLayer):
        if kind.update is not cache_utils.DynamicSlidingWindowLayer.update:  # type: ignore[attr-defined]
            raise UserError(
                "E601",
                f"the cache layer {kind.__name__} cannot be one graph for the prompt and later steps",
                why="it keeps its window by rules of its own, which decide by the number of tokens so far",
                next="export the model without its cache: --task text-generation",
            )
        return type(kind.__name__, (_Window, kind), {})
    if issubclass(kind, cache_utils.DynamicLayer):
        return type(kind.__name__, (_Growing, kind), {})
    return kind
