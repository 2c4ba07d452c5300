"""onnxruntime's products, poolings and softmax of quantized tensors, and products that quantize as they run.

Numerics: float32, as in onnxruntime's own kernels, rounded half to even. Its vector code sums in another order, so a value
that lies between two codes may become the other one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.contrib import MICROSOFT
from fx2onnx.semantics.kernels.contrib.codes import codes_of, dequantized, number
from fx2onnx.semantics.kernels.elementwise import Outs
from fx2onnx.semantics.kernels.integer_convolutions import qconv_infer, qlinear_conv
from fx2onnx.semantics.kernels.integer_products import (
    EXACT,
    centered,
    exact_product,
    integer_range,
    kept_sums,
    magnitude,
    requantize,
    to_int32,
)
from fx2onnx.semantics.kernels.matmul import integer_product, matmul_shape
from fx2onnx.semantics.kernels.norm import as_matrix, check_axis
from fx2onnx.semantics.kernels.pool import average_pool, global_average_pool, over_windows, pool_infer, pool_window
from fx2onnx.semantics.kernels.quant import dequantize_linear, quantize_infer, quantize_linear
from fx2onnx.semantics.kernels.windows import Window
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import Facts, Prepared, kernel
from fx2onnx.semantics.types import FLOAT32, Array, Spec, clip

kernel("QuantizeLinear", domain=MICROSOFT, kind="into", infer=quantize_infer)(quantize_linear)
kernel("DequantizeLinear", domain=MICROSOFT)(dequantize_linear)


@kernel("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(
    x: Array,
    scale: Array,
    zero: Array | None,
    y_scale: Array,
    y_zero: Array,
    *,
    opset: int,
    axis: int = -1,
) -> Array:
    """The softmax of dequantized x, quantized again; below ``opset`` 13 over all axes from ``axis`` on.

    Numerics: in integers, as in onnxruntime: exponentials from a table, 1 / ``y_scale`` cut to a whole number.
    """
    low, _ = integer_range(x.dtype)
    number(zero, "x_zero_point")
    place = check_axis(axis, x.ndim)
    rows = as_matrix(x, axis) if opset < 13 else np.moveaxis(x, place, -1)
    codes = rows.astype(np.int64) - low
    if not codes.size:
        return x.copy()
    one = min(float((1 << 32) - 1) / codes.shape[-1], float(0x7FFFFF))
    table = (one * np.exp((np.arange(256) - 255) * float(number(scale, "X_scale")))).astype(np.uint64)
    powers = table[codes + (255 - codes.max(axis=-1, keepdims=True))]
    total = np.maximum(powers.sum(axis=-1, keepdims=True), 1)
    steps = np.uint64(max(np.floor(np.float32(1) / number(y_scale, "y_scale")), 0))
    shares = ((powers * steps + total // 2) // total).astype(np.int64)
    y = np.clip(shares + int(number(y_zero, "y_zero_point")), *integer_range(x.dtype)).astype(x.dtype)
    return np.ascontiguousarray(y.reshape(x.shape) if opset < 13 else np.moveaxis(y, -1, place))


def _channels_second(x: Array) -> Array:
    if x.ndim < 3:
        raise ValueError(f"the input has {x.ndim} axes, it must have 3 or more")
    return np.moveaxis(x, -1, 1)


def _channels_last(y: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(y, 1, -1))


@kernel("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(
    x: Array,
    scale: Array,
    zero: Array | None,
    y_scale: Array,
    y_zero: Array | None = None,
    *,
    channels_last: int = 0,
    **attrs: Any,
) -> Array:
    """The mean of each window of dequantized x, quantized again; pads count, if asked to, and what is beyond them, too."""
    wide = dequantized(_channels_second(x) if channels_last else x, scale, zero, "X")
    (shape, dtype), *_ = pool_infer([wide], attrs)
    check_shape(shape, dtype)
    if attrs.get("count_include_pad"):
        window = pool_window(wide.shape, attrs["kernel_shape"], attrs)
        means = over_windows(wide, window, np.add, 0) / np.float32(math.prod(window.kernel))
    else:
        means = np.empty(shape, dtype)
        average_pool([means], wide, **attrs)
    y = codes_of(means, y_scale, y_zero, x.dtype)
    return _channels_last(y) if channels_last else y


@kernel("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(
    x: Array, scale: Array, zero: Array, y_scale: Array, y_zero: Array, *, channels_last: int = 0
) -> Array:
    """The mean over all spatial axes of dequantized x, quantized again."""
    wide = dequantized(_channels_second(x) if channels_last else x, scale, zero, "X")
    y = codes_of(global_average_pool(wide), y_scale, y_zero, x.dtype)
    return _channels_last(y) if channels_last else y


@kernel("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(x: Array, *, kernel_shape: Sequence[int], **attrs: Any) -> Array:
    """The maximum of each window, which may be larger than the image; channels are the last axis, over which windows of one move."""
    channels = x.shape[-1] if x.ndim else 0
    window = pool_window((len(x), channels, *x.shape[1:-1]), kernel_shape, attrs, may_exceed=True)
    shape = (len(x), *window.out, channels)
    check_shape(shape, x.dtype)
    if 0 in shape:
        return np.empty(shape, x.dtype)
    last = zip(astuple(window), (1, 1, 1, 0, 0, channels), strict=True)
    whole = Window(*((*sizes, size) for sizes, size in last))
    return over_windows(x[:, None], whole, np.maximum, integer_range(x.dtype)[0])[:, 0]


@kernel("QLinearConv", domain=MICROSOFT)
def qlinear_conv_of_microsoft(
    x: Array, x_scale: Array, x_zero: Array, *rest: Array, channels_last: int = 0, **attrs: Any
) -> Array:
    """QLinearConv, with channels as the last axis of input and output if asked to."""
    moved = np.ascontiguousarray(_channels_second(x)) if channels_last else x
    ((shape, dtype),) = qconv_infer([moved, x_scale, x_zero, *rest], attrs)
    check_shape(shape, dtype)
    y = np.empty(shape, dtype)
    qlinear_conv([y], moved, x_scale, x_zero, *rest, **attrs)
    return _channels_last(y) if channels_last else y


@kernel("MatMulInteger16", domain=MICROSOFT)
def matmul_integer_16(a: Array, b: Array) -> Array:
    """a @ b of 16-bit integers, summed in int32."""
    ((shape, dtype),) = ((matmul_shape(a.shape, b.shape), np.dtype(np.int32)),)
    y = np.empty(shape, dtype)
    integer_product(a.astype(dtype), b.astype(dtype), y)
    return y


def _checked_row(values: Array | None, columns: int, name: str) -> None:
    if values is not None and values.size > 1 and values.shape[-1] != columns:
        raise ValueError(f"{name} has the shape {list(values.shape)}, for {columns} columns")


def right_operand(b: Array, zero: Array | None) -> Array:
    """b - zero in float32; the zero point is one number, or one a column."""
    _checked_row(zero, b.shape[-1], "the zero point of B")
    return centered(b, zero, () if zero is None else zero.shape)


def scaled_product(
    a: Array,
    b: Array,
    scale: Array,
    a_zero: Array | None,
    b_zero: Array | None,
    bias: Array | None = None,
    right: Array | None = None,
) -> Array:
    """(a - a_zero) @ (b - b_zero) * scale + bias in float32; ``scale`` is one number, or one a column.

    ``right``: ``right_operand`` of b, where it is there already.
    """
    columns = b.shape[-1]
    check_shape(matmul_shape(a.shape, b.shape), FLOAT32)
    _checked_row(scale, columns, "the scale")
    right = right_operand(b, b_zero) if right is None else right
    left = centered(a, a_zero, (-1, 1))
    sums = exact_product(left, right, magnitude(a.dtype, a_zero) * magnitude(b.dtype, b_zero))
    y = np.asarray(sums, FLOAT32)
    y *= scale.reshape(()) if scale.size == 1 else scale
    if bias is not None:
        if bias.shape != (columns,):
            raise ValueError(f"the bias has the shape {list(bias.shape)}, not {[columns]}")
        y += bias
    return y


@kernel("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero: Array | None = None,
    b_zero: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """The product of dequantized a and b, plus the bias, in float."""
    number(a_scale, "a_scale")
    y = scaled_product(a, b, np.asarray(a_scale.astype(FLOAT32).reshape(()) * b_scale), a_zero, b_zero, bias)
    return y.astype(a_scale.dtype, copy=False)


def steps_of_range(x: Array) -> tuple[Array, np.float32, np.float32]:
    """x in whole steps of its own range from 0 on, the size of a step, and the zero point, as onnxruntime's products have them."""
    low, high = (np.float32(min(x.min(), 0)), np.float32(max(x.max(), 0))) if x.size else (np.float32(0),) * 2
    scale = np.float32((high - low) / np.float32(255)) if high != low else np.float32(1)
    zero = min(max(np.rint(-low / scale), np.float32(0)), np.float32(255))
    steps = np.divide(x, scale)
    np.rint(steps, out=steps)
    clip(steps, -zero, np.float32(255) - zero, steps)
    return steps, scale, zero


