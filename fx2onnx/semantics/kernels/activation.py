"""Activation functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.elementwise import Call, Outs, broadcast_first, check_same_dtype, each, select
from fx2onnx.semantics.registry import Calls, kernel, same_as_first
from fx2onnx.semantics.types import NARROW_FLOATS, Array, clip, narrowed, widen

_F = np.float32
TILE = 1 << 15
"""Elements per tile of the multi-pass functions: 128 KiB of float32 and its scratch stay in the L2 cache."""


def scalar(value: float, x: Array) -> Array:
    """A 0-d constant of x's dtype; the cheapest operand for a ufunc."""
    return np.asarray(value, x.dtype)


WIDE = "fd"
"""The dtypes, by their characters, that NumPy clips in one vectorized pass; a maximum with a scalar takes three times as long."""
BOUNDS = {char: [np.asarray(bound, char) for bound in (0, np.inf, -np.inf, 1)] for char in WIDE}


def positive_part(x: Array, out: Array) -> None:
    """out = max(x, 0); NaN stays NaN."""
    if x.dtype.char in WIDE:
        zero, most, *_ = BOUNDS[x.dtype.char]
        clip(x, zero, most, out)
    else:
        np.maximum(x, scalar(0, x), out)


def negative_part(x: Array, out: Array) -> None:
    """out = min(x, 0); NaN stays NaN."""
    if x.dtype.char in WIDE:
        zero, _, least, _ = BOUNDS[x.dtype.char]
        clip(x, least, zero, out)
    else:
        np.minimum(x, scalar(0, x), out)


def by_tiles(x: Array, out: Array, tile: Callable[[Array, Array, Array], None]) -> None:
    """``tile(part of x, part of out, scratch)`` over parts of ``TILE`` elements, narrow floats in float32."""
    wide = widen(x)
    is_direct = wide.dtype == out.dtype and wide.flags.c_contiguous and out.flags.c_contiguous
    flat = np.ascontiguousarray(wide).reshape(-1)
    target = out.reshape(-1) if is_direct else np.empty_like(flat)
    scratch = np.empty(min(TILE, x.size), flat.dtype)
    for start in range(0, x.size, TILE):
        part = flat[start : start + TILE]
        tile(part, target[start : start + TILE], scratch[: part.size])
    if not is_direct:
        out[...] = target.reshape(out.shape)


@kernel("Relu", kind="into", infer=same_as_first, inplace=(0,), elementwise=True)
@Calls
def relu(out: Outs, x: Array, **_: Any) -> list[Call]:
    """out[0] = max(x, 0)."""
    if x.dtype.char in WIDE:
        return [each(clip, out[0], x, *BOUNDS[x.dtype.char][:2])]
    return [each(np.maximum, out[0], x, scalar(0, x))]


def _sigmoid_of_narrow(x: Array, out: Array) -> None:
    wide = x.astype(_F)
    out[...] = (_F(1) / (_F(1) + np.exp(-wide))).astype(x.dtype)


@kernel("Sigmoid", kind="into", infer=same_as_first, inplace=(0,), elementwise=True)
@Calls
def sigmoid(out: Outs, x: Array, **_: Any) -> list[Call]:
    """out[0] = 1 / (1 + exp(-x)). exp overflows to inf, which gives the right 0."""
    y, one = out[0], scalar(1, x)
    if x.dtype in NARROW_FLOATS:
        return [functools.partial(_sigmoid_of_narrow, x, y)]
    return [each(np.negative, y, x), each(np.exp, y, y), each(np.add, y, y, one), each(np.divide, y, one, y)]


@kernel("HardSigmoid", kind="into", infer=same_as_first, inplace=(0,), elementwise=True)
@Calls
def hard_sigmoid(out: Outs, x: Array, *, alpha: float = 0.2, beta: float = 0.5, **_: Any) -> list[Call]:
    """out[0] = clip(alpha * x + beta, 0, 1)."""
    y = out[0]
    line = [each(np.multiply, y, x, scalar(alpha, x)), each(np.add, y, y, scalar(beta, x))]
    if x.dtype.char in WIDE:
        return [*line, each(clip, y, y, *BOUNDS[x.dtype.char][::3])]
    return [*line, each(np.maximum, y, y, scalar(0, x)), each(np.minimum, y, y, scalar(1, x))]


