"""PyTorch's fused multi-head attention and encoder layer (the fast path of nn.MultiheadAttention)."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from fx2onnx.aten_map.activations import gelu_of
from fx2onnx.aten_map.attention import minus_infinity_where, probabilities
from fx2onnx.aten_map.matmul import dense
from fx2onnx.aten_map.normalization import layer_normalized
from fx2onnx.aten_map.slicing import pieces
from fx2onnx.aten_map.table.axes import transpose, unsqueeze, whole
from fx2onnx.aten_map.table.registry import translates
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten
KEY_PADDING = 1
"""mask_type of a [batch, keys] mask; 0 is [queries, keys], 2 is [batch, heads, queries, keys]."""


def _heads(
    op: Emit,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    heads: int,
    weight: ir.Value,
    bias: ir.Value,
) -> list[ir.Value]:
    """Query, key and value as [batch, heads, time, size]; one product where all three are one tensor."""
    width = whole(op.dims(weight)[0] // 3)
    size = whole(width // heads)
    if query is key and key is value:
        batch, time = op.dims(query)[:2]
        joined = op.reshape(dense(op, query, weight, bias), (batch, time, 3, heads, size))
        stacked = transpose(op, joined, (2, 0, 3, 1, 4))
        return [op.Gather(stacked, op.const(index), axis=0) for index in range(3)]
    weights, biases = pieces(op, weight, 0, [width] * 3), pieces(op, bias, 0, [width] * 3)
    found = []
    for operand, part, shift in zip((query, key, value), weights, biases, strict=True):
        batch, time = op.dims(operand)[:2]
        found.append(
            transpose(op, op.reshape(dense(op, operand, part, shift), (batch, time, heads, size)), (0, 2, 1, 3))
        )
    return found


def multi_head(
    op: Emit,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    heads: int,
    qkv_weight: ir.Value,
    qkv_bias: ir.Value,
    proj_weight: ir.Value,
    proj_bias: ir.Value,
    mask: ir.Value | None,
    mask_type: int | None,
) -> tuple[ir.Value, ir.Value]:
    """Projected output and attention weights. A mask says True where attention is *not* allowed; a row without any
    allowed key gives NaN, as PyTorch's fused kernel does.
    """
    q, k, v = _heads(op, query, key, value, heads, qkv_weight, qkv_bias)
    bias = None
    if mask is not None:
        bias = minus_infinity_where(op, op.cast(mask, ir.DataType.BOOL), op.dtype(q), True)
        bias = unsqueeze(op, bias, 1, 2) if mask_type == KEY_PADDING else bias
    weights = probabilities(op, q, k, bias, 1 / math.sqrt(int(op.dims(q)[-1])))  # type: ignore[arg-type]
    merged = transpose(op, op.MatMul(weights, v), (0, 2, 1, 3))
    batch, time, _, size = op.dims(merged)
    return dense(op, op.reshape(merged, (batch, time, whole(heads * size))), proj_weight, proj_bias), weights


@translates(aten._native_multi_head_attention.default)
def _native_multi_head_attention(
    op: Emit,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    embed_dim: int,
    num_head: int,
    qkv_weight: ir.Value,
    qkv_bias: ir.Value,
    proj_weight: ir.Value,
    proj_bias: ir.Value,
    mask: ir.Value | None,
    need_weights: bool,
    average_attn_weights: bool,
    mask_type: int | None,
) -> tuple[ir.Value, ir.Value | None]:
    """_native_multi_head_attention(Tensor query, Tensor key, Tensor value, int embed_dim, int num_head, Tensor qkv_weight, Tensor qkv_bias, Tensor proj_weight, Tensor proj_bias, Tensor? mask=None, bool need_weights=True, bool average_attn_weights=True, int? mask_type=None) -> (Tensor, Tensor)"""
    output, weights = multi_head(
        op, query, key, value, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type
    )
    if not need_weights:
        return output, None
    return output, op.ReduceMean(weights, axes=[1], keepdims=0) if average_attn_weights else weights


@translates(aten._transformer_encoder_layer_fwd.default)
def _transformer_encoder_layer_fwd(
    op: Emit,
    src: ir.Value,
    embed_dim: int,
    num_heads: int,
    qkv_weight: ir.Value,
    qkv_bias: ir.Value,
    proj_weight: ir.Value,
    proj_bias: ir.Value,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: ir.Value,
    norm_bias_1: ir.Value,
    norm_weight_2: ir.Value,
    norm_bias_2: ir.Value,
    ffn_weight_1: ir.Value,
    ffn_bias_1: ir.Value,
    ffn_weight_2: ir.Value,
    ffn_bias_2: ir.Value,
    mask: ir.Value | None,
    mask_type: int | None,
) -> ir.Value:
    """_transformer_encoder_layer_fwd(Tensor src, int embed_dim, int num_heads, Tensor qkv_weight, Tensor qkv_bias, Tensor proj_weight, Tensor proj_bias, bool use_gelu, bool norm_first, float eps, Tensor norm_weight_1, Tensor norm_bias_1, Tensor norm_weight_2, Tensor norm_bias_2, Tensor ffn_weight_1, Tensor ffn_bias_1, Tensor ffn_weight_2, Tensor ffn_bias_2, Tensor? mask=None, int? mask_type=None) -> Tensor

    Source: ATen/native/transformers/transformer.cpp.
    """

    def first_norm(value: ir.Value) -> ir.Value:
        return layer_normalized(op, value, 1, norm_weight_1, norm_bias_1, eps)[0]

    def second_norm(value: ir.Value) -> ir.Value:
        return layer_normalized(op, value, 1, norm_weight_2, norm_bias_2, eps)[0]

    x = first_norm(src) if norm_first else src
    x, _ = multi_head(op, x, x, x, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type)
    x = op.Add(x, src)
    middle = x if norm_first else first_norm(x)
    x = second_norm(middle) if norm_first else middle
    x = dense(op, x, ffn_weight_1, ffn_bias_1)
    x = dense(op, gelu_of(op, x, "none") if use_gelu else op.Relu(x), ffn_weight_2, ffn_bias_2)
    x = op.Add(x, middle)
    return x if norm_first else second_norm(x)
