"""onnxruntime's operators of language models: quantized tables, rotations by several positions, experts, states that are carried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.attention import linear_attention, split_heads
from fx2onnx.semantics.kernels.contrib import MICROSOFT
from fx2onnx.semantics.kernels.contrib.attention import rotated
from fx2onnx.semantics.kernels.contrib.fused import activated
from fx2onnx.semantics.kernels.conv import causal_conv_with_state
from fx2onnx.semantics.kernels.norm import check_axis, softmax_array
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import FLOAT32, Array, narrowed, widen


def _unpacked(packed: Array, bits: int) -> Array:
    """Codes of ``bits``, several a byte of the last axis, the lowest first: those of each byte are looked up as one number."""
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    table = (np.arange(256, dtype=np.uint8)[:, None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.take(table.view(f"u{8 // bits}")[:, 0], packed).view(np.uint8)


@kernel("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(
    data: Array,
    indices: Array,
    scales: Array,
    zero_points: Array | None = None,
    *,
    gather_axis: int = 0,
    quantize_axis: int = 1,
    block_size: int = 128,
    bits: int = 4,
) -> Array:
    """The dequantized slices of ``data`` at ``indices``; blocks of ``block_size`` along ``quantize_axis`` share a scale.

    Shapes: data [.., K, ..], or uint8 with 8 / bits codes a byte of the last axis; scales [.., ceil(K / block_size), ..].
    """
    is_packed = data.dtype == np.uint8
    if bits not in (2, 4, 8) or block_size < 16 or block_size & (block_size - 1):
        raise ValueError(f"bits is {bits} and block_size {block_size}; they may be 2, 4, 8 and powers of 2 from 16 on")
    axis, blocked = check_axis(gather_axis, data.ndim), check_axis(quantize_axis, data.ndim)
    if axis == blocked or (is_packed and axis):
        raise ValueError(f"gather_axis {gather_axis} and quantize_axis {quantize_axis} do not go together")
    if scales.ndim != data.ndim:
        raise ValueError(f"scales have {scales.ndim} axes, the data {data.ndim}")
    size = data.shape[axis]
    if indices.size and not -size <= indices.min() <= indices.max() < size:
        raise IndexError(f"indices from {indices.min()} to {indices.max()} for an axis of {size}")
    packed = 8 // bits if is_packed else 1
    check_shape((indices.size, *(d for place, d in enumerate(data.shape) if place != axis), packed), FLOAT32)
    parts = [data, scales, *([] if zero_points is None else [zero_points])]
    codes, steps, *points = (np.take(part, indices, axis=axis) for part in parts)
    place = blocked + (indices.ndim - 1 if blocked > axis else 0)
    if is_packed:
        codes, points = _unpacked(codes, bits), [_unpacked(point, bits) for point in points]
    length = codes.shape[place]
    if steps.shape[place] != -(-length // block_size):
        raise ValueError(f"{steps.shape[place]} scales for {length} numbers in blocks of {block_size}")

    if place == codes.ndim - 1 and length % block_size == 0 and steps.dtype == FLOAT32:
        wide = codes.reshape(*steps.shape, block_size).astype(FLOAT32)
        wide -= points[0][..., : steps.shape[-1], None] if points else np.float32(1 << (bits - 1) if is_packed else 0)
        wide *= steps[..., None]
        return wide.reshape(codes.shape)

    def spread(values: Array) -> Array:
        cut = (slice(None),) * place + (slice(0, length),)
        return np.repeat(widen(values.astype(FLOAT32)), block_size, axis=place)[cut]

    middle = float(1 << (bits - 1)) if is_packed else 0.0
    wide = codes.astype(FLOAT32) - (spread(points[0]) if points else np.float32(middle))
    return narrowed(wide * spread(steps), scales.dtype)


@kernel("MRotaryEmbedding", domain=MICROSOFT)
def m_rotary_embedding(
    x: Array,
    position_ids: Array,
    cos_cache: Array,
    sin_cache: Array,
    *,
    mrope_section: Sequence[int],
    mrope_layout: int = 0,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
    is_packed_batching: int = 0,
) -> Array:
    """RotaryEmbedding whose angles come from three positions (time, height, width), each for its section of features.

    Shapes: x [B, H, S, D] or [B, S, H * D]; position_ids [3, B, S]; tables [P, R / 2].
    """
    half = cos_cache.shape[1]
    if len(mrope_section) != 3 or min(mrope_section) < 0 or sum(mrope_section) != half or position_ids.ndim != 3:
        raise ValueError(f"sections {list(mrope_section)} and positions {list(position_ids.shape)} for {half} angles")
    heads = split_heads(x, num_heads, "input")
    if position_ids.shape != (3, heads.shape[0], heads.shape[2]):
        raise ValueError(f"positions of shape {list(position_ids.shape)} do not fit {list(x.shape)}")
    if position_ids.size and not 0 <= position_ids.min() <= position_ids.max() < len(cos_cache):
        raise IndexError(f"positions up to {position_ids.max()} for tables of {len(cos_cache)} rows")
    stream = np.zeros(half, np.int64)
    if mrope_layout:
        for which in (1, 2):
            stream[which : 3 * mrope_section[which] : 3] = which
    else:
        stream = np.repeat(np.arange(3), mrope_section)
    rows = position_ids[stream].transpose(1, 2, 0)
    cos, sin = (widen(cache)[rows, np.arange(half)][:, None] for cache in (cos_cache, sin_cache))
    y = rotated(heads, cos, sin, interleaved)
    result = y.transpose(0, 2, 1, 3).reshape(x.shape) if x.ndim == 3 else y
    return narrowed(np.ascontiguousarray(result), x.dtype)


@kernel("LinearAttention", domain=MICROSOFT)
def linear_attention_of_microsoft(*inputs: Any, state_window: int = 0, **attrs: Any) -> tuple[Array, Array]:
    """LinearAttention of ONNX's opset 27."""
    if state_window:
        raise NotImplementedError("state_window: only the state after the last token is computed")
    return linear_attention(*inputs, **attrs)