@kernel("HardSwish", 14, kind="into", infer=same_as_first, elementwise=True)
@Calls
def hard_swish(out: Outs, x: Array) -> list[Call]:
    """out[0] = x * clip(x / 6 + 0.5, 0, 1)."""
    return [*hard_sigmoid.bind(out, x, alpha=1 / 6, beta=0.5), each(np.multiply, out[0], out[0], x)]


@kernel("LeakyRelu", kind="into", infer=same_as_first, elementwise=True)
@Calls
def leaky_relu(out: Outs, x: Array, *, alpha: float = 0.01, **_: Any) -> list[Call]:
    """out[0] = x where x >= 0 else alpha * x."""
    scaled = each(np.multiply, out[0], x, scalar(alpha, x))
    if x.dtype.char in WIDE and 0 < alpha < math.inf:
        return [scaled, each(np.maximum if alpha <= 1 else np.minimum, out[0], x, out[0])]
    return [scaled, functools.partial(_put_positive, out[0], x)]


def _put_positive(out: Array, x: Array) -> None:
    np.copyto(out, x, where=x >= 0)


@kernel("PRelu", 7, kind="into", infer=broadcast_first, elementwise=True)
def prelu(out: Outs, x: Array, slope: Array) -> None:
    """out[0] = x where x >= 0 else slope * x; slope broadcasts to x."""
    check_same_dtype((x, slope))
    if x.dtype.char in WIDE and np.isfinite(slope).all():
        negative_part(x, out[0])
        np.multiply(out[0], slope, out=out[0])
        above = np.empty_like(x)
        positive_part(x, above)
        np.add(out[0], above, out=out[0])
        return
    np.multiply(x, slope, out=out[0])
    np.copyto(out[0], x, where=x >= 0)


@kernel("PRelu", 1)
def prelu_1(x: Array, slope: Array, **_: Any) -> Array:
    """PRelu of opsets 1-6: slope is one number or one per channel."""
    if slope.ndim == 1 and slope.size > 1:
        slope = slope.reshape((1, -1) + (1,) * (x.ndim - 2))
    return np.where(x >= 0, x, slope * x)


def _exponential(low: float, high: float) -> Callable[[Array, Array, Array], None]:
    """high * max(x, 0) + low * (exp(min(x, 0)) - 1): one of the two is 0."""

    def tile(x: Array, out: Array, room: Array) -> None:
        negative_part(x, room)
        np.expm1(room, out=room)
        np.multiply(room, scalar(low, x), out=room)
        positive_part(x, out)
        if high != 1:
            np.multiply(out, scalar(high, x), out=out)
        np.add(out, room, out=out)

    return tile


@kernel("Elu", kind="into", infer=same_as_first, elementwise=True)
def elu(out: Outs, x: Array, *, alpha: float = 1.0, **_: Any) -> None:
    """out[0] = x where x > 0 else alpha * (exp(x) - 1)."""
    by_tiles(x, out[0], _exponential(alpha, 1))


@kernel("Selu", kind="into", infer=same_as_first, elementwise=True)
def selu(
    out: Outs,
    x: Array,
    *,
    alpha: float = 1.67326319217681884765625,
    gamma: float = 1.05070102214813232421875,
    **_: Any,
) -> None:
    """out[0] = gamma * (x where x > 0 else alpha * (exp(x) - 1))."""
    by_tiles(x, out[0], _exponential(alpha * gamma, gamma))


@kernel("Celu", 12)
def celu(x: Array, *, alpha: float = 1.0) -> Array:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    wide = widen(x)
    a = scalar(alpha, wide)
    low = np.minimum(0, a * np.expm1(np.minimum(wide / a, 0) if alpha > 0 else wide / a))
    return narrowed((np.maximum(wide, 0) + low), x.dtype)


def _softplus(x: Array, out: Array, room: Array) -> None:
    """max(x, 0) + log(1 + e) with e = exp(-|x|), as log(u) + (e - (u - 1)) / u where u is 1 + e as it is rounded."""
    one, e = scalar(1, x), np.empty_like(x)
    np.abs(x, out=e)
    np.negative(e, out=e)
    np.exp(e, out=e)
    np.add(e, one, out=room)
    np.subtract(room, one, out=out)
    np.subtract(e, out, out=e)
    np.divide(e, room, out=e)
    np.log(room, out=room)
    np.add(room, e, out=room)
    positive_part(x, out)
    np.add(out, room, out=out)


@kernel("Softplus", kind="into", infer=same_as_first, elementwise=True)
def softplus(out: Outs, x: Array) -> None:
    """out[0] = log(1 + exp(x)), without overflow."""
    by_tiles(x, out[0], _softplus)


