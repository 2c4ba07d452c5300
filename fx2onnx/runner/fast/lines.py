"""Element-wise functions in one pass, and quantization."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.runner.fast.compiled import (
    compiled,
    erf,
    exp,
    expm1,
    f32,
    in_memory_order,
    into_code,
    is_plain,
    number_of,
    operand,
    ordered,
)
from fx2onnx.runner.fast.taps import HAS_HALVES, LANES, halves
from fx2onnx.semantics.kernels.elementwise import Call, Outs
from fx2onnx.semantics.kernels.integer_products import integer_range
from fx2onnx.semantics.registry import Calls, Facts, Prepared
from fx2onnx.semantics.types import Array, numpy_dtype_of_code

Loop = Callable[[Array, Array, Any, Any], None]


@compiled
def _erf(x: Array, y: Array, a: Any, b: Any) -> None:
    for i in range(x.size):
        y[i] = erf(x[i])


@compiled
def _exp(x: Array, y: Array, a: Any, b: Any) -> None:
    for i in range(x.size):
        y[i] = exp(x[i])


@compiled
def _gelu(x: Array, y: Array, a: Any, b: Any) -> None:
    for i in range(x.size):
        y[i] = x[i] * (f32(0.5) + f32(0.5) * erf(x[i] * f32(0.7071067811865476)))


@compiled
def _gelu_tanh(x: Array, y: Array, a: Any, b: Any) -> None:
    """The tanh form is x * sigmoid(2 u) with u the inner cubic."""
    for i in range(x.size):
        minus_twice = x[i] * (f32(-1.5957691216) + f32(-0.0713548162) * x[i] * x[i])
        y[i] = x[i] / (f32(1) + exp(minus_twice))


@compiled
def _sigmoid(x: Array, y: Array, a: Any, b: Any) -> None:
    for i in range(x.size):
        y[i] = f32(1) / (f32(1) + exp(-x[i]))


@compiled
def _hard_sigmoid(x: Array, y: Array, a: Any, b: Any) -> None:
    for i in range(x.size):
        z = x[i] * a + b
        z = z if z > f32(0) or z != z else f32(0)
        y[i] = f32(1) if z > f32(1) else z


@compiled
def _hard_swish(x: Array, y: Array, a: Any, b: Any) -> None:
    for i in range(x.size):
        z = x[i] * a + b
        z = z if z > f32(0) or z != z else f32(0)
        y[i] = x[i] * (f32(1) if z > f32(1) else z)


@compiled
def _leaky(x: Array, y: Array, a: Any, b: Any) -> None:
    for i in range(x.size):
        y[i] = x[i] if x[i] >= f32(0) else a * x[i]


@compiled
def _thresholded(x: Array, y: Array, a: Any, b: Any) -> None:
    for i in range(x.size):
        y[i] = x[i] if x[i] > a else f32(0)


@compiled
def _exponential(x: Array, y: Array, a: Any, b: Any) -> None:
    """b * x above 0, a * (exp(x) - 1) below."""
    for i in range(x.size):
        y[i] = b * x[i] if x[i] > f32(0) else a * expm1(x[i])


@compiled
def _mish(x: Array, y: Array, a: Any, b: Any) -> None:
    """tanh(log(1 + e)) is n / (n + 2) with n = e * (e + 2); from x = 20 on it is 1."""
    for i in range(x.size):
        e = exp(min(x[i], f32(20)))
        n = e * (e + f32(2))
        y[i] = x[i] * (n / (n + f32(2))) if x[i] == x[i] else x[i]


@compiled
def _softplus(x: Array, y: Array, a: Any, b: Any) -> None:
    """max(x, 0) + log(1 + e) with e = exp(-|x|), by 2 artanh(e / (2 + e))."""
    for i in range(x.size):
        e = exp(-abs(x[i]))
        s = e / (f32(2) + e)
        t = s * s
        p = f32(0.13333334)
        p = p * t + f32(0.15384616)
        p = p * t + f32(0.18181819)
        p = p * t + f32(0.22222222)
        p = p * t + f32(0.2857143)
        p = p * t + f32(0.4)
        p = p * t + f32(0.6666667)
        p = p * t + f32(2)
        y[i] = max(x[i], f32(0)) + s * p if x[i] == x[i] else x[i]


def _of(loop: Loop, a: float = 0.0, b: float = 0.0) -> Callable[[Facts], Prepared | None]:
    return lambda facts: _prepared(facts, loop, a, b)


def _prepared(facts: Facts, loop: Loop, a: float = 0.0, b: float = 0.0) -> Prepared | None:
    if not is_plain(facts.inputs[0]):
        return None
    first, second = f32(a), f32(b)
    is_last = facts.channels_last[0]

    def calls(out: Outs, room: list[Array], x: Array) -> list[Call]:
        y = in_memory_order(out[0]) if is_last else out[0]
        source, made = operand(in_memory_order(x) if is_last else x, (x.size,))
        return [*made, partial(loop, source, y.reshape(-1), first, second)]

    return Prepared(Calls(calls), channels_last=is_last, inplace=())


def prepare_Gelu(facts: Facts) -> Prepared | None:
    kind = facts.attrs.get("approximate", "none")
    return _prepared(facts, _gelu_tanh if kind == "tanh" else _gelu) if kind in ("none", "tanh") else None


def prepare_HardSigmoid(facts: Facts) -> Prepared | None:
    return _prepared(facts, _hard_sigmoid, facts.attrs.get("alpha", 0.2), facts.attrs.get("beta", 0.5))


def prepare_LeakyRelu(facts: Facts) -> Prepared | None:
    return _prepared(facts, _leaky, facts.attrs.get("alpha", 0.01))


def prepare_ThresholdedRelu(facts: Facts) -> Prepared | None:
    return _prepared(facts, _thresholded, facts.attrs.get("alpha", 1.0))


def prepare_Elu(facts: Facts) -> Prepared | None:
    return _prepared(facts, _exponential, facts.attrs.get("alpha", 1.0), 1.0)


def prepare_Selu(facts: Facts) -> Prepared | None:
    gamma = facts.attrs.get("gamma", 1.05070102214813232421875)
    return _prepared(facts, _exponential, facts.attrs.get("alpha", 1.67326319217681884765625) * gamma, gamma)


prepare_Erf, prepare_Exp, prepare_Sigmoid = _of(_erf), _of(_exp), _of(_sigmoid)
prepare_HardSwish, prepare_Mish, prepare_Softplus = _of(_hard_swish, 1 / 6, 0.5), _of(_mish), _of(_softplus)


@compiled
def _quantize(x: Array, y: Array, scale: Any, zero: Any, low: Any, high: Any) -> None:
    for i in range(x.size):
        y[i] = into_code(x[i] / scale, zero, low, high)


def _quantize_by(x: Array, y: Array, scale: Array, zero: Array | None, low: Any, high: Any) -> None:
    shift = f32(0) if zero is None else f32(zero.item())
    _quantize(x, y, f32(scale.item()), shift, low, high)


def prepare_QuantizeLinear(facts: Facts) -> Prepared | None:
    scale, dtype = facts.inputs[1], facts.outputs[0][1]
    if not is_plain(facts.inputs[0]) or scale is None or scale[0] not in ((), (1,)) or scale[1] != f32:
        return None
    zero = facts.inputs[2] if len(facts.inputs) > 2 else None
    if dtype not in (np.dtype(np.uint8), np.dtype(np.int8)) or facts.attrs.get("precision") or any(facts.channels_last):
        return None
    if zero is not None and zero[0] != scale[0]:
        return None
    low, high = map(f32, integer_range(dtype))

    def calls(out: Outs, room: list[Array], x: Array, scale: Array, zero: Array | None = None) -> list[Call]:
        source, made = operand(x, (x.size,))
        return [*made, partial(_quantize_by, source, out[0].reshape(-1), scale, zero, low, high)]

    return Prepared(Calls(calls), inplace=())


@compiled
def _quantize_by_range(x: Array, y: Array, scale: Array, zero: Array) -> None:
    low, high = ordered(f32(0)), ordered(f32(0))
    for i in range(x.size):
        low = min(low, ordered(x[i]))
        high = max(high, ordered(x[i]))
    least, most = number_of(low), number_of(high)
    by = (most - least) / f32(255) if most != least else f32(1)
    shift = f32(0) if by == f32(0) else min(max(np.rint(-least / by), f32(0)), f32(255))
    scale[0], zero[0] = by, np.uint8(shift)
    by = f32(1) if by == f32(0) else by
    for i in range(x.size):
        y[i] = into_code(x[i] / by, shift, f32(0), f32(255))


@compiled
def _dequantize(x: Array, y: Array, scale: Array, zero: Array) -> None:
    """Shapes: x, y [rows, columns], scale, zero [numbers], which repeat from row to row."""
    for r in range(x.shape[0]):
        by, shift = scale[r % scale.size], zero[r % scale.size]
        for j in range(x.shape[1]):
            y[r, j] = (f32(x[r, j]) - shift) * by


def call_DequantizeLinear(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Array | None:
    """Bytes with one scale, or one for each of an axis other than the last."""
    is_plain_type = x.dtype in (np.dtype(np.uint8), np.dtype(np.int8)) and scale.dtype == f32
    if not is_plain_type or scale.ndim > 1 or block_size or output_dtype or x.size < LANES:
        return None
    if zero_point is not None and (zero_point.dtype != x.dtype or zero_point.shape != scale.shape):
        return None
    columns = x.size
    if scale.size != 1:
        if not -x.ndim <= axis < x.ndim or x.shape[axis] != scale.size:
            return None
        columns = math.prod(x.shape[axis % x.ndim + 1 :])
        if columns < LANES:
            return None
    y, by = np.empty(x.shape, f32), np.array(scale, f32).reshape(-1)
    shift = np.zeros(by.size, f32) if zero_point is None else zero_point.astype(f32).reshape(-1)
    _dequantize(np.require(x, None, ["C", "W"]).reshape(-1, columns), y.reshape(-1, columns), by, shift)
    return y


def prepare_DynamicQuantizeLinear(facts: Facts) -> Prepared | None:
    if not is_plain(facts.inputs[0]) or len(facts.outputs) < 3 or any(facts.channels_last):
        return None

    def calls(out: Outs, room: list[Array], x: Array) -> list[Call]:
        source, made = operand(x, (x.size,))
        codes, scale, zero = (one.reshape(-1) for one in out)
        return [*made, partial(_quantize_by_range, source, codes, scale, zero)]

    return Prepared(Calls(calls), inplace=())


@compiled
def _to_half(x: Array, y: Array) -> None:
    """Shapes: x float32, y uint16, which holds the bits."""
    whole = x.size // LANES * LANES
    halves(x.ctypes.data, y.ctypes.data, whole, LANES, 0)
    halves(x.ctypes.data + 4 * whole, y.ctypes.data + 2 * whole, x.size - whole, 1, 0)


@compiled
def _from_half(x: Array, y: Array) -> None:
    """Shapes: x uint16, which holds the bits, y float32."""
    whole = x.size // LANES * LANES
    halves(x.ctypes.data, y.ctypes.data, whole, LANES, 1)
    halves(x.ctypes.data + 2 * whole, y.ctypes.data + 4 * whole, x.size - whole, 1, 1)


@compiled
def _to_integers(x: Array, y: Array) -> None:
    """Toward zero; the low bits of a 32-bit number, the least one out of range."""
    for i in range(x.size):
        y[i] = np.int32(x[i])


def to_half(x: Array, y: Array) -> None:
    """y = float32 as float16, both in C order."""
    _to_half(np.require(x, None, ["C", "W"]).reshape(-1), y.reshape(-1).view(np.uint16))


def from_half(x: Array, y: Array) -> None:
    """y = float16 as float32, in C order."""
    _from_half(np.require(x, None, ["C", "W"]).reshape(-1).view(np.uint16), y.reshape(-1))


_INTEGERS = frozenset(np.dtype(one) for one in (np.int8, np.uint8, np.int16, np.uint16, np.int32))


def call_Cast(x: Array, *, to: Any, **_: Any) -> Array | None:
    """float16 -> float32, and float32 -> float16 and integers but uint32, whose numbers out of range hang on the processor."""
    dtype = numpy_dtype_of_code(to) if isinstance(to, int) else None
    is_half, is_plain_type = x.dtype == np.float16 and dtype == f32, x.dtype == f32 and dtype in _INTEGERS
    is_either = is_half or (x.dtype == f32 and dtype == np.float16)
    if x.size < LANES or not (is_plain_type or (is_either and HAS_HALVES)):
        return None
    y = np.empty(x.shape, dtype)
    if is_either:
        (from_half if is_half else to_half)(x, y)
    else:
        _to_integers(np.require(x, None, ["C", "W"]).reshape(-1), y.reshape(-1))
    return y
