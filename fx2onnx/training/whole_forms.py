"""ONNX forms of ``whole.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.activations import softmax_of
from fx2onnx.aten_map.matmul import scaled
from fx2onnx.aten_map.table.axes import swap
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import product
from fx2onnx.training import whole


def _rows(op: Emit, value: ir.Value) -> ir.Value:
    """All vectors of the last axis, as a matrix."""
    dims = op.dims(value)
    return value if len(dims) == 2 else op.reshape(value, (product(list(dims[:-1])), dims[-1]))


def _as_before(op: Emit, rows: ir.Value, like: ir.Value) -> ir.Value:
    dims = op.dims(like)
    return rows if len(dims) == 2 else op.reshape(rows, (*dims[:-1], op.dims(rows)[-1]))


def linear(op: Emit, x: ir.Value, weight: ir.Value, bias: ir.Value | None) -> ir.Value:
    """linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor"""
    return _as_before(op, op.Gemm(_rows(op, x), weight, bias, transB=1), x)


def linear_backward(
    op: Emit, grad: ir.Value, x: ir.Value, weight: ir.Value, mask: Sequence[bool]
) -> tuple[ir.Value | None, ...]:
    """linear_backward(Tensor grad, Tensor x, Tensor weight, bool[3] mask) -> (Tensor, Tensor, Tensor)"""
    rows = _rows(op, grad)
    of_x, of_weight, of_bias = mask
    return (
        _as_before(op, op.Gemm(rows, weight), grad) if of_x else None,
        op.Gemm(rows, _rows(op, x), transA=1) if of_weight else None,
        op.ReduceSum(rows, axes=[0], keepdims=0) if of_bias else None,
    )


def attention(
    op: Emit, query: ir.Value, key: ir.Value, value: ir.Value, mask: ir.Value | None, scale: float
) -> tuple[ir.Value, ...]:
    """attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float scale) -> (Tensor, Tensor)

    A row that sees nothing gives 0.
    """
    rank, dtype = op.rank(query), op.dtype(query)
    scores = op.MatMul(scaled(op, query, scale), swap(op, key, rank - 2, rank - 1))
    if mask is None:
        weights = softmax_of(op, scores, -1)
    else:
        if op.dtype(mask) == ir.DataType.BOOL:
            scores = op.Where(mask, scores, op.const(-math.inf, dtype))
        else:
            scores = op.Add(scores, mask)
        is_blind = op.Equal(op.ReduceMax(scores, axes=[-1], keepdims=1), op.const(-math.inf, dtype))
        weights = op.Where(is_blind, op.const(0, dtype), softmax_of(op, scores, -1))
    return op.MatMul(weights, value), weights


def attention_backward(
    op: Emit, grad: ir.Value, query: ir.Value, key: ir.Value, value: ir.Value, weights: ir.Value, scale: float
) -> tuple[ir.Value, ...]:
    """attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor weights, float scale) -> (Tensor, Tensor, Tensor)

    With w the weights and g = grad @ value.T, the scores' is s = w * (g - sum(g * w)); the query's scale * s @ key, the key's
    s.T @ (scale * query), the value's w.T @ grad.
    """
    rank = op.rank(query)

    def across(matrix: ir.Value) -> ir.Value:
        return swap(op, matrix, rank - 2, rank - 1)

    of_weights = op.MatMul(grad, across(value))
    shares = op.Mul(of_weights, weights)
    of_scores = op.Sub(shares, op.Mul(weights, op.ReduceSum(shares, axes=[-1], keepdims=1)))
    of_query = scaled(op, op.MatMul(of_scores, key), scale)
    of_key = op.MatMul(across(of_scores), scaled(op, query, scale))
    return of_query, of_key, op.MatMul(across(weights), grad)


FORMS = (linear, linear_backward, attention, attention_backward)
assert {form.__name__ for form in FORMS} == set(whole.SCHEMAS)
WHOLE: dict[Any, Callable[..., Any]] = {getattr(torch.ops.fx2onnx, form.__name__).default: form for form in FORMS}
"""Translations, by overload."""
