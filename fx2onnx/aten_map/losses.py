"""Elementwise losses and their reductions."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir
import torch

from fx2onnx.aten_map.activations import relu
from fx2onnx.aten_map.arithmetic import add
from fx2onnx.aten_map.norms import vector_norm
from fx2onnx.aten_map.powers import xlogy
from fx2onnx.aten_map.reductions import mean, reduce
from fx2onnx.aten_map.table.axes import axis_of
from fx2onnx.aten_map.table.dtypes import FLOATS, opmath, promoted
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes import broadcast_dims
from fx2onnx.sizes.expr import product

aten = torch.ops.aten
D = ir.DataType
NONE, MEAN, SUM = 0, 1, 2
"""at::Reduction."""


def reduced_loss(op: Emit, loss: ir.Value, reduction: int) -> ir.Value:
    """The loss, its mean or its sum, in the result's dtype."""
    if reduction == MEAN:
        loss = mean(op, loss)
    elif reduction == SUM:
        loss = reduce(op, "ReduceSum", loss)
    elif reduction != NONE:
        raise no_reduction(reduction)
    return op.cast(loss, op.result_dtype())


def no_reduction(reduction: int) -> UserError:
    return UserError("E203", f"{reduction} is no reduction of a loss", next="0 (none), 1 (mean) or 2 (sum)")


def worked(op: Emit, *values: ir.Value) -> list[ir.Value]:
    """The values in the result's opmath dtype."""
    return [op.cast(value, opmath(op.result_dtype())) for value in values]


def _wrapped(op: Emit, op_type: str, left: ir.Value, right: ir.Value) -> ir.Value:
    """Two tensors combined in their common dtype, where integers wrap; half precision in float32."""
    return add(op, left, right, opmath(promoted(op, left, right)), op_type)


def at_least_zero(op: Emit, value: ir.Value) -> ir.Value:
    """max(x, 0)."""
    return relu(op, value)


def zero_like(op: Emit, value: ir.Value) -> ir.Value:
    return op.const(0.0, op.dtype(value))


def _squares(op: Emit, self: ir.Value, target: ir.Value) -> ir.Value:
    gap = op.Sub(self, target)
    return op.Mul(gap, gap)


def _distances(op: Emit, self: ir.Value, target: ir.Value) -> ir.Value:
    return op.Abs(op.Sub(self, target))


def _pairwise(formula: Callable[..., ir.Value]) -> Callable[..., ir.Value]:
    def entry(op: Emit, self: ir.Value, target: ir.Value, reduction: int) -> ir.Value:
        dtype = op.result_dtype() if formula is not _soft_margin else opmath(op.result_dtype())
        return reduced_loss(op, formula(op, op.cast(self, dtype), op.cast(target, dtype)), reduction)

    return entry


def _soft_margin(op: Emit, self: ir.Value, target: ir.Value) -> ir.Value:
    """log(1 + exp(-t x))."""
    return op.Softplus(op.Neg(op.Mul(self, target)))


register_shared(_pairwise(_squares), "Sub, Mul, reduction", *overloads_of("mse_loss"))
register_shared(_pairwise(_distances), "Sub, Abs, reduction", *overloads_of("l1_loss"))
register_shared(_pairwise(_soft_margin), "Softplus(-t x), reduction", *overloads_of("soft_margin_loss"))


def _smooth_l1(op: Emit, self: ir.Value, target: ir.Value, reduction: int, beta: float) -> ir.Value:
    """|d| < beta: d^2 / (2 beta), else |d| - beta / 2."""
    size = _distances(op, *worked(op, self, target))
    if beta == 0:
        return reduced_loss(op, size, reduction)
    inner = op.Mul(op.Mul(size, size), 0.5 / beta)
    return reduced_loss(op, op.Where(op.Less(size, beta), inner, op.Sub(size, 0.5 * beta)), reduction)


def _huber(op: Emit, self: ir.Value, target: ir.Value, reduction: int, delta: float) -> ir.Value:
    """|d| <= delta: d^2 / 2, else delta (|d| - delta / 2)."""
    size = _distances(op, *worked(op, self, target))
    outer = op.Mul(op.Sub(size, 0.5 * delta), delta)
    inner = op.Mul(op.Mul(size, size), 0.5)
    return reduced_loss(op, op.Where(op.Greater(size, delta), outer, inner), reduction)


@translates(aten.smooth_l1_loss_backward.default)
def _smooth_l1_backward(
    op: Emit, grad_output: ir.Value, self: ir.Value, target: ir.Value, reduction: int, beta: float
) -> ir.Value:
    """smooth_l1_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, float beta) -> Tensor

    -g where d <= -beta, g where d >= beta, else g d / beta; g is shared among the elements of a mean.
    """
    gradient, value, aim = worked(op, grad_output, self, target)
    gap, count = op.Sub(value, aim), product(op.dims(self))
    if reduction == MEAN and count != 0:
        gradient = op.Div(gradient, op.size(count, op.dtype(gradient)))
    inner = op.Mul(gradient, op.Div(gap, beta) if beta else op.Mul(gap, math.inf))
    above = op.Where(op.Not(op.Less(gap, beta)), gradient, inner)
    found = op.Where(op.Not(op.Greater(gap, -beta)), op.Neg(gradient), above)
    return op.cast(op.Where(op.Equal(gap, gap), found, inner), op.result_dtype())


