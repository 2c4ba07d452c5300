"""Attention as onnxruntime's operators, fx2onnx's cache operators, and PyTorch's fused attention and encoder layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.activations import gelu_of
from fx2onnx.aten_map.attention import (
    BOOL,
    FLOAT,
    attended,
    causal_bias,
    joint_mask,
    may_mask_all,
    minus_infinity_where,
    probabilities,
    rows_with_any,
)
from fx2onnx.aten_map.matmul import dense
from fx2onnx.aten_map.normalization import layer_normalized
from fx2onnx.aten_map.slicing import pieces
from fx2onnx.aten_map.table.axes import transpose, unsqueeze, whole
from fx2onnx.aten_map.table.registry import translates
from fx2onnx.irx.builder import Key
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes.linear import MICROSOFT
from fx2onnx.irx.shapes.table import as_dim
from fx2onnx.sizes.expr import Dim, DimLike

aten = torch.ops.aten


def fused_attention(
    op: Emit,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    attn_mask: ir.Value | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> ir.Value:
    """scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor

    Shapes:  query [B, H, S, D], key [B, H, T, D], value [B, H, T, E].
    ONNX:    MultiHeadAttention on [B, S, H * D]; other ranks, dtypes and grouped heads as without fused forms.
    """
    attn_mask, is_causal = joint_mask(op, query, key, attn_mask, is_causal)
    if not _fits(op, query, key, value, attn_mask, dropout_p):
        return attended(op, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)[0]
    batch, heads, length, width = op.dims(query)
    keys, depth = op.dims(value)[2:]
    attrs: dict[str, Any] = {"num_heads": heads, "scale": 1 / math.sqrt(width) if scale is None else float(scale)}  # type: ignore[arg-type]
    bias = attn_mask
    if is_causal and length == keys:
        attrs["unidirectional"] = 1
    elif is_causal:
        bias = causal_bias(op, length, keys, FLOAT)
    elif attn_mask is not None and op.dtype(attn_mask) == BOOL:
        bias = minus_infinity_where(op, attn_mask, FLOAT, False)
    inputs = [_flat(op, x) for x in (query, key, value)]
    operands = [*inputs, *([None, None, _whole(op, bias, length, keys)] if bias is not None else [])]
    typed = [(FLOAT, (batch, length, as_dim(heads * depth)))]
    out = op.custom(MICROSOFT, "MultiHeadAttention", operands, typed, **attrs)[0]
    valid = attn_mask if attn_mask is not None and may_mask_all(op, attn_mask) else None
    is_for_all_heads = valid is not None and (op.rank(valid) < 3 or op.dims(valid)[-3] == 1)
    if valid is not None and is_for_all_heads:
        out = op.Where(_flat_rows(op, valid), out, op.const(0, FLOAT))
    found: ir.Value = op.Transpose(op.reshape(out, (batch, length, heads, depth)), perm=[0, 2, 1, 3])
    if valid is not None and not is_for_all_heads:
        return op.Where(rows_with_any(op, valid), found, op.const(0, FLOAT))
    return found


def _fits(op: Emit, query: ir.Value, key: ir.Value, value: ir.Value, mask: ir.Value | None, dropout: float) -> bool:
    operands = (query, key, value)
    if dropout > 0 or any(op.dtype(x) != FLOAT or op.rank(x) != 4 for x in operands):
        return False
    if any(isinstance(op.dims(x)[axis], Dim) or not op.dims(x)[axis] for x in operands for axis in (1, 3)):
        return False
    if any(op.dims(x)[:2] != op.dims(query)[:2] for x in operands) or op.dims(query)[3] != op.dims(key)[3]:
        return False
    if mask is None:
        return True
    allowed = ({1, op.dims(query)[0]}, {1, op.dims(query)[1]}, {1, op.dims(query)[2]}, {op.dims(key)[2]})
    dims = op.dims(mask)
    return (
        2 <= len(dims) <= 4
        and op.dtype(mask) in (BOOL, FLOAT)
        and all(dim in sizes for dim, sizes in zip(reversed(dims), reversed(allowed), strict=False))
    )


def _flat_rows(op: Emit, mask: ir.Value) -> ir.Value:
    """[B or 1, S or 1, 1]: ``rows_with_any`` of a mask that is the same for all heads; emitted once a mask."""
    key = Key("flat rows", (mask,))
    found = op.builder.emitted.get(key)
    if found is None:
        found = rows_with_any(op, mask)
        if op.rank(found) == 4:
            found = op.reshape(found, (op.dims(found)[0], *op.dims(found)[2:]))
        op.builder.emitted[key] = found
    return found


def _whole(op: Emit, bias: ir.Value, length: Any, keys: Any) -> ir.Value:
    """[B or 1, H or 1, S, T]: the operator broadcasts over the first two axes alone; emitted once a bias."""
    key = Key("whole bias", (bias,))
    cached = op.builder.emitted.get(key)
    if cached is None:
        cached = bias
        while op.rank(cached) < 4:
            cached = unsqueeze(op, cached, 0)
        cached = op.expand(cached, (*op.dims(cached)[:2], length, keys))
        op.builder.emitted[key] = cached
    return cached


def _flat(op: Emit, x: ir.Value) -> ir.Value:
    """[B, H, S, D] -> [B, S, H * D]."""
    batch, heads, length, width = op.dims(x)
    return op.reshape(op.Transpose(x, perm=[0, 2, 1, 3]), (batch, length, as_dim(heads * width)))


FUSED: dict[Any, Callable[..., Any]] = {aten.scaled_dot_product_attention.default: fused_attention}
"""The translations that take the place of the table's own where fused forms are asked for."""


