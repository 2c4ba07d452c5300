"""Attention, RotaryEmbedding, LinearAttention, FlexAttention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.cast import cast_array
from fx2onnx.semantics.kernels.matmul import matmul_shape
from fx2onnx.semantics.kernels.norm import softmax_array
from fx2onnx.semantics.kernels.threads import multiply
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import Array, narrowed, numpy_dtype_of_code, widen


def split_heads(x: Array, heads: int | None, what: str) -> Array:
    """[B, S, heads * D] -> [B, heads, S, D]; 4-D stays."""
    if x.ndim == 4:
        return x
    if x.ndim != 3 or not heads or x.shape[2] % heads:
        raise ValueError(f"{what} of shape {list(x.shape)} cannot be split into {heads} heads")
    return x.reshape(x.shape[0], x.shape[1], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)


def guarded_softmax(scores: Array) -> Array:
    """Softmax of the last axis in place; a row of -inf becomes zeros."""
    if scores.size == 0:
        return scores
    top = scores.max(axis=-1, keepdims=True)
    np.copyto(top, 0, where=np.isneginf(top))
    np.subtract(scores, top, out=scores)
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    np.copyto(total, 1, where=total == 0)
    np.divide(scores, total, out=scores)
    return scores


def _mask_bias(mask: Array | None, keys: int, dtype: Any) -> Array | None:
    if mask is None:
        return None
    if mask.shape[-1] < keys:
        fill: Any = False if mask.dtype == np.bool_ else -np.inf
        mask = np.concatenate([mask, np.full((*mask.shape[:-1], keys - mask.shape[-1]), fill, mask.dtype)], axis=-1)
    if mask.dtype == np.bool_:
        return np.where(mask, np.zeros((), dtype), np.asarray(-np.inf, dtype))
    return mask.astype(dtype, copy=False)


def _position_bias(
    queries: int, keys: int, offset: Any, is_causal: bool, left: int, right: int, dtype: Any
) -> Array | None:
    """-inf where the causal or window rule hides a key; [queries, keys], or [B, 1, queries, keys]."""
    if not is_causal and left < 0 and right < 0:
        return None
    ahead = np.arange(keys) - (np.arange(queries)[:, None] + np.asarray(offset).reshape(-1, 1, 1, 1))
    hidden = np.zeros(ahead.shape, np.bool_)
    if is_causal:
        hidden |= ahead > 0
    if left >= 0:
        hidden |= -ahead > left
    if right >= 0:
        hidden |= ahead > right
    return np.where(hidden, np.asarray(-np.inf, dtype), np.zeros((), dtype))


def product(a: Array, b: Array) -> Array:
    """a @ b, summed in float32 at least and rounded once."""
    left, right = widen(a), widen(b)
    out = np.empty(matmul_shape(left.shape, right.shape), np.result_type(left, right))
    multiply(left, right, out)
    return narrowed(out, a.dtype)


@kernel("Attention", 23)
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    valid_keys: Array | None = None,
    *,
    is_causal: int = 0,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    qk_matmul_output_mode: int = 0,
    left_window_size: int = -1,
    right_window_size: int = -1,
    n_outputs: int = 1,
) -> tuple[Array, ...]:
    """softmax(scale * q @ k.T + bias) @ v, with cache, masks, grouped heads and soft cap.

    Shapes:   q [B, H, S, D] or [B, S, H * D]; k, v likewise with their own heads and length.
    Numerics: products are summed in float32, each step is rounded to q's dtype; a row without any key gives zeros. Source: ONNX Attention-25.
    """
    if left_window_size < -1 or right_window_size < -1:
        raise ValueError("a window size is below -1")
    if not 0 <= qk_matmul_output_mode <= 3:
        raise ValueError(f"qk_matmul_output_mode is {qk_matmul_output_mode}, not 0 to 3")
    dtype, is_3d = q.dtype, q.ndim == 3
    q4, k4, v4 = (
        split_heads(item, heads, name)
        for item, heads, name in ((q, q_num_heads, "Q"), (k, kv_num_heads, "K"), (v, kv_num_heads, "V"))
    )
    k4, v4 = _after_past(k4, v4, past_key, past_value, valid_keys)
    batch, heads, queries, depth = q4.shape
    kv_heads, keys = k4.shape[1], k4.shape[2]
    if heads % max(kv_heads, 1) or k4.shape[::3] != (batch, depth) or v4.shape[:3] != (batch, kv_heads, keys):
        raise ValueError(f"Q {list(q4.shape)}, K {list(k4.shape)} and V {list(v4.shape)} do not fit")
    check_shape((batch, heads, queries, keys), dtype, "the attention scores")
    root = np.asarray(math.sqrt(scale if scale is not None else 1 / math.sqrt(depth))).astype(dtype)
    groups = heads // kv_heads
    grouped_q = (q4 * root).reshape(batch, kv_heads, groups * queries, depth)
    scores = product(grouped_q, (k4 * root).swapaxes(2, 3)).reshape(batch, heads, queries, keys)
    stages = [scores.copy()] if n_outputs > 3 else []
    if softcap > 0:
        cap = np.asarray(softcap).astype(dtype)
        scores = np.tanh(scores / cap) * cap
    if n_outputs > 3:
        stages.append(scores.copy())
    if mask is not None and np.broadcast_shapes(mask.shape[:-1], scores.shape[:-1]) != scores.shape[:-1]:
        raise ValueError(f"a mask of shape {list(mask.shape)} does not fit scores of shape {list(scores.shape)}")
    for bias in _biases(
        mask, valid_keys, past_key, queries, keys, dtype, is_causal == 1, left_window_size, right_window_size
    ):
        scores = scores + bias
    if n_outputs > 3:
        stages.append(scores.copy())
    if softmax_precision is not None:
        scores = cast_array(scores, numpy_dtype_of_code(softmax_precision))
    weights = cast_array(guarded_softmax(scores), dtype)
    stages.append(weights)
    y = product(weights.reshape(batch, kv_heads, groups * queries, keys), v4)
    y = y.reshape(batch, heads, queries, v4.shape[3])
    if is_3d:
        y = y.transpose(0, 2, 1, 3).reshape(batch, queries, -1)
    results = [y.astype(dtype, copy=False)]
    if n_outputs > 1:
        results += [np.array(item, order="C") for item in (k4, v4)]
    if n_outputs > 3:
        results.append(cast_array(stages[qk_matmul_output_mode], dtype))
    return tuple(results[:n_outputs])


def _after_past(
    k: Array, v: Array, past_key: Array | None, past_value: Array | None, valid_keys: Array | None
) -> tuple[Array, Array]:
    """Keys and values with those of the cache before them."""
    if (past_key is None) != (past_value is None):
        raise ValueError("past_key and past_value must be given together")
    if past_key is None or past_value is None:
        return k, v
    if valid_keys is not None:
        raise ValueError("nonpad_kv_seqlen cannot be combined with a past")
    return np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)


def _biases(
    mask: Array | None, valid_keys: Array | None, past_key: Array | None, queries: int, keys: int,
    dtype: Any, is_causal: bool, left: int, right: int,
) -> list[Array]:  # fmt: skip
    offset: Any = 0 if past_key is None else past_key.shape[2]
    padding = None
    if valid_keys is not None:
        counts = valid_keys.reshape(-1)
        offset = counts - queries
        padding = _mask_bias((np.arange(keys) < counts[:, None])[:, None, None, :], keys, dtype)
    position = _position_bias(queries, keys, offset, is_causal, left, right, dtype)
    return [bias for bias in (_mask_bias(mask, keys, dtype), position, padding) if bias is not None]


def turn_pairs(heads: Array, cos: Array, sin: Array, interleaved: int, target: Array) -> None:
    """target = the heads [B, H, S, D] with their first pairs of features turned by the angles of cos and sin [B, S, pairs]."""
    rotated, half = 2 * cos.shape[-1], cos.shape[-1]
    places = (slice(0, rotated, 2), slice(1, rotated, 2)) if interleaved else (slice(half), slice(half, rotated))
    # x * cos + exchanged x * sin, as both run over whole rows
    factors = np.empty((2, len(cos), 1, cos.shape[1], rotated), heads.dtype)
    exchanged = np.empty((*heads.shape[:3], rotated), heads.dtype)
    for place, other, sign in ((*places, -1), (*places[::-1], 1)):
        factors[0][..., place] = cos[:, None]
        np.multiply(sin[:, None], np.asarray(sign, heads.dtype), out=factors[1][..., place])
        exchanged[..., place] = heads[..., other]
    np.multiply(heads[..., :rotated], factors[0], out=target[..., :rotated])
    np.multiply(exchanged, factors[1], out=exchanged)
    np.add(target[..., :rotated], exchanged, out=target[..., :rotated])
    target[..., rotated:] = heads[..., rotated:]


@kernel("RotaryEmbedding", 23)
def rotary_embedding(
    x: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
    turn: Callable[..., None] = turn_pairs,
) -> Array:
    """Pairs of features rotated by the angle of their position.

    Shapes: x [B, H, S, D] or [B, S, H * D]; caches [P, R/2] with position_ids [B, S], else [B, S, R/2].
    """
    heads = split_heads(x, num_heads, "X")
    batch, _, length, width = heads.shape
    rotated = rotary_embedding_dim or width
    half = rotated // 2
    if sin_cache.shape != cos_cache.shape:
        raise ValueError(f"the caches differ in shape: {list(cos_cache.shape)} and {list(sin_cache.shape)}")
    caches = (batch, length) if position_ids is None else position_ids.shape
    if caches != (batch, length) or (position_ids is None and cos_cache.shape[:-1] != caches):
        raise ValueError(
            f"positions of {list(caches)} and caches of {list(cos_cache.shape)} do not fit {list(x.shape)}"
        )
    if position_ids is not None:
        if position_ids.size and not 0 <= position_ids.min() <= position_ids.max() < len(cos_cache):
            raise IndexError("position_ids are out of range for the caches")
        cos_cache, sin_cache = cos_cache[position_ids], sin_cache[position_ids]
    if cos_cache.shape[-1] != half:
        raise ValueError(f"caches of shape {list(cos_cache.shape)} do not fit {rotated} rotated features")
    y = np.empty(x.shape, x.dtype)
    turn(heads, cos_cache, sin_cache, interleaved, split_heads(y, num_heads, "Y"))
    return y


_UPDATE_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
"""Update rule -> whether it decays the state, whether it corrects the written value."""


def _advance(q: Array, k: Array, v: Array, fade: Array | None, gate: Array | None, state: Array, y: Array) -> None:
    """y = what all steps of LinearAttention read; the state, [batch, heads, depth, width], becomes the last one."""
    if fade is None and gate is None and np.isfinite(v).all():  # 0 times a later step that is infinite is no 0
        _advance_plainly(q, k, v, state, y)
        return
    room, shape = np.empty(state.shape, np.float32), (*state.shape[:2], y.shape[1] // state.shape[1], *y.shape[2:])
    read, asked = y.reshape(shape), q.reshape(*shape[:4], q.shape[3])
    for step in range(y.shape[2]):
        if fade is not None:
            np.multiply(state, fade[:, :, step, :, None], out=state)
        written = v[:, :, step, None]
        if gate is not None:
            written = gate[:, :, step, None] * (written - np.matmul(k[:, :, step, None], state))
        np.add(state, np.multiply(k[:, :, step, :, None], written, out=room), out=state)
        np.matmul(asked[:, :, :, step], state, out=read[:, :, :, step])


MOST_STEPS = 64
"""Steps whose products with one another are computed at a time."""


def _advance_plainly(q: Array, k: Array, v: Array, state: Array, y: Array) -> None:
    """``_advance`` where the state neither decays nor is corrected: sums of products, which take whole matrices of steps."""
    batch, heads, steps, _ = k.shape
    for start in range(0, steps, MOST_STEPS):
        asked, keys, values = (one[:, :, start : start + MOST_STEPS] for one in (q, k, v))
        asked = asked.reshape(batch, heads, q.shape[1] // heads, *asked.shape[2:])
        seen = np.tril(np.matmul(asked, keys.swapaxes(2, 3)[:, :, None]))
        read = np.matmul(seen, values[:, :, None])
        read += np.matmul(asked, state[:, :, None])
        y[:, :, start : start + MOST_STEPS] = read.reshape(batch, q.shape[1], *read.shape[3:])
        state += np.matmul(keys.swapaxes(2, 3), values)


@kernel("LinearAttention", 27)
def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    update_rule: str = "gated_delta",
    scale: float = 0.0,
    chunk_size: int = 64,
    advance: Callable[..., None] = _advance,
) -> tuple[Array, Array]:
    """state = exp(decay) * state + k ⊗ v; y = scale * q @ state, one step a token, in float32.

    Shapes: query [B, T, Hq * Dk], key [B, T, Hkv * Dk], value [B, T, Hkv * Dv]; state [B, Hkv, Dk, Dv].
    """
    if update_rule not in _UPDATE_RULES:
        raise ValueError(f"update_rule {update_rule!r} is none of {', '.join(_UPDATE_RULES)}")
    has_decay, has_delta = _UPDATE_RULES[update_rule]
    if has_decay != (decay is not None) or has_delta != (beta is not None):
        raise ValueError(f"update_rule {update_rule!r} does not go with the given decay and beta")
    if kv_num_heads < 1 or q_num_heads % kv_num_heads:
        raise ValueError(f"{q_num_heads} query heads are no multiple of {kv_num_heads}")
    q, k, v = (
        split_heads(item, heads, name).astype(np.float32)
        for item, heads, name in (
            (query, q_num_heads, "query"),
            (key, kv_num_heads, "key"),
            (value, kv_num_heads, "value"),
        )
    )
    batch, _, steps, depth = q.shape
    factor = np.float32(scale or 1 / math.sqrt(depth))
    state = np.zeros((batch, kv_num_heads, depth, v.shape[3]), np.float32)
    if past_state is not None:
        if past_state.shape != state.shape:
            raise ValueError(f"past_state has the shape {list(past_state.shape)}, not {list(state.shape)}")
        state = past_state.astype(np.float32)
    fade = None if decay is None else split_heads(decay, kv_num_heads, "decay").astype(np.float32)
    gate = None if beta is None else split_heads(beta, beta.shape[2], "beta").astype(np.float32)
    y = np.empty((batch, q_num_heads, steps, v.shape[3]), np.float32)
    q = q * factor
    fade = None if fade is None else np.exp(fade)
    state = np.array(state)
    advance(q, k, v, fade, gate, state, y)
    joined = y.transpose(0, 2, 1, 3).reshape(batch, steps, q_num_heads * v.shape[3])
    return joined.astype(query.dtype), state.astype(query.dtype if past_state is None else past_state.dtype)


Body = Callable[[Sequence[Any]], list[Any]]


@kernel("FlexAttention", domain="ai.onnx.preview")
def flex_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float | None = None,
    softmax_precision: int | None = None,
    score_mod: Body | None = None,
    prob_mod: Body | None = None,
) -> Array:
    """Attention whose scores and probabilities pass through bodies of the model's own."""
    heads, kv_heads = q.shape[1], k.shape[1]
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads are no multiple of {kv_heads}")
    default = np.dtype(np.float64) if q.dtype == np.float64 else np.dtype(np.float32)
    compute = default if softmax_precision is None else numpy_dtype_of_code(softmax_precision)
    groups = heads // kv_heads
    keys, values = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
    factor = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    scores = np.matmul(widen(q), widen(keys).swapaxes(2, 3)) * np.asarray(factor, widen(q).dtype)
    scores = cast_array(scores, compute)
    if score_mod is not None:
        (scores,) = score_mod([scores])
    weights = softmax_array(scores)
    if prob_mod is not None:
        (weights,) = prob_mod([weights])
    return narrowed(np.matmul(widen(cast_array(weights, q.dtype)), widen(values)), q.dtype)
