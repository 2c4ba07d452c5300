"""Softmax, LogSoftmax, Hardmax in their two readings: one axis (13+) and flattened to 2-D (1-12)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fx2onnx.semantics.kernels.elementwise import Outs
from fx2onnx.semantics.registry import kernel, same_as_first
from fx2onnx.semantics.types import FLOAT32, NARROW_FLOATS, Array


def check_axis(axis: int, rank: int) -> int:
    """``axis`` counted from 0. Raises: ValueError out of range."""
    if not -rank <= axis < max(rank, 1):
        raise ValueError(f"axis {axis} is out of range for {rank} axes")
    return axis + rank if axis < 0 else axis


MOST_COLUMNS, LEAST_TURNED = 16, 256
"""Short rows of many numbers are turned: NumPy takes as long for a row as for a hundred numbers."""


def softmax_into(x: Array, y: Array, axis: int) -> None:
    """exp(x - max) / sum along ``axis``.

    Buffers: y may be x; one scratch of the other axes' size. Numerics: each step in x's own dtype, as ONNX's function body
    has it.
    """
    if x.size == 0:
        return
    is_rows = axis in (-1, y.ndim - 1) and y.flags.c_contiguous
    if is_rows and y.dtype.char in "fd" and y.shape[-1] <= MOST_COLUMNS and x.size >= LEAST_TURNED:
        turned = np.ascontiguousarray(x.reshape(-1, x.shape[-1]).T)
        softmax_into(turned, turned, 0)
        y.reshape(-1, y.shape[-1])[...] = turned.T
        return
    np.subtract(x, np.maximum.reduce(x, axis=axis, keepdims=True), out=y)
    np.exp(y, out=y)
    if y.dtype == FLOAT32 and is_rows:  # a product with ones takes a quarter of the time
        total = np.dot(y.reshape(-1, y.shape[-1]), np.ones(y.shape[-1], FLOAT32)).reshape(*y.shape[:-1], 1)
    else:
        total = np.add.reduce(y, axis=axis, keepdims=True)
    np.divide(y, total, out=y)


def log_softmax_into(x: Array, y: Array, axis: int) -> None:
    """x - max - log(sum(exp(x - max))) along ``axis``; y may be x."""
    if x.dtype in NARROW_FLOATS:
        wide = x.astype(np.float32)
        log_softmax_into(wide, wide, axis)
        y[...] = wide.astype(x.dtype)
        return
    if x.size == 0:
        return
    np.subtract(x, np.maximum.reduce(x, axis=axis, keepdims=True), out=y)
    np.subtract(y, np.log(np.add.reduce(np.exp(y), axis=axis, keepdims=True)), out=y)


def as_matrix(x: Array, axis: int) -> Array:
    """x as 2-D: the axes before ``axis``, the axes from it on. Raises: ValueError out of range."""
    if not -x.ndim <= axis <= x.ndim:
        raise ValueError(f"axis {axis} is out of range for {x.ndim} axes")
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _register(op_type: str, into: Callable[[Array, Array, int], None]) -> None:
    def one_axis(out: Outs, x: Array, *, axis: int = -1) -> None:
        into(x, out[0], check_axis(axis, x.ndim))

    one_axis.__doc__ = f"out[0] = {into.__doc__}"
    kernel(op_type, 13, kind="into", infer=same_as_first, inplace=(0,))(one_axis)

    def flattened(out: Outs, x: Array, *, axis: int = 1) -> None:
        into(as_matrix(x, axis), as_matrix(out[0], axis), 1)

    flattened.__doc__ = f"{op_type} over all axes from ``axis`` on, taken as one."
    kernel(op_type, 1, kind="into", infer=same_as_first)(flattened)


_register("Softmax", softmax_into)
_register("LogSoftmax", log_softmax_into)


@kernel("Hardmax", 13)
def hardmax(x: Array, *, axis: int = -1) -> Array:
    """1 at the first maximum along ``axis``, 0 elsewhere."""
    axis = check_axis(axis, x.ndim)
    y = np.zeros_like(x)
    if not y.size:
        return y
    np.put_along_axis(y, np.expand_dims(np.argmax(x, axis=axis), axis), np.ones((), x.dtype), axis=axis)
    return y


@kernel("Hardmax", 1)
def hardmax_1(x: Array, *, axis: int = 1) -> Array:
    """Hardmax over all axes from ``axis`` on, taken as one."""
    return hardmax(as_matrix(x, axis), axis=1).reshape(x.shape)


def softmax_array(x: Array) -> Array:
    """The softmax of the last axis as a fresh array."""
    y = np.empty_like(x)
    softmax_into(x, y, -1)
    return y
