"""Quantization: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.activation import TILE
from fx2onnx.semantics.kernels.cast import cast_array
from fx2onnx.semantics.kernels.integer_products import integer_range, into_codes
from fx2onnx.semantics.kernels.norm import check_axis
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import FLOAT32, Array, Dtype, Spec, clip, is_integer, numpy_dtype_of_code, widen

UINT8 = np.dtype(np.uint8)


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


def _into_codes(x: Array, factor: Array, zero: Array | None, out: Array) -> None:
    """out = saturate(round(x / factor) + zero) of float32; NaN is the least code. One scale is for a tile at a time."""
    is_flat = factor.ndim == 0 and (zero is None or zero.ndim == 0) and x.flags.c_contiguous
    source, target = (x.reshape(-1), out.reshape(-1)) if is_flat else (x, out)
    step = TILE if is_flat else max(len(source), 1)
    room = np.empty((min(step, len(source)), *source.shape[1:]), FLOAT32)
    for start in range(0, len(source), step):
        part = source[start : start + step]
        np.divide(part, factor, room[: len(part)])
        into_codes(room[: len(part)], zero, target[start : start + step])


def _to_integer(scaled: Array, zero: Array | None, dtype: Dtype) -> Array:
    """saturate(round(scaled) + zero); NaN is the least code, as in onnxruntime."""
    wide = widen(scaled)
    rounded = np.rint(np.where(np.isnan(wide), -np.inf, wide)).astype(np.float64)
    if zero is not None:
        rounded = rounded + zero.astype(np.int32)
    return np.clip(rounded, *integer_range(dtype)).astype(np.int32).astype(dtype)


def _code_dtype(inputs: Sequence[Array | None], attrs: Mapping[str, Any]) -> Dtype:
    zero_point, output_dtype = inputs[2] if len(inputs) > 2 else None, attrs.get("output_dtype", 0)
    dtype = numpy_dtype_of_code(output_dtype) if output_dtype else UINT8
    if zero_point is None:
        return dtype
    if output_dtype and zero_point.dtype != dtype:
        raise TypeError(f"output_dtype is {dtype}, the zero point is {zero_point.dtype}")
    return zero_point.dtype


def quantize_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    return ((inputs[0].shape, _code_dtype(inputs, attrs)),)


@kernel("QuantizeLinear", 10, kind="into", infer=quantize_infer)
def quantize_linear(
    out: list[Array],
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    axis: int = 1,
    saturate: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
) -> None:
    """out[0] = saturate(round(x / scale) + zero_point), per tensor, axis or block."""
    check_zero_point(scale, zero_point)
    dtype = out[0].dtype
    factor = spread(scale, x, axis, block_size)
    zero = None if zero_point is None else spread(zero_point, x, axis, block_size)
    if x.dtype == factor.dtype == FLOAT32 and not precision and dtype.kind in "iu" and dtype.itemsize <= 2:
        _into_codes(x, factor, zero, out[0])
        return
    if precision:
        wanted = numpy_dtype_of_code(precision)
        scaled = cast_array(x, wanted) / cast_array(factor, wanted)
    elif x.dtype == factor.dtype or x.dtype.kind == "i":
        scaled = x / factor
    else:
        scaled = widen(x).astype(widen(factor).dtype) / widen(factor)
    scaled = np.asarray(scaled, order="C")
    if is_integer(dtype):
        out[0][...] = _to_integer(scaled, zero, dtype)
        return
    if zero is not None and dtype.itemsize == 1 and not dtype.name.startswith("float8"):
        scaled = widen(scaled) + zero.astype(np.float32)
    out[0][...] = cast_array(np.asarray(widen(np.asarray(scaled))), dtype, bool(saturate))


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
    wide = np.array(x, np.float32)
    if zero_point is not None:
        if zero_point.dtype != x.dtype:
            raise TypeError(f"the input is {x.dtype}, the zero point {zero_point.dtype}")
        if is_integer(x.dtype) and zero_point.any():
            np.subtract(wide, spread(zero_point, x, axis, block_size).astype(np.float32), out=wide)
    np.multiply(wide, spread(scale, x, axis, block_size).astype(np.float32), out=wide)
    return cast_array(wide, numpy_dtype_of_code(output_dtype) if output_dtype else scale.dtype)


def _dynamic_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    return ((inputs[0].shape, UINT8), ((), FLOAT32), ((), UINT8))[: attrs.get("n_outputs", 3)]


@kernel("DynamicQuantizeLinear", 11, kind="into", infer=_dynamic_infer)
def dynamic_quantize_linear(out: list[Array], x: Array, *, n_outputs: int = 3) -> None:
    """x as uint8 with a scale and zero point from its own range; the scale is 1 where all is 0."""
    low = min(float(np.minimum.reduce(x, None)), 0.0) if x.size else 0.0
    high = max(float(np.maximum.reduce(x, None)), 0.0) if x.size else 0.0
    scale = np.float32(np.float32(high - low) / np.float32(255)) if high != low else np.float32(1)
    zero = np.float32(0) if scale == 0 else clip(np.rint(np.float32(-low) / scale), np.float32(0), np.float32(255))
    _into_codes(x, np.asarray(scale if scale != 0 else 1, FLOAT32), np.asarray(zero, UINT8), out[0])
    for one, value in zip(out[1:], (scale, zero), strict=False):
        one[...] = value
