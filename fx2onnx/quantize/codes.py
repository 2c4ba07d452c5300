"""Codes of a weight that a calibration chose, held until they are written: those of 4 bits two a byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fx2onnx.quantize.schemes import Array, Scheme, packed, unpacked

SHRINKS, MOST_SHRINK = 20, 0.5
"""Steps that a range is made smaller by, up to this share."""


@dataclass(frozen=True, eq=False)
class Codes:
    """Codes [rows, blocks, block], which are ``stored`` packed, with scales and zero points [rows, blocks].

    ``channels``: what the weight's columns were multiplied with before; what the product takes is divided by it.
    """

    scheme: Scheme
    method: str
    block: int
    stored: Array
    scales: Array
    zeros: Array | None
    channels: Array | None = None

    @classmethod
    def of(
        cls,
        scheme: Scheme,
        method: str,
        codes: Array,
        scales: Array,
        zeros: Array | None,
        channels: Array | None = None,
    ) -> Codes:
        """Codes [rows, blocks, block] as they are to be held."""
        rows, _, block = codes.shape
        if scheme.bits == 4:
            flat = codes.reshape(rows, -1)
            stored = packed(np.pad(flat, ((0, 0), (0, flat.shape[1] % 2)))).reshape(rows, -1)
        else:
            stored = codes.reshape(rows, -1)
        return cls(scheme, method, block, stored, scales, zeros, channels)

    def part(self, start: int, stop: int) -> tuple[Array, Array, Array | None]:
        """Codes, scales and zero points of some rows."""
        scales, zeros = self.scales[start:stop], None if self.zeros is None else self.zeros[start:stop]
        codes = self.stored[start:stop]
        if self.scheme.bits == 4:
            codes = unpacked(codes.reshape(-1)).reshape(len(scales), -1)[:, : scales.shape[1] * self.block]
            if self.scheme.offset:
                codes = codes.view(np.int8) - (codes > 7) * np.int8(16)
        return codes.reshape(*scales.shape, self.block), scales, zeros

    def undone(self, values: Array) -> Array:
        """The numbers [rows, columns] as the weight has them, without ``channels``."""
        if self.channels is None:
            return values
        return np.asarray((values.astype(np.float32) / self.channels).astype(values.dtype))

    def values(self, columns: int) -> Array:
        """The numbers [rows, columns] in float32, as the weight has them."""
        codes, scales, zeros = self.part(0, len(self.scales))
        wide = self.scheme.values(codes, scales, zeros).astype(np.float32)
        return self.undone(wide.reshape(len(wide), -1)[:, :columns])


def blocked(rows: Array, block: int) -> Array:
    """[rows, columns] as [rows, blocks, block], zeros behind a short block."""
    short = -rows.shape[1] % block
    if short:
        rows = np.pad(rows, ((0, 0), (0, short)))
    return rows.reshape(len(rows), -1, block)


def nearest(
    rows: Array,
    scheme: Scheme,
    block: int,
    dtype: np.dtype[Any],
    *,
    method: str = "nearest",
    channels: Array | None = None,
    shrink: Array | None = None,
) -> Codes:
    """The nearest codes of [rows, columns], multiplied with ``channels`` before; ``shrink`` [rows, blocks] makes the range smaller."""
    blocks = blocked(rows if channels is None else rows * channels, block)
    scales = scheme.scales(blocks, dtype)
    zeros = scheme.zeros(blocks, scales)
    if shrink is not None:
        scales = shrunk(scales, shrink)
    return Codes.of(scheme, method, scheme.codes(blocks, scales, zeros), scales, zeros, channels)


def ranges(
    blocks: Array, scheme: Scheme, dtype: np.dtype[Any], error_of: Callable[[Array], Array]
) -> tuple[Array, Array | None, Array]:
    """Scales and zero points [rows, blocks] of the ranges that give the least error, and what share of the whole range they are.

    error_of: of differences [rows, blocks, block], a number for each block.
    """
    scales = scheme.scales(blocks, dtype)
    zeros = scheme.zeros(blocks, scales)
    best = np.full(scales.shape, np.inf, np.float32)
    shares = np.ones(scales.shape, np.float32)
    for step in range(-int(SHRINKS * scheme.cut), int(SHRINKS * MOST_SHRINK)):
        share = 1 - step / SHRINKS
        tried = shrunk(scales, share)
        off = scheme.values(scheme.codes(blocks, tried, zeros), tried, zeros).astype(np.float32)
        off -= blocks
        error = error_of(off)
        is_better = error < best
        shares[is_better], best[is_better] = share, error[is_better]
    return shrunk(scales, shares), zeros, shares


def shrunk(scales: Array, by: Array | float) -> Array:
    """Smaller scales in the same dtype; never 0."""
    smaller = (scales.astype(np.float32) * by).astype(scales.dtype)
    return np.where(smaller == 0, scales, smaller)
