"""Sums and products of quantized tensors, means of their planes, and functions of one byte, which a table gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.runner.fast.compiled import compiled, f32, i32, into_code
from fx2onnx.semantics.kernels.contrib import codes
from fx2onnx.semantics.kernels.integer_products import integer_range
from fx2onnx.semantics.types import Array

BYTES = frozenset(map(np.dtype, (np.uint8, np.int8)))


@compiled
def _joined(a: Array, b: Array, by: Array, zeros: Array, is_product: bool, low: Any, high: Any, out: Array) -> None:
    """The codes of ``(a - zeros[0]) * by[0]`` plus (or times) ``(b - zeros[1]) * by[1]``; ``zeros[2]`` is that of the output.

    Shapes: a, out [rows, columns], b [lines, columns or 1], whose lines repeat.
    """
    lines, is_one = b.shape[0], b.shape[1] == 1
    for r in range(a.shape[0]):
        first, second, target = a[r], b[r % lines], out[r]
        if is_one:
            other = (f32(second[0]) - zeros[1]) * by[1]
            scale, shift = (by[0] * other, f32(0)) if is_product else (by[0], other)
            for j in range(first.size):
                target[j] = into_code((f32(first[j]) - zeros[0]) * scale + shift, zeros[2], low, high)
        elif is_product:
            scale = by[0] * by[1]
            for j in range(first.size):
                y = (f32(first[j]) - zeros[0]) * (f32(second[j]) - zeros[1]) * scale
                target[j] = into_code(y, zeros[2], low, high)
        else:
            for j in range(first.size):
                y = (f32(first[j]) - zeros[0]) * by[0] + (f32(second[j]) - zeros[1]) * by[1]
                target[j] = into_code(y, zeros[2], low, high)


def lines_of(shape: Sequence[int], other: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The shapes [rows, columns] and [lines, columns or 1] of two operands, of which the second is broadcast to the first: as a whole,
    one number a row, or a row for all. None for other ways to broadcast.
    """
    full = (*(1,) * (len(shape) - len(other)), *other)
    start = next((axis for axis, dim in enumerate(full) if dim != 1), len(full))
    end = next((axis + 1 for axis in range(len(full) - 1, -1, -1) if full[axis] != 1), start)
    if len(full) != len(shape) or full[start:end] != tuple(shape[start:end]):
        return None
    before, middle, after = (math.prod(part) for part in (shape[:start], shape[start:end], shape[end:]))
    return ((before, middle), (1, middle)) if after == 1 else ((before * middle, after), (middle, 1))


def _combined(
    is_product: bool,
    a: Array,
    a_scale: Array,
    a_zero: Array | None,
    b: Array,
    b_scale: Array,
    b_zero: Array | None,
    c_scale: Array,
    c_zero: Array | None = None,
) -> Array | None:
    if b.size > a.size:
        a, a_scale, a_zero, b, b_scale, b_zero = b, b_scale, b_zero, a, a_scale, a_zero
    forms = lines_of(a.shape, b.shape)
    if forms is None or a.dtype not in BYTES or b.dtype != a.dtype or not a.size:
        return None
    to_c = codes.number(c_scale, "C_scale")
    left, right = codes.number(a_scale, "A_scale"), codes.number(b_scale, "B_scale")
    by = np.array([left / to_c, right if is_product else right / to_c], f32)
    zeros = np.array([codes.number(zero, "a zero point") for zero in (a_zero, b_zero, c_zero)], f32)
    out = np.empty(a.shape, a.dtype)
    first, second = (np.require(one, None, ["C", "W"]).reshape(form) for one, form in zip((a, b), forms, strict=True))
    low, high = map(f32, integer_range(a.dtype))
    _joined(first, second, by, zeros, is_product, low, high, out.reshape(forms[0]))
    return out


call_QLinearAdd: Any = partial(_combined, False)
call_QLinearMul: Any = partial(_combined, True)


@compiled
def _means(x: Array, zero: Any, by: Any, shift: Any, low: Any, high: Any, out: Array) -> None:
    """Shapes: x [planes, numbers], out [planes]."""
    for r in range(x.shape[0]):
        total = i32(0)
        for j in range(x.shape[1]):
            total += i32(x[r, j])
        out[r] = into_code((f32(total) - zero) * by, shift, low, high)


MOST_EXACT = 1 << 16
"""Bytes whose sums are whole numbers that float32 has."""


def call_QLinearGlobalAveragePool(
    x: Array, scale: Array, zero: Array, y_scale: Array, y_zero: Array, *, channels_last: int = 0
) -> Array | None:
    count = math.prod(x.shape[2:])
    if channels_last or x.dtype not in BYTES or x.ndim < 3 or not 0 < count <= MOST_EXACT:
        return None
    by = codes.number(scale, "X_scale") / codes.number(y_scale, "the output's scale") / f32(count)
    start, shift = codes.number(zero, "X_zero_point") * f32(count), codes.number(y_zero, "Y_zero_point")
    low, high = map(f32, integer_range(x.dtype))
    out = np.empty((*x.shape[:2], *(1,) * (x.ndim - 2)), x.dtype)
    planes = np.require(x, None, ["C", "W"]).reshape(-1, count)
    _means(planes, start, by, shift, low, high, out.reshape(-1))
    return out


@compiled
def _look_up(x: Array, table: Array, out: Array) -> None:
    for i in range(x.size):
        out[i] = table[x[i]]


def look_up(x: Array, table: Array) -> Array:
    """``table``, of 256 codes, at each byte."""
    out = np.empty(x.shape, x.dtype)
    bytes_of = (one.reshape(-1).view(np.uint8) for one in (np.require(x, None, ["C", "W"]), table, out))
    _look_up(*bytes_of)
    return out


call_QLinearConcat: Any = partial(codes.qlinear_concat, look_up=look_up)
call_QLinearLeakyRelu: Any = partial(codes.qlinear_leaky_relu, look_up=look_up)
call_QLinearSigmoid: Any = partial(codes.qlinear_sigmoid, look_up=look_up)
call_QLinearWhere: Any = partial(codes.qlinear_where, look_up=look_up)
