"""Operators on spans that sum, convert and compare: products, reductions, softmax and norms; casts, comparisons and logic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fx2onnx.proof.nodes import Array
from fx2onnx.proof.spans import (
    ULPS,
    Interval,
    SpanCall,
    Unbounded,
    inverse_of,
    product_of,
    reaches_zero,
    root_of,
    rule,
    sum_share,
)


@rule("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum")
def _product(call: SpanCall) -> Interval:
    """Sums of products, about the middles of both operands."""
    x, w = call.span(0), call.span(1)
    if call.op_type == "Einsum" and len(call.args) != 2:
        raise LookupError("Einsum")
    absolute: dict[str, Any] = {"alpha": abs(float(call.attrs.get("alpha", 1.0)))} if call.op_type == "Gemm" else {}

    def magnitude(a: Array, b: Array) -> Array | float:
        return call.run(a, b, **absolute)[0] if a.any() and b.any() else 0.0

    count = terms_of(call, x.low.shape, w.low.shape)
    (xc, xr), (wc, wr) = (((s.low + s.high) / 2, (s.high - s.low) / 2) for s in (x, w))
    middle = call.run(xc, wc)[0]
    reach = magnitude(x.reach, w.reach)
    radius = magnitude(xr, np.abs(wc) + wr) + magnitude(np.abs(xc), wr) + count * 2.0**-52 * reach
    error = magnitude(x.error, w.reach) + magnitude(x.size, w.error) + call.rounded(reach, count + 2)
    found = Interval.between(middle - radius, middle + radius, error)
    if not call.has(2):
        return found
    bias = call.span(2)
    if call.op_type == "Gemm":
        scale = Interval.of(np.asarray(float(call.attrs.get("beta", 1.0))))
        bias = product_of(call, bias, scale)
    else:
        column = (-1, *(1,) * (middle.ndim - 2))
        bias = Interval(*(each.reshape(column) for each in (bias.low, bias.high, bias.error)))
    error = found.error + bias.error
    error = error + call.rounded(reach + bias.reach)
    return Interval.between(found.low + bias.low, found.high + bias.high, error)


def terms_of(call: SpanCall, x: Sequence[int], w: Sequence[int]) -> float:
    """The number of products that each output sums."""
    match call.op_type:
        case "MatMul":
            return x[-1]
        case "Gemm":
            return x[0] if call.attrs.get("transA") else x[1]
        case "Conv":
            return math.prod(w[1:])
        case "ConvTranspose":
            return math.prod(w) / w[1]
    return math.prod((*x, *w))


@rule("ArgMax", "ArgMin")
def _place(call: SpanCall) -> Interval:
    x = call.span(0)
    shape = call.run(x.low)[0].shape
    last = float(x.low.shape[int(call.attrs.get("axis", 0))] - 1)
    return Interval(np.zeros(shape), np.full(shape, last), np.full(shape, last * bool(x.error.any())))


@rule("TopK")
def _topk(call: SpanCall) -> list[Interval]:
    x, k = call.span(0), call.constant(1)
    axis = int(call.attrs.get("axis", -1))
    low, high = (call.run(each, k)[0] for each in (x.low, x.high))
    error = np.broadcast_to(x.error.max(axis, keepdims=True), low.shape)
    last = float(x.low.shape[axis] - 1)
    return [
        Interval(low, high, error),
        Interval(np.zeros(low.shape), np.full(low.shape, last), np.full(low.shape, last)),
    ]


@rule("Softmax", "LogSoftmax")
def _softmax(call: SpanCall) -> Interval:
    """Each share is largest where its own number is and all others are smallest."""
    x, axis = call.span(0), int(call.attrs.get("axis", -1 if call.opset >= 13 else 1))
    shape = x.low.shape
    if call.opset < 13:
        axis %= x.low.ndim
        rows = math.prod(shape[:axis])
        x, axis = Interval(*(each.reshape(rows, -1) for each in (x.low, x.high, x.error))), -1
    top = np.max(x.high, axis, keepdims=True)
    low, high = np.exp(x.low - top), np.exp(x.high - top)
    most, least = (each.sum(axis, keepdims=True) for each in (high, low))
    slack = 1e-13 * most
    shares = low / (low + np.maximum(most - high, 0) + slack), high / (high + np.maximum(least - low - slack, 0))
    apart = top - np.min(np.where(np.isfinite(x.low), x.low, top), axis, keepdims=True)
    worst = np.max(np.where(np.isneginf(x.high), 0.0, x.error), axis, keepdims=True)
    change = np.expm1(np.minimum(2 * worst + 2 * call.unit * (apart + worst), 700)) + sum_share(
        shape[axis] + 2 * ULPS, call.unit
    )
    if call.op_type == "LogSoftmax":
        total = top + np.log(most), top + np.log(least)
        error = 2 * worst + call.rounded(x.reach + np.abs(total[0]) + apart, shape[axis] + 2 * ULPS)
        found = Interval.between(x.low - total[0], np.minimum(x.high - total[1], 0), error)
    else:
        shares = np.where(np.isnan(shares[0]), 0, shares[0]), np.where(np.isnan(shares[1]), 1, shares[1])
        error = np.minimum(np.where(np.isnan(change), 1, shares[1] * change), 1.0) + call.rounded(0.0)
        found = Interval(
            np.clip(shares[0] - 1e-15, 0, 1), np.clip(shares[1] * (1 + 1e-13), 0, 1), error + np.zeros(low.shape)
        )
    return Interval(*(each.reshape(shape) for each in (found.low, found.high, found.error)))


def normalised(call: SpanCall, x: Interval, axes: tuple[int, ...], epsilon: float, *, centres: bool = True) -> Interval:
    """``(x - mean(x)) / sqrt(mean((x - mean(x)) ** 2) + epsilon)``, which no input makes larger than the root of the count.

    The variance is of two passes, as the runner takes it.
    """
    count = math.prod(x.low.shape[axis] for axis in axes)

    def mean(array: Array) -> Array:
        return np.asarray(array.mean(axes, keepdims=True))

    if centres:
        low = x.low * (1 - 1 / count) - (mean(x.high) - x.high / count)
        high = x.high * (1 - 1 / count) - (mean(x.low) - x.low / count)
        slack = count * 2.0**-50 * mean(x.size) + 2.0**-50 * x.size
        low, high = low - slack, high + slack
        size = np.maximum(np.abs(low), np.abs(high))
        error = x.error + mean(x.error) + call.rounded(mean(x.reach), count + 1) + call.rounded(size)
        x = Interval.between(low, high, error)
    square = product_of(call, x, x, is_square=True)
    least, largest = (np.sqrt(np.maximum(mean(each), 0) + epsilon) for each in (square.low, square.high))
    ends = x.low / np.where(x.low < 0, least, largest), x.high / np.where(x.high > 0, least, largest)
    most = np.minimum(math.sqrt(max(count - centres, 0)), np.maximum(*map(np.abs, ends)))
    # numbers that are off by e move a deviation s by at most 2 e + e ** 2 / s, since the mean of their magnitudes is no larger than s
    worst = np.max(x.error, axes, keepdims=True)
    moved = 2 * worst + worst**2 / least
    floats = np.maximum(math.sqrt(epsilon) * (1 - 4 * call.unit), least * (1 - sum_share(count + 8, call.unit)) - moved)
    share = 4 * sum_share(count + 8, call.unit)
    error = (x.error + most * moved) / floats + most * share * (1 + moved / floats)
    error = np.where(np.isnan(error), np.inf, np.minimum(error, 2.01 * math.sqrt(count)))
    found = Interval.between(np.maximum(ends[0], -most), np.minimum(ends[1], most))
    return Interval(found.low, found.high, error)


def _scaled(call: SpanCall, found: Interval, scale: Interval, shift: Interval | None) -> Interval:
    found = product_of(call, found, scale)
    if shift is None:
        return found
    error = found.error + shift.error + call.rounded(found.reach + shift.reach)
    return Interval.between(found.low + shift.low, found.high + shift.high, error)


@rule("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def _layer_norm(call: SpanCall) -> Interval:
    if call.outputs > 1:
        raise LookupError("statistics")
    x = call.span(0)
    first = int(call.attrs.get("axis", -1)) % x.low.ndim
    axes, is_centred = tuple(range(first, x.low.ndim)), call.op_type == "LayerNormalization"
    found = normalised(call, x, axes, float(call.attrs.get("epsilon", 1e-5)), centres=is_centred)
    return _scaled(call, found, call.span(1), call.span(2) if call.has(2) else None)


@rule("InstanceNormalization", "GroupNormalization")
def _group_norm(call: SpanCall) -> Interval:
    x, scale, shift = call.span(0), call.span(1), call.span(2)
    shape = x.low.shape
    groups = int(call.attrs.get("num_groups", shape[1]))
    apart = Interval(*(each.reshape(shape[0], groups, -1) for each in (x.low, x.high, x.error)))
    found = normalised(call, apart, (2,), float(call.attrs.get("epsilon", 1e-5)))
    found = Interval(*(each.reshape(shape) for each in (found.low, found.high, found.error)))

    def column(span: Interval) -> Interval:
        parts = (np.repeat(each, shape[1] // each.size) for each in (span.low, span.high, span.error))
        return Interval(*(each.reshape(-1, *(1,) * (len(shape) - 2)) for each in parts))

    return _scaled(call, found, column(scale), column(shift))


@rule("BatchNormalization")
def _batch_norm(call: SpanCall) -> Interval:
    """An affine map by channel, with constants."""
    if call.attrs.get("training_mode"):
        raise LookupError("training")
    x = call.span(0)
    column = (-1, *(1,) * (x.low.ndim - 2))
    scale, shift, mean, variance = (call.constant(index).astype(np.float64).reshape(column) for index in range(1, 5))
    factor = scale / np.sqrt(variance + float(call.attrs.get("epsilon", 1e-5)))
    ends = (x.low - mean) * factor + shift, (x.high - mean) * factor + shift
    size = (x.reach + np.abs(mean)) * np.abs(factor) + np.abs(shift)
    slack = 2.0**-49 * size
    return Interval.between(
        np.minimum(*ends) - slack, np.maximum(*ends) + slack, x.error * np.abs(factor) + call.rounded(size, ULPS)
    )


@rule("Pow")
def _pow(call: SpanCall) -> Interval:
    """A power with a constant exponent, or of numbers above 0."""
    x, given = call.span(0), call.span(1).value
    exponents = np.empty(0) if given is None else np.unique(given.astype(np.float64))
    if exponents.size != 1:
        return _power(call)
    exponent = float(exponents[0])
    if exponent == 2:
        return product_of(call, x, x, is_square=True)
    if exponent == 3:
        return product_of(call, x, product_of(call, x, x, is_square=True))
    if exponent == 0.5:
        return root_of(call, x)
    if exponent == -1:
        return inverse_of(call, x)
    if (x.low - x.error <= 0).any():
        raise LookupError("Pow")
    ends = x.low**exponent, x.high**exponent
    edges = [exponent * (each ** (exponent - 1)) for each in (x.low - x.error, x.high + x.error)]
    made = Interval.between(np.minimum(*ends), np.maximum(*ends), x.error * np.maximum(*np.abs(edges)))
    return Interval(made.low, made.high, made.error + call.rounded(made.size, ULPS))


def _power(call: SpanCall) -> Interval:
    """``x ** y``: for numbers above 0 it rises or falls in each operand, so that its ends are at corners."""
    x, y = call.span(0), call.span(1)
    floor = np.minimum(x.low, x.lowest)
    if (floor <= 0).any():
        raise Unbounded("a power of numbers that may not be above 0")
    ends = np.broadcast_arrays(*(a**b for a in (x.low, x.high) for b in (y.low, y.high)))
    tops = floor, x.high + x.error
    most = np.maximum.reduce(np.broadcast_arrays(*(a**b for a in tops for b in (y.low - y.error, y.high + y.error))))
    logs = np.maximum(*(np.abs(np.log(each)) for each in tops))
    parts = [
        np.where(x.error == 0, 0.0, x.error * most * y.reach / floor),
        np.where(y.error == 0, 0.0, y.error * most * logs),
    ]
    return Interval.between(
        np.minimum.reduce(ends), np.maximum.reduce(ends), parts[0] + parts[1] + call.rounded(most, ULPS)
    )


_PLACE_ROUNDINGS = 4.0
"""Roundings of the place that an output has between two inputs: of the scale, its product or quotient, and a shift."""


@rule("Resize", "Upsample")
def _resize(call: SpanCall) -> Interval:
    mode = call.attrs.get("mode", "nearest")
    if mode not in ("nearest", "linear", b"nearest", b"linear") or call.attrs.get("coordinate_transformation_mode") in (
        "tf_crop_and_resize",
        b"tf_crop_and_resize",
    ):
        raise LookupError("Resize")
    x, rest = call.span(0), [call.constant(i) if call.has(i) else None for i in range(1, len(call.args))]
    low, high, error, size = (call.run(each, *rest)[0] for each in (x.low, x.high, x.error, x.reach))
    if mode in ("linear", b"linear"):
        axes = tuple(axis for axis, width in enumerate(x.low.shape) if width != low.shape[axis])
        apart = (x.high + x.error).max(axes, keepdims=True) - (x.low - x.error).min(axes, keepdims=True)
        steps = sum(x.low.shape[axis] for axis in axes)  # floats of a place on an axis are roundings of its length off
        error = error + call.rounded(size, ULPS) + call.rounded(apart * steps, _PLACE_ROUNDINGS)
    return Interval.between(low, high, error)


@rule("Floor", "Ceil", "Round", "Sign")
def _steps(call: SpanCall) -> Interval:
    x = call.span(0)
    return Interval(call.run(x.low)[0], call.run(x.high)[0], np.where(x.error > 0, np.ceil(x.error) + 1, 0.0))


@rule("Cast", "CastLike")
def _cast(call: SpanCall) -> Interval:
    x = call.span(0)
    if call.unit:
        return Interval(x.low, x.high, x.error + call.rounded(x.reach))
    if call.dtype == np.bool_:
        low, high = ((x.low > 0) | (x.high < 0)).astype(np.float64), ((x.low != 0) | (x.high != 0)).astype(np.float64)
        return Interval(low, high, ((x.error > 0) & reaches_zero(x)).astype(np.float64))
    most = np.iinfo(call.dtype)
    if (x.low < most.min).any() or (x.high > most.max).any() or not np.isfinite(x.reach).all():
        call.notes.append(
            ("overflow", f"a number does not fit {call.dtype}: it is from {x.low.min():.6g} to {x.high.max():.6g}")
        )
        shape = x.low.shape
        return Interval(np.full(shape, float(most.min)), np.full(shape, float(most.max)), np.full(shape, np.inf))
    return Interval(np.trunc(x.low), np.trunc(x.high), np.where(x.error > 0, np.ceil(x.error) + 1, 0.0))


@rule("Max", "Min")
def _extreme(call: SpanCall) -> Interval:
    pick = np.maximum if call.op_type == "Max" else np.minimum
    spans = [call.span(index) for index in range(len(call.args))]
    errors = np.broadcast_arrays(*(span.error for span in spans))
    low, high = (
        np.asarray(pick.reduce(np.broadcast_arrays(*ends)))
        for ends in ([s.low for s in spans], [s.high for s in spans])
    )
    least = np.asarray(pick.reduce(np.broadcast_arrays(*(span.lowest for span in spans))))
    return Interval(low, high, np.asarray(np.maximum.reduce(errors)), None, least)


@rule("Clip")
def _clip(call: SpanCall) -> Interval:
    """``min(max(x, least), most)``."""
    found = call.span(0)
    for index, name, pick in ((1, "min", "Max"), (2, "max", "Min")):
        if call.has(index) or name in call.attrs:
            limit = call.span(index) if call.has(index) else Interval.of(np.asarray(call.attrs[name], np.float32))
            made = _extreme(replace(call, op_type=pick, args=[found, limit]))
            assert isinstance(made, Interval)
            found = made
    return found


@rule("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
def _compared(call: SpanCall) -> Interval:
    """0 to 1, and which it is where the bounds do not meet."""
    one, other = call.span(0), call.span(1)
    if call.op_type.startswith("Greater"):
        one, other = other, one
    far = one.error + other.error
    below, above = one.high + far < other.low, one.low - far > other.high
    sure, never = (below, above) if call.op_type != "Equal" else (np.zeros_like(below), below | above)
    return Interval(sure.astype(np.float64), 1.0 - never, ((far > 0) & ~sure & ~never).astype(np.float64))


@rule("And", "Or", "Xor", "Not")
def _logic(call: SpanCall) -> Interval:
    x = call.span(0)
    if call.op_type == "Not":
        return Interval(1 - x.high, 1 - x.low, x.error)
    y = call.span(1)
    error = np.maximum(x.error, y.error)
    if call.op_type == "Xor":
        return Interval.between(np.zeros(error.shape), np.ones(error.shape), error)
    pick = np.minimum if call.op_type == "And" else np.maximum
    return Interval(pick(x.low, y.low), pick(x.high, y.high), error)


@rule("Neg")
def _neg(call: SpanCall) -> Interval:
    x = call.span(0)
    return Interval(-x.high, -x.low, x.error)


@rule("Abs")
def _abs(call: SpanCall) -> Interval:
    x = call.span(0)
    low = np.where((x.low < 0) & (x.high > 0), 0.0, np.minimum(np.abs(x.low), np.abs(x.high)))
    return Interval(low, x.size, x.error)


@rule("LSTM", "GRU", "RNN")
def _recurrent(call: SpanCall) -> list[Interval]:
    """Outputs of tanh and gates between 0 and 1: at most 1, or as large as the state at first."""
    if not {"Sigmoid", "Tanh", b"Sigmoid", b"Tanh"} >= {*(call.attrs.get("activations") or ())} or call.attrs.get(
        "clip"
    ):
        raise LookupError(call.op_type)
    x, hidden, layers = call.span(0), int(call.attrs["hidden_size"]), len(call.span(1).low)
    length, batch = x.low.shape[:2] if not call.attrs.get("layout") else x.low.shape[1::-1]
    most = 1.0
    if call.op_type == "GRU" and call.has(5):
        most = max(most, float(call.span(5).reach.max(initial=0)))
    state = float(call.span(6).reach.max(initial=0)) if call.op_type == "LSTM" and call.has(6) else 0.0
    last = (batch, layers, hidden) if call.attrs.get("layout") else (layers, batch, hidden)
    all_steps = (batch, length, layers, hidden) if call.attrs.get("layout") else (length, layers, batch, hidden)
    limits = [(all_steps, most), (last, most), (last, state + length)][: call.outputs]
    share = 2.0 if np.isfinite(x.reach).all() else math.inf
    wide = [(np.full(shape, limit), np.full(shape, share * limit)) for shape, limit in limits]
    return [Interval(-limit, limit, error) for limit, error in wide]
