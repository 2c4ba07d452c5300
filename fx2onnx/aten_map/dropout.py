"""Dropout: nothing in eval mode, ONNX Dropout or a random mask in training."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import filled
from fx2onnx.aten_map.table.registry import translates
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims

aten = torch.ops.aten
FLOAT, BOOL = ir.DataType.FLOAT, ir.DataType.BOOL
ALPHA = 1.7580993408473766
"""Minus SELU's value at minus infinity: lambda * alpha. Source: ATen/native/Dropout.cpp."""


def dropped(op: Emit, value: ir.Value, p: float) -> ir.Value:
    """``value`` with a share ``p`` of its elements zeroed at random and the others scaled by 1 / (1 - p)."""
    return _with_mask(op, value, p)[0]


def _with_mask(op: Emit, value: ir.Value, p: float) -> tuple[ir.Value, ir.Value]:
    dtype, dims = op.dtype(value), op.dims(value)
    if p == 1:
        return op.Mul(value, op.const(0, dtype)), filled(op, dims, 0, BOOL)  # NaN of what is infinite
    if op.opset >= 12:
        ratio = op.const(np.float32(p))
        result: tuple[ir.Value, ir.Value] = op.Dropout(
            value, ratio, op.const(True), outputs=[(dtype, dims), (BOOL, dims)]
        )
        return result
    keep = _kept(op, value, dims, p)
    return op.Mul(value, op.Mul(op.cast(keep, dtype), op.const(1 / (1 - p), dtype))), keep


def _kept(op: Emit, like: ir.Value, dims: Dims, p: float) -> ir.Value:
    """A bool mask of ``dims`` that is False with probability ``p``."""
    shape = op.sizes(dims)
    base = op.ConstantOfShape(shape, outputs=[(FLOAT, dims)])
    uniform = op.RandomUniformLike(base, dtype=FLOAT)
    return op.Not(op.Less(uniform, op.const(p, FLOAT)))


@translates(aten.dropout.default)
def dropout(op: Emit, input: ir.Value, p: float, train: bool) -> ir.Value:
    """dropout(Tensor input, float p, bool train) -> Tensor"""
    return dropped(op, input, p) if train and p > 0 else input


@translates(aten.native_dropout.default)
def native_dropout(op: Emit, input: ir.Value, p: float, train: bool | None) -> tuple[ir.Value, ir.Value]:
    """native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)"""
    if train is False or p == 0:
        return input, filled(op, op.dims(input), 1, BOOL)
    return _with_mask(op, input, p)


@translates(aten.feature_dropout.default)
def feature_dropout(op: Emit, input: ir.Value, p: float, train: bool) -> ir.Value:
    """feature_dropout(Tensor input, float p, bool train) -> Tensor

    Whole channels are zeroed.
    """
    if not train or p == 0:
        return input
    dtype, dims = op.dtype(input), op.dims(input)
    if p == 1:
        return op.Mul(input, op.const(0, dtype))  # NaN of what is infinite
    keep = _kept(op, input, (*dims[:2], *(1 for _ in dims[2:])), p)
    return op.Mul(input, op.Mul(op.cast(keep, dtype), op.const(1 / (1 - p), dtype)))


def _alpha_dropped(op: Emit, value: ir.Value, p: float, dims: Dims) -> ir.Value:
    """Dropped elements take SELU's negative limit; scaled and shifted so that mean and variance stay.

    Source: ATen/native/Dropout.cpp.
    """
    dtype = op.dtype(value)
    if p == 1:
        return op.Mul(value, op.const(0, dtype))
    a = 1 / math.sqrt((ALPHA * ALPHA * p + 1) * (1 - p))
    kept = op.Add(op.Mul(value, op.const(a, dtype)), op.const(ALPHA * a * p, dtype))
    return op.Where(_kept(op, value, dims, p), kept, op.const(-ALPHA * a + ALPHA * a * p, dtype))


@translates(aten.alpha_dropout.default)
def alpha_dropout(op: Emit, input: ir.Value, p: float, train: bool) -> ir.Value:
    """alpha_dropout(Tensor input, float p, bool train) -> Tensor"""
    return _alpha_dropped(op, input, p, op.dims(input)) if train and p > 0 else input


@translates(aten.feature_alpha_dropout.default)
def feature_alpha_dropout(op: Emit, input: ir.Value, p: float, train: bool) -> ir.Value:
    """feature_alpha_dropout(Tensor input, float p, bool train) -> Tensor"""
    if not train or p == 0:
        return input
    dims = op.dims(input)
    return _alpha_dropped(op, input, p, (*dims[:2], *(1 for _ in range(op.rank(input) - 2))))


@translates(aten.native_dropout_backward.default)
def native_dropout_backward(op: Emit, grad_output: ir.Value, mask: ir.Value, scale: float) -> ir.Value:
    """native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor"""
    dtype = op.result_dtype()
    kept = op.Mul(op.cast(grad_output, dtype), op.cast(mask, dtype))
    return kept if scale == 1 else op.Mul(kept, op.const(scale, dtype))