register_shared(_smooth_l1, "Where(|d| < beta, d^2 / 2 beta, |d| - beta / 2)", *overloads_of("smooth_l1_loss"))
register_shared(_huber, "Where(|d| > delta, delta (|d| - delta / 2), d^2 / 2)", *overloads_of("huber_loss"))


def _binary_cross_entropy(
    op: Emit, self: ir.Value, target: ir.Value, weight: ir.Value | None, reduction: int
) -> ir.Value:
    """-(t log x + (1 - t) log(1 - x)), logarithms held at -100 or above."""
    value, aim = worked(op, self, target)
    aim = _without_ones(op, aim, value)
    one, floor = op.const(1.0, op.dtype(value)), op.const(-100.0, op.dtype(value))
    yes, no = op.Max(op.Log(value), floor), op.Max(op.Log(op.Sub(one, value)), floor)
    loss = op.Sub(op.Mul(op.Sub(aim, one), no), op.Mul(aim, yes))
    return reduced_loss(op, _weighted(op, loss, weight), reduction)


def _without_ones(op: Emit, aim: ir.Value, value: ir.Value) -> ir.Value:
    """``aim`` beside ``value`` as binary_cross_entropy pairs them: as if neither had axes of size 1. It is not read where ``value`` is empty."""
    sizes = op.dims(value)
    if 0 in sizes:
        return value
    left = [size for size in op.dims(aim) if size != 1]
    aligned = [left.pop() if size != 1 and left else 1 for size in reversed(sizes)][::-1]
    return aim if left or list(op.dims(aim)) == aligned else op.reshape(aim, aligned)


def _weighted(op: Emit, loss: ir.Value, weight: ir.Value | None) -> ir.Value:
    return loss if weight is None else op.Mul(loss, op.cast(weight, op.dtype(loss)))


def _with_logits(
    op: Emit,
    self: ir.Value,
    target: ir.Value,
    weight: ir.Value | None,
    pos_weight: ir.Value | None,
    reduction: int,
) -> ir.Value:
    """(1 - t) x + (1 + (p - 1) t) softplus(-x)."""
    value, aim = worked(op, self, target)
    one = op.const(1.0, op.dtype(value))
    soft = op.Softplus(op.Neg(value))
    if pos_weight is not None:
        soft = op.Mul(soft, op.Add(op.Mul(op.Sub(op.cast(pos_weight, op.dtype(value)), one), aim), one))
    loss = op.Add(op.Mul(op.Sub(one, aim), value), soft)
    return reduced_loss(op, _weighted(op, loss, weight), reduction)


def _kl_div(op: Emit, self: ir.Value, target: ir.Value, reduction: int, log_target: bool) -> ir.Value:
    """t (log t - x), or exp(t) (t - x) of logarithms."""
    value, aim = worked(op, self, target)
    if log_target:
        loss = op.Mul(_of_target(op, op.Exp, target), op.Sub(aim, value))
    else:
        loss = op.Sub(_of_target(op, lambda own: xlogy(op, own, own), target), op.Mul(aim, value))
    return reduced_loss(op, loss, reduction)


def _of_target(op: Emit, function: Callable[[ir.Value], ir.Value], target: ir.Value) -> ir.Value:
    """A function of the target alone, which PyTorch rounds to the target's dtype where the other operand is wider."""
    (aim,), dtype = worked(op, target), op.dtype(target)
    if opmath(dtype) == op.dtype(aim) or dtype not in FLOATS:
        return function(aim)
    return op.cast(op.cast(function(op.cast(target, opmath(dtype))), dtype), op.dtype(aim))


def _poisson(
    op: Emit, input: ir.Value, target: ir.Value, log_input: bool, full: bool, eps: float, reduction: int
) -> ir.Value:
    """exp(x) - t x, or x - t log(x + eps); ``full`` adds Stirling's t log t - t + log(2 pi t) / 2 where t > 1."""
    value, aim = worked(op, input, target)
    if log_input:
        loss = op.Sub(op.Exp(value), op.Mul(aim, value))
    else:
        loss = op.Sub(value, op.Mul(aim, op.Log(op.Add(value, eps))))
    if full:
        stirling = op.Add(op.Sub(op.Mul(aim, op.Log(aim)), aim), op.Mul(op.Log(op.Mul(aim, 2 * math.pi)), 0.5))
        loss = op.Add(loss, op.Where(op.Greater(aim, 1), stirling, zero_like(op, aim)))
    return reduced_loss(op, loss, reduction)


