"""onnxruntime's own attention (``com.microsoft``): MultiHeadAttention, GroupQueryAttention, RotaryEmbedding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.attention import product, split_heads, turn_pairs
from fx2onnx.semantics.kernels.contrib import MICROSOFT
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import Array, narrowed, widen


def rotated(x: Array, cos: Array, sin: Array, interleaved: int) -> Array:
    """x [.., S, D], whose first 2 * R features turn by the angles of cos and sin [.., S, R]; wide."""
    half = cos.shape[-1]
    y: Array = widen(x).copy()
    turned = y[..., : 2 * half]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    real, imaginary = cos * first - sin * second, sin * first + cos * second
    first[...], second[...] = real, imaginary
    return y


def _angles(positions: Array, cos_cache: Array, sin_cache: Array, depth: int) -> tuple[Array, Array]:
    """[B, 1, S, R] of both tables."""
    if cos_cache.shape != sin_cache.shape or cos_cache.ndim != 2 or 2 * cos_cache.shape[1] > depth:
        raise ValueError(
            f"tables of shape {list(cos_cache.shape)} and {list(sin_cache.shape)} do not fit {depth} features"
        )
    if positions.size and not 0 <= positions.min() <= positions.max() < len(cos_cache):
        raise IndexError(f"positions up to {positions.max()} are out of range for tables of {len(cos_cache)} rows")
    return widen(cos_cache)[positions][:, None], widen(sin_cache)[positions][:, None]


@kernel("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding_of_microsoft(
    x: Array,
    position_ids: Array,
    cos_cache: Array,
    sin_cache: Array,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
    is_packed_batching: int = 0,
    turn: Callable[..., None] = turn_pairs,
) -> Array:
    """Pairs of features turned by the angle of their position.

    Shapes: x [B, H, S, D] or [B, S, H * D]; position_ids [B, S], or [1], that of the first token; tables [P, R/2].
    """
    if x.ndim == 3 and not num_heads:
        num_heads = x.shape[2] // (2 * cos_cache.shape[1]) if cos_cache.shape[1] else 0
    heads = split_heads(x, num_heads, "input")
    batch, _, length, depth = heads.shape
    positions = position_ids
    if position_ids.shape == (1,) and (batch, length) != (1, 1):
        positions = position_ids + np.arange(length)[None, :].repeat(batch, axis=0)
    positions = positions.reshape(batch, length)
    cos, sin = _angles(positions, cos_cache, sin_cache, rotary_embedding_dim or depth)
    y = np.empty(x.shape, widen(x).dtype)
    turn(widen(heads), cos[:, 0], sin[:, 0], interleaved, split_heads(y, num_heads, "output"))
    return narrowed(y, x.dtype)


def _softmax(scores: Array, sink: Array | None = None) -> Array:
    """Softmax of the last axis in place; ``sink`` is one more score that takes its share and gives nothing."""
    if scores.shape[-1] == 0:
        return scores
    top = scores.max(axis=-1, keepdims=True)
    if sink is not None:
        np.maximum(top, sink, out=top)
    np.copyto(top, 0, where=np.isneginf(top))
    np.subtract(scores, top, out=scores)
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    if sink is not None:
        total += np.exp(sink - top)
    np.copyto(total, 1, where=total == 0)
    np.divide(scores, total, out=scores)
    return scores


def _padding_bias(mask: Array, batch: int, queries: int, keys: int, fill: float, dtype: Any) -> Array:
    """``fill`` where the mask hides a key: [B, T] or [B, S, T] of 0 and 1, or [B], how many keys each row has."""
    if mask.shape == (batch,):
        allowed = (np.arange(keys) < mask[:, None])[:, None, None, :]
    elif mask.shape == (batch, keys):
        allowed = (mask != 0)[:, None, None, :]
    elif mask.shape == (batch, queries, keys):
        allowed = (mask != 0)[:, None]
    else:
        raise ValueError(
            f"a key_padding_mask of shape {list(mask.shape)} does not fit {queries} queries of {keys} keys"
        )
    return np.where(allowed, np.zeros((), dtype), np.asarray(fill, dtype))


def _as_heads(
    query: Array, key: Array | None, value: Array | None, bias: Array | None, heads: int
) -> tuple[Array, Array, Array]:
    """Query, key and value [B, H, S, D], whichever way they are packed."""
    if key is None or value is None:
        if key is None and query.ndim == 5:
            packed = query.transpose(3, 0, 2, 1, 4)
            return packed[0], packed[1], packed[2]
        if key is not None and key.ndim == 5:
            both = key.transpose(3, 0, 2, 1, 4)
            return split_heads(_biased(query, bias, 0), heads, "query"), both[0], both[1]
        raise ValueError("query alone has to be packed as [B, S, H, 3, D], key alone as [B, L, H, 2, D]")
    width, wide_key = query.shape[-1], key.shape[-1] if key.ndim == 3 else 0
    return (
        split_heads(_biased(query, bias, 0), heads, "query"),
        split_heads(_biased(key, bias, width) if key.ndim == 3 else key, heads, "key"),
        split_heads(_biased(value, bias, width + wide_key) if value.ndim == 3 else value, heads, "value"),
    )


def _biased(x: Array, bias: Array | None, start: int) -> Array:
    return x if bias is None else narrowed(widen(x) + widen(bias[start : start + x.shape[-1]]), x.dtype)


@kernel("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    bias: Array | None = None,
    key_padding_mask: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: int = 0,
    n_outputs: int = 1,
) -> tuple[Array, ...]:
    """softmax(scale * q @ k.T + bias) @ v.

    Shapes:   query [B, S, H * D]; key, value [B, L, H * D] or [B, H, L, D]; attention_bias [B or 1, H or 1, S, L].
    Numerics: products are summed in float32.
    """
    q, k, v = _as_heads(query, key, value, bias, num_heads)
    before = 0 if past_key is None else past_key.shape[2]
    if past_key is not None and past_value is not None:
        k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    batch, _, queries, _ = q.shape
    mask = None
    if key_padding_mask is not None:
        mask = _padding_bias(key_padding_mask, batch, queries, k.shape[2], mask_filter_value, widen(q).dtype)
    y, kept = attend(q, k, v, scale, before if unidirectional else None, (mask, attention_bias), n_outputs > 3)
    results = [narrowed(y, query.dtype)]
    if n_outputs > 1:
        results += [np.array(k, order="C"), np.array(v, order="C")]
    if n_outputs > 3:
        results.append(narrowed(kept, query.dtype))
    return tuple(results[:n_outputs])


def attend(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    before: int | None,
    terms: Sequence[Array | None],
    keeps_scores: bool = False,
) -> tuple[Array, Array]:
    """softmax(scale * q @ k.T + terms) @ v as [B, S, H * D], wide; and the scores before the softmax.

    ``before``: where queries see no later keys, the number of keys before the first query.
    """
    batch, heads, queries, depth = q.shape
    keys = k.shape[2]
    if k.shape[:2] != q.shape[:2] or v.shape[:3] != k.shape[:3] or k.shape[3] != depth:
        raise ValueError(f"query {list(q.shape)}, key {list(k.shape)} and value {list(v.shape)} do not fit")
    check_shape((batch, heads, queries, keys), q.dtype, "the attention scores")
    wide = widen(q)
    scores = product(wide * np.asarray(scale or 1 / math.sqrt(depth), wide.dtype), widen(k).swapaxes(2, 3))
    if before is not None:
        np.copyto(scores, -np.inf, where=np.arange(keys) > np.arange(queries)[:, None] + before)
    for term in terms:
        if term is not None:
            scores += widen(term)
    kept = scores.copy() if keeps_scores else scores
    y = product(_softmax(scores), widen(v)).transpose(0, 2, 1, 3).reshape(batch, queries, -1)
    return np.ascontiguousarray(y), kept


@kernel("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    seqlens_k: Array | None = None,
    total_sequence_length: Array | None = None,
    cos_cache: Array | None = None,
    sin_cache: Array | None = None,
    position_ids: Array | None = None,
    attention_bias: Array | None = None,
    head_sink: Array | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    scale: float = 0.0,
    softcap: float = 0.0,
    local_window_size: int = -1,
    do_rotary: int = 0,
    rotary_interleaved: int = 0,
    smooth_softmax: int = 0,
    n_outputs: int = 1,
    **others: Any,
) -> tuple[Array, ...]:
    """Causal attention over a cache, whose heads are shared by groups of query heads.

    Shapes:   query [B, S, H * D], or [B, S, (H + 2 * K) * D] with key and value in it; key, value [B, S, K * D];
              past [B, K, P, D]; seqlens_k [B], one less than the keys of each row; tables [positions, R/2].
    Numerics: in float32.
    """
    _refuse(others)
    if seqlens_k is None or total_sequence_length is None:
        raise ValueError("seqlens_k and total_sequence_length are needed")
    q, k, v = _grouped(query, key, value, num_heads, kv_num_heads)
    batch, _, new, depth = q.shape
    total = int(total_sequence_length.reshape(-1)[0])
    lengths = seqlens_k.reshape(-1).astype(np.int64) + 1
    if len(lengths) != batch or (lengths < 1).any() or (lengths > total).any() or total < new:
        raise ValueError(f"seqlens_k {list(lengths - 1)[:8]} does not fit {batch} rows of {total} keys")
    before = np.maximum(lengths - new, 0)
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise ValueError("do_rotary asks for cos_cache and sin_cache")
        positions = before[:, None] + np.arange(new) if position_ids is None else position_ids
        cos, sin = _angles(positions, cos_cache, sin_cache, depth)
        q, k = (narrowed(rotated(x, cos, sin, rotary_interleaved), x.dtype) for x in (q, k))
    check_shape((batch, num_heads, new, total), q.dtype, "the attention scores")
    present = [_continued(past, fresh, before, total) for past, fresh in ((past_key, k), (past_value, v))]
    sink = None
    if head_sink is not None or smooth_softmax:
        sink = np.zeros(num_heads, np.float32) if head_sink is None else widen(head_sink)
    rules = _Rules(scale or 1 / math.sqrt(depth), softcap, local_window_size, sink, attention_bias)
    rows = [_row_of(row, q[row], present, int(before[row]), rules) for row in range(batch)]
    y = np.stack(rows) if rows else np.zeros((0, new, num_heads * v.shape[3]), q.dtype)
    results = (narrowed(y, query.dtype), *present)
    if n_outputs > len(results):
        raise ValueError("output_qk is not computed")
    return results[:n_outputs]


@dataclass(frozen=True)
class _Rules:
    """The rules for the scores of a row."""

    scale: float
    softcap: float
    window: int
    sink: Array | None
    bias: Array | None


def _row_of(row: int, q: Array, present: Sequence[Array], before: int, rules: _Rules) -> Array:
    """[S, H * D], wide: what the queries [H, S, D] of a row, ``before`` keys behind its first, see of its cache."""
    heads, new, _ = q.shape
    keys, values = (cache[row, :, : before + new] for cache in present)
    scores = _scores(q, keys, rules.scale, rules.softcap)
    ahead = np.arange(before + new) - (np.arange(new)[:, None] + before)
    hidden = ahead > 0
    if rules.window > 0:
        hidden |= ahead <= -rules.window
    np.copyto(scores, -np.inf, where=hidden)
    if rules.bias is not None:
        scores += widen(rules.bias[row if len(rules.bias) > 1 else 0][..., : before + new])
    weights = _softmax(scores, None if rules.sink is None else rules.sink[:, None, None])
    grouped = weights.reshape(keys.shape[0], -1, before + new)
    y = product(grouped, widen(values)).reshape(heads, new, -1).transpose(1, 0, 2)
    return y.reshape(new, -1)


def _refuse(others: dict[str, Any]) -> None:
    """Raises: ValueError for attributes that ask for a quantized cache or for the scores."""
    for name, given in others.items():
        if given not in (0, "NONE", b"NONE"):
            raise ValueError(f"{name}={given!r} is not computed")


def _grouped(
    query: Array, key: Array | None, value: Array | None, heads: int, kv_heads: int
) -> tuple[Array, Array, Array]:
    """Query [B, H, S, D], key and value [B, K, S, D]."""
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"{heads} query heads are no multiple of {kv_heads}")
    if key is None or value is None:
        whole = split_heads(query, heads + 2 * kv_heads, "query")
        return whole[:, :heads], whole[:, heads : heads + kv_heads], whole[:, heads + kv_heads :]
    q, k, v = (
        split_heads(x, count, name)
        for x, count, name in ((query, heads, "query"), (key, kv_heads, "key"), (value, kv_heads, "value"))
    )
    if k.shape[3] != q.shape[3] or k.shape[2] != v.shape[2]:
        raise ValueError(f"query {list(q.shape)}, key {list(k.shape)} and value {list(v.shape)} do not fit")
    return q, k, v


def _continued(past: Array | None, fresh: Array, before: Array, total: int) -> Array:
    """The cache with ``fresh`` behind the first ``before`` keys of each row; as long as the past where that is longer."""
    batch, heads, new, depth = fresh.shape
    if past is not None and (past.shape[:2] != (batch, heads) or past.shape[3] != depth):
        raise ValueError(f"a past of shape {list(past.shape)} does not fit {list(fresh.shape)}")
    kept = 0 if past is None else past.shape[2]
    if (before > kept).any():
        raise ValueError(f"seqlens_k says {int(before.max())} past keys, there are {kept}")
    present = np.zeros((batch, heads, max(kept, total), depth), fresh.dtype)
    for row in range(batch):
        if past is not None:
            present[row, :, : before[row]] = past[row, :, : before[row]]
        present[row, :, before[row] : before[row] + new] = fresh[row]
    return present


def _scores(q: Array, keys: Array, scale: float, softcap: float) -> Array:
    """[H, S, T]: scale * q @ keys.T, each group of heads with its own keys, limited to +-softcap."""
    heads, new, depth = q.shape
    wide = widen(q)
    grouped = (wide * np.asarray(scale, wide.dtype)).reshape(keys.shape[0], -1, depth)
    scores = product(grouped, widen(keys).swapaxes(1, 2)).reshape(heads, new, -1)
    return np.tanh(scores / np.float32(softcap)) * np.float32(softcap) if softcap > 0 else scores