@kernel("CausalConvWithState", domain=MICROSOFT)
def causal_conv_of_microsoft(
    *inputs: Any, ndim: int = 1, channels_last: int = 0, dilation: int = 1, state_window: int = 0, **attrs: Any
) -> tuple[Array, Array]:
    """CausalConvWithState of ONNX's opset 27."""
    if (ndim, channels_last, dilation, state_window) != (1, 0, 1, 0):
        raise NotImplementedError("only one spatial axis, channels first, without dilation or state_window is computed")
    return causal_conv_with_state(*inputs, **attrs)


def _gelu(x: Array) -> Array:
    return activated(np.ascontiguousarray(x), "Gelu", {"approximate": "tanh"})


_EXPERT_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": _gelu,
    "silu": lambda x: np.asarray(x / (1 + np.exp(-x))),
    "identity": lambda x: x,
}


@kernel("MoE", domain=MICROSOFT)
def mixture_of_experts(
    x: Array,
    router_probs: Array,
    fc1: Array,
    fc1_bias: Array | None,
    fc2: Array,
    fc2_bias: Array | None = None,
    fc3: Array | None = None,
    fc3_bias: Array | None = None,
    *,
    k: int = 1,
    normalize_routing_weights: int = 0,
    use_sparse_mixer: int = 0,
    **attrs: Any,
) -> Array:
    """The sum of the ``k`` likeliest experts of each token, fc2 @ activation(fc1 @ token), each times its probability.

    Shapes: x [.., H], router_probs [tokens, E] (logits), fc1 [E, I, H] (2 * I for SwiGLU), fc2 [E, H, I].
    """
    if use_sparse_mixer or fc3 is not None:
        raise NotImplementedError("use_sparse_mixer and fc3 are not computed, as on onnxruntime's CPU")
    _check_router(x, router_probs, len(fc1), k)
    shares = softmax_array(router_probs)
    chosen = np.argsort(-shares, axis=1, kind="stable")[:, :k]
    weights = np.take_along_axis(shares, chosen, 1)
    if normalize_routing_weights:
        weights = weights / weights.sum(1, keepdims=True)
    return _mixed(x, chosen, weights, lambda one: (fc1[one], fc2[one]), (fc1_bias, fc2_bias), **attrs)


