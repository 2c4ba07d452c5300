"""Operators of opsets 26-28 and of ai.onnx.preview: linear attention, stateful convolution, SwiGLU, FlexAttention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fx2onnx.runner.kernels.attention import split_heads
from fx2onnx.runner.kernels.cast import cast_array
from fx2onnx.runner.kernels.norm import widen
from fx2onnx.runner.kernels.softmax import softmax_array
from fx2onnx.runner.registry import kernel
from fx2onnx.runner.types import Array, narrowed, numpy_dtype_of_code

_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
"""Update rule -> whether it decays the state, whether it corrects the written value."""


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
) -> tuple[Array, Array]:
    """state = exp(decay) * state + k ⊗ v; y = scale * q @ state, one step a token, in float32.

    Shapes: query [B, T, Hq * Dk], key [B, T, Hkv * Dk], value [B, T, Hkv * Dv]; state [B, Hkv, Dk, Dv].
    """
    if update_rule not in _RULES:
        raise ValueError(f"update_rule {update_rule!r} is none of {', '.join(_RULES)}")
    has_decay, has_delta = _RULES[update_rule]
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
    for step in range(steps):
        if fade is not None:
            state = state * np.exp(fade[:, :, step, :, None])
        written = v[:, :, step]
        if gate is not None:
            written = gate[:, :, step] * (written - np.einsum("bhdm,bhd->bhm", state, k[:, :, step]))
        state = state + k[:, :, step, :, None] * written[:, :, None, :]
        read = np.repeat(state, q_num_heads // kv_num_heads, axis=1)
        y[:, :, step] = factor * np.einsum("bhd,bhdm->bhm", q[:, :, step], read)
    joined = y.transpose(0, 2, 1, 3).reshape(batch, steps, -1)
    return joined.astype(query.dtype), state.astype(query.dtype if past_state is None else past_state.dtype)


@kernel("CausalConvWithState", 27)
def causal_conv_with_state(
    x: Array, weight: Array, bias: Array | None = None, past_state: Array | None = None, *, activation: str = "none"
) -> tuple[Array, Array]:
    """A depthwise convolution that sees only the past; the last k - 1 positions are handed on.

    Shapes: x [B, C, L], weight [C, 1, k], state [B, C, k - 1].
    """
    if activation not in ("none", "silu", "swish"):
        raise ValueError(f"the activation is {activation!r}")
    width = weight.shape[2]
    past = np.zeros((*x.shape[:2], width - 1), x.dtype) if past_state is None else past_state
    padded = np.concatenate([past, x], axis=2)
    wide = widen(padded)
    total = np.zeros(x.shape, wide.dtype)
    for tap in range(width):
        total += wide[:, :, tap : tap + x.shape[2]] * widen(weight)[:, 0, tap, None]
    if bias is not None:
        total += widen(bias)[:, None]
    y = total.astype(x.dtype)
    if activation != "none":
        plain = widen(y)
        y = narrowed(plain / (1 + np.exp(-plain)), x.dtype)
    return y, padded[:, :, padded.shape[2] - (width - 1) :].copy()


@kernel("SwiGLU", 28)
def swi_glu(a: Array, b: Array, *, alpha: float = 1.0) -> Array:
    """a * sigmoid(alpha * a) * b."""
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ValueError(f"{a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)} differ")
    wide = widen(a)
    gate = narrowed(wide / (1 + np.exp(np.asarray(-alpha, wide.dtype) * wide)), a.dtype)
    return narrowed(gate * b, a.dtype)


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
    weights = softmax_array(scores, -1)
    if prob_mod is not None:
        (weights,) = prob_mod([weights])
    return narrowed(np.matmul(widen(cast_array(weights, q.dtype)), widen(values)), q.dtype)
