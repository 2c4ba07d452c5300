"""Decoders over caches of fixed size, into which every step writes its keys and values: no cache is copied to grow.

Beside the cache, a graph takes ``past_length`` [], the number of tokens that it holds. Layers with a sliding window keep that alone.
A paged cache is one of pages [pages, tokens, heads, width] for all rows; ``block_table`` [batch, blocks] says which a row has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.cells import checked_type
from fx2onnx.decoding.cache.layout import CacheLayout, answering_by_shape, unmistakable_sizes
from fx2onnx.decoding.decoder import HiddenOf, asking_for, outputs_of, prompt_of, text_inputs, trial
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
    window_size,
)
from fx2onnx.sources.hf.transformers_types import Model
from fx2onnx.sources.source import Options, Source

_PAST_SAMPLE, _LIMIT_SAMPLE = 6, 16
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


class StaticDecoder(torch.nn.Module):
    """``model`` with keys and values [batch, heads, max_length, width] as inputs and outputs; those of layers with one of
    ``windows`` have at most one token less than it.
    """

    def __init__(
        self,
        model: Model,
        cache_argument: str,
        windows: Sequence[int | None],
        *,
        in_place: bool,
        hidden_of: HiddenOf | None,
    ) -> None:
        super().__init__()
        self.model, self._hidden_of = model, hidden_of
        self._cache_argument = cache_argument
        self._windows = windows
        self._write = OVERLOAD if in_place else _cache_update

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        from transformers.cache_utils import Cache

        past = inputs[LENGTH]
        names = [f"{layer}.{part}" for layer in range(len(self._windows)) for part in ("key", "value")]
        tensors = [inputs[PAST + name] for name in names]
        plain = {
            name: value for name, value in inputs.items() if not name.startswith(PAST) and name not in (LENGTH, TABLE)
        }
        layers = [
            _layer(key, value, past, self._write, inputs.get(TABLE))
            if window is None
            else _window_layer(key, value, window, plain[MASK].shape[1] - plain[IDS].shape[1])
            for key, value, window in zip(tensors[::2], tensors[1::2], self._windows, strict=True)
        ]
        asked = asking_for(self._hidden_of) | {self._cache_argument: Cache(layers=layers)}
        result = self.model(**plain, **asked, use_cache=True)
        written = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
        return outputs_of(result, dict(zip(names, written, strict=True)), self._hidden_of)


def static_decoder(
    model: Model,
    name: str,
    options: Options,
    *,
    in_place: bool = True,
    is_paged: bool = False,
    hidden_of: HiddenOf | None = None,
) -> Source:
    """``model`` as one graph over caches of fixed size; ``in_place``, through an operator that ONNX has from opset 24. ``hidden_of`` as
    ``cached_decoder`` takes it.

    Raises:   UserError E601 where a layer keeps something else than keys and values of all its tokens.
    """
    sizes = unmistakable_sizes(model.config)
    cache_argument, cache = trial(model, prompt_of(model, sizes))
    layers = checked_layers(model, cache)
    batch, new = options.batch_or(), options.seq_or(4)
    kwargs, shapes = text_inputs(model, CacheLayout(cache, sizes), batch, new, _PAST_SAMPLE)
    if "attention_mask" in shapes:
        shapes["attention_mask"][1] = TOTAL
    kwargs[LENGTH], shapes[LENGTH] = torch.tensor(_PAST_SAMPLE), {}
    blocks = 3
    if is_paged:
        kwargs[TABLE] = torch.arange(batch * blocks).flip(0).reshape(batch, blocks)
        shapes[TABLE] = {0: BATCH, 1: BLOCKS}
    windows = [getattr(layer, "sliding_window", None) if MASK in kwargs else None for layer in layers]
    for index, (layer, window) in enumerate(zip(layers, windows, strict=True)):
        length, size = (
            (_LIMIT_SAMPLE, CAPACITY) if window is None else (min(_PAST_SAMPLE, window - 1), window_size(window))
        )
        for part, tensor in (("key", layer.keys), ("value", layer.values)):
            name_of_state = f"{PAST}{index}.{part}"
            kwargs[name_of_state] = torch.randn(batch, tensor.shape[1], length, tensor.shape[3]).to(tensor.dtype)
            shapes[name_of_state] = {0: BATCH, 2: size}
            if is_paged and window is None:
                sizes_of_pages = batch * blocks + 1, PAGE, tensor.shape[1], tensor.shape[3]
                kwargs[name_of_state] = torch.randn(sizes_of_pages).to(tensor.dtype)
                shapes[name_of_state] = {0: PAGES}
    module = StaticDecoder(model, cache_argument, windows, in_place=in_place, hidden_of=hidden_of).eval()
    return Source.of_part(name, module, kwargs, shapes)


def checked_layers(model: Model, cache: object) -> list[Any]:
    layers = list(getattr(cache, "layers", ()))
    for why in filter(None, map(checked_type, layers)):
        raise UserError(
            "E601",
            f"{type(model).__name__} has no cache of fixed size",
            why=why,
            next="export it with the cache that grows",
        )
    if not layers:
        raise UserError("E601", f"{type(model).__name__} has no cache of fixed size", why="its cache has no layers")
    return layers


def _window_layer(keys: torch.Tensor, values: torch.Tensor, window: int, seen: int) -> Any:
    """A layer with a sliding window that holds these of the ``seen`` tokens."""
    from transformers.cache_utils import DynamicSlidingWindowLayer

    layer: object = object.__new__(answering_by_shape(DynamicSlidingWindowLayer))
    vars(layer).update(keys=keys, values=values, sliding_window=window, cumulative_length=seen, is_initialized=True)
    vars(layer).update(dtype=keys.dtype, device=keys.device, record_past=False)
    return layer


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
    key: torch.Tensor, value: torch.Tensor, past: torch.Tensor, write: Write, table: torch.Tensor | None = None
) -> Any:
    """A static layer of transformers that holds these tensors, in pages where there is a ``table`` of them."""
    from transformers.cache_utils import StaticLayer

    class Layer(StaticLayer):  # type: ignore[misc]
        def __init__(self) -> None:
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
    decoder = static_decoder(request.model, request.name, request.options, **form, hidden_of=hidden)
    return [request.part(MODEL_FILE, decoder), *drafts]