@kernel("Softsign")
def softsign(x: Array) -> Array:
    """x / (1 + |x|)."""
    wide = widen(x)
    return narrowed((wide / (1 + np.abs(wide))), x.dtype)


@kernel("ThresholdedRelu", 10, kind="into", infer=same_as_first, elementwise=True)
def thresholded_relu(out: Outs, x: Array, *, alpha: float = 1.0) -> None:
    """out[0] = x where x > alpha else 0."""
    select(out[0], x > scalar(alpha, x), x, scalar(0, x))


@kernel("Shrink", 9)
def shrink(x: Array, *, bias: float = 0.0, lambd: float = 0.5) -> Array:
    """x + bias where x < -lambd, x - bias where x > lambd, else 0."""
    wide = x.astype(np.float64) if x.dtype.kind in "iu" else widen(x)
    result = np.where(wide < -lambd, wide + bias, np.where(wide > lambd, wide - bias, 0))
    return np.asarray(result).astype(x.dtype, copy=False)


def _mish(x: Array, out: Array, room: Array) -> None:
    """tanh(log(1 + e)) is n / (n + 2) with n = e * (e + 2); from x = 20 on it is 1."""
    two = scalar(2, x)
    np.clip(x, BOUNDS[x.dtype.char][2], scalar(20, x), out=room)
    np.exp(room, out=room)
    np.add(room, two, out=out)
    np.multiply(room, out, out=room)
    np.add(room, two, out=out)
    np.divide(room, out, out=room)
    np.multiply(x, room, out=out)


@kernel("Mish", 18, kind="into", infer=same_as_first, elementwise=True)
def mish(out: Outs, x: Array) -> None:
    """out[0] = x * tanh(softplus(x))."""
    by_tiles(x, out[0], _mish)


@kernel("Swish", 24)
def swish(x: Array, *, alpha: float = 1.0) -> Array:
    """x / (1 + exp(-alpha * x))."""
    wide = widen(x)
    return narrowed((wide / (1 + np.exp(scalar(-alpha, wide) * wide))), x.dtype)


@kernel("Clip", 11, kind="into", infer=same_as_first, inplace=(0,), elementwise=True)
@Calls
def clip_(out: Outs, x: Array, low: Array | None = None, high: Array | None = None) -> list[Call]:
    """out[0] = min(max(x, low), high)."""
    bounds = [bound for bound in (low, high) if bound is not None]
    check_same_dtype((x, *bounds))
    if any(bound.size != 1 for bound in bounds):
        raise ValueError("min and max must be scalars")
    if x.dtype.kind in "fiu" and x.dtype not in NARROW_FLOATS and bounds and (len(bounds) > 1 or x.dtype.char in WIDE):
        low, high = (
            (BOUNDS[x.dtype.char][2] if low is None else low),
            (BOUNDS[x.dtype.char][1] if high is None else high),
        )
        return [each(clip, out[0], x, low, high)]
    ufuncs = [ufunc for bound, ufunc in ((low, np.maximum), (high, np.minimum)) if bound is not None]
    made = [
        each(ufunc, out[0], out[0] if place else x, bound)
        for place, (ufunc, bound) in enumerate(zip(ufuncs, bounds, strict=True))
    ]
    return made or [functools.partial(np.copyto, out[0], x)]


@kernel("Clip", 1)
def clip_1(x: Array, *, min: float = -3.4028234663852886e38, max: float = 3.4028234663852886e38, **_: Any) -> Array:
    """Clip of opsets 1-10: the bounds are attributes."""
    return np.minimum(np.maximum(x, scalar(min, x)), scalar(max, x))


_ALPHA = [np.asarray(c, _F) for c in (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)]  # fmt: skip
_BETA = [np.asarray(c, _F) for c in (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
    -1.42647390514189e-02)]  # fmt: skip
_FOUR, _MINUS_FOUR = np.asarray(_F(4)), np.asarray(_F(-4))
_ONE, _HALF, _SQRT_HALF = np.asarray(_F(1)), np.asarray(_F(0.5)), np.asarray(_F(math.sqrt(0.5)))


