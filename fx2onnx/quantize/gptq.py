"""GPTQ: columns are rounded one after the other, and what is left of each is made up for by those that come later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fx2onnx.quantize.codes import Codes, blocked, ranges
from fx2onnx.quantize.schemes import Array, Scheme

STEP = 128
"""Columns whose error is put on the others in one product."""
_LEAST = 64
"""Triangles below this are inverted whole."""


def gptq(
    rows: Array,
    gram: Array,
    scheme: Scheme,
    block: int,
    dtype: np.dtype[Any],
    *,
    act_order: bool = False,
    damping: float = 0.01,
) -> Codes:
    """Codes of ``rows`` [rows, columns] that make ``rows @ x`` change little for inputs x with the products ``gram`` = sum(x x^T).

    act_order: columns with the largest inputs first; scales are then those of the weight as it is, else those of what is left of it
    where a block begins. damping: of the mean of the diagonal, which is added to it.

    Source: Frantar, Ashkboos, Hoefler, Alistarh: GPTQ (2022), algorithm 1; ranges of the least squares are ``mse`` of its code. A
    column without inputs is rounded to the nearest.
    """
    size = np.diagonal(gram).astype(np.float64)
    order = np.argsort(-size, kind="stable") if act_order else np.arange(len(size))
    factor = _inverse_factor(gram[np.ix_(order, order)] if act_order else gram, damping)
    left = np.ascontiguousarray(rows.T[order] if act_order else rows.T, np.float32)
    grid = _Grid(rows, scheme, block, dtype, is_static=act_order)
    codes = np.empty((len(left), len(rows)), scheme.held_as)
    for start, stop in _parts(len(left), block):
        part = left[start:stop]
        errors = np.empty_like(part)
        for place, column in enumerate(range(start, stop)):
            if not act_order and column % block == 0:
                grid.set(column // block, left[column : column + block])
            codes[column], numbers = grid.rounded(order[column] // block, part[place])
            errors[place] = (part[place] - numbers) / factor[column, column]
            part[place + 1 :] -= factor[column, column + 1 : stop, None] * errors[place]
        left[stop:] -= factor[start:stop, stop:].T @ errors
    found = np.empty_like(codes)
    found[order] = codes
    filled = _filled(found.T, grid, scheme, block)
    return Codes.of(scheme, "gptq", filled, grid.scales, grid.zeros)


def _parts(columns: int, block: int) -> Iterator[tuple[int, int]]:
    """Columns that are rounded before the others hear of it. A block begins in no part of others: its scale hangs on all before it."""
    span = block * max(STEP // block, 1)
    for first in range(0, columns, span):
        last = min(first + span, columns)
        for start in range(first, last, STEP if block > STEP else span):
            yield start, min(start + STEP, last) if block > STEP else last


class _Grid:
    """Scales and zero points, all known before or each set where its block begins."""

    def __init__(self, rows: Array, scheme: Scheme, block: int, dtype: np.dtype[Any], *, is_static: bool) -> None:
        self.scheme = scheme
        self.block = block
        count = -(-rows.shape[1] // block)
        if is_static:
            self.scales, self.zeros, _ = ranges(blocked(rows, block), scheme, dtype, squares)
        else:
            self.scales = np.ones((len(rows), count), dtype)
            self.zeros = np.zeros((len(rows), count), np.uint8) if scheme.has_zeros else None

    def set(self, index: int, columns: Array) -> None:
        """The scale of a block from its columns, [up to block, rows]."""
        scales, zeros, _ = ranges(blocked(columns.T, self.block), self.scheme, self.scales.dtype, squares)
        self.scales[:, index : index + 1] = scales
        if self.zeros is not None and zeros is not None:
            self.zeros[:, index : index + 1] = zeros

    def rounded(self, index: int, numbers: Array) -> tuple[Array, Array]:
        """The codes of one column, and what they stand for."""
        scales = self.scales[:, index]
        zeros = None if self.zeros is None else self.zeros[:, index]
        codes = self.scheme.codes(numbers[:, None], scales, zeros)
        return codes[:, 0], self.scheme.values(codes, scales, zeros)[:, 0].astype(np.float32)


def squares(off: Array) -> Array:
    """The sums over the last axis."""
    return np.asarray(np.einsum("rbk,rbk->rb", off, off))


def _filled(codes: Array, grid: _Grid, scheme: Scheme, block: int) -> Array:
    """[rows, columns] as [rows, blocks, block], with the code of 0 behind a short block."""
    rows, columns = codes.shape
    blocks = grid.scales.shape[1]
    whole = scheme.codes(np.zeros((rows, blocks, block), np.float32), grid.scales, grid.zeros)
    whole.reshape(rows, -1)[:, :columns] = codes
    return whole


def _inverse_factor(gram: Array, damping: float) -> Array:
    """The upper triangle U with ``U^T U`` the inverse of the damped ``gram``."""
    damped = gram.astype(np.float64)
    size = np.diagonal(damped).copy()
    damped[np.diag_indices_from(damped)] += damping * size.mean() + np.where(size == 0, size.mean() or 1.0, 0)
    # gram = R R^T with R an upper triangle, by the lower one of the gram turned round; U is R's inverse
    turned = np.linalg.cholesky(damped[::-1, ::-1])
    found: Array = _inverted(np.ascontiguousarray(turned[::-1, ::-1])).astype(np.float32)
    return found


def _inverted(upper: Array) -> Array:
    """The inverse of an upper triangle, by halves."""
    size = len(upper)
    if size <= _LEAST:
        return np.asarray(np.triu(np.linalg.inv(upper)))
    half = size // 2
    first, last = _inverted(upper[:half, :half]), _inverted(upper[half:, half:])
    whole = np.zeros_like(upper)
    whole[:half, :half], whole[half:, half:] = first, last
    whole[:half, half:] = -first @ (upper[:half, half:] @ last)
    return whole
