"""Decoders over caches of fixed size, into which every step writes its keys and values: no cache is copied to grow.

Beside the cache, a graph takes ``past_length`` [], the number of tokens that it holds. Layers with a sliding window keep that alone.
A paged cache is one of pages [pages, tokens, heads, width] for all rows; ``block_table`` [batch, blocks] says which a row has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.cells import checked_type
from fx2onnx.decoding.cache.layout import CacheLayout, unmistakable_sizes
from fx2onnx.decoding.decoder import (
    CachedDecoder,
    HiddenOf,
    add_states,
    one_token_a_call,
    prompt_of,
    text_inputs,
    trial,
)
from fx2onnx.decoding.recipes import encoder_decoder, multimodal, prepared_inputs
from fx2onnx.decoding.recipes.drafting_head import drafting
from fx2onnx.decoding.recipes.recipe import FolderPart, FolderRequest
from fx2onnx.manifest.names import (
    BATCH,
    BLOCKS,
    CAPACITY,
    IDS,
    LENGTH,
    MASK,
    MODEL_FILE,
    PAGES,
    PAST,
    TABLE,
    TOTAL,
)
from fx2onnx.sources.hf.transformers_types import Model
from fx2onnx.sources.source import Options, Source

_PAST_SAMPLE, _LIMIT_SAMPLE = 6, 16
_HYBRID, _STATIC_HYBRID = "LinearAttentionAndFullAttentionLayer", "LinearAttentionAndStaticFullAttentionLayer"
"""Layers of transformers that keep the state of a recurrence beside keys and values."""
PAGE = 16
"""Tokens of a page."""

_LIBRARY: Any = torch.library.Library("fx2onnx", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("cache_update(Tensor past, Tensor update, Tensor start) -> Tensor")
_LIBRARY.define("page_update(Tensor pages, Tensor update, Tensor places) -> Tensor")


def _cache_update(past: torch.Tensor, update: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    return past.index_copy(2, torch.arange(update.shape[2], device=start.device) + start, update)


_LIBRARY.impl("cache_update", _cache_update, "CompositeExplicitAutograd")
torch.library.register_fake("fx2onnx::cache_update", lambda past, update, start: torch.empty_like(past), lib=_LIBRARY)


def _page_update(pages: torch.Tensor, update: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """``pages`` [pages, tokens, heads, width] with ``update`` [batch, new, heads, width] at ``places`` [batch, new, 2], page and slot.

    Raises:   IndexError where two of them are one place: no engine says which is kept.
    """
    pairs = places.flatten(0, 1)
    if len(set(map(tuple, pairs.tolist()))) < len(pairs):
        raise IndexError("two tokens are to be written into one place of a page")
    return pages.index_put((places[..., 0], places[..., 1]), update)


_LIBRARY.impl("page_update", _page_update, "CompositeExplicitAutograd")
torch.library.register_fake("fx2onnx::page_update", lambda pages, update, places: torch.empty_like(pages), lib=_LIBRARY)
PAGE_OVERLOAD = torch.ops.fx2onnx.page_update.default
Write: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
OVERLOAD: Any = torch.ops.fx2onnx.cache_update.default


class StaticDecoder(CachedDecoder):
    """A decoder whose layers at the places ``fixed`` keep keys and values [batch, heads, max_length, width], or pages of them, into which
    ``write`` puts new ones. Other layers keep what they keep.
    """

    def __init__(
        self,
        model: Model,
        cache_argument: str,
        layout: CacheLayout,
        *,
        fixed: Sequence[int],
        write: Write,
        one_token: bool,
        hidden_of: HiddenOf | None,
    ) -> None:
        super().__init__(model, cache_argument, layout, one_token=one_token, hidden_of=hidden_of)
        self._fixed, self._write = fixed, write

    def arguments(self, plain: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor]) -> dict[str, object]:
        return super().arguments({name: plain[name] for name in plain if name not in (LENGTH, TABLE)}, states)

    def _cache(self, plain: Mapping[str, torch.Tensor], states: dict[str, torch.Tensor]) -> object:
        cache = super()._cache(plain, states)
        layers: list[object] = vars(cache)["layers"]
        for place in self._fixed:
            pair = states[f"{place}.key"], states[f"{place}.value"]
            layers[place] = _layer(layers[place], *pair, plain[LENGTH], self._write, plain.get(TABLE))
        return cache

    def _past(self, plain: Mapping[str, torch.Tensor], _: Mapping[str, torch.Tensor]) -> int:
        return plain[MASK].shape[1] - plain[IDS].shape[1] if MASK in plain else 0


def static_decoder(
    model: Model,
    name: str,
    options: Options,
    *,
    one_token: bool = False,
    in_place: bool = True,
    is_paged: bool = False,
    hidden_of: HiddenOf | None = None,
) -> Source:
    """``model`` as one graph over caches of fixed size; ``in_place``, through an operator that ONNX has from opset 24. ``one_token`` and
    ``hidden_of`` as ``cached_decoder`` takes them.

    Raises:   UserError E601 where a layer keeps something else than keys and values of all its tokens, or the state of a recurrence.
    """
    sizes = unmistakable_sizes(model.config)
    cache_argument, cache = trial(model, prompt_of(model, sizes))
    layers = checked_layers(model, cache, is_static=True)
    layout = CacheLayout(cache, sizes)
    batch, new = options.batch_or(), 1 if one_token else options.seq_or(4)
    kwargs, shapes = text_inputs(model, layout, batch, new, _PAST_SAMPLE)
    if "attention_mask" in shapes:
        shapes["attention_mask"][1] = TOTAL
    kwargs[LENGTH], shapes[LENGTH] = torch.tensor(_PAST_SAMPLE), {}
    blocks = 3
    if is_paged:
        kwargs[TABLE] = torch.arange(batch * blocks).flip(0).reshape(batch, blocks)
        shapes[TABLE] = {0: BATCH, 1: BLOCKS}
    add_states(kwargs, shapes, layout, batch, _PAST_SAMPLE)
    fixed = [
        place for place, layer in layers.items() if getattr(layer, "sliding_window", None) is None or MASK not in kwargs
    ]
    for place in fixed:
        for part, tensor in (("key", layers[place].keys), ("value", layers[place].values)):
            _, heads, _, width = tensor.shape
            shape = (batch * blocks + 1, PAGE, heads, width) if is_paged else (batch, heads, _LIMIT_SAMPLE, width)
            state = f"{PAST}{place}.{part}"
            kwargs[state] = torch.randn(shape).to(tensor.dtype)
            shapes[state] = {0: PAGES} if is_paged else {0: BATCH, 2: CAPACITY}
    if one_token:
        one_token_a_call(shapes)
    write = OVERLOAD if in_place else _cache_update
    module = StaticDecoder(
        model, cache_argument, layout, fixed=fixed, write=write, one_token=one_token, hidden_of=hidden_of
    ).eval()
    return Source.of_part(name, module, kwargs, shapes)


def checked_layers(model: Model, cache: object, *, is_static: bool = False) -> dict[int, Any]:
    """The layers of ``cache`` that keep keys and values, by place; with ``is_static``, states of recurrences may be beside them.

    Raises:   UserError E601 where there is none, or one keeps something else.
    """
    layers = dict(enumerate(getattr(cache, "layers", ())))
    if is_static:
        layers = {place: layer for place, layer in layers.items() if getattr(layer, "keys", None) is not None}
    hybrids = [type(layer) for layer in layers.values() if is_static and type(layer).__name__ == _HYBRID]
    for why in filter(None, (checked_type(layer, *hybrids) for layer in layers.values())):
        raise UserError(
            "E601",
            f"{type(model).__name__} has no cache of fixed size",
            why=why,
            next="export it with the cache that grows",
        )
    if not layers:
        why = "no layer of its cache keeps keys and values"
        raise UserError("E601", f"{type(model).__name__} has no cache of fixed size", why=why)
    return layers


def _in_pages(pages: torch.Tensor, update: torch.Tensor, start: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """``pages`` with the new keys or values [batch, heads, tokens, width] of tokens from ``start`` on."""
    places = start + torch.arange(update.shape[2], device=start.device)
    of_row = table.index_select(1, places // PAGE)
    both = torch.stack([of_row, (places % PAGE).expand_as(of_row)], dim=-1)
    written: torch.Tensor = PAGE_OVERLOAD(pages, update.transpose(1, 2), both)
    return written


def _of_rows(pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The pages of each row one after the other: [batch, heads, tokens, width]."""
    return pages[table].flatten(1, 2).transpose(1, 2)


