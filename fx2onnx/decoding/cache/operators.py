"""Operators of ours that stand for steps of decoders, so that they are captured whole; each runs in eager PyTorch, too."""

from __future__ import annotations

from typing import Any

import torch

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
