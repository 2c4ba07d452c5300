"""Losses against class labels: negative log likelihood, cross entropy, multi-class margins, CTC."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.creation import counted
from fx2onnx.aten_map.losses import MEAN, NONE, SUM, no_reduction, reduced_loss, worked, zero_like
from fx2onnx.aten_map.reductions import reduce
from fx2onnx.aten_map.scans import cumulative_sum
from fx2onnx.aten_map.table.axes import filled, flat
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten
D = ir.DataType


def picked(op: Emit, value: ir.Value, index: ir.Value, axis: int) -> ir.Value:
    """value[.., index[..], ..] along ``axis``; index has no such axis."""
    found = op.GatherElements(value, op.Unsqueeze(index, axes=[axis]), axis=axis)
    return op.Squeeze(found, axes=[axis])


def negative_log_likelihood(
    op: Emit, logs: ir.Value, target: ir.Value, weight: ir.Value | None, reduction: int, ignore_index: int
) -> tuple[ir.Value, ir.Value]:
    """(-w[t] logs[t] reduced, sum of the weights); ignored targets weigh nothing. The mean is over the weights."""
    dtype, axis = op.dtype(logs), 1 if op.rank(logs) > 1 else 0
    if op.dims(logs)[axis] == 0:  # every target is ignored, and a row of one class stands in for none
        sizes = list(op.dims(logs))
        sizes[axis] = 1
        logs, weight = filled(op, sizes, 0, dtype), None if weight is None else op.const(np.ones(1), dtype)
    index = op.cast(target, D.INT64)
    ignored = op.Equal(index, ignore_index)
    safe = op.Where(ignored, op.const(np.int64(0)), index)
    loss = op.Neg(picked(op, logs, safe, axis))
    if weight is None:
        amount = op.cast(op.Not(ignored), dtype)
    else:
        weights = flat(op, op.cast(weight, dtype))
        amount = op.Where(ignored, zero_like(op, logs), op.Gather(weights, safe, axis=0))
        loss = op.Mul(loss, amount)
    loss = op.Where(ignored, zero_like(op, loss), loss)
    total = reduce(op, "ReduceSum", amount)
    if reduction == NONE:
        return loss, total
    if reduction not in (MEAN, SUM):
        raise no_reduction(reduction)
    loss = reduce(op, "ReduceSum", loss)
    return (op.Div(loss, total) if reduction == MEAN else loss), total


def _nll(op: Emit, self: ir.Value, target: ir.Value, weight: ir.Value | None, reduction: int, ignore_index: int) -> Any:
    """The loss; of the forward kernels the sum of the weights, too."""
    (logs,) = worked(op, self)
    found, total = negative_log_likelihood(op, logs, target, weight, reduction, ignore_index)
    loss = op.cast(found, op.result_dtype())
    if len(op.result) == 1:
        return loss
    is_counted = reduction != NONE or op.rank(logs) == 1
    return loss, op.cast(total if is_counted else zero_like(op, logs), op.result_dtype(1))


_NLL = "nll_loss nll_loss_nd nll_loss2d nll_loss_forward nll_loss2d_forward"
register_shared(_nll, "GatherElements, Neg, Where", *overloads_of(_NLL))


def cross_entropy(
    op: Emit,
    self: ir.Value,
    target: ir.Value,
    weight: ir.Value | None,
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
) -> ir.Value:
    (value,) = worked(op, self)
    axis = 1 if op.rank(self) > 1 else 0
    logs = log_softmax(op, value, axis)
    label_smoothing = label_smoothing if label_smoothing > 0 else 0.0  # PyTorch takes what is less, or NaN, for none
    if op.is_float(target):
        return _of_probabilities(op, logs, target, weight, reduction, label_smoothing, axis)
    loss, total = negative_log_likelihood(op, logs, target, weight, reduction, ignore_index)
    if label_smoothing:
        smooth = op.Neg(reduce(op, "ReduceSum", _class_weighted(op, logs, weight, axis), axis))
        ignored = op.Equal(op.cast(target, D.INT64), ignore_index)
        smooth = op.Where(ignored, zero_like(op, smooth), smooth)
        if reduction != NONE:
            smooth = reduce(op, "ReduceSum", smooth)
        if reduction == MEAN:
            smooth = op.Div(smooth, total)
        share = op.Div(smooth, op.size(op.dims(self)[axis], op.dtype(smooth)))
        loss = op.Add(op.Mul(loss, 1 - label_smoothing), op.Mul(share, label_smoothing))
    return op.cast(loss, op.result_dtype())


def log_softmax(op: Emit, value: ir.Value, axis: int) -> ir.Value:
    """LogSoftmax over one axis; before opset 13 the operator flattens, so the axis must be the last one."""
    last = op.rank(value) - 1
    if op.opset >= 13 or axis == last:
        return op.LogSoftmax(value, axis=axis)
    perm = [index for index in range(last + 1) if index != axis] + [axis]
    back = [perm.index(index) for index in range(last + 1)]
    return op.Transpose(op.LogSoftmax(op.Transpose(value, perm=perm), axis=last), perm=back)


def _class_weighted(op: Emit, value: ir.Value, weight: ir.Value | None, axis: int) -> ir.Value:
    if weight is None:
        return value
    shape = [op.dims(weight)[0] if index == axis else 1 for index in range(op.rank(value))]
    return op.Mul(value, op.reshape(op.cast(weight, op.dtype(value)), shape))


def _of_probabilities(
    op: Emit, logs: ir.Value, target: ir.Value, weight: ir.Value | None, reduction: int, smoothing: float, axis: int
) -> ir.Value:
    """-sum of p w log q over the classes; the mean is over the samples."""
    chances = op.cast(target, op.dtype(logs))
    if smoothing:
        share = op.Div(op.const(smoothing, op.dtype(logs)), op.size(op.dims(logs)[axis], op.dtype(logs)))
        chances = op.Add(op.Mul(chances, 1 - smoothing), share)
    loss = op.Neg(reduce(op, "ReduceSum", op.Mul(_class_weighted(op, logs, weight, axis), chances), axis))
    return reduced_loss(op, loss, reduction)


register_shared(cross_entropy, "LogSoftmax, GatherElements, Neg", *overloads_of("cross_entropy_loss"))


def _multi_margin(
    op: Emit,
    self: ir.Value,
    target: ir.Value,
    p: float,
    margin: float,
    weight: ir.Value | None,
    reduction: int,
) -> ir.Value:
    """The mean over the classes j != t of max(margin - x[t] + x[j], 0)^p w[t]."""
    (value,) = worked(op, self)
    value = op.reshape(value, (1,)) if op.rank(value) == 0 else value
    axis = op.rank(value) - 1
    index = op.reshape(target, op.dims(value)[:-1])
    column = op.Unsqueeze(index, axes=[axis])
    gap = op.Add(op.Sub(value, op.GatherElements(value, column, axis=axis)), float(margin))
    is_beyond = op.Greater(gap, op.const(0, op.dtype(gap)))  # NaN counts for nothing
    if p == 2:
        gap = op.Mul(gap, gap)
    if weight is not None:
        weights = op.reshape(op.cast(weight, op.dtype(gap)), (op.dims(value)[-1],))
        gap = op.Mul(gap, op.Gather(weights, column, axis=0))
    own = op.Equal(counted(op, op.dims(value)[-1], D.INT64), column)
    gap = op.Where(op.And(is_beyond, op.Not(own)), gap, zero_like(op, gap))
    found = reduced_loss(op, reduce(op, "ReduceMean", gap, axis), reduction)
    return op.reshape(found, op.result_dims())


def _multilabel_margin(op: Emit, self: ir.Value, target: ir.Value, reduction: int) -> Any:
    """Over the classes d named before the first -1 and the classes i never named: max(1 - (x[d] - x[i]), 0) / classes."""
    (value,) = worked(op, self)
    if op.rank(value) == 0:
        value = op.reshape(value, (1,))
    if op.rank(target) != op.rank(value):
        target = op.reshape(target, op.dims(value))
    dtype, axis = op.dtype(value), op.rank(value) - 1
    index = op.cast(target, D.INT64)
    ended = cumulative_sum(op, op.cast(op.Less(index, 0), D.INT32), axis)
    named = op.Equal(ended, 0)
    safe = op.Where(named, index, op.const(np.int64(0)))
    classes = counted(op, op.dims(value)[axis], D.INT64)
    hits = op.And(op.Equal(op.Unsqueeze(safe, axes=[axis + 1]), classes), op.Unsqueeze(named, axes=[axis + 1]))
    is_target = reduce(op, "ReduceMax", op.cast(hits, dtype), axis)
    aimed = op.Unsqueeze(op.GatherElements(value, safe, axis=axis), axes=[axis + 1])
    gap = op.Add(op.Sub(op.Unsqueeze(value, axes=[axis]), aimed), 1.0)
    is_other = op.Equal(is_target, op.const(0, dtype))
    counts = op.And(op.Unsqueeze(named, axes=[axis + 1]), op.Unsqueeze(is_other, axes=[axis]))
    counts = op.And(counts, op.Greater(gap, op.const(0, dtype)))  # NaN counts for nothing
    total = op.ReduceSum(op.Where(counts, gap, op.const(0, dtype)), axes=[axis, axis + 1], keepdims=0)
    loss = op.Div(total, op.size(op.dims(value)[axis], dtype))
    result = op.reshape(reduced_loss(op, loss, reduction), op.result_dims())
    is_target = op.reshape(is_target, op.result_dims(1)) if len(op.result) > 1 else is_target
    return result if len(op.result) == 1 else (result, op.cast(is_target, op.result_dtype(1)))


register_shared(_multi_margin, "GatherElements, Relu, Where, ReduceMean", *overloads_of("multi_margin_loss"))
register_shared(
    _multilabel_margin,
    "all pairs of named and unnamed classes, Relu, ReduceSum",
    *overloads_of("multilabel_margin_loss multilabel_margin_loss_forward"),
)