register_shared(_binary_cross_entropy, "Log, Max, Mul, Sub", *overloads_of("binary_cross_entropy"))
register_shared(_with_logits, "(1 - t) x + Softplus(-x)", *overloads_of("binary_cross_entropy_with_logits"))
register_shared(_kl_div, "xlogy(t, t) - t x", *overloads_of("kl_div"))
register_shared(_poisson, "Exp(x) - t x", *overloads_of("poisson_nll_loss"))


def _hinge_embedding(op: Emit, self: ir.Value, target: ir.Value, margin: float, reduction: int) -> ir.Value:
    """x where t = 1, max(margin - x, 0) where t = -1, both elsewhere."""
    value, aim = worked(op, self, target)
    zero = zero_like(op, value)
    apart = op.Where(op.Equal(aim, 1), zero, at_least_zero(op, op.Sub(op.const(margin, op.dtype(value)), value)))
    return reduced_loss(op, op.Add(apart, op.Where(op.Equal(aim, -1), zero, value)), reduction)


def _margin_ranking(
    op: Emit, input1: ir.Value, input2: ir.Value, target: ir.Value, margin: float, reduction: int
) -> ir.Value:
    """max(-t (x1 - x2) + margin, 0). Integers wrap at each step in their own dtypes, before the margin is added."""
    negative, gap = target, _wrapped(op, "Sub", input2, input1)
    if not (op.is_float(target) and op.is_float(gap)):
        negative, gap = _wrapped(op, "Sub", op.const(0, op.dtype(target)), target), _wrapped(op, "Sub", input1, input2)
    (loss,) = worked(op, _wrapped(op, "Mul", negative, gap))
    return reduced_loss(op, at_least_zero(op, op.Add(loss, float(margin)) if margin else loss), reduction)


COSINE_EPSILON = 1e-12
"""Added to squared lengths. Source: ATen/native/Loss.cpp."""


def _cosine_embedding(
    op: Emit, input1: ir.Value, input2: ir.Value, target: ir.Value, margin: float, reduction: int
) -> ir.Value:
    """1 - cos where t = 1, max(cos - margin, 0) where t = -1."""
    first, second, aim = worked(op, input1, input2, target)
    axis = op.rank(target)
    product = reduce(op, "ReduceSum", op.Mul(first, second), axis)
    lengths = [op.Add(reduce(op, "ReduceSumSquare", item, axis), COSINE_EPSILON) for item in (first, second)]
    cosine = op.Div(product, op.Sqrt(op.Mul(*lengths)))
    zero = zero_like(op, cosine)
    near = op.Where(op.Equal(aim, 1), op.Sub(op.const(1.0, op.dtype(cosine)), cosine), zero)
    far = op.Where(op.Equal(aim, -1), at_least_zero(op, op.Sub(cosine, float(margin))), zero)
    return reduced_loss(op, op.Add(near, far), reduction)


def _triplet_margin(
    op: Emit,
    anchor: ir.Value,
    positive: ir.Value,
    negative: ir.Value,
    margin: float,
    p: float,
    eps: float,
    swap: bool,
    reduction: int,
) -> ir.Value:
    """max(margin + |a - p| - |a - n|, 0); ``swap`` takes the smaller of |a - n| and |p - n|."""

    def distance(left: ir.Value, right: ir.Value) -> ir.Value:
        (gap,) = worked(op, _wrapped(op, "Sub", left, right))
        return vector_norm(op, op.Add(gap, eps), p, -1, False)

    close, away = distance(anchor, positive), distance(anchor, negative)
    if swap:
        away = op.Min(away, distance(positive, negative))
    return reduced_loss(op, at_least_zero(op, op.Add(op.Sub(close, away), float(margin))), reduction)


def _cosine_similarity(op: Emit, x1: ir.Value, x2: ir.Value, dim: int, eps: float) -> ir.Value:
    """x1 . x2 / (max(|x1|, eps) max(|x2|, eps))."""
    first, second = worked(op, x1, x2)
    shared = broadcast_dims(op.dims(first), op.dims(second)) or (1,)
    axis = axis_of(dim, len(shared)) - len(shared)
    if any(op.rank(item) < -axis or op.dims(item)[axis] != shared[axis] for item in (first, second)):
        first, second = op.expand(first, shared), op.expand(second, shared)
    dim = axis
    first, second = (
        op.Div(item, op.Max(reduce(op, "ReduceL2", item, dim, True), op.const(eps, op.dtype(item))))
        for item in (first, second)
    )
    return op.cast(reduce(op, "ReduceSum", op.Mul(first, second), dim), op.result_dtype())


register_shared(_hinge_embedding, "Where by target, Relu", *overloads_of("hinge_embedding_loss"))
register_shared(_margin_ranking, "Relu(t (x2 - x1) + margin)", *overloads_of("margin_ranking_loss"))
register_shared(_cosine_embedding, "cosine, Where by target", *overloads_of("cosine_embedding_loss"))
register_shared(_triplet_margin, "norms, Sub, Relu", *overloads_of("triplet_margin_loss"))
register_shared(_cosine_similarity, "ReduceL2, Max, Div, ReduceSum", *overloads_of("cosine_similarity"))
