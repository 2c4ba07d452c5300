"""Operators on spans whose results jump or are bounded whatever they are given: integers, bits, quantized values, places and samples.

Where rounding may move an operand, a result may be any number that the moved operand gives: the error is the width of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from fx2onnx.proof.nodes import Array
from fx2onnx.proof.spans import (
    RULES,
    ULPS,
    Interval,
    SpanCall,
    Unbounded,
    inverse_of,
    limits_of,
    product_of,
    rule,
    unit_of,
)

Ends: TypeAlias = tuple[Array, Array]


def stepped(ends_of: Callable[..., Ends], *operands: Interval) -> Interval:
    """The span of a function without roundings of its own, by its bounds for operands between two bounds."""
    low, high = ends_of(*((each.low, each.high) for each in operands))
    if not any(each.error.any() for each in operands):
        return Interval(*np.broadcast_arrays(low, high, np.zeros(())))
    least, most = ends_of(*((each.lowest, each.high + each.error) for each in operands))
    return Interval(*np.broadcast_arrays(low, high, np.nan_to_num(most - least, nan=np.inf, posinf=np.inf)))


def within(call: SpanCall, low: Any, high: Any, error: Any = 0.0) -> Interval:
    """Any number between two, for each element of the first output."""
    return Interval(*(np.broadcast_to(np.asarray(each, np.float64), call.shape) for each in (low, high, error)))


def _corners(pick: Callable[[Array, Array], Array], x: Ends, y: Ends) -> Ends:
    found = [np.asarray(pick(a, b)) for a in x for b in y]
    return np.minimum.reduce(found), np.maximum.reduce(found)


@rule("Div")
def _div(call: SpanCall) -> Interval:
    """Integers: ``trunc(x / y)``, which is no farther from 0 than x."""
    if call.unit:
        return product_of(call, call.span(0), inverse_of(call, call.span(1)))

    def ends(x: Ends, y: Ends) -> Ends:
        size = np.maximum(np.abs(x[0]), np.abs(x[1]))
        crosses = (y[0] <= 0) & (y[1] >= 0)
        safe = tuple(np.where(crosses, 1.0, each) for each in y)
        low, high = _corners(np.divide, x, (safe[0], safe[1]))
        slack = np.where(size > 2.0**52, np.abs(size) * 2.0**-50 + 1, 0.0)
        return np.where(crosses, -size, np.trunc(low) - slack), np.where(crosses, size, np.trunc(high) + slack)

    return stepped(ends, call.span(0), call.span(1))


@rule("Mod")
def _mod(call: SpanCall) -> Interval:
    """The rest is nearer to 0 than the divisor; it has the sign of the divisor, or of x with ``fmod``."""
    is_c, step = bool(call.attrs.get("fmod")), 0.0 if call.unit else 1.0
    if call.unit and not is_c:
        raise Unbounded("a Mod of floats without fmod")

    def ends(x: Ends, y: Ends) -> Ends:
        most = np.maximum(np.maximum(np.abs(y[0]), np.abs(y[1])) - step, 0)
        sign = x if is_c else y
        low = np.where(sign[0] < 0, -most, 0.0)
        high = np.where(sign[1] > 0, most, 0.0)
        if is_c:
            low, high = np.maximum(low, np.minimum(x[0], 0)), np.minimum(high, np.maximum(x[1], 0))
        is_rest = (x[0] >= 0) & (y[0] > 0) & (x[1] < y[0])
        return np.where(is_rest, x[0], low), np.where(is_rest, x[1], high)

    return stepped(ends, call.span(0), call.span(1))


@rule("BitShift")
def _shift(call: SpanCall) -> Interval:
    x, y = call.span(0), call.span(1)
    if (y.high + y.error >= np.iinfo(call.dtype).bits).any():
        raise Unbounded("a shift by all bits or more")
    is_left = call.attrs.get("direction") in ("LEFT", b"LEFT")
    return stepped(
        lambda x, y: _corners(lambda a, b: a * 2.0**b if is_left else np.floor(a / 2.0**b), x, y),
        x,
        y,
    )


@rule("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def _bits(call: SpanCall) -> Interval:
    least, most = limits_of(call.dtype)

    def ends(x: Ends, y: Ends) -> Ends:
        if (x[0] < 0).any() or (y[0] < 0).any():
            return np.broadcast_arrays(np.float64(least), np.float64(most), x[0] + y[0])[:2]  # type: ignore[return-value]
        largest = np.maximum(x[1], y[1])
        full = np.minimum(2.0 ** np.ceil(np.log2(largest + 1)), most)
        match call.op_type:
            case "BitwiseAnd":
                return np.zeros(full.shape), np.minimum(x[1], y[1])
            case "BitwiseOr":
                return np.maximum(x[0], y[0]), full
        return np.zeros(full.shape), full

    return stepped(ends, call.span(0), call.span(1))


@rule("BitwiseNot")
def _bitwise_not(call: SpanCall) -> Interval:
    top = limits_of(call.dtype)[1] if call.dtype.kind == "u" else -1.0
    return stepped(lambda x: (top - x[1], top - x[0]), call.span(0))


@rule("IsNaN", "IsInf")
def _is_none(call: SpanCall) -> Interval:
    """A number within bounds that its dtype has is finite."""
    assert call.operand is not None
    fits = call.span(0).reach <= limits_of(call.operand)[1]
    return within(call, 0.0, np.where(fits, 0.0, 1.0), np.where(fits, 0.0, 1.0))


@rule("Range")
def _range(call: SpanCall) -> Interval:
    """Numbers of one distance: each may be summed, or multiplied."""
    first, step = (call.constant(index).astype(np.float64).reshape(()) for index in (0, 2))
    count = len(call.run(*(call.constant(index) for index in range(3)))[0])
    found = first + np.arange(count) * step
    return Interval.between(found, found, call.rounded(np.abs(first) + count * np.abs(step), count + 2))


@rule("OneHot")
def _one_hot(call: SpanCall) -> Interval:
    call.constant(1)
    values, places = call.span(2), call.span(0)
    low, high, off = values.low.min(), values.high.max(), values.error.max()
    return within(call, low, high, off + (high - low) * bool(places.error.any()))


@rule("Hardmax")
def _hardmax(call: SpanCall) -> Interval:
    return within(call, 0.0, 1.0, float(call.span(0).error.any()))


@rule("ThresholdedRelu", "Shrink")
def _thresholded(call: SpanCall) -> Interval:
    """Both are 0 between limits, and rise by a step at each."""
    x = call.span(0)
    if call.op_type == "Shrink" and (
        call.attrs.get("lambd", 0.5) < 0 or abs(call.attrs.get("bias", 0.0)) > call.attrs.get("lambd", 0.5)
    ):
        raise Unbounded("a Shrink that falls")
    if call.op_type != "Shrink" and call.attrs.get("alpha", 1.0) < 0:
        raise Unbounded("a threshold below 0")
    found = stepped(lambda x: (call.run(x[0])[0], call.run(x[1])[0]), x)
    return Interval.between(found.low, found.high, found.error + call.rounded(x.reach))


@rule("QuantizeLinear")
def _quantize(call: SpanCall) -> Interval:
    """Divide, round and add the zero point; a rounding of the quotient may move the result by 1, and by more in float16."""
    x, scale = call.span(0), call.constant(1).astype(np.float64)
    if (scale <= 0).any() or scale.size != 1:
        raise Unbounded("a scale that is no number above 0") if scale.size == 1 else LookupError("QuantizeLinear")
    zero = call.constant(2).astype(np.float64).reshape(()) if call.has(2) else 0.0
    if unit_of(call.dtype):
        raise LookupError("QuantizeLinear")
    least, most = limits_of(call.dtype)
    low, high = (
        np.clip(np.rint(each / scale.reshape(())) + zero + step, least, most)
        for each, step in ((x.low, -1), (x.high, 1))
    )
    off = (x.error + 4 * unit_of(call.operand or call.dtype) * x.reach) / scale.reshape(())
    return Interval(low, high, np.minimum(np.ceil(off), most - least))


@rule("DequantizeLinear")
def _dequantize(call: SpanCall) -> Interval:
    x, scale = call.span(0), call.span(1)
    if call.attrs.get("block_size"):
        size, axis = int(call.attrs["block_size"]), int(call.attrs.get("axis", 1))

        def fit(span: Interval) -> Interval:
            parts = (
                np.repeat(each, size, axis).take(range(x.low.shape[axis]), axis)
                for each in (span.low, span.high, span.error)
            )
            return Interval(*parts)
    else:
        axis = int(call.attrs.get("axis", 1))

        def fit(span: Interval) -> Interval:
            if span.low.size == 1:
                return span.reshape(())
            ones = [1] * x.low.ndim
            ones[axis] = -1
            return span.reshape(ones)

    if call.has(2):
        zero = fit(call.span(2))
        x = Interval(x.low - zero.high, x.high - zero.low, x.error + zero.error)
    made = product_of(call, x, fit(scale))
    return Interval(made.low, made.high, made.error + call.rounded(made.reach))


@rule("QLinearConv", "QLinearMatMul")
def _quantized(call: SpanCall) -> Interval:
    """Any number of the dtype."""
    least, most = limits_of(call.dtype)
    return within(call, least, most, most - least)


@rule("DynamicQuantizeLinear")
def _dynamic(call: SpanCall) -> list[Interval]:
    x = call.span(0)
    widest = max(float(x.high.max()), 0.0) - min(float(x.low.min()), 0.0)
    scale = widest / 255
    rounding = replace(call, dtype=call.operand or call.dtype).rounded(np.asarray(scale), 4)
    off = 2 * float(x.error.max()) / 255 + float(rounding)
    point = Interval(np.zeros(()), np.full((), 255.0), np.full((), 255.0))
    return [
        within(call, 0, 255, 255),
        Interval(np.zeros(()), np.asarray(scale * (1 + 1e-9)), np.asarray(min(off, scale + off))),
        point,
    ]


@rule("MatMulInteger", "ConvInteger")
def _integers(call: SpanCall) -> Interval:
    spans = [call.span(0), call.span(1)]
    for place in (0, 1):
        if call.has(2 + place):
            zero = call.span(2 + place)
            if zero.low.size != 1:
                raise LookupError(call.op_type)
            x, zero = spans[place], zero.reshape(())
            spans[place] = Interval(x.low - zero.high, x.high - zero.low, x.error + zero.error)
    made = RULES[call.op_type.removesuffix("Integer")](
        replace(call, op_type=call.op_type.removesuffix("Integer"), args=spans)
    )
    assert isinstance(made, Interval)
    return made


_CUBIC = 1.376
"""The largest sum of the magnitudes of cubic weights on one axis."""


@rule("GridSample", "RoiAlign", "MaxRoiPool")
def _sampled(call: SpanCall) -> Interval:
    """Weighted means of elements, or their largest, and 0 outside: rounding may move the places that are read."""
    x = call.span(0)
    low, high, off = min(x.low.min(initial=0), 0.0), max(x.high.max(initial=0), 0.0), x.error.max(initial=0)
    if call.attrs.get("mode") in ("bicubic", "cubic"):
        share = _CUBIC ** (x.low.ndim - 2)
        most = max(-low, high) * share
        low, high, off = -most, most, off * share
    size = max(-low, high) + off
    return within(call, low - 1e-12 * size, high + 1e-12 * size, high - low + off + call.rounded(np.asarray(size), 64))


@rule("Attention")
def _attention(call: SpanCall) -> list[Interval]:
    """Means of the values with shares of softmax, and 0 where all are masked."""
    values = [call.span(2), *([call.span(5)] if call.has(5) else [])]
    low = min(0.0, *(each.low.min(initial=0) for each in values))
    high = max(0.0, *(each.high.max(initial=0) for each in values))
    off = max(each.error.max(initial=0) for each in values)
    if call.has(3):
        mask = call.span(3)
        if (mask.low == (0 if mask.low.min(initial=0) == 0 else -np.inf)).all(-1).any():
            call.notes.append(("nan", "a mask may hide all places of a row"))
    scores = call.span(0).reach.max(initial=0) * call.span(1).reach.max(initial=0)
    if not math.isfinite(scores):
        raise Unbounded("its scores have no bounds")
    size, count = max(-low, high) + off, sum(each.low.size for each in values)
    return [within(call, low, high, high - low + off + call.rounded(np.asarray(size), count + 4 * ULPS))]


@rule("LRN")
def _lrn(call: SpanCall) -> Interval:
    """``x / (bias + alpha * mean(x ** 2)) ** beta``: no farther from 0 than at its smallest divisor."""
    x, bias, beta = call.span(0), float(call.attrs.get("bias", 1.0)), float(call.attrs.get("beta", 0.75))
    if bias <= 0 or beta < 0 or float(call.attrs.get("alpha", 1e-4)) < 0:
        raise Unbounded("its divisor may be 0")
    share = bias**-beta * (1 + 1e-9)
    low, high = np.minimum(x.low, 0) * share, np.maximum(x.high, 0) * share
    return Interval(low, high, high - low + (x.error + call.rounded(x.reach, 4 * ULPS)) * share)


@rule("RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
def _random(call: SpanCall) -> Interval:
    match call.op_type:
        case "Bernoulli":
            return within(call, 0, 1, 1)
        case "Multinomial":
            last = call.span(0).low.shape[-1] - 1
            return within(call, 0, last, last)
    low, high = float(call.attrs.get("low", 0.0)), float(call.attrs.get("high", 1.0))
    return within(call, low, high, call.rounded(np.asarray(max(abs(low), abs(high))), 4))


@rule("RandomNormal", "RandomNormalLike")
def _normal(call: SpanCall) -> Interval:
    raise Unbounded("a normal distribution has no bounds")


@rule("DFT", "STFT")
def _fourier(call: SpanCall) -> Interval:
    """Sums of all elements, turned: no farther from 0 than the sum of their magnitudes."""
    x = call.span(0)
    if call.op_type == "STFT":
        window = call.span(2).reach.sum() if call.has(2) else float(call.constant(3))
        count = float(x.low.size)
        size, moved = (
            each.max(initial=0) * window * x.low.shape[-1] ** (x.low.ndim == 3) for each in (x.reach, x.error)
        )
        moved += x.reach.max(initial=0) * (call.span(2).error.sum() if call.has(2) else 0.0) * 2
    else:
        axis = int(call.constant(2)) if call.has(2) else int(call.attrs.get("axis", 1 if call.opset < 20 else -2))
        count = float(x.low.shape[axis])
        size, moved = (each.sum((axis, -1), keepdims=True) for each in (x.reach, x.error))
        if call.attrs.get("inverse"):
            length = float(call.constant(1)) if call.has(1) else count
            size, moved = size * 2 / length, moved * 2 / length
        elif call.attrs.get("onesided") and x.low.shape[-1] == 2:
            size, moved = size * 2, moved * 2
    slack = 1 + 1e-9
    return within(call, -size * slack, size * slack, moved * slack + call.rounded(np.asarray(size), count + 4 * ULPS))


@rule("TensorScatter")
def _written(call: SpanCall) -> Interval:
    old, new = call.span(0), call.span(1)
    ends = min(old.low.min(), new.low.min()), max(old.high.max(), new.high.max())
    return within(call, *ends, max(old.error.max(), new.error.max()))
