"""Attention of flash_attn: scores of all pairs, a mask, a softmax; over packed sequences, with padding that is taken out and put back; rotary
tables.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fx2onnx.base.errors import UserError
from fx2onnx.model_patches.missing_packages import offered_by
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


def _segments(ends: Tensor, tokens: Any) -> tuple[Tensor, Tensor]:
    """The number of the sequence that each token belongs to, and the token's place in it.

    Shapes:  ends (``cu_seqlens``) [sequences + 1] -> int64 [tokens] each.
    """
    index = torch.arange(tokens, device=ends.device)
    number = (index[:, None] >= ends[1:]).sum(dim=1)
    return number, index - ends.to(torch.int64)[number]


def _lengths(ends: Tensor, number: Tensor) -> Tensor:
    lengths = torch.nn.functional.pad(
        ends.to(torch.int64).diff(), (0, 1)
    )  # tokens behind the last sequence are of none
    return lengths[number]


@patches(f"{FLASH_IN}:flash_attn_varlen_func", stands_in=FLASH)
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """Attention of sequences that lie one behind the other, each to itself.

    Shapes:  q [tokens, heads, d], k and v [tokens of keys, key heads, d], cu_seqlens [sequences + 1] -> as q.
    Raises:  UserError E107 for pages. Cost: the product of both numbers of tokens.
    """
    refuse("flash_attn_varlen_func", block_table=block_table)
    number, rows = _segments(cu_seqlens_q, q.shape[0])
    key_number, columns = _segments(cu_seqlens_k, k.shape[0])
    rows = (rows + _lengths(cu_seqlens_k, number) - _lengths(cu_seqlens_q, number))[:, None]
    hidden = number[:, None] != key_number
    beyond = outside(rows, columns, causal, window_size)
    bias = None
    if alibi_slopes is not None and alibi_slopes.dim() == 2:
        of_tokens = alibi_slopes[number.clamp(max=alibi_slopes.shape[0] - 1)].mT[..., None]
        bias = -of_tokens.float() * (rows - columns).abs().float()
    elif alibi_slopes is not None:
        bias = alibi_bias(alibi_slopes, rows - columns)
    output, sums = attention(
        *(part.transpose(0, 1) for part in (q, k, v)),
        scale=softmax_scale,
        hidden=hidden if beyond is None else hidden | beyond,
        bias=bias,
        softcap=softcap,
        dropout=dropout_p,
    )
    output = output.transpose(0, 1)
    return (output, sums, None) if return_attn_probs else output


@patches(f"{FLASH_IN}:flash_attn_varlen_qkvpacked_func", stands_in=FLASH)
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: Any,
    *more: Any,
    **named: Any,
) -> Any:
    """``flash_attn_varlen_func`` of qkv [tokens, 3, heads, d]."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *more, **named)


@patches(f"{FLASH_IN}:flash_attn_varlen_kvpacked_func", stands_in=FLASH)
def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    *more: Any,
    **named: Any,
) -> Any:
    """``flash_attn_varlen_func`` of q [tokens, heads, d] and kv [tokens of keys, 2, key heads, d]."""
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *more, **named)


@patches("flash_attn.layers.rotary:apply_rotary_emb", stands_in=("flash_attn.layers",))
def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Any = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: Any = None,
) -> Tensor:
    """Pairs of the first channels turned by the angles of their places.

    Shapes:  x [batch, M, heads, d], or with cu_seqlens [tokens, heads, d]; cos and sin [places, turned / 2] -> as x.
    """
    if cu_seqlens is None:
        places = torch.arange(x.shape[1], device=x.device)
    else:
        number, places = _segments(cu_seqlens, x.shape[0])
    if isinstance(seqlen_offsets, Tensor):
        offsets = seqlen_offsets.to(torch.int64)
        places = places + (offsets[:, None] if cu_seqlens is None else offsets[number])
    else:
        places = places + seqlen_offsets
    half = cos.shape[-1]
    cos, sin = cos[places].unsqueeze(-2).float(), sin[places].unsqueeze(-2).float()
    turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    one, other = (turned[..., ::2], turned[..., 1::2]) if interleaved else torch.split(turned, half, dim=-1)
    both = (one * cos - other * sin, one * sin + other * cos)
    turned = torch.stack(both, dim=-1).flatten(-2) if interleaved else torch.cat(both, dim=-1)
    output = torch.cat([turned.to(x.dtype), rest], dim=-1)
    return x.copy_(output) if inplace else output


@offered_by("flash_attn.bert_padding")
def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """The rows of ``input`` at ``indices``."""
    return input[indices]


@offered_by("flash_attn.bert_padding")
def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None) -> tuple[Any, ...]:
    """The tokens that the mask keeps, their indices, where each sequence ends, the longest length and all lengths.

    Shapes:  hidden_states [batch, M, ...], attention_mask [batch, M] -> [tokens, ...], int64 [tokens], int32 [batch + 1], a
        number, int32 [batch].
    """
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    every = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = every.sum(dim=-1, dtype=torch.int32)
    indices = every.flatten().nonzero().flatten()
    ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[indices], indices, ends, lengths.max().item(), used


@offered_by("flash_attn.bert_padding")
def pad_input(hidden_states: Tensor, indices: Tensor, batch: Any, seqlen: Any) -> Tensor:
    """The inverse of ``unpad_input``: [tokens, ...] -> [batch, M, ...], with zeros where the mask kept nothing."""
    output = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return torch.unflatten(output.index_copy(0, indices, hidden_states), 0, (batch, seqlen))