def _layer(
    before: object, key: torch.Tensor, value: torch.Tensor, past: torch.Tensor, write: Write, table: torch.Tensor | None
) -> Any:
    """A static layer of transformers that holds these tensors, in pages where there is a ``table`` of them, and the states of ``before``."""
    from transformers import cache_utils

    kind: Any = vars(cache_utils)[_STATIC_HYBRID if type(before).__name__ == _HYBRID else "StaticLayer"]

    class Layer(kind):  # type: ignore[misc]
        def __init__(self) -> None:
            self.__dict__.update(vars(before))
            self.keys, self.values, self.cumulative_length = key, value, past
            self.is_initialized = True
            self.dtype, self.device = key.dtype, key.device

        def update(
            self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
        ) -> tuple[torch.Tensor, torch.Tensor]:
            start = self.cumulative_length
            self.cumulative_length = start + key_states.shape[-2]
            if table is None:
                self.keys, self.values = write(self.keys, key_states, start), write(self.values, value_states, start)
                return self.keys, self.values
            self.keys = _in_pages(self.keys, key_states, start, table)
            self.values = _in_pages(self.values, value_states, start, table)
            return _of_rows(self.keys, table), _of_rows(self.values, table)

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return self.get_max_length(), 0

        def get_max_length(self) -> int:
            return self.keys.shape[-2] if table is None else table.shape[1] * PAGE

    return Layer()


def fits(request: FolderRequest) -> bool:
    return request.cache in ("static", "paged")


def parts(request: FolderRequest) -> list[FolderPart]:
    why = ""
    if encoder_decoder.fits(request) or multimodal.fits(request):
        why = "only decoders have"
    elif prepared_inputs.fits(request):
        why = "its steps take all tokens, whose number is that of its cache"
    if why:
        raise UserError("E601", f"{type(request.model).__name__} has no cache of fixed size", why=why)
    hidden, drafts = drafting(request)
    form = {"in_place": request.in_place, "is_paged": request.cache == "paged"}
    make = partial(static_decoder, request.model, request.name, request.options, **form, hidden_of=hidden)
    first = make()
    if getattr(first.module, "is_recurrent", False):
        part = request.part(MODEL_FILE, first, partial(make, one_token=True))
        return [replace(part, has_steps=True, prompt=part.forms[0]), *drafts]
    return [request.part(MODEL_FILE, first), *drafts]
