"""Products of quantized tensors: MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv.

float32 holds every integer up to 2 ** 24, so that its matrix products are exact as long as no sum is larger. Longer sums are
cut into slices that are exact and added in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from fx2onnx.semantics.kernels.conv_first import window_products
from fx2onnx.semantics.kernels.conv_plan import depthwise_last, epilogue, first_form, is_small, taps_last
from fx2onnx.semantics.kernels.elementwise import Outs
from fx2onnx.semantics.kernels.matmul import matmul_shape
from fx2onnx.semantics.kernels.threads import multiply
from fx2onnx.semantics.kernels.windows import Window, conv_window, pad_spatial
from fx2onnx.semantics.registry import Facts, Prepared, kernel
from fx2onnx.semantics.types import FLOAT32, NARROW_INTS, Array, Dtype, Spec, is_integer, widen

EXACT = 1 << 24
INT32 = np.dtype(np.int32)
MAX_KEPT = 1 << 24
"""Elements of constant weights that are kept in float32, four times as large; larger ones are converted at each run."""
FACTOR_BLOCK = 1 << 15
"""Sums are scaled, rounded and cut this many at a time, while they are in the L2 cache."""


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


def exact_product(a: Array, b: Array, bound: int, out: Array | None = None) -> Array:
    """a @ b of integers in float32, where no product of two is larger than ``bound``: in ``out``, or in float64."""
    inner, step = a.shape[-1], EXACT // max(bound, 1)
    if inner <= step:
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


def rounded_to_bounds(x: Array, zero: Array | None, low: float, high: float) -> None:
    """x = min(max(round(x) + zero, low), high), in place."""
    np.rint(x, out=x)
    if zero is not None and zero.any():
        np.add(x, zero, out=x)
    np.clip(x, np.asarray(low, x.dtype), np.asarray(high, x.dtype), out=x)


def requantize(sums: Array, factor: Array, zero: Array, out: Array) -> None:
    """out = saturate(round(sums * factor) + zero) in float32, as onnxruntime computes it; the sums are overwritten.

    Shapes: sums and out alike; factor is a scalar or broadcasts.
    """
    low, high = integer_range(out.dtype)
    shift = zero.astype(FLOAT32).reshape(())
    wide = sums if sums.dtype == FLOAT32 else sums.astype(FLOAT32)
    rows = 1 if wide.ndim < 2 else max(1, FACTOR_BLOCK // max(1, math.prod(wide.shape[1:])))
    for start in range(0, len(wide) if wide.ndim else 1, rows):
        part = wide[start : start + rows] if wide.ndim else wide
        by = factor[start : start + rows] if factor.ndim == wide.ndim > 0 and len(factor) > 1 else factor
        np.multiply(part, by, out=part)
        rounded_to_bounds(part, shift, low, high)
        np.copyto(out[start : start + rows] if wide.ndim else out, part, casting="unsafe")


def _check_codes(*arrays: Array) -> None:
    if any(array.dtype.itemsize != 1 or array.dtype.kind not in "iu" for array in arrays):
        raise TypeError(f"operands of {', '.join(str(array.dtype) for array in arrays)}; there are products of 8 bits")


def _matmul_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    return ((matmul_shape(inputs[0].shape, inputs[1].shape), INT32),)


Weights = Callable[[Array, Array | None], Array]


def _kept_weights(facts: Facts, place: int, zero: int, axes: tuple[int, ...]) -> Array | None:
    """Constant weights less their zero point in float32, made once; None where they are not constant, or large."""
    w = facts.consts[place]
    z = facts.consts[zero] if len(facts.consts) > zero else None
    if w is None or w.size > MAX_KEPT or (len(facts.inputs) > zero and facts.inputs[zero] is not None and z is None):
        return None
    return facts.once("weights", (w, z), lambda: np.ascontiguousarray(centered(w, z, axes)))


def _row_axes(zero: Array | None) -> tuple[int, ...]:
    """The shape of zero points of the left operand: one a row."""
    return (-1, 1) if zero is None or zero.ndim < 2 else zero.shape


def _sums(a: Array, b: Array, a_zero: Array | None, b_zero: Array | None, right: Array | None = None) -> Array:
    """(a - a_zero) @ (b - b_zero), exact."""
    left = centered(a, a_zero, _row_axes(a_zero))
    if right is None:
        right = centered(b, b_zero, (-1,) if b_zero is None or b_zero.ndim < 2 else b_zero.shape)
    return exact_product(left, right, magnitude(a.dtype, a_zero) * magnitude(b.dtype, b_zero))


def _prepare_matmul_integer(facts: Facts) -> Prepared | None:
    right = _kept_weights(facts, 1, 3, (-1,)) if len(facts.outputs[0][0]) else None
    if right is None or facts.inputs[0] is None:
        return None
    (shape, _), (made, _) = facts.inputs[0], facts.outputs[0]

    def call(out: Outs, room: list[Array], a: Array, b: Array, a_zero: Any = None, b_zero: Any = None) -> None:
        left = centered(a, a_zero, _row_axes(a_zero), room[0])
        bound = magnitude(a.dtype, a_zero) * magnitude(b.dtype, b_zero)
        to_int32(exact_product(left, right, bound, room[1]), out[0])

    return Prepared(call, ((shape, FLOAT32), (made, FLOAT32)), inplace=())


@kernel("MatMulInteger", 10, kind="into", infer=_matmul_infer, prepare=_prepare_matmul_integer)
def matmul_integer(out: Outs, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> None:
    """out[0] = (a - a_zero) @ (b - b_zero), summed in int32."""
    _check_codes(a, b)
    to_int32(_sums(a, b, a_zero, b_zero), out[0])


def _qlinear_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    return ((matmul_shape(inputs[0].shape, inputs[3].shape), inputs[7].dtype),)


def _factor(a_scale: Array, b_scale: Array, y_scale: Array) -> Array:
    """What a sum is multiplied with; the left scale may be one a row, the right one a column."""
    left = widen(a_scale)
    left = left[:, None] if left.ndim == 1 and left.size > 1 else left
    factor = np.asarray(left * widen(b_scale) / widen(y_scale), FLOAT32)
    return factor if factor.size > 1 else factor.reshape(())


def _prepare_qlinear_matmul(facts: Facts) -> Prepared | None:
    right = _kept_weights(facts, 3, 5, (-1,)) if len(facts.outputs[0][0]) else None
    if right is None or facts.inputs[0] is None or not is_integer(facts.outputs[0][1]):
        return None
    (shape, _), (made, _) = facts.inputs[0], facts.outputs[0]

    def call(out: Outs, room: list[Array], *inputs: Array) -> None:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
        left = centered(a, a_zero, _row_axes(a_zero), room[0])
        bound = magnitude(a.dtype, a_zero) * magnitude(b.dtype, b_zero)
        sums = exact_product(left, right, bound, room[1])
        requantize(sums, _factor(a_scale, b_scale, y_scale), y_zero, out[0])

    return Prepared(call, ((shape, FLOAT32), (made, FLOAT32)), inplace=())


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


class _IntegerConvolution:
    """The sums of a convolution of integers: in float32 where that is exact, by slices of channels, or in float64."""

    def __init__(self, shape: Sequence[int], weights: Array, window: Window, group: int, bound: int) -> None:
        taps, step = math.prod(window.kernel), EXACT // max(bound, 1)
        ins = weights.shape[1]
        is_depthwise = group != 1 and group == shape[1] == weights.shape[0]
        self.window, self.group, self.weights = window, group, weights
        self.slices: list[tuple[slice, Prepared]] = []
        per = ins if ins * taps <= step else step // taps if group == 1 else 0
        for start in range(0, ins, per) if per and 0 not in (*shape, *window.out, *weights.shape) else ():
            stop = min(start + per, ins)
            cut = slice(None) if stop - start == ins else slice(start, stop)
            if is_depthwise and len(window.out) == 2 and is_small(window):
                bare = epilogue(np.zeros(1, FLOAT32), "", None)
                self.slices.append((slice(None), depthwise_last(shape, taps_last(weights, group), window, bare)))
                continue
            arrange, form = first_form(window, is_depthwise)
            part = (shape[0], shape[1] if cut == slice(None) else stop - start, *shape[2:])
            self.slices.append((cut, form(part, arrange(weights[:, start:stop], group), window)))

    def sums(self, x: Array, y: Array) -> Array:
        """Of x in float32; in ``y``, or in float64."""
        if not self.slices:
            window = self.window
            wide = np.empty(y.shape, np.float64)
            weights = self.weights.astype(np.float64).reshape(self.group, len(self.weights) // self.group, -1)
            window_products(pad_spatial(x.astype(np.float64), window.before, window.after), weights, window, wide)
            return wide
        total: Array | None = None
        if self.slices[0][1].channels_last:
            y = y.reshape(len(y), *y.shape[2:], y.shape[1]).transpose(0, 3, 1, 2)
        for cut, form in self.slices:
            form.fn([y], [np.empty(shape, dtype) for shape, dtype in form.scratch], x[:, cut])
            if len(self.slices) > 1:
                total = y.astype(np.float64) if total is None else np.add(total, y, out=total)
        return y if total is None else total


def _convolution(
    x: Array,
    x_zero: Array | None,
    w: Array,
    w_zero: Array | None,
    attrs: Mapping[str, Any],
    weights: Array | None = None,
) -> _IntegerConvolution:
    if weights is None:
        weights = centered(w, w_zero, (-1, *(1,) * (w.ndim - 1)))
    window = conv_window(x.shape, w.shape, attrs)
    bound = magnitude(x.dtype, x_zero) * magnitude(w.dtype, w_zero)
    return _IntegerConvolution(x.shape, weights, window, attrs.get("group", 1), bound)


def _conv_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, w = inputs[0], inputs[1]
    return (((x.shape[0], w.shape[0], *conv_window(x.shape, w.shape, attrs).out), INT32),)


def qconv_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    """Shape and dtype of QLinearConv's output."""
    x, w = inputs[0], inputs[3]
    return (((x.shape[0], w.shape[0], *conv_window(x.shape, w.shape, attrs).out), inputs[7].dtype),)


