"""onnxruntime's gates and norms of recent language models, and hashes of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.contrib import MICROSOFT
from fx2onnx.semantics.kernels.recurrence import sigmoid
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import Array, narrowed, widen


def _root_mean_square(x: Array, epsilon: float) -> Array:
    """x over the root of the mean of its squares along the last axis, in float32."""
    wide = widen(x)
    return np.asarray(wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + np.float32(epsilon)))


def _branches(x: Array, count: int) -> Array:
    """[..., C, H]; ``count`` is C where x is [..., C * H]."""
    if not count:
        if x.ndim < 2:
            raise ValueError(f"an input of shape {list(x.shape)} has no axis of branches")
        return x
    if count < 0 or not x.ndim or x.shape[-1] % count:
        raise ValueError(f"the last axis of {list(x.shape)} is no multiple of {count} branches")
    return x.reshape(*x.shape[:-1], count, x.shape[-1] // count)


@kernel("BranchwiseRMSNorm", domain=MICROSOFT)
def branchwise_rms_norm(x: Array, scale: Array | None = None, *, num_branches: int = 0, epsilon: float = 1e-5) -> Array:
    """x over its root mean square, for each branch by itself, times ``scale`` [C * H], [C, H] or [H]."""
    grouped = _branches(x, num_branches)
    y = _root_mean_square(grouped, epsilon)
    if scale is not None:
        n_branches, width = grouped.shape[-2:]
        if scale.shape not in ((n_branches * width,), (n_branches, width), (width,)):
            raise ValueError(f"scale has the shape {list(scale.shape)} for branches of {list(grouped.shape[-2:])}")
        y = y * widen(scale if scale.shape == (width,) else scale.reshape(n_branches, width))
    return narrowed(y, x.dtype).reshape(x.shape)


@kernel("GatedRMSNorm", domain=MICROSOFT)
def gated_rms_norm(x: Array, scale: Array, gate: Array, *, activation: str = "silu", epsilon: float = 1e-5) -> Array:
    """x over its root mean square, times ``scale`` and the activated gate; groups of as many as ``scale`` has."""
    if activation not in ("silu", "swish", "sigmoid"):
        raise ValueError(f"the activation is {activation!r}")
    if scale.ndim != 1 or not scale.size or x.shape != gate.shape or x.shape[-1] % scale.size:
        raise ValueError(f"x {list(x.shape)}, scale {list(scale.shape)} and gate {list(gate.shape)} do not fit")
    z = widen(gate)
    opened = sigmoid(z) if activation == "sigmoid" else z * sigmoid(z)
    y = _root_mean_square(x.reshape(*x.shape[:-1], -1, scale.size), epsilon) * widen(scale)
    return narrowed(y.reshape(x.shape) * opened, x.dtype)


@kernel("GatedAdd", domain=MICROSOFT)
def gated_add(x: Array, y: Array, gate: Array) -> Array:
    """x + y * gate; the product is rounded first."""
    if x.shape != y.shape or gate.shape != (*x.shape[:-1], 1):
        raise ValueError(f"x {list(x.shape)}, y {list(y.shape)} and gate {list(gate.shape)} do not fit")
    product = narrowed(widen(y) * widen(gate), x.dtype)
    return narrowed(widen(x) + widen(product), x.dtype)


@kernel("ScaledSiLU", domain=MICROSOFT)
def scaled_silu(x: Array, scale: Array | None = None, *, alpha: float = 1.0) -> Array:
    """z * sigmoid(z) of z = scale * x, rounded after each step."""
    if scale is not None and scale.size != 1:
        raise ValueError(f"scale has the shape {list(scale.shape)}; it must be one number")
    factor = np.float32(alpha) if scale is None else widen(scale).reshape(())
    z = narrowed(widen(x) * factor, x.dtype)
    opened = narrowed(sigmoid(widen(z)), x.dtype)
    return narrowed(widen(z) * widen(opened), x.dtype)


@kernel("HyperConnectionPreMix", domain=MICROSOFT)
def hyper_connection_pre_mix(
    streams: Array, pre_mix: Array, *, num_branches: int = 0, reduction_scale: float = 1.0
) -> Array:
    """The sum of all streams [..., C, H], each times its gate, times ``reduction_scale``."""
    grouped = widen(_branches(streams, num_branches))
    gates = _gates(pre_mix, grouped, "pre_mix")
    return narrowed((grouped * gates).sum(-2) * np.float32(reduction_scale), streams.dtype)


def _gates(given: Array, grouped: Array, name: str) -> Array:
    """Gates of each branch or of each feature, as [..., C, 1] or [..., C, H]."""
    wide = widen(given)
    lead, (n_branches, width) = grouped.shape[:-2], grouped.shape[-2:]
    if wide.shape == (*lead, n_branches):
        return wide[..., None]
    if wide.shape in ((*lead, n_branches, 1), grouped.shape):
        return wide
    if wide.shape == (*lead, n_branches * width):
        return wide.reshape(grouped.shape)
    raise ValueError(f"{name} has the shape {list(given.shape)} for streams of {list(grouped.shape)}")


@kernel("HyperConnectionPostMix", domain=MICROSOFT)
def hyper_connection_post_mix(
    streams: Array, block_output: Array, post_mix: Array, stream_mix: Array | None = None, *, num_branches: int = 0
) -> Array:
    """Streams [..., C, H] mixed by ``stream_mix`` [..., C, C], plus the block's output times each stream's gate."""
    grouped = widen(_branches(streams, num_branches))
    gates = _gates(post_mix, grouped, "post_mix")
    if block_output.shape != (*grouped.shape[:-2], grouped.shape[-1]):
        raise ValueError(f"block_output has the shape {list(block_output.shape)} for streams of {list(grouped.shape)}")
    mixed = grouped
    if stream_mix is not None:
        if stream_mix.shape != (*grouped.shape[:-1], grouped.shape[-2]):
            raise ValueError(f"stream_mix has the shape {list(stream_mix.shape)} for streams of {list(grouped.shape)}")
        mixed = np.matmul(widen(stream_mix).swapaxes(-1, -2), grouped)
    y = mixed + gates * widen(block_output)[..., None, :]
    return narrowed(y, streams.dtype).reshape(streams.shape)


@kernel("LinearAttentionGate", domain=MICROSOFT)
def linear_attention_gate(
    a: Array, dt_bias: Array, decay_scale: Array, b: Array | None = None, *, n_outputs: int = 1
) -> tuple[Array, ...]:
    """decay_scale * log(1 + exp(a + dt_bias)); and sigmoid(b)."""
    if dt_bias.shape != a.shape[-1:] or decay_scale.shape != a.shape[-1:]:
        raise ValueError(f"dt_bias {list(dt_bias.shape)} and decay_scale {list(decay_scale.shape)} for {list(a.shape)}")
    decay = narrowed(decay_scale * np.logaddexp(np.float32(0), widen(a) + dt_bias), a.dtype)
    if n_outputs < 2:
        return (decay,)
    if b is None:
        raise ValueError("the output beta needs the input b")
    return decay, narrowed(sigmoid(widen(b)), a.dtype)


@kernel("EngramGate", domain=MICROSOFT)
def engram_gate(
    key: Array,
    query: Array,
    value: Array,
    key_norm_scale: Array,
    query_norm_scale: Array,
    conv_norm_scale: Array | None = None,
    *,
    epsilon: float = 1e-5,
    n_outputs: int = 1,
) -> tuple[Array, ...]:
    """gate * value, gate = sigmoid(sign(d) * sqrt(|d|)) of the product d of key and query over their root mean squares.

    Shapes: key and query [B, S, C, H], value [B, S, H], scales [C, H].
    """
    if key.ndim != 4 or query.shape != key.shape or value.shape != (*key.shape[:2], key.shape[3]):
        raise ValueError(f"key {list(key.shape)}, query {list(query.shape)} and value {list(value.shape)} do not fit")
    for name, scale in (("key_norm_scale", key_norm_scale), ("query_norm_scale", query_norm_scale)):
        if scale.shape != key.shape[2:]:
            raise ValueError(f"{name} has the shape {list(scale.shape)}, not {list(key.shape[2:])}")
    left = _root_mean_square(key, epsilon) * widen(key_norm_scale)
    right = _root_mean_square(query, epsilon) * widen(query_norm_scale)
    dot = (left * right).sum(-1, keepdims=True) / np.sqrt(np.float32(key.shape[3]))
    gate = sigmoid(np.sign(dot) * np.sqrt(np.maximum(np.abs(dot), np.float32(1e-6))))
    y = gate * widen(value)[:, :, None]
    if n_outputs < 2:
        return (narrowed(y, key.dtype),)
    if conv_norm_scale is None or conv_norm_scale.shape != key.shape[2:]:
        raise ValueError("the output gated_value_normed needs a conv_norm_scale of [C, H]")
    return narrowed(y, key.dtype), narrowed(_root_mean_square(y, epsilon) * widen(conv_norm_scale), key.dtype)


@kernel("MurmurHash3", domain=MICROSOFT)
def murmur_hash_3(x: Array, *, positive: int = 1, seed: int = 0) -> Array:
    """MurmurHash3_x86_32 of each element's bytes; of a string, of its UTF-8. Source: Appleby, MurmurHash3.cpp."""
    start = seed & 0xFFFFFFFF
    if x.dtype.kind in "OUS":
        texts = [item if isinstance(item, bytes) else str(item).encode() for item in x.reshape(-1)]
        hashes = np.array([_hash(text, start) for text in texts], np.uint32).reshape(x.shape)
    else:
        words = np.ascontiguousarray(x).reshape(-1, 1).view("<u4")
        h = np.full(len(words), start, np.uint32)
        for column in range(words.shape[1]):
            h = _mixed_in(h, words[:, column])
        hashes = _finished(h, x.dtype.itemsize).reshape(x.shape)
    return hashes if positive else hashes.view(np.int32)


def _turned(x: Array, by: int) -> Array:
    return np.asarray((x << np.uint32(by)) | (x >> np.uint32(32 - by)))


def _mixed_in(h: Array, word: Array) -> Array:
    k = _turned(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return np.asarray(_turned(h ^ k, 13) * np.uint32(5) + np.uint32(0xE6546B64))


def _finished(h: Array, length: int) -> Array:
    h = h ^ np.uint32(length)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return np.asarray(h ^ (h >> np.uint32(16)))


def _hash(data: bytes, seed: int) -> Any:
    whole = len(data) // 4 * 4
    h = np.full(1, seed, np.uint32)
    for word in np.frombuffer(data[:whole], "<u4"):
        h = _mixed_in(h, np.full(1, word, np.uint32))
    if len(data) > whole:
        rest = np.full(1, int.from_bytes(data[whole:], "little"), np.uint32)
        h = h ^ (_turned(rest * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593))
    return _finished(h, len(data))[0]
