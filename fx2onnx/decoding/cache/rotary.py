"""Rotary embeddings of transformers' models: tables of all positions, and operators of ours for steps of decoders, so that they are captured whole."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.sources.hf.transformers_types import Model

_LIBRARY: Any = torch.library.Library("fx2onnx", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "cached_attention(Tensor query, Tensor key, Tensor value, Tensor past_key, Tensor past_value, Tensor mask, "
    "Tensor? sink, float scale, float softcap, int window) -> (Tensor, Tensor, Tensor)"
)
_LIBRARY.define("turned(Tensor x, Tensor cosines, Tensor sines, Tensor positions, bool interleaved) -> Tensor")


def _cached_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    past_key: torch.Tensor,
    past_value: torch.Tensor,
    mask: torch.Tensor,
    sink: torch.Tensor | None,
    scale: float,
    softcap: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    keys, values = torch.cat([past_key, key], dim=2), torch.cat([past_value, value], dim=2)
    groups = query.shape[1] // key.shape[1]
    scores = scale * query @ keys.repeat_interleave(groups, dim=1).transpose(2, 3)
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    ahead = torch.arange(keys.shape[2]) - (torch.arange(query.shape[2])[:, None] + past_key.shape[2])
    hidden = ahead > 0
    if window > 0:
        hidden = hidden | (ahead <= -window)
    scores = scores.masked_fill(hidden | (mask[:, None, None, :] == 0), float("-inf"))
    if sink is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        column = sink.reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
    return weights @ values.repeat_interleave(groups, dim=1), keys, values


def _fake_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    past_key: torch.Tensor,
    past_value: torch.Tensor,
    *_: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    keys, values = torch.cat([past_key, key], dim=2), torch.cat([past_value, value], dim=2)
    return query.new_empty((*query.shape[:-1], value.shape[-1])), keys, values


def _turned(
    x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, positions: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    half = cosines.shape[-1]
    cos, sin = cosines[positions][:, None].to(x.dtype), sines[positions][:, None].to(x.dtype)
    part, rest = x[..., : 2 * half], x[..., 2 * half :]
    first, second = (part[..., 0::2], part[..., 1::2]) if interleaved else (part[..., :half], part[..., half:])
    pair = cos * first - sin * second, sin * first + cos * second
    turned = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat([turned, rest], dim=-1)


_LIBRARY.impl("cached_attention", _cached_attention, "CompositeExplicitAutograd")
_LIBRARY.impl("turned", _turned, "CompositeExplicitAutograd")
torch.library.register_fake("fx2onnx::cached_attention", _fake_attention, lib=_LIBRARY)
torch.library.register_fake("fx2onnx::turned", lambda x, *_: torch.empty_like(x), lib=_LIBRARY)
CACHED_ATTENTION: Any = torch.ops.fx2onnx.cached_attention.default
TURNED: Any = torch.ops.fx2onnx.turned.default


ROTARY = "apply_rotary_pos_emb"


@dataclass(eq=False)
class Angles:
    """Cosines or sines of positions, by a table of all; a model that does anything with them but turn keys does not fit."""

    cosines: torch.Tensor
    sines: torch.Tensor


@dataclass
class RotaryCalls:
    """The masks and rotary embeddings that a run of the model used."""

    windows: list[int] = field(default_factory=list)
    tables: dict[tuple[int, tuple[Any, ...]], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    forms: dict[str, bool] = field(default_factory=dict)
    """True for each module of transformers whose pairs of features are neighbours."""


def is_rotary(module: torch.nn.Module) -> bool:
    return "rotary" in type(module).__name__.lower() and any("inv_freq" in name for name, _ in module.named_buffers())


def rotary_libraries(model: Model) -> list[Any]:
    names = {type(part).__module__ for part in model.modules() if hasattr(part, "layer_idx")}
    return [sys.modules[name] for name in sorted(names) if hasattr(sys.modules[name], ROTARY)]


@contextlib.contextmanager
def forward_of(module: torch.nn.Module, function: Callable[..., Any]) -> Iterator[None]:
    module.forward = function
    try:
        yield
    finally:
        del module.forward


def probing_tables(model: Model, module: torch.nn.Module, seen: RotaryCalls) -> Callable[..., Any]:
    """Keeps the tables of all positions where a position's angles depend on nothing else."""
    original = module.forward
    length = int(getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", 0) or 0)

    def forward(x: torch.Tensor, position_ids: torch.Tensor, *more: Any, **named: Any) -> Any:
        result = original(x, position_ids, *more, **named)
        if position_ids.dim() == 2 and length and isinstance(result, tuple) and len(result) == 2:
            every = original(x, torch.arange(length)[None], *more, **named)
            few = original(x, torch.arange(min(length, 4))[None], *more, **named)
            tables = [table[0, :, : table.shape[-1] // 2].contiguous() for table in every]
            is_same = all(
                not a.is_meta and torch.equal(a[:, : b.shape[1]], b) and _is_doubled(a)
                for a, b in zip(every, few, strict=True)
            )
            if is_same:
                seen.tables[id(module), (*more, *named.values())] = tables[0], tables[1]
        return result

    return forward


def _is_doubled(table: torch.Tensor) -> bool:
    half = table.shape[-1] // 2
    return table.dim() == 3 and 2 * half == table.shape[-1] and torch.equal(table[..., :half], table[..., half:])


def probing_form(name: str, original: Callable[..., Any], seen: RotaryCalls) -> Callable[..., Any]:
    """Notes whether the library's function turns halves or neighbours, if one of the two and nothing else."""

    def turned(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *more: Any, **named: Any) -> Any:
        result = original(q, k, cos, sin, *more, **named)
        if q.dim() == 4 and not more and not named and not q.is_meta:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                some = [torch.randn(1, 2, 3, x.shape[-1]).to(x.dtype) for x in (q, k)]
                tables = [torch.randn(3, cos.shape[-1] // 2).to(q.dtype) for _ in range(2)]
            places = torch.arange(3)[None]
            found = original(*some, *(torch.cat([table, table], dim=-1)[None] for table in tables))
            for interleaved in (False, True):
                wanted = [TURNED(x, *tables, places, interleaved) for x in some]
                if all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(found, wanted, strict=True)):
                    seen.forms[name] = interleaved
        return result

    return turned


def turning(positions: torch.Tensor, interleaved: bool | None, original: Callable[..., Any]) -> Callable[..., Any]:
    def turned(q: torch.Tensor, k: torch.Tensor, cos: Any, sin: Any, *more: Any, **named: Any) -> Any:
        if not isinstance(cos, Angles):
            return original(q, k, cos, sin, *more, **named)
        if interleaved is None or cos is not sin or more or named:
            raise UserError("E601", "a rotary embedding is neither of halves nor of neighbours")
        return tuple(TURNED(x, cos.cosines, cos.sines, positions, interleaved) for x in (q, k))

    return turned