def _weight_axes(facts: Facts, place: int) -> tuple[int, ...]:
    spec = facts.inputs[place]
    return (-1, *(1,) * (len(spec[0]) - 1)) if spec is not None else ()


def _prepare_conv_integer(facts: Facts) -> Prepared | None:
    weights = _kept_weights(facts, 1, 3, _weight_axes(facts, 1))
    if weights is None or facts.inputs[0] is None:
        return None
    (shape, _), (made, _) = facts.inputs[0], facts.outputs[0]
    forms: dict[int, _IntegerConvolution] = {}
    window, group = conv_window(shape, weights.shape, facts.attrs), facts.attrs.get("group", 1)

    def call(out: Outs, room: list[Array], x: Array, w: Array, x_zero: Any = None, w_zero: Any = None) -> None:
        bound = magnitude(x.dtype, x_zero) * magnitude(w.dtype, w_zero)
        form = forms.get(bound) or forms.setdefault(bound, _IntegerConvolution(shape, weights, window, group, bound))
        to_int32(form.sums(centered(x, x_zero, (), room[0]), room[1]), out[0])

    return Prepared(call, ((shape, FLOAT32), (made, FLOAT32)), inplace=())


@kernel("ConvInteger", 10, kind="into", infer=_conv_infer, prepare=_prepare_conv_integer)
def conv_integer(
    out: Outs, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None, **attrs: Any
) -> None:
    """out[0] = Conv of int8 or uint8 with zero points, summed in int32."""
    _check_codes(x, w)
    sums = np.empty(out[0].shape, FLOAT32)
    to_int32(_convolution(x, x_zero, w, w_zero, attrs).sums(centered(x, x_zero), sums), out[0])