def quantized(x: Array) -> tuple[Array, np.float32, Array]:
    """x as uint8 with the scale and zero point of its own range."""
    steps, scale, zero = steps_of_range(x)
    return np.add(steps, zero, out=steps).astype(np.uint8), scale, np.asarray(zero, np.uint8)


@kernel("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(
    a: Array, b: Array, b_scale: Array, b_zero: Array | None = None, bias: Array | None = None
) -> Array:
    """a, quantized by its own range, times dequantized b, plus the bias."""
    codes, scale, zero = quantized(a)
    return scaled_product(codes, b, np.asarray(scale * b_scale), zero, b_zero, bias)


def _gemm_infer(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    a, b = inputs[0], inputs[3]
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(f"A has {a.ndim} axes and B {b.ndim}; both must have 2")
    left, right = (one.shape[::-1] if attrs.get(f"trans{name}") else one.shape for one, name in ((a, "A"), (b, "B")))
    is_float = len(inputs) < 8 or inputs[7] is None
    return ((matmul_shape(left, right), FLOAT32 if is_float else a.dtype),)


def with_weights_as_columns(facts: Facts) -> Facts | None:
    """The facts of a QGemm as if its constant weights were not transposed; None for others and for operands that do not fit them."""
    w, c = facts.consts[3], facts.consts[6] if len(facts.consts) > 6 else None
    if w is None or facts.attrs.get("transA") or (len(facts.inputs) > 6 and facts.inputs[6] is not None and c is None):
        return None
    if facts.attrs.get("transB"):
        if facts.consts[5] is None:  # the weights of each run are read then, which are not turned
            return None
        w = facts.once("turned", (w,), partial(np.ascontiguousarray, w.T))
    scale, zero = facts.inputs[4], facts.inputs[5]
    if any(spec is None or spec[0] not in ((), (1,), w.shape[1:]) for spec in (scale, zero)):
        return None
    inputs, consts = list(facts.inputs), list(facts.consts)
    inputs[3], consts[3] = (w.shape, w.dtype), w
    return replace(facts, inputs=inputs, consts=consts)


def _finish_gemm(sums: Array, is_exact: bool, alpha: float, operands: Sequence[Any], out: Array) -> None:
    """out = the sums plus c, times the scales; ``is_exact`` says that float32 has every such sum."""
    _, a_scale, _, _, b_scale, _, c, y_scale, y_zero = (*operands, None, None, None)[:9]
    if c is not None and is_exact:
        np.add(sums, c.astype(FLOAT32), out=sums)
    elif c is not None or sums.dtype != FLOAT32:
        product = np.empty(sums.shape, np.int32)
        to_int32(sums.astype(np.float64) + (0 if c is None else c), product)
        sums = product.astype(FLOAT32)
    factor = np.float32(alpha) * number(a_scale, "a_scale") * (b_scale.reshape(()) if b_scale.size == 1 else b_scale)
    if y_scale is None:
        np.multiply(sums, factor, out=out)
        return
    zero = np.zeros((), out.dtype) if y_zero is None else y_zero
    requantize(sums, np.asarray(factor / number(y_scale, "y_scale")), zero, out)


def _prepare_gemm(facts: Facts) -> Prepared | None:
    turned = with_weights_as_columns(facts)
    kept = kept_sums(turned, 3, (2, 5)) if turned is not None else None
    if kept is None:
        return None
    (sums, scratch, most), c = kept, facts.consts[6] if len(facts.consts) > 6 else None
    largest = 0 if c is None or not c.size else int(np.abs(c.astype(np.int64)).max())

    def call(out: Outs, room: list[Array], *operands: Any) -> None:
        is_exact = most * magnitude(operands[0].dtype, operands[2]) + largest <= EXACT
        _finish_gemm(sums(room, operands), is_exact, facts.attrs.get("alpha", 1.0), operands, out[0])

    return Prepared(call, scratch, inplace=())


@kernel("QGemm", domain=MICROSOFT, kind="into", infer=_gemm_infer, prepare=_prepare_gemm)
def qgemm(
    out: Outs,
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    c: Array | None = None,
    y_scale: Array | None = None,
    y_zero: Array | None = None,
    *,
    transA: int = 0,
    transB: int = 0,
    alpha: float = 1.0,
) -> None:
    """out[0] = alpha * op(a) @ op(b) + c of dequantized numbers: in float, or quantized where the output has a scale.

    ``c`` is int32 in the scale of the product.
    """
    left, right = (np.ascontiguousarray(x.T if turned else x) for x, turned in ((a, transA), (b, transB)))
    _checked_row(b_scale, right.shape[1], "b_scale")
    bound = magnitude(a.dtype, a_zero) * magnitude(b.dtype, b_zero)
    sums = exact_product(centered(left, a_zero), right_operand(right, b_zero), bound)
    _finish_gemm(sums, False, alpha, (a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero), out[0])