@kernel("QMoE", domain=MICROSOFT)
def quantized_mixture_of_experts(
    x: Array,
    router_probs: Array,
    fc1: Array,
    fc1_scales: Array,
    fc1_bias: Array | None,
    fc2: Array,
    fc2_scales: Array,
    fc2_bias: Array | None = None,
    fc3: Array | None = None,
    fc3_scales: Array | None = None,
    fc3_bias: Array | None = None,
    fc1_zeros: Array | None = None,
    fc2_zeros: Array | None = None,
    fc3_zeros: Array | None = None,
    router_weights: Array | None = None,
    *,
    k: int = 1,
    normalize_routing_weights: int = 0,
    expert_weight_bits: int = 4,
    block_size: int = 0,
    quant_type: str = "int",
    accuracy_level: int = 0,
    **attrs: Any,
) -> Array:
    """MoE of (codes - zeros) * scales, each of a row or of ``block_size`` numbers of it; the codes are packed along their rows.

    The shares of the chosen experts are the softmax of their ``router_probs`` alone, or their ``router_weights``.
    Numerics: in float32, whatever ``accuracy_level`` allows.
    """
    others = attrs.pop("use_sparse_mixer", 0) or any(name.endswith("_weight_bits") for name in attrs)
    if others or fc3 is not None or quant_type != "int" or expert_weight_bits not in (2, 4, 8):
        raise NotImplementedError("only integer codes of one width are computed, without fc3 and use_sparse_mixer")
    attrs.pop("weights_prepacked", None)
    _check_router(x, router_probs, len(fc1), k)
    chosen = np.argsort(-widen(router_probs), axis=1, kind="stable")[:, :k]
    if router_weights is None:
        weights = softmax_array(np.take_along_axis(widen(router_probs), chosen, 1))
    else:
        weights = np.take_along_axis(widen(router_weights), chosen, 1)
        weights = weights / weights.sum(1, keepdims=True) if normalize_routing_weights else weights

    def numbers(one: int) -> tuple[Array, Array]:
        first = _expert(fc1, fc1_scales, fc1_zeros, one, expert_weight_bits, block_size)
        return first, _expert(fc2, fc2_scales, fc2_zeros, one, expert_weight_bits, block_size)

    return _mixed(x, chosen, weights, numbers, (fc1_bias, fc2_bias), **attrs)


def _expert(codes: Array, scales: Array, zeros: Array | None, one: int, bits: int, block: int) -> Array:
    """The weights [rows, columns] of one expert."""
    wide = _unpacked(codes[one], bits).astype(FLOAT32)
    rows, columns = wide.shape
    blocks = columns // block if block else 1
    points: Any = np.float32(1 << (bits - 1))
    if zeros is not None:  # packed along the blocks of a row; of whole rows along the rows
        points = _unpacked(zeros[one], bits).astype(FLOAT32)
        points = (points[:, :blocks] if block else points[:rows]).reshape(rows, blocks, 1)
    numbers = (wide.reshape(rows, blocks, -1) - points) * widen(scales[one]).reshape(rows, blocks, 1)
    return np.asarray(numbers.reshape(rows, columns))


def _check_router(x: Array, router_probs: Array, n_experts: int, k: int) -> None:
    n_tokens = x.size // x.shape[-1]
    if router_probs.shape != (n_tokens, n_experts) or not 0 < k <= n_experts:
        raise ValueError(f"router_probs {list(router_probs.shape)} for {n_tokens} tokens, {n_experts} experts, k = {k}")


def _mixed(
    x: Array,
    chosen: Array,
    weights: Array,
    numbers: Callable[[int], tuple[Array, Array]],
    biases: tuple[Array | None, Array | None],
    *,
    activation_type: str = "relu",
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    swiglu_fusion: int = 0,
    swiglu_limit: float = float("inf"),
) -> Array:
    """The sum of the chosen experts' results times their weights; ``numbers`` gives the two matrices of an expert."""
    if activation_type not in (*_EXPERT_ACTIVATIONS, "swiglu"):
        raise ValueError(f"the activation is {activation_type!r}")
    tokens = widen(x.reshape(-1, x.shape[-1]))
    y = np.zeros(tokens.shape, tokens.dtype)
    for expert in np.unique(chosen).tolist():
        rows, places = np.nonzero(chosen == expert)
        first, second = numbers(expert)
        inner = tokens[rows] @ first.T + (0 if biases[0] is None else biases[0][expert])
        if activation_type == "swiglu":
            gate, linear = (inner[:, 0::2], inner[:, 1::2]) if swiglu_fusion == 1 else np.split(inner, 2, axis=1)
            gate, linear = np.minimum(gate, swiglu_limit), np.clip(linear, -swiglu_limit, swiglu_limit)
            inner = gate / (1 + np.exp(-np.float32(activation_alpha) * gate)) * (linear + np.float32(activation_beta))
        else:
            inner = _EXPERT_ACTIVATIONS[activation_type](inner)
        outer = inner @ second.T + (0 if biases[1] is None else biases[1][expert])
        y[rows] += outer * weights[rows, places][:, None]
    return narrowed(y.reshape(x.shape), x.dtype)
