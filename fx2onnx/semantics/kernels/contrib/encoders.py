"""Blocks of encoders that onnxruntime's optimizer for transformers makes: embeddings with their norm, attention with its projection."""

from __future__ import annotations

from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.attention import split_heads
from fx2onnx.semantics.kernels.contrib import MICROSOFT
from fx2onnx.semantics.kernels.contrib.attention import attend
from fx2onnx.semantics.kernels.contrib.codes import number
from fx2onnx.semantics.kernels.contrib.quantized import scaled_product
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import PRIVATE_DOMAIN, kernel
from fx2onnx.semantics.types import FLOAT32, Array, narrowed, vecdot, widen


def _looked_up(table: Array, ids: Array, name: str) -> Array:
    """The rows of ``table``. Raises: IndexError for an id that it has no row for."""
    if table.ndim != 2:
        raise ValueError(f"{name} has {table.ndim} axes, it must have 2")
    if ids.size and not 0 <= ids.min() <= ids.max() < len(table):
        raise IndexError(f"{name} has {len(table)} rows, and is asked for {ids.min()} to {ids.max()}")
    return widen(table)[ids]


@kernel("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(
    input_ids: Array,
    segment_ids: Array | None,
    word_embedding: Array,
    position_embedding: Array,
    segment_embedding: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None = None,
    position_ids: Array | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 1,
    n_outputs: int = 1,
) -> tuple[Array, ...]:
    """The normalized sum of word, position and segment embeddings; how many tokens the mask leaves of each row; the sum.

    Shapes: ids and mask [B, S], tables [rows, D], gamma and beta [D].
    """
    if input_ids.ndim != 2:
        raise ValueError(f"input_ids has {input_ids.ndim} axes, it must have 2")
    batch, length = input_ids.shape
    check_shape((batch, length, word_embedding.shape[-1]), word_embedding.dtype)
    positions = np.arange(length)[None] if position_ids is None else position_ids
    total = _looked_up(word_embedding, input_ids, "word_embedding")
    total = total + _looked_up(position_embedding, positions, "position_embedding")
    if segment_ids is not None and segment_embedding is not None:
        total = total + _looked_up(segment_embedding, segment_ids, "segment_embedding")
    for name, row in (("gamma", gamma), ("beta", beta)):
        if row.shape != total.shape[-1:]:
            raise ValueError(f"{name} has the shape {list(row.shape)}, not {list(total.shape[-1:])}")
    y = total - total.mean(axis=-1, keepdims=True)
    y /= np.sqrt(vecdot(y, y) / np.asarray(total.shape[-1], y.dtype) + np.asarray(epsilon, y.dtype))[..., None]
    y = y * widen(gamma) + widen(beta)
    if mask is None:
        lengths = np.zeros(batch, np.int32)
    else:
        lengths = (mask != 0).sum(1).astype(np.int32)
    dtype = word_embedding.dtype
    return (narrowed(y, dtype), lengths, narrowed(total, dtype))[:n_outputs]


@kernel("QEmbedLayerNormalization", domain=MICROSOFT)
def qembed_layer_normalization(
    input_ids: Array,
    segment_ids: Array | None,
    word: Array,
    position: Array,
    segment: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None,
    word_scale: Array,
    position_scale: Array,
    segment_scale: Array | None,
    gamma_scale: Array,
    beta_scale: Array,
    word_zero: Array,
    position_zero: Array,
    segment_zero: Array | None,
    gamma_zero: Array,
    beta_zero: Array,
    *,
    epsilon: float = 1e-12,
    n_outputs: int = 2,
) -> tuple[Array, ...]:
    """EmbedLayerNormalization of quantized tables."""

    def wide(table: Array, scale: Array | None, zero: Array | None) -> Array:
        factor = np.float32(1) if scale is None else number(scale, "a scale")
        return np.asarray((table.astype(FLOAT32) - number(zero, "a zero point")) * factor)

    return embed_layer_normalization(
        input_ids,
        segment_ids,
        wide(word, word_scale, word_zero),
        wide(position, position_scale, position_zero),
        None if segment is None else wide(segment, segment_scale, segment_zero),
        wide(gamma, gamma_scale, gamma_zero),
        wide(beta, beta_scale, beta_zero),
        mask,
        epsilon=epsilon,
        n_outputs=n_outputs,
    )


def _mask_term(mask: Array | None, shape: tuple[int, int, int], fill: float) -> Array | None:
    """The term that the mask adds to scores [B, S, T]: ``fill`` for each key that it hides."""
    if mask is None:
        return None
    batch, queries, keys = shape
    places = np.arange(keys)
    if mask.shape in ((batch,), (2 * batch,)):
        allowed = (places < mask[:batch, None])[:, None, None]
        if len(mask) > batch:
            allowed = allowed & (places >= mask[batch:, None])[:, None, None]
    elif mask.shape in ((batch, keys), (1, keys)):
        allowed = (mask > 0)[:, None, None]
    elif mask.shape == (batch, queries, keys):
        allowed = (mask > 0)[:, None]
    else:
        raise ValueError(f"a mask of shape {list(mask.shape)} does not fit {batch} x {queries} queries of {keys} keys")
    return np.where(allowed, np.float32(0), np.float32(fill))