INT32 = ir.DataType.INT32
ROTARY_MULTIPLE = 8
"""The widths that rotary tables may have: onnxruntime's GroupQueryAttention takes no others."""


def turned(
    op: Emit, x: ir.Value, cosines: ir.Value, sines: ir.Value, positions: ir.Value, interleaved: bool
) -> ir.Value:
    """turned(Tensor x, Tensor cosines, Tensor sines, Tensor positions, bool interleaved) -> Tensor

    Shapes:  x [B, H, S, D]; tables [positions, R / 2], R at most D; positions [B, S].
    """
    width = op.dims(cosines)[1] * 2
    attrs = {"interleaved": int(interleaved)}
    if width != op.dims(x)[3]:
        attrs |= {"rotary_embedding_dim": int(width), "num_heads": int(op.dims(x)[1])}  # type: ignore[arg-type]
    tables = [op.cast(table, op.dtype(x)) for table in (cosines, sines)]
    operands = [x, positions, *tables]
    return op.custom(MICROSOFT, "RotaryEmbedding", operands, [(op.dtype(x), op.dims(x))], **attrs)[0]


def cached_attention(
    op: Emit,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    past_key: ir.Value,
    past_value: ir.Value,
    mask: ir.Value,
    sink: ir.Value | None,
    scale: float,
    softcap: float,
    window: int,
) -> tuple[ir.Value, ...]:
    """cached_attention(Tensor query, Tensor key, Tensor value, Tensor past_key, Tensor past_value, Tensor mask, Tensor? sink, float scale, float softcap, int window) -> (Tensor, Tensor, Tensor)

    Shapes:  query [B, H, S, D]; key, value [B, K, S, D]; past [B, K, P, D]; mask [B, P + S] of ones, padded behind.
    ONNX:    GroupQueryAttention, which turns queries and keys itself where that is all that was done to them.
    """
    last, total = _lengths(op, mask)
    heads, groups, width = op.dims(query)[1], op.dims(key)[1], op.dims(query)[3]
    attrs = {
        "num_heads": heads,
        "kv_num_heads": groups,
        "scale": float(scale),
        "softcap": float(softcap),
        "local_window_size": window,
    }
    tables: list[ir.Value | None] = [None, None]
    rotary = _rotary(op, query), _rotary(op, key)
    if rotary[0] is not None and rotary[1] is not None and _are_alike(op, rotary[0][0], rotary[1][0]):
        turn, query = rotary[0]
        key = rotary[1][1]
        tables = list(turn.inputs[2:4])
        attrs |= {"do_rotary": 1, "rotary_interleaved": turn.attributes["interleaved"].as_int()}
    flat = [_flat(op, x) for x in (query, key, value)]
    operands = [*flat, past_key, past_value, last, total, *tables]
    if sink is not None:
        operands += [None] * (11 - len(operands)) + [op.cast(sink, op.dtype(query))]
    while operands[-1] is None:
        operands.pop()
    dims = op.dims(query)
    cache = [(op.dtype(key), op.result_dims(index)) for index in (1, 2)]
    typed = [(op.dtype(query), (dims[0], dims[2], as_dim(heads * width))), *cache]
    out, keys, values = op.custom(MICROSOFT, "GroupQueryAttention", operands, typed, **attrs)
    apart = op.reshape(out, (dims[0], dims[2], heads, width))
    return op.Transpose(apart, perm=[0, 2, 1, 3]), keys, values