def _finish_qconv(sums: Array, inputs: Sequence[Any], is_exact: bool, out: Array) -> None:
    """Bias, scale and zero point. A bias that float32 might round goes through float64."""
    x_scale, w_scale, y_scale, y_zero = inputs[1], inputs[4], inputs[6], inputs[7]
    bias = inputs[8] if len(inputs) > 8 else None
    if bias is not None:
        channels = bias.reshape(-1, *(1,) * (sums.ndim - 2))
        sums = np.add(sums, channels.astype(FLOAT32), out=sums) if is_exact else sums + channels.astype(np.float64)
    factor = np.asarray(x_scale * w_scale / y_scale, FLOAT32)
    factor = factor.reshape(-1, *(1,) * (sums.ndim - 2)) if factor.size > 1 else factor.reshape(())
    if sums.ndim == 4 and not sums.flags.c_contiguous:  # channels-last, from a depthwise form
        lines = np.empty(sums.transpose(0, 2, 3, 1).shape, out.dtype)
        for sample, target in zip(sums, lines, strict=True):
            requantize(sample.transpose(1, 2, 0), factor.reshape(-1) if factor.ndim else factor, y_zero, target)
        np.copyto(out, lines.transpose(0, 3, 1, 2))
        return
    for sample, target in zip(sums, out, strict=True):
        requantize(sample, factor, y_zero, target)


