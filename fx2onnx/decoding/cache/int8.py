"""Cache layers that keep keys and values as int8, with a scale for each token and head.

New keys and values are rounded before attention reads them, so that a prompt gives the same numbers whole and in pieces.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.base.memoized import Bounded
from fx2onnx.decoding.cache.layout import answering_by_shape
from fx2onnx.manifest.names import PAST, POSITIONS
from fx2onnx.sources.hf.transformers_types import Model

LEVELS = 127
LARGEST_ERROR = 0.25
"""The largest error of logits that an export may have, as a share of the largest logit. A model that misreads its cache exceeds it by far."""
SMALLEST = 1e-7
"""The smallest scale of a row of the cache, which float16 does not round to 0."""
FIELDS = {"keys": "key_scale", "values": "value_scale"}


def rounded(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``round(numbers / scale)`` and ``scale = max(|numbers|) / 127``.

    Shapes:  numbers [batch, heads, tokens, width] -> int8 of that shape, and float32 [batch, heads, tokens, 1].
    """
    wide = numbers.float()
    scale = (wide.abs().amax(dim=-1, keepdim=True) / LEVELS).clamp_min(SMALLEST)
    return torch.round(wide / scale).to(torch.int8), scale


class Int8Cells:
    """A base that goes before the class of a layer and keeps its ``keys`` and ``values`` as int8."""

    dtype: torch.dtype
    cumulative_length: int

    def update(
        self, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Shapes: key, value [batch, heads, tokens, width] -> those of all tokens that the layer keeps, and these."""
        window: int | None = getattr(self, "sliding_window", None)
        found = []
        for (cells_field, scale_field), new in zip(FIELDS.items(), (key, value), strict=True):
            made = zip((cells_field, scale_field), rounded(new), strict=True)
            cells, scale = (torch.cat([getattr(self, field), part], dim=-2) for field, part in made)
            found.append((cells.float() * scale).to(new.dtype))
            total = cells.shape[-2]
            first = 0 if window is None else torch.sym_max(total - (window - 1), 0)  # type: ignore[no-untyped-call]
            setattr(self, cells_field, cells[:, :, first:])
            setattr(self, scale_field, scale[:, :, first:])
        if window is not None:
            self.cumulative_length = self.cumulative_length + key.shape[-2]
        return found[0], found[1]


def checked_type(layer: object) -> str:
    """The reason why a layer of a cache holds more than keys and values; empty if it does not."""
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) and vars(layer)["keys"].dim() == 4:
        return ""
    return f"a {type(layer).__name__} keeps something else than the keys and values of its tokens"


_KINDS: Bounded[type, type] = Bounded(64)


def with_int8(model: Model, cache: object) -> object:
    """``cache`` with its keys and values as int8, in place; other states stay.

    Raises:   UserError E601 where no layer keeps keys and values of its tokens, or one keeps more than these.
    """
    from transformers.cache_utils import DynamicLayer

    layers: list[object] = getattr(cache, "layers", [])
    places = [place for place, layer in enumerate(layers) if isinstance(layer, DynamicLayer)]
    if not places:
        raise _unfit(model, f"its cache is a {type(cache).__name__} without layers of keys and values")
    for place in places:
        layer = layers[place]
        why = checked_type(layer)
        if why:
            raise _unfit(model, why)
        kept: object = object.__new__(int8_kind(type(layer)))
        vars(kept).update(vars(layer))
        layers[place] = kept
        for cells_field, scale_field in FIELDS.items():
            cells, scale = rounded(getattr(layer, cells_field))
            vars(kept).update({cells_field: cells, scale_field: scale})
    return cache


def int8_kind(kind: type) -> type:
    """A subclass of the layer class ``kind`` that keeps int8."""
    if kind not in _KINDS:
        _KINDS[kind] = type(kind.__name__, (Int8Cells, answering_by_shape(kind)), {"_layer_type": None})
        _KINDS[kind]._layer_type = kind._layer_type  # type: ignore[attr-defined]
    return _KINDS[kind]


def checked_error(model: Model, module: torch.nn.Module, sample: Mapping[str, torch.Tensor]) -> str:
    """A sentence on the error of logits behind a prompt, which ``module`` takes with such a cache and ``model`` without.

    Raises:   UserError E601 where it is so large that the model must read its cache in a way of its own.
    """
    if any(weight.is_meta for weight in model.parameters()):
        return ""
    plain = {name: value[:1] for name, value in sample.items() if not name.startswith(PAST)}
    count = plain["input_ids"].shape[1]
    plain |= {"attention_mask": torch.ones(1, count, dtype=torch.int64)} if "attention_mask" in plain else {}
    plain |= {POSITIONS: torch.arange(count)[None]} if POSITIONS in plain else {}
    states = {name: value[:1] * 0 for name, value in sample.items() if name.startswith(PAST)}
    ends = tuple(f".{field}" for field in ("key", "value", *FIELDS.values()))
    empty = {name: value[:, :, :0] if name.endswith(ends) else value for name, value in states.items()}
    with torch.no_grad():
        found, wanted = module(**plain, **empty)["logits"], model(**plain, use_cache=False).logits
    error = float((found - wanted[:, -found.shape[1] :]).abs().max() / wanted.abs().max())
    if not error < LARGEST_ERROR:
        raise _unfit(model, f"with it, logits change by {error:.0%} of the largest one")
    return f"with int8 keys and values, logits of {count} tokens change by at most {error:.2g} of the largest one"


def _unfit(model: Model, why: str) -> UserError:
    return UserError("E601", f"{type(model).__name__} has no int8 cache", why=why, next="leave out --kv int8")
