"""Cache layers that keep keys and values in 8 bits: as int8 or as 8-bit floats, with a scale for each token and head, or with constant
scales of a calibration.

New keys and values are rounded before attention reads them, so that a prompt gives the same numbers whole and in pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.base.memoized import Bounded
from fx2onnx.decoding.cache.layout import answering_by_shape
from fx2onnx.sources.hf.transformers_types import Model

DTYPES = {"int8": (torch.int8, 127.0), "fp8": (torch.float8_e4m3fn, 448.0)}
"""The dtype of the cells, and the largest number that they hold."""
_SHARED = {"": (-1,), "head": (0, 2, 3), "channel": (0, 2)}
"""The axes of keys [batch, heads, tokens, width] along which numbers share a scale."""
LARGEST_ERROR = 0.25
"""The largest error of logits that an export may have, as a share of the largest logit. A model that misreads its cache exceeds it by far."""
SMALLEST = 1e-7
"""The smallest scale of a row of the cache, which float16 does not round to 0."""
_MARGIN = 1.5
"""The share of the largest number of a calibration that constant scales have room for: other prompts may have larger ones."""
_HYBRIDS = ("LinearAttentionAndFullAttentionLayer", "LinearAttentionAndSlidingWindowAttentionLayer")
"""Layers of newer releases of transformers that keep keys, values and states of recurrent layers."""
FIELDS = {"keys": "key_scale", "values": "value_scale"}


@dataclass(frozen=True)
class Rounding:
    """The cells of one layer: their dtype and the largest number in it, and the constant scales of its fields, if it has such."""

    dtype: torch.dtype
    largest: float
    scales: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __call__(self, name: str, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``round(numbers / scale)`` and the scale: that of the field ``name``, or ``max(|numbers|) / largest`` of each token and head.

        Shapes:  numbers [batch, heads, tokens, width] -> cells of that shape, and float32 [batch, heads, tokens, 1], or [1, heads, 1, 1]
                 or [1, heads, 1, width] where it is constant.
        """
        wide = numbers.float()
        if name in self.scales:
            scale = self.scales[name]
            cells = (wide / scale).clamp(-self.largest, self.largest)
        else:
            scale = (wide.abs().amax(dim=-1, keepdim=True) / self.largest).clamp_min(SMALLEST)
            cells = wide / scale
        return (cells if self.dtype.is_floating_point else torch.round(cells)).to(self.dtype), scale


@dataclass(frozen=True)
class Cells:
    """The cells of a whole cache: one of ``CELLS``, and the constant scales of its layers, by place and field."""

    kind: str
    scales: Mapping[int, Mapping[str, torch.Tensor]] = field(default_factory=dict)

    @property
    def is_calibrated(self) -> bool:
        return ":" in self.kind

    def of_layer(self, place: int) -> Rounding:
        return Rounding(*DTYPES[self.kind.partition(":")[0]], self.scales.get(place, {}))

    def calibrated(self, cache: object) -> Cells:
        """The same with the scales that the keys and values in ``cache`` need."""
        kind, _, scales = self.kind.partition(":")
        most = DTYPES[kind][1] / _MARGIN
        found = {
            place: {
                name: (vars(layer)[name].float().abs().amax(_SHARED[scales], keepdim=True) / most).clamp_min(SMALLEST)
                for name in FIELDS
            }
            for place, layer in _kept_layers(cache)
        }
        return Cells(self.kind, found)


class RoundedLayer:
    """A base that goes before the class of a layer and keeps its ``keys`` and ``values`` in 8 bits."""

    dtype: torch.dtype
    cumulative_length: int
    rounding: Rounding

    def update(
        self, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Shapes: key, value [batch, heads, tokens, width] -> those of all tokens that the layer keeps, and these."""
        window: int | None = getattr(self, "sliding_window", None)
        found = []
        for (name, scale_name), new in zip(FIELDS.items(), (key, value), strict=True):
            cells, scale = self.rounding(name, new)
            kept = {name: _joined(getattr(self, name), cells)}
            if name not in self.rounding.scales:
                scale = kept[scale_name] = torch.cat([getattr(self, scale_name), scale], dim=-2)
            found.append((kept[name].float() * scale).to(new.dtype))
            total = kept[name].shape[-2]
            first = 0 if window is None else torch.sym_max(total - (window - 1), 0)  # type: ignore[no-untyped-call]
            for each, tensor in kept.items():
                setattr(self, each, tensor[:, :, first:].to(cells.dtype if each == name else tensor.dtype))
        if window is not None:
            self.cumulative_length = self.cumulative_length + key.shape[-2]
        return found[0], found[1]


def _joined(past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Both, one behind the other; 8-bit floats as float32, since ONNX's Concat and Slice take none, up to opset 28."""
    pair = [past.float(), new.float()] if new.dtype.is_floating_point else [past, new]
    return torch.cat(pair, dim=-2)


def checked_type(layer: object, *more: type) -> str:
    """The reason why a layer of a cache holds more than keys and values, and is none of ``more``; empty if there is none."""
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer, *more) and vars(layer)["keys"].dim() == 4:
        return ""
    return f"a {type(layer).__name__} keeps something else than the keys and values of its tokens"


def _kept_layers(cache: object) -> list[tuple[int, object]]:
    """The layers that keep keys and values, with their places."""
    from transformers.cache_utils import DynamicLayer

    layers: list[object] = getattr(cache, "layers", [])
    dynamic = [(place, layer) for place, layer in enumerate(layers) if isinstance(layer, DynamicLayer)]
    return [(place, layer) for place, layer in dynamic if layer.keys is not None]


_KINDS: Bounded[type, type] = Bounded(64)


def with_cells(model: Model, cache: object, cells: Cells) -> object:
    """``cache`` with its keys and values in ``cells``, in place; other states stay.

    Raises:   UserError E601 where no layer keeps keys and values of its tokens, or one keeps more than these.
    """
    from transformers import cache_utils

    kept_layers, layers = _kept_layers(cache), getattr(cache, "layers", [])
    hybrids = [kind for name, kind in vars(cache_utils).items() if name in _HYBRIDS]
    if not kept_layers:
        raise unfit(model, cells, f"its cache is a {type(cache).__name__} without layers of keys and values")
    for place, layer in kept_layers:
        why = checked_type(layer, *hybrids)
        if why:
            raise unfit(model, cells, why)
        kept: object = object.__new__(rounded_kind(type(layer)))
        rounding = cells.of_layer(place)
        vars(kept).update(vars(layer), rounding=rounding)
        layers[place] = kept
        for name, scale_name in FIELDS.items():
            made, scale = rounding(name, vars(layer)[name])
            vars(kept)[name] = made
            if name not in rounding.scales:
                vars(kept)[scale_name] = scale
    return cache


def rounded_kind(kind: type) -> type:
    """A subclass of the layer class ``kind`` that keeps 8 bits."""
    if kind not in _KINDS:
        _KINDS[kind] = type(kind.__name__, (RoundedLayer, answering_by_shape(kind)), {"_layer_type": None})
        _KINDS[kind]._layer_type = kind._layer_type  # type: ignore[attr-defined]
    return _KINDS[kind]


def unfit(model: Model, cells: Cells, why: str, step: str = "") -> UserError:
    """The error for a model that has no such cache."""
    return UserError(
        "E601",
        f"{type(model).__name__} has no {cells.kind} cache",
        why=why,
        next=step or f"leave out --kv {cells.kind}",
    )
