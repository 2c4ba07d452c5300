"""Products of quantized matrices: MatMulInteger, QLinearMatMul.

float32 holds every integer up to 2 ** 24, so that its matrix products are exact as long as no sum is larger. Longer sums are
cut into slices that are exact and added in float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from fx2onnx.semantics.kernels.elementwise import Outs
from fx2onnx.semantics.kernels.matmul import matmul_shape
from fx2onnx.semantics.kernels.threads import multiply
from fx2onnx.semantics.registry import PRIVATE_DOMAIN, Facts, Prepared, kernel
from fx2onnx.semantics.types import FLOAT32, NARROW_INTS, Array, Dtype, Spec, clip, is_integer, widen

EXACT = 1 << 24
INT32 = np.dtype(np.int32)
MAX_KEPT = 1 << 24
"""Elements of constant weights that are kept in float32, four times as large; larger ones are converted at each run."""
FACTOR_BLOCK = 1 << 15
"""Sums are scaled, rounded and cut this many at a time, while they are in the L2 cache."""


@functools.cache
def integer_range(dtype: Dtype) -> tuple[int, int]:
    """The least and the greatest value."""
    info: Any = ml_dtypes.iinfo(dtype) if dtype in NARROW_INTS else np.iinfo(dtype)
    return int(info.min), int(info.max)


def centered(x: Array, zero: Array | None, axes: tuple[int, ...] = (), out: Array | None = None) -> Array:
    """x - zero in float32; a zero point for each row or channel is reshaped to ``axes``."""
    if out is None:
        out = x.astype(FLOAT32)
    else:
        np.copyto(out, x, casting="unsafe")
    if zero is not None and zero.any():
        np.subtract(out, zero.astype(FLOAT32).reshape(axes if zero.size > 1 else ()), out=out)
    return out


def magnitude(dtype: Dtype, zero: Array | None) -> int:
    """The largest |x - zero| that there can be."""
    low, high = integer_range(dtype)
    if zero is None or not zero.size:
        return max(high, -low)
    return max(high - int(zero.min()), int(zero.max()) - low)


def reach(weights: Array, axes: tuple[int, ...]) -> float:
    """The largest sum of |w| over the ``axes``, which a sum of products is at most so many times as large as what is
    multiplied.
    """
    return float(np.abs(weights).sum(axes, np.float64).max(initial=0.0))


def exact_product(a: Array, b: Array, bound: int, out: Array | None = None, most: float = math.inf) -> Array:
    """a @ b of integers in float32, where no product of two is larger than ``bound`` and no sum larger than ``most``: in
    ``out``, or in float64.
    """
    inner, step = a.shape[-1], EXACT // max(bound, 1)
    if inner <= step or most <= EXACT:
        if out is None:
            return np.asarray(np.matmul(a, b))
        multiply(a, b, out)
        return out
    total = np.matmul(a[..., :step], b[..., :step, :]).astype(np.float64)
    for start in range(step, inner, step):
        total += np.matmul(a[..., start : start + step], b[..., start : start + step, :])
    return np.asarray(total)


def to_int32(sums: Array, out: Array) -> None:
    """out = the sums; beyond 32 bits they wrap around."""
    if sums.dtype == np.float64:
        sums = sums.astype(np.int64)
    np.copyto(out, sums, casting="unsafe")


def into_codes(x: Array, zero: Array | None, out: Array, has_nan: bool | None = None) -> None:
    """out = saturate(round(x) + zero); x of float32 is overwritten, and NaN is the least code, as in onnxruntime.

    ``has_nan``: whether x may have NaN; it is looked for where nothing is said.
    """
    low, high = integer_range(out.dtype)
    np.rint(x, x)
    if zero is not None and zero.any():
        np.add(x, zero.astype(FLOAT32), x)
    clip(x, np.asarray(low, FLOAT32), np.asarray(high, FLOAT32), x)
    if has_nan is None:
        line = x.reshape(-1)
        has_nan = bool(np.isnan(np.dot(line, line)))
    if has_nan:
        np.copyto(x, low, where=np.isnan(x))
    np.copyto(out, x, casting="unsafe")


def requantize(sums: Array, factor: Array, zero: Array, out: Array) -> None:
    """out = saturate(round(sums * factor) + zero) in float32, as onnxruntime computes it; the sums, whole numbers, are overwritten.

    Shapes: sums and out alike; factor is a scalar or broadcasts.
    """
    zero = zero.reshape(())
    wide = sums if sums.dtype == FLOAT32 else sums.astype(FLOAT32)
    rows = 1 if wide.ndim < 2 else max(1, FACTOR_BLOCK // max(1, math.prod(wide.shape[1:])))
    has_nan = not np.isfinite(factor).all()
    for start in range(0, len(wide) if wide.ndim else 1, rows):
        part = wide[start : start + rows] if wide.ndim else wide
        by = factor[start : start + rows] if factor.ndim == wide.ndim > 0 and len(factor) > 1 else factor
        np.multiply(part, by, out=part)
        into_codes(part, zero, out[start : start + rows] if wide.ndim else out, has_nan)


def check_codes(*arrays: Array) -> None:
    if any(array.dtype.itemsize != 1 or array.dtype.kind not in "iu" for array in arrays):
        raise TypeError(f"operands of {', '.join(str(array.dtype) for array in arrays)}; there are products of 8 bits")


def _matmul_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    return ((matmul_shape(inputs[0].shape, inputs[1].shape), INT32),)


Weights = Callable[[Array, Array | None], Array]


def kept_weights(facts: Facts, place: int, zero: int, axes: tuple[int, ...]) -> tuple[Array, float] | None:
    """Constant weights less their zero point in float32, with their ``reach``, made once; None where they are not constant, or
    large.
    """
    w = facts.consts[place]
    z = facts.consts[zero] if len(facts.consts) > zero else None
    if w is None or w.size > MAX_KEPT or (len(facts.inputs) > zero and facts.inputs[zero] is not None and z is None):
        return None

    def made() -> tuple[Array, float]:
        weights = np.ascontiguousarray(centered(w, z, axes))
        return weights, reach(weights, (-2,) if len(axes) == 1 else tuple(range(1, w.ndim)))

    return facts.once("weights", (w, z), made)


def _row_axes(zero: Array | None) -> tuple[int, ...]:
    """The shape of zero points of the left operand: one a row."""
    return (-1, 1) if zero is None or zero.ndim < 2 else zero.shape


def _right(b: Array, zero: Array | None, out: Array | None = None) -> Array:
    """The right operand, whose zero points are one a column."""
    return centered(b, zero, (-1,) if zero is None or zero.ndim < 2 else zero.shape, out)


def _sums(a: Array, b: Array, a_zero: Array | None, b_zero: Array | None) -> Array:
    """(a - a_zero) @ (b - b_zero), exact."""
    left = centered(a, a_zero, _row_axes(a_zero))
    return exact_product(left, _right(b, b_zero), magnitude(a.dtype, a_zero) * magnitude(b.dtype, b_zero))


def kept_sums(
    facts: Facts, place: int, zeros: tuple[int, int]
) -> tuple[Callable[..., Array], tuple[Spec, ...], float] | None:
    """A function of the scratch and the operands that gives their exact sums, with the specs of that scratch, and the ``reach`` of b
    where that is constant.
    """
    spec, weights = facts.inputs[0], facts.inputs[place]
    if spec is None or weights is None or len(weights[0]) < 2 or math.prod(weights[0]) > MAX_KEPT:
        return None
    kept = kept_weights(facts, place, zeros[1], (-1,))
    shape, (right, most) = spec[0], kept if kept is not None else (None, math.inf)
    made = ((shape, FLOAT32), (matmul_shape(shape, weights[0]), FLOAT32))

    def sums(room: list[Array], operands: Sequence[Any]) -> Array:
        a, b = operands[0], operands[place]
        a_zero, b_zero = (operands[zero] if len(operands) > zero else None for zero in zeros)
        largest = magnitude(a.dtype, a_zero)
        left = centered(a, a_zero, _row_axes(a_zero), room[0])
        other = _right(b, b_zero, room[2]) if right is None else right
        return exact_product(left, other, largest * magnitude(b.dtype, b_zero), room[1], largest * most)

    return sums, made if kept is not None else (*made, (weights[0], FLOAT32)), most


def _prepare_matmul_integer(facts: Facts) -> Prepared | None:
    kept = kept_sums(facts, 1, (2, 3))
    if kept is None:
        return None
    sums, scratch, _ = kept

    def call(out: Outs, room: list[Array], *operands: Any) -> None:
        to_int32(sums(room, operands), out[0])

    return Prepared(call, scratch, inplace=())


@kernel("MatMulInteger", 10, kind="into", infer=_matmul_infer, prepare=_prepare_matmul_integer)
def matmul_integer(out: Outs, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> None:
    """out[0] = (a - a_zero) @ (b - b_zero), summed in int32."""
    check_codes(a, b)
    to_int32(_sums(a, b, a_zero, b_zero), out[0])


def _scaled_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    if any(one.dtype != FLOAT32 for one in inputs[4:]):
        raise TypeError(f"sums in float32 are scaled by {', '.join(str(one.dtype) for one in inputs[4:])}")
    made = matmul_shape(inputs[0].shape, inputs[1].shape)
    return ((np.broadcast_shapes(made, *(one.shape for one in inputs[4:])), FLOAT32),)


def _scale(sums: Array, factor: Array, bias: Array | None, out: Array) -> None:
    np.multiply(sums if sums.dtype == FLOAT32 else sums.astype(FLOAT32), factor, out=out)
    if bias is not None:
        np.add(out, bias, out=out)


def _prepare_scaled(facts: Facts) -> Prepared | None:
    kept = kept_sums(facts, 1, (2, 3))
    if kept is None:
        return None
    sums, scratch, _ = kept

    def call(out: Outs, room: list[Array], *operands: Any) -> None:
        _scale(sums(room, operands), operands[4], operands[5] if len(operands) > 5 else None, out[0])

    return Prepared(call, scratch, inplace=())


@kernel("ScaledMatMulInteger", domain=PRIVATE_DOMAIN, kind="into", infer=_scaled_infer, prepare=_prepare_scaled)
def scaled_matmul_integer(
    out: Outs, a: Array, b: Array, a_zero: Array | None, b_zero: Array | None, factor: Array, bias: Array | None = None
) -> None:
    """out[0] = (a - a_zero) @ (b - b_zero) * factor + bias, with the bits that MatMulInteger, Cast, Mul and Add have."""
    check_codes(a, b)
    _scale(_sums(a, b, a_zero, b_zero), factor, bias, out[0])


def _qlinear_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    return ((matmul_shape(inputs[0].shape, inputs[3].shape), inputs[7].dtype),)


def _factor(a_scale: Array, b_scale: Array, y_scale: Array) -> Array:
    """The factor of a sum; the left scale may be one a row, the right one a column."""
    left = widen(a_scale)
    left = left[:, None] if left.ndim == 1 and left.size > 1 else left
    factor = np.asarray(left * widen(b_scale) / widen(y_scale), FLOAT32)
    return factor if factor.size > 1 else factor.reshape(())


def _prepare_qlinear_matmul(facts: Facts) -> Prepared | None:
    kept = kept_sums(facts, 3, (2, 5)) if is_integer(facts.outputs[0][1]) else None
    if kept is None:
        return None
    sums, scratch, _ = kept

    def call(out: Outs, room: list[Array], *operands: Array) -> None:
        _, a_scale, _, _, b_scale, _, y_scale, y_zero = operands
        requantize(sums(room, operands), _factor(a_scale, b_scale, y_scale), y_zero, out[0])

    return Prepared(call, scratch, inplace=())


@kernel("QLinearMatMul", 10, kind="into", infer=_qlinear_infer, prepare=_prepare_qlinear_matmul)
def qlinear_matmul(
    out: Outs,
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
) -> None:
    """out[0] = the product of dequantized a and b, quantized again. Numerics: codes of float8 are multiplied in float64."""
    factor = _factor(a_scale, b_scale, y_scale)
    if is_integer(a.dtype) and is_integer(b.dtype) and is_integer(y_zero.dtype):
        requantize(_sums(a, b, a_zero, b_zero), factor, y_zero, out[0])
        return
    left, right = (codes.astype(np.float64) - zero.astype(np.float64) for codes, zero in ((a, a_zero), (b, b_zero)))
    scaled = np.matmul(left, right) * factor + y_zero.astype(np.float64)
    out[0][...] = scaled.astype(y_zero.dtype)
