"""Quantization: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, and products of quantized tensors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from fx2onnx.semantics.kernels.cast import cast_array
from fx2onnx.semantics.kernels.conv import conv_integer
from fx2onnx.semantics.kernels.softmax import check_axis
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import FLOAT32, NARROW_INTS, Array, Dtype, is_integer, numpy_dtype_of_code, widen


def spread(values: Array, x: Array, axis: int, block_size: int) -> Array:
    """A scale or zero point in a shape that broadcasts with x: one number, one an axis entry, one a block."""
    if values.size == 1 and values.ndim <= 1:
        return values.reshape(())
    axis = check_axis(axis, x.ndim)
    if values.ndim == 1 and not block_size:
        if values.shape[0] != x.shape[axis]:
            raise ValueError(f"{values.shape[0]} scales for an axis of {x.shape[axis]}")
        return values.reshape([-1 if line == axis else 1 for line in range(x.ndim)])
    if block_size < 1 or values.ndim != x.ndim:
        raise ValueError(f"scales of shape {list(values.shape)} do not fit {list(x.shape)} and block_size {block_size}")
    grown = np.repeat(values, block_size, axis=axis)
    cut = [slice(None)] * x.ndim
    cut[axis] = slice(0, x.shape[axis])
    grown = grown[tuple(cut)]
    if grown.shape != x.shape:
        raise ValueError(f"scales of shape {list(values.shape)} do not fit {list(x.shape)} and block_size {block_size}")
    return grown


def check_zero_point(scale: Array, zero_point: Array | None) -> None:
    """Raises: ValueError for a zero point of another shape than the scale's."""
    if zero_point is not None and zero_point.shape != scale.shape and max(zero_point.size, scale.size) > 1:
        raise ValueError(f"the zero point has the shape {list(zero_point.shape)}, the scale {list(scale.shape)}")


def integer_range(dtype: Dtype) -> tuple[int, int]:
    """The least and the greatest value."""
    info: Any = ml_dtypes.iinfo(dtype) if dtype in NARROW_INTS else np.iinfo(dtype)
    return int(info.min), int(info.max)


def _to_integer(scaled: Array, zero: Array | None, dtype: Dtype) -> Array:
    low, high = integer_range(dtype)
    wide = widen(scaled)
    rounded = np.rint(np.where(np.isnan(wide), 0, wide)).astype(np.float64)
    if zero is not None:
        rounded = rounded + zero.astype(np.int32)
    return np.clip(rounded, low, high).astype(np.int32).astype(dtype)


@kernel("QuantizeLinear", 10)
def quantize_linear(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    axis: int = 1,
    saturate: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
) -> Array:
    """saturate(round(x / scale) + zero_point), per tensor, axis or block."""
    check_zero_point(scale, zero_point)
    dtype = numpy_dtype_of_code(output_dtype) if output_dtype else np.dtype(np.uint8)
    if zero_point is not None:
        if output_dtype and zero_point.dtype != dtype:
            raise TypeError(f"output_dtype is {dtype}, the zero point is {zero_point.dtype}")
        dtype = zero_point.dtype
    factor = spread(scale, x, axis, block_size)
    if precision:
        wanted = numpy_dtype_of_code(precision)
        scaled = cast_array(x, wanted) / cast_array(factor, wanted)
    elif x.dtype == factor.dtype or x.dtype.kind == "i":
        scaled = x / factor
    else:
        scaled = widen(x).astype(widen(factor).dtype) / widen(factor)
    scaled = np.asarray(scaled)
    zero = None if zero_point is None else spread(zero_point, x, axis, block_size)
    if is_integer(dtype):
        return _to_integer(scaled, zero, dtype)
    if zero is not None and dtype.itemsize == 1 and not dtype.name.startswith("float8"):
        scaled = widen(scaled) + zero.astype(np.float32)
    return cast_array(np.asarray(widen(np.asarray(scaled))), dtype, bool(saturate))


@kernel("DequantizeLinear", 10)
def dequantize_linear(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Array:
    """(x - zero_point) * scale, per tensor, axis or block."""
    check_zero_point(scale, zero_point)
    wide = x.astype(np.float32)
    if zero_point is not None:
        if zero_point.dtype != x.dtype:
            raise TypeError(f"the input is {x.dtype}, the zero point {zero_point.dtype}")
        if is_integer(x.dtype):
            wide = wide - spread(zero_point, x, axis, block_size).astype(np.float32)
    result = wide * spread(scale, x, axis, block_size).astype(np.float32)
    return cast_array(np.asarray(result), numpy_dtype_of_code(output_dtype) if output_dtype else scale.dtype)


@kernel("DynamicQuantizeLinear", 11)
def dynamic_quantize_linear(x: Array) -> tuple[Array, Array, Array]:
    """x as uint8 with a scale and zero point from its own range."""
    low = min(float(x.min()), 0.0) if x.size else 0.0
    high = max(float(x.max()), 0.0) if x.size else 0.0
    scale = np.float32(np.float32(high - low) / np.float32(255))
    zero = np.float32(0) if scale == 0 else np.clip(np.rint(np.float32(-low) / scale), 0, 255)
    safe = scale if scale != 0 else np.float32(1)
    y = np.clip(np.rint(x / safe) + zero, 0, 255).astype(np.uint8)
    return y, np.asarray(scale, FLOAT32), np.asarray(zero).astype(np.uint8)


def _offset(x: Array, zero: Array | None, is_rows: bool) -> Array:
    wide = x.astype(np.int32)
    if zero is None:
        return wide
    whole = zero.astype(np.int32)
    if whole.ndim == 1 and whole.size > 1 and is_rows:
        whole = whole[:, None]
    return wide - (whole.reshape(()) if whole.size == 1 else whole)


@kernel("MatMulInteger", 10)
def matmul_integer(a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    """(a - a_zero) @ (b - b_zero), summed in int32."""
    return np.asarray(np.matmul(_offset(a, a_zero, True), _offset(b, b_zero, False)), np.int32)


def _requantize(product: Array, factor: Array, zero: Array) -> Array:
    low, high = integer_range(zero.dtype) if is_integer(zero.dtype) else (0, 0)
    scaled = np.rint(product * factor) + zero.astype(np.float64)
    return np.asarray(np.clip(scaled, low, high)).astype(zero.dtype)


@kernel("QLinearMatMul", 10)
def qlinear_matmul(
    a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, y_scale: Array, y_zero: Array
) -> Array:
    """The product of dequantized a and b, quantized again."""
    product = matmul_integer(a, b, a_zero, b_zero).astype(np.float64)
    left = widen(a_scale)[:, None] if a_scale.ndim == 1 and a_scale.size > 1 else widen(a_scale)
    factor = left.astype(np.float64) * widen(b_scale).astype(np.float64) / widen(y_scale).astype(np.float64)
    return _requantize(product, factor if factor.size > 1 else factor.reshape(()), y_zero.reshape(()))


@kernel("QLinearConv", 10)
def qlinear_conv(
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
) -> Array:
    """The convolution of dequantized x and w, quantized again."""
    product = conv_integer(x, w, x_zero, w_zero, **attrs)
    channels = (-1,) + (1,) * (x.ndim - 2)
    if bias is not None:
        product = product + bias.astype(np.int32).reshape(channels)
    factor = (x_scale.astype(np.float64) * w_scale / y_scale).reshape(channels if w_scale.size > 1 else ())
    return _requantize(product.astype(np.float64), factor, y_zero.reshape(()))
