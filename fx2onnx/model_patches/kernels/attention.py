"""Attention of flash_attn: scores of all pairs, a mask, a softmax."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fx2onnx.base.errors import UserError
from fx2onnx.model_patches.patching import patches

FLASH = ("flash_attn",)
FLASH_IN = "flash_attn.flash_attn_interface"


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None,
    hidden: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """softmax(cap(query key) + bias) value, where queries that see no key give 0, and the logarithm of the sum of exponentials.

    hidden: True where a query does not see a key. bias: added behind the cap.

    Shapes:  query [..., heads, M, d], key and value [..., key heads, N, d or e], hidden and bias broadcast to the scores
        [..., heads, M, N] -> [..., heads, M, e] and float32 [..., heads, M].
    """
    repeats = query.shape[-3] // key.shape[-3]
    if repeats > 1:
        key, value = (part.repeat_interleave(repeats, dim=-3) for part in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query.float() * factor) @ key.float().mT
    if softcap > 0:
        scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    sums = scores.logsumexp(dim=-1, keepdim=True)
    weights = torch.exp(scores - sums.masked_fill(sums == -torch.inf, 0.0))
    if dropout:
        weights = torch.nn.functional.dropout(weights, dropout)
    return (weights @ value.float()).to(query.dtype), sums.squeeze(-1)


def outside(rows: Tensor, columns: Tensor, causal: bool, window: tuple[Any, Any]) -> Tensor | None:
    """True where a key's place is outside the window around a query's; -1: no bound on that side.

    Shapes:  rows and columns broadcast to [M, N].
    """
    left, right = window[0], 0 if causal else window[1]
    found = None
    if right is not None and right >= 0:
        found = columns > rows + right
    if left is not None and left >= 0:
        before = columns < rows - left
        found = before if found is None else found | before
    return found


def alibi_bias(slopes: Tensor, distance: Tensor) -> Tensor:
    """Shapes:  slopes [heads] or [batch, heads], distance [M, N] or [batch, 1, M, N] -> [..., heads, M, N]."""
    return -slopes.float()[..., None, None] * distance.abs().float()


def _places(queries: Any, keys: Any, device: Any) -> tuple[Tensor, Tensor]:
    """The places of queries, the last beside the last key, and of keys."""
    rows = torch.arange(queries, device=device)[:, None] + (keys - queries)
    return rows, torch.arange(keys, device=device)[None]


@patches(f"{FLASH_IN}:flash_attn_func", stands_in=FLASH)
def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention where a causal mask and a window are aligned to the last query and key.

    Shapes:  q [batch, M, heads, d], k and v [batch, N, key heads, d] -> as q; asked for the probabilities also float32 [batch,
        heads, M], the logarithm of the sum of exponentials, and None.
    """
    rows, columns = _places(q.shape[1], k.shape[1], q.device)
    output, sums = attention(
        *(part.transpose(1, 2) for part in (q, k, v)),
        scale=softmax_scale,
        hidden=outside(rows, columns, causal, window_size),
        bias=None if alibi_slopes is None else alibi_bias(alibi_slopes, rows - columns),
        softcap=softcap,
        dropout=dropout_p,
    )
    output = output.transpose(1, 2)
    return (output, sums, None) if return_attn_probs else output


@patches(f"{FLASH_IN}:flash_attn_qkvpacked_func", stands_in=FLASH)
def flash_attn_qkvpacked_func(
    qkv: Tensor,
    *more: Any,
    **named: Any,
) -> Any:
    """``flash_attn_func`` of qkv [batch, M, 3, heads, d]."""
    q, k, v = qkv.unbind(2)
    return flash_attn_func(q, k, v, *more, **named)


@patches(f"{FLASH_IN}:flash_attn_kvpacked_func", stands_in=FLASH)
def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    *more: Any,
    **named: Any,
) -> Any:
    """``flash_attn_func`` of q [batch, M, heads, d] and kv [batch, N, 2, key heads, d]."""
    k, v = kv.unbind(2)
    return flash_attn_func(q, k, v, *more, **named)


@patches(f"{FLASH_IN}:flash_attn_with_kvcache", stands_in=FLASH)
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """New keys and values are written into the caches behind ``cache_seqlens``, then attention over what the caches hold.

    Shapes:  q [batch, M, heads, d], caches [batch, N, key heads, d], k and v [batch, M', key heads, d], cache_seqlens int32
        [batch] or a number -> as q. Raises: UserError E107 for rotary tables, pages, left padding and rows of a larger cache.
    """
    asked = {"rotary_cos": rotary_cos, "cache_batch_idx": cache_batch_idx, "cache_leftpad": cache_leftpad}
    refuse("flash_attn_with_kvcache", **asked, block_table=block_table)
    batch, queries, device = q.shape[0], q.shape[1], q.device
    held: Any = k_cache.shape[1] if cache_seqlens is None else cache_seqlens
    held = torch.as_tensor(held, device=device).to(torch.int64).expand(batch)
    if k is not None and v is not None:
        rows = torch.arange(batch, device=device)[:, None]
        places = held[:, None] + torch.arange(k.shape[1], device=device)
        k_cache[rows, places] = k.to(k_cache.dtype)
        v_cache[rows, places] = v.to(v_cache.dtype)
        held = held + k.shape[1]
    columns = torch.arange(k_cache.shape[1], device=device)
    ends = held[:, None, None]
    places = torch.arange(queries, device=device)[:, None] + ends - queries
    hidden = columns >= ends
    beyond = outside(places, columns, causal, window_size)
    hidden = hidden if beyond is None else hidden | beyond
    output, sums = attention(
        *(part.transpose(1, 2) for part in (q, k_cache.to(q.dtype), v_cache.to(q.dtype))),
        scale=softmax_scale,
        hidden=hidden[:, None],
        bias=None if alibi_slopes is None else alibi_bias(alibi_slopes, (places - columns)[:, None]),
        softcap=softcap,
    )
    output = output.transpose(1, 2)
    return (output, sums) if return_softmax_lse else output


def refuse(function: str, **asked: Any) -> None:
    """Raises: UserError E107 where one of the arguments is given, which the mathematics does not have."""
    given = [name for name, value in asked.items() if value is not None and value is not False]
    if given:
        raise UserError(
            "E107",
            f"{function} is called with {', '.join(given)}, which fx2onnx does not compute",
            next=["leave the argument out", "or register a function of your own for it: docs/gpu_kernels.md"],
        )
