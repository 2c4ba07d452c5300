"""Scaled dot-product attention as onnxruntime's MultiHeadAttention, where that is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.attention import (
    BOOL,
    FLOAT,
    attended,
    causal_bias,
    joint_mask,
    may_mask_all,
    minus_infinity_where,
    rows_with_any,
)
from fx2onnx.aten_map.table.axes import unsqueeze
from fx2onnx.irx.builder import Key
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes.contrib import MICROSOFT
from fx2onnx.irx.shapes.table import as_dim
from fx2onnx.sizes.expr import Dim

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
"""In the place of the table's own translations, where fused forms are asked for."""
