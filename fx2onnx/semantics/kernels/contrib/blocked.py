"""onnxruntime's products with low-bit weights. Source: ContribOperators.md of onnxruntime 1.31."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.contrib import MICROSOFT
from fx2onnx.semantics.kernels.elementwise import Outs
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import FLOAT32, Array, Spec, vecdot, widen

WORKING_NUMBERS = 1 << 18
"""Weights that are numbers at a time: they stay in a core's cache while they are multiplied."""

_FP4 = (0.0, 0.00520833333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
FP4 = np.array([*_FP4, *(-number for number in _FP4)], np.float32)
NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
"""The numbers for which codes of MatMulBnb4 stand. Source: bitsandbytes."""


def _infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, rows, columns = inputs[0], attrs["N"], attrs["K"]
    if not x.ndim or x.shape[-1] != columns:
        raise ValueError(f"the last axis of {list(x.shape)} is not K = {columns}")
    return (((*x.shape[:-1], rows), x.dtype),)


def _parts(packed: Array, bits: int) -> Array:
    """The codes of each byte, that of the lowest bits first."""
    if bits == 8:
        return packed
    parts = [packed >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)


def _multiply(out: Array, x: Array, rows: int, columns: int, numbers: Any) -> None:
    """out = x @ W.T, where ``numbers(start, stop)`` gives rows of W."""
    left = widen(x).reshape(-1, columns)
    flat = np.empty((len(left), rows), FLOAT32)
    step = max(WORKING_NUMBERS // columns, 1)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        np.matmul(left, numbers(start, stop).T, out=flat[:, start:stop])
    out[...] = flat.reshape(out.shape)


def _multiply_halves(out: Array, x: Array, columns: int, packed: Array, scale: Array, zero: Array | float) -> None:
    """out = x @ W.T, where a byte of ``packed`` [rows, blocks, bytes] has two codes.

    Low and high halves stay apart, and so do the even and odd columns of x. 8 is taken off the codes, and the rest of a zero
    point off the result, by the sums of x over blocks; of one row of x, each block's product is scaled.
    """
    rows, blocks, size = packed.shape
    left = np.zeros((math.prod(x.shape[:-1]), blocks * size * 2), FLOAT32)
    left[:, :columns] = x.reshape(-1, columns)
    halves = np.ascontiguousarray(left.reshape(-1, blocks, size, 2).transpose(3, 0, 1, 2))
    flat = np.empty((len(left), rows), FLOAT32)
    step = max(WORKING_NUMBERS // max(columns, 1), 1)
    for start in range(0, rows, step):
        part = packed[start : start + step]
        codes = np.stack([part & 15, part >> 4]).astype(FLOAT32)
        codes -= np.float32(8)
        by = scale[start : start + step]
        if len(left) == 1:
            dots = np.matmul(codes.transpose(0, 2, 1, 3), halves[:, 0, :, :, None])
            flat[0, start : start + step] = vecdot(dots.sum(0)[:, :, 0].T, by)
            continue
        codes *= by[:, :, None]
        target = flat[:, start : start + step]
        np.matmul(halves[0].reshape(len(left), -1), codes[0].reshape(len(part), -1).T, out=target)
        target += np.matmul(halves[1].reshape(len(left), -1), codes[1].reshape(len(part), -1).T)
    if np.any(zero != np.float32(8)):
        flat -= np.matmul(left.reshape(len(left), blocks, size * 2).sum(-1), (scale * (zero - np.float32(8))).T)
    out[...] = flat.reshape(out.shape)


@kernel("MatMulNBits", domain=MICROSOFT, kind="into", infer=_infer)
def matmul_n_bits(
    out: Outs,
    x: Array,
    codes: Array,
    scales: Array,
    zero_points: Array | None = None,
    g_idx: Array | None = None,
    bias: Array | None = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    **_: Any,
) -> None:
    """out[0] = x @ ((codes - zero_points) * scales).T + bias, where the codes of a block of columns share a scale.

    Shapes:   x [..., K]; codes [N, blocks, block_size * bits / 8]; scales [N * blocks]; zero_points packed by rows, or as numbers.
    Numerics: in float32, whatever ``accuracy_level`` allows.
    """
    blocks = -(-K // block_size)
    if bits not in (2, 4, 8):
        raise ValueError(f"codes of {bits} bits are not known")
    if g_idx is not None:
        raise ValueError("g_idx is not known")
    packed = codes.reshape(N, blocks, block_size * bits // 8)
    scale = widen(scales).reshape(N, blocks)
    zero = _zeros(zero_points, N, blocks, bits)

    if (
        bits == 4 and x.size and np.isfinite(widen(x)).all()
    ):  # of infinite numbers a zero point cannot be taken off afterwards
        _multiply_halves(out[0], x, K, packed, scale, zero)
    else:

        def numbers(start: int, stop: int) -> Array:
            part = packed[start:stop]
            wide = _parts(part, bits).astype(np.float32)
            wide -= zero if isinstance(zero, float) else zero[start:stop, :, None]
            wide *= scale[start:stop, :, None]
            return wide.reshape(stop - start, -1)[:, :K]

        _multiply(out[0], x, N, K, numbers)
    if bias is not None:
        out[0][...] = (widen(out[0]) + widen(bias)).astype(out[0].dtype)


def _zeros(zero_points: Array | None, rows: int, blocks: int, bits: int) -> Array | float:
    """A zero point for each block."""
    if zero_points is None:
        return float(1 << (bits - 1))
    if zero_points.dtype != np.uint8:
        return widen(zero_points).reshape(rows, blocks)
    by_row = zero_points.reshape(rows, -1)
    return _parts(by_row, bits)[:, :blocks].astype(np.float32)


@kernel("MatMulBnb4", domain=MICROSOFT, kind="into", infer=_infer)
def matmul_bnb4(
    out: Outs,
    x: Array,
    codes: Array,
    absmax: Array,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    transB: int = 1,
    **_: Any,
) -> None:
    """out[0] = x @ (table[codes] * absmax).T, blocks running on over the rows; the first of two codes is in the high half."""
    if not transB:
        raise ValueError("transB = 0 is not known")
    table, size = (NF4 if quant_type else FP4), N * K
    pairs = np.stack([codes >> 4, codes & 15], -1).reshape(-1)[:size]
    scale = widen(absmax).reshape(-1)

    def numbers(start: int, stop: int) -> Array:
        places = np.arange(start * K, stop * K) // block_size
        return (table[pairs[start * K : stop * K]] * scale[places]).reshape(-1, K)

    _multiply(out[0], x, N, K, numbers)