def erf_tile(x: Array, out: Array, square: Array, lower: Array) -> None:
    """out = erf(x) in float32; ``square`` and ``lower`` are scratch of x's shape, out may be x.

    Numerics: error at most 4.2e-7. Source: the 13/8 rational approximation of Eigen's ``generic_fast_erf``.
    """
    np.clip(x, _MINUS_FOUR, _FOUR, out=out)
    np.multiply(out, out, out=square)
    for coefficients, join in ((_BETA, np.divide), (_ALPHA, np.multiply)):
        np.multiply(square, coefficients[0], out=lower)
        for coefficient in coefficients[1:-1]:
            np.add(lower, coefficient, out=lower)
            np.multiply(lower, square, out=lower)
        np.add(lower, coefficients[-1], out=lower)
        join(out, lower, out=out)


_erf_exact = np.frompyfunc(math.erf, 1, 1)


def erf_array(x: Array) -> Array:
    """erf for any float dtype; float64 by the C library, one element at a time."""
    if x.dtype == np.float32:
        y = np.empty(x.shape, _F)
        erf_tile(x, y, np.empty_like(y), np.empty_like(y))
        return y
    if x.dtype == np.float64:
        return np.asarray(_erf_exact(x)).astype(np.float64)
    return erf_array(x.astype(_F)).astype(x.dtype)


@kernel("Erf", 9, kind="into", infer=same_as_first, elementwise=True)
def erf(out: Outs, x: Array) -> None:
    """out[0] = erf(x).

    Buffers: two scratch tiles of ``TILE`` elements. Numerics: see ``erf_tile``; float64 is exact to the last bit or two.
    """
    y = out[0]
    if x.dtype != np.float32 or not (x.flags.c_contiguous and y.flags.c_contiguous):
        y[...] = erf_array(x)
        return
    flat, target = x.reshape(-1), y.reshape(-1)
    square, lower = np.empty(min(TILE, x.size), _F), np.empty(min(TILE, x.size), _F)
    for start in range(0, x.size, TILE):
        part = flat[start : start + TILE]
        erf_tile(part, target[start : start + TILE], square[: part.size], lower[: part.size])


@kernel("Gelu", 20, kind="into", infer=same_as_first, elementwise=True)
def gelu(out: Outs, x: Array, *, approximate: str = "none") -> None:
    """out[0] = x * (1 + erf(x / sqrt 2)) / 2, or the tanh form.

    Buffers: three scratch tiles of ``TILE`` elements.
    """
    y = out[0]
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate is {approximate!r}, not 'none' or 'tanh'")
    if x.dtype != np.float32 or not (x.flags.c_contiguous and y.flags.c_contiguous):
        y[...] = _gelu_plain(widen(x), approximate)
        return
    flat, target = x.reshape(-1), y.reshape(-1)
    first, second, third = (np.empty(min(TILE, x.size), _F) for _ in range(3))
    tile = gelu_tanh_tile if approximate == "tanh" else gelu_tile
    for start in range(0, x.size, TILE):
        part = flat[start : start + TILE]
        n = part.size
        tile(part, target[start : start + TILE], first[:n], second[:n], third[:n])


def _gelu_plain(x: Array, approximate: str) -> Array:
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return np.asarray(0.5 * x * (1 + np.tanh(inner)), x.dtype)
    return np.asarray(0.5 * x * (1 + erf_array(np.asarray(x * math.sqrt(0.5), x.dtype))), x.dtype)


def gelu_tile(x: Array, out: Array, first: Array, second: Array, third: Array) -> None:
    """out = exact GELU of x in float32; out may be x."""
    np.multiply(x, _SQRT_HALF, out=first)
    erf_tile(first, first, second, third)
    np.add(first, _ONE, out=first)
    np.multiply(first, _HALF, out=first)
    np.multiply(first, x, out=out)


_TANH_SCALE = np.asarray(_F(-2 * math.sqrt(2 / math.pi)))
_TANH_CUBIC = np.asarray(_F(-2 * math.sqrt(2 / math.pi) * 0.044715))


def gelu_tanh_tile(x: Array, out: Array, first: Array, second: Array, third: Array) -> None:
    """out = tanh-form GELU of x in float32, as x * sigmoid(2 u) with u the inner cubic; out may be x."""
    np.multiply(x, x, out=first)
    np.multiply(first, _TANH_CUBIC, out=first)
    np.add(first, _TANH_SCALE, out=first)
    np.multiply(first, x, out=first)
    np.exp(first, out=first)
    np.add(first, _ONE, out=first)
    np.divide(x, first, out=out)


@kernel("SwiGLU", 28)
def swi_glu(a: Array, b: Array, *, alpha: float = 1.0) -> Array:
    """a * sigmoid(alpha * a) * b."""
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ValueError(f"{a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)} differ")
    return narrowed(swish(a, alpha=alpha) * b, a.dtype)