def _fits(bound: int, weights: Array, bias: Array | None) -> bool:
    """Return whether every sum and bias is a whole number that float32 has."""
    taps = math.prod(weights.shape[1:])
    return bound * taps + (0 if bias is None or not bias.size else int(np.abs(bias.astype(np.int64)).max())) <= EXACT


def _prepare_qlinear_conv(facts: Facts) -> Prepared | None:
    weights = _kept_weights(facts, 3, 5, _weight_axes(facts, 3))
    if weights is None or facts.inputs[0] is None:
        return None
    (shape, _), (made, _) = facts.inputs[0], facts.outputs[0]
    forms: dict[int, _IntegerConvolution] = {}
    window, group = conv_window(shape, weights.shape, facts.attrs), facts.attrs.get("group", 1)

    def call(out: Outs, room: list[Array], *inputs: Any) -> None:
        x, x_zero, w, w_zero = inputs[0], inputs[2], inputs[3], inputs[5]
        bound = magnitude(x.dtype, x_zero) * magnitude(w.dtype, w_zero)
        form = forms.get(bound) or forms.setdefault(bound, _IntegerConvolution(shape, weights, window, group, bound))
        sums = form.sums(centered(x, x_zero, (), room[0]), room[1])
        _finish_qconv(sums, inputs, _fits(bound, weights, inputs[8] if len(inputs) > 8 else None), out[0])

    return Prepared(call, ((shape, FLOAT32), (made, FLOAT32)), inplace=())


@kernel("QLinearConv", 10, kind="into", infer=qconv_infer, prepare=_prepare_qlinear_conv)
def qlinear_conv(
    out: Outs,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    bias: Array | None = None,
    **attrs: Any,
) -> None:
    """out[0] = the convolution of dequantized x and w, quantized again."""
    _check_codes(x, w, y_zero)
    form = _convolution(x, x_zero, w, w_zero, attrs)
    sums = form.sums(centered(x, x_zero), np.empty(out[0].shape, FLOAT32))
    bound = magnitude(x.dtype, x_zero) * magnitude(w.dtype, w_zero)
    inputs = (x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias)
    _finish_qconv(sums, inputs, _fits(bound, w, bias), out[0])