def _self_attention(
    projected: Array,
    sizes: tuple[int, int, int],
    mask: Array | None,
    past: Array | None,
    bias: Array | None,
    attrs: Any,
) -> tuple[Array, ...]:
    """Attention of [B, S, sizes of query, key and value together]; present keys and values behind the result."""
    heads = attrs["num_heads"]
    if attrs.get("do_rotary") or attrs.get("past_present_share_buffer"):
        raise NotImplementedError("do_rotary and past_present_share_buffer are not computed, as on onnxruntime's CPU")
    parts = np.split(projected, np.cumsum(sizes)[:2], axis=-1)
    q, k, v = (split_heads(part, heads, name) for part, name in zip(parts, ("query", "key", "value"), strict=True))
    before = 0
    if past is not None:
        if past.ndim != 5 or past.shape[0] != 2 or past.shape[1:3] != k.shape[:2] or past.shape[4] != k.shape[3]:
            raise ValueError(f"a past of shape {list(past.shape)} does not fit keys of {list(k.shape)}")
        before = past.shape[3]
        k, v = np.concatenate([past[0], k], axis=2), np.concatenate([past[1], v], axis=2)
    batch, _, queries, _ = q.shape
    fill = attrs.get("mask_filter_value", -10000.0)
    term = _mask_term(mask, (batch, queries, k.shape[2]), fill)
    causal = before if attrs.get("unidirectional") else None
    y, _ = attend(q, k, v, attrs.get("scale", 0.0), causal, (term, bias))
    present = (np.stack([k, v]),) if attrs.get("n_outputs", 1) > 1 else ()
    return tuple(narrowed(each, projected.dtype) for each in (y, *present))


def _sizes(columns: int, given: Any) -> tuple[int, int, int]:
    if given is not None and (len(given) != 3 or sum(given) != columns or min(given) < 0):
        raise ValueError(f"qkv_hidden_sizes are {list(given)}, the weights have {columns} columns")
    if given is None and columns % 3:
        raise ValueError(f"the weights have {columns} columns, no multiple of 3")
    return tuple(given) if given is not None else (columns // 3,) * 3


@kernel("Attention", domain=MICROSOFT)
def attention_of_microsoft(
    x: Array,
    weights: Array,
    bias: Array | None = None,
    mask_index: Array | None = None,
    past: Array | None = None,
    attention_bias: Array | None = None,
    past_sequence_length: Array | None = None,
    *,
    qkv_hidden_sizes: Any = None,
    n_outputs: int = 1,
    **attrs: Any,
) -> tuple[Array, ...]:
    """Self-attention of x @ weights + bias, which holds query, key and value side by side.

    Shapes: x [B, S, D], weights [D, 3 * H], past [2, B, heads, P, H / heads];
            mask_index [B] (keys of each row), [2 * B] (ends, then starts), [B, T], [B, S, T] or [B, 1, M, M].
    """
    if x.ndim != 3 or weights.ndim != 2 or x.shape[2] != weights.shape[0]:
        raise ValueError(f"an input of shape {list(x.shape)} and weights of {list(weights.shape)} do not fit")
    check_shape((*x.shape[:2], weights.shape[1]), x.dtype)
    projected = np.matmul(widen(x), widen(weights))
    if bias is not None:
        projected += widen(bias)
    sizes = _sizes(weights.shape[1], qkv_hidden_sizes)
    given = {**attrs, "n_outputs": n_outputs}
    results = _self_attention(projected, sizes, mask_index, past, attention_bias, given)
    return tuple(narrowed(each, x.dtype) for each in results)


@kernel("QAttention", domain=MICROSOFT)
def qattention(
    x: Array,
    weights: Array,
    bias: Array,
    x_scale: Array,
    w_scale: Array,
    mask_index: Array | None = None,
    x_zero: Array | None = None,
    w_zero: Array | None = None,
    past: Array | None = None,
    *,
    n_outputs: int = 1,
    **attrs: Any,
) -> tuple[Array, ...]:
    """Attention whose input and weights are quantized."""
    if x.ndim != 3 or weights.ndim != 2 or x.shape[2] != weights.shape[0]:
        raise ValueError(f"an input of shape {list(x.shape)} and weights of {list(weights.shape)} do not fit")
    scale = np.asarray(number(x_scale, "input_scale") * w_scale)
    projected = scaled_product(x, weights, scale, x_zero, w_zero, bias)
    return projected_attention(projected, mask_index, past, n_outputs=n_outputs, **attrs)


@kernel("ProjectedAttention", domain=PRIVATE_DOMAIN)
def projected_attention(
    projected: Array, mask: Array | None = None, past: Array | None = None, **attrs: Any
) -> tuple[Array, ...]:
    """QAttention after its product: [B, S, query, key and value] of floats."""
    return _self_attention(projected, _sizes(projected.shape[-1], None), mask, past, None, attrs)