def _lengths(op: Emit, mask: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The index of each row's last key, and the number of keys of the longest; emitted once a mask."""
    last, all_of_them = Key("last key", (mask,)), Key("all keys", (mask,))
    found, total = op.builder.emitted.get(last), op.builder.emitted.get(all_of_them)
    if found is None or total is None:
        counted = op.ReduceSum(op.cast(mask, ir.DataType.INT64), axes=[1], keepdims=0)
        found = op.cast(op.Sub(counted, 1), INT32)
        total = op.cast(op.size_of_axis(mask, 1), INT32)
        op.builder.emitted |= {last: found, all_of_them: total}
    return found, total


def _operand(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _rotary(op: Emit, x: ir.Value) -> tuple[ir.Node, ir.Value] | None:
    """The RotaryEmbedding that makes ``x``, alone or of its first features, which stand before the rest of them; and of what."""
    node = op.producer(x)
    if node is None:
        return None
    if (node.domain, node.op_type) == (MICROSOFT, "RotaryEmbedding"):
        return node, _operand(node, 0)
    if node.op_type != "Concat" or len(node.inputs) != 2:
        return None
    inner = op.producer(_operand(node, 0))
    if inner is None or (inner.domain, inner.op_type) != (MICROSOFT, "RotaryEmbedding"):
        return None
    width, parts = op.dims(_operand(inner, 0))[3], (_operand(inner, 0), _operand(node, 1))
    whole = [_source_of_slice(op, part, start) for part, start in zip(parts, (0, width), strict=True)]
    if whole[0] is None or whole[0] is not whole[1] or op.dims(whole[0]) != op.dims(x):
        return None
    return inner, whole[0]


def _source_of_slice(op: Emit, part: ir.Value, start: DimLike) -> ir.Value | None:
    """The value that ``part`` is a slice of, along the last axis from ``start`` on and without gaps."""
    node = op.producer(part)
    if node is None or node.op_type != "Slice" or len(node.inputs) < 4:
        return None
    known = [None if value is None else op.integers(value) for value in node.inputs[1:]]
    starts, _, axes, strides = (*known, [1])[:4]
    return node.inputs[0] if starts == [start] and axes in ([3], [-1]) and strides == [1] else None


def _are_alike(op: Emit, one: ir.Node, other: ir.Node) -> bool:
    """Return whether both turn by the same angles, by tables of a width that onnxruntime's attention takes."""
    return (
        list(one.inputs[1:]) == list(other.inputs[1:])
        and one.attributes["interleaved"].as_int() == other.attributes["interleaved"].as_int()
        and op.dims(_operand(one, 2))[1] % ROTARY_MULTIPLE == 0
    )


INT64 = ir.DataType.INT64


def cache_update(op: Emit, past: ir.Value, update: ir.Value, start: ir.Value) -> ir.Value:
    """cache_update(Tensor past, Tensor update, Tensor start) -> Tensor

    Shapes:  past [batch, heads, limit, width], update [batch, heads, new, width], start [] -> past's.
    ONNX:    TensorScatter-24 along axis 2, which a runtime may do in place. Refuses older opsets (E202).
    """
    rows = op.expand(op.reshape(op.cast(start, INT64), [1]), op.dims(past)[:1])
    return op.TensorScatter(past, update, rows, axis=2, mode="linear")


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
