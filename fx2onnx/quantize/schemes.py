"""Quantization schemes: numbers to codes and scales, and back. All functions take blocks: arrays of which the last axis
shares a scale.

All functions take blocks: arrays of which the last axis shares a scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

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


Array: TypeAlias = npt.NDArray[Any]
D = ir.DataType

NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
"""Quantiles of the normal distribution, with a zero. Source: QLoRA (Dettmers et al., 2023), appendix E."""


FP4 = np.array(
    [0, 0.005208333333, 0.66666667, 1, 0.33333333, 0.5, 0.16666667, 0.25,
     0, -0.005208333333, -0.66666667, -1, -0.33333333, -0.5, -0.16666667, -0.25], np.float32
)  # fmt: skip
"""Numbers of a sign, two bits of exponent and one of mantissa, in the order of their codes. Source: bitsandbytes."""


@dataclass(frozen=True)
class Scheme:
    """The codes of one kind."""

    kind: str
    dtype: ir.DataType
    low: float
    high: float
    """The least and the greatest code; of float8 the least and the greatest number."""
    has_zeros: bool = False
    """A zero point a block, so that the range need not be symmetric."""
    product_bits: int = 0
    """Bits of a code in onnxruntime's product; 0: those of ``dtype``, which other operators take."""

    @property
    def bits(self) -> int:
        return self.dtype.bitwidth

    @property
    def offset(self) -> int:
        """The offset that makes signed quantized values unsigned."""
        return 1 << (self.bits - 1) if self.dtype in (D.INT8, D.INT4) else 0

    def for_product(self, codes: Array) -> npt.NDArray[np.uint8]:
        """The codes as onnxruntime's product takes them: unsigned, those of a byte side by side, the first in its lowest bits."""
        if self.product_bits == 2:
            fours = (codes.view(np.uint8) + np.uint8(2)).reshape(-1, 4) << np.array([0, 2, 4, 6], np.uint8)
            return np.asarray(np.bitwise_or.reduce(fours, axis=1), np.uint8)
        unsigned = codes.view(np.uint8) + np.uint8(self.offset)
        return packed(unsigned) if self.bits == 4 else unsigned

    @property
    def held_as(self) -> np.dtype[Any]:
        """The dtype of ``codes``: one byte a value of 4 bits."""
        if self.dtype == D.FLOAT8E4M3FN:
            found: np.dtype[Any] = np.dtype(ml_dtypes.float8_e4m3fn)
            return found
        return np.dtype(np.int8 if self.offset else np.uint8)

    @property
    def cut(self) -> float:
        """The share by which a scale of ``scales`` would have to be larger for all numbers of a block to fit."""
        return -self.low / self.high - 1 if self.dtype == D.INT4 else 0.0

    def scales(self, blocks: Array, dtype: Any) -> Array:
        """A scale a block, in ``dtype``; 1 where all are zero.

        The block's numbers fit, but of ``int4``: its scale has the sign that makes the number that is largest in size the code -8, so that
        one code more is of use, and what is as large on the other side becomes 7. Mean squares of errors are an eighth smaller on
        normal numbers. Source: onnxruntime's blockwise quantization.
        """
        wide = blocks.astype(np.float32, copy=False)
        top, bottom = wide.max(-1), wide.min(-1)
        if self.kind == "ternary":
            scale = _ternary_scales(wide)
        elif self.has_zeros:
            span = np.maximum(top, 0) - np.minimum(bottom, 0)
            scale = span / np.float32(self.high - self.low)
        elif self.dtype == D.INT4:
            scale = np.where(top > -bottom, top, bottom) / np.float32(self.low)
        else:
            scale = np.maximum(top / np.float32(self.high), bottom / np.float32(self.low))
        narrow = scale.astype(dtype)
        return np.where(narrow == 0, np.ones((), dtype), narrow)

    def zeros(self, blocks: Array, scales: Array) -> Array | None:
        """The code of 0 in each block; None where it is 0 in all."""
        if not self.has_zeros:
            return None
        bottom = np.minimum(blocks.astype(np.float32, copy=False).min(-1), 0)
        codes: Array = -bottom / scales.astype(np.float32)
        _round_up_halves(codes)
        return np.clip(codes, self.low, self.high).astype(np.uint8)

    def codes(self, blocks: Array, scales: Array, zeros: Array | None) -> Array:
        """The nearest code of each number, as int8, uint8 or float8.

        Codes of 4 bits are those of onnxruntime's blockwise quantization, ties included: two files of one checkpoint whose codes
        are not all the same part at some token.
        """
        numbers, steps = blocks.astype(np.float32, copy=False), scales.astype(np.float32)[..., None]
        if self.kind == "nf4":
            places: Array = np.searchsorted((NF4[1:] + NF4[:-1]) / 2, numbers / steps).astype(np.uint8)
            return places
        if self.bits > 4:
            nearest = numbers / steps if self.dtype == D.FLOAT8E4M3FN else np.rint(numbers / steps)
            held: Array = np.clip(nearest, self.low, self.high).astype(self.held_as)
            return held
        with np.errstate(over="ignore"):
            inverse = 1 / steps
        shifted: Array = numbers * inverse if np.isfinite(inverse).all() else numbers / steps
        shifted += np.float32(self.offset) if zeros is None else zeros.astype(np.float32)[..., None]
        _round_up_halves(shifted)
        np.clip(shifted, self.low + self.offset, self.high + self.offset, out=shifted)
        return (shifted - self.offset).astype(self.held_as)

    def values(self, codes: Array, scales: Array, zeros: Array | None) -> Array:
        """The numbers that codes stand for, computed in float32 and rounded to the dtype of the scales."""
        if self.kind == "nf4":
            wide = NF4[codes]
        else:
            wide = codes.astype(np.float32)
            if zeros is not None:
                wide -= zeros.astype(np.float32)[..., None]
        return (wide * scales.astype(np.float32)[..., None]).astype(scales.dtype)


def _ternary_scales(blocks: Array) -> Array:
    """The share of the largest number in size with the least squares of errors: all of it where the numbers are ternary already."""
    size = np.abs(blocks)
    scales = [size.max(-1) * np.float32(share) for share in (1.0, 0.85, 0.7, 0.55)]
    rest = [np.where(size >= scale[..., None] / 2, size - scale[..., None], size) for scale in scales]
    least = np.argmin([np.square(each).sum(-1) for each in rest], axis=0)
    return np.asarray(np.choose(least, scales))


def _round_up_halves(numbers: Array) -> None:
    """Round halves up, in place, for numbers above -1."""
    numbers += np.float32(0.5)
    np.floor(numbers, out=numbers)


SCHEMES = {
    "int8": Scheme("int8", D.INT8, -127, 127),
    "int4": Scheme("int4", D.INT4, -8, 7),
    "uint4": Scheme("uint4", D.UINT4, 0, 15, has_zeros=True),
    "int2": Scheme("int2", D.INT4, -2, 1, product_bits=2),
    "ternary": Scheme("ternary", D.INT4, -1, 1, product_bits=2),
    "nf4": Scheme("nf4", D.UINT4, -1, 1),
    "float8": Scheme("float8", D.FLOAT8E4M3FN, -448, 448),
}


def packed(codes: Array) -> npt.NDArray[np.uint8]:
    """Codes of 4 bits, two a byte, the first in the low half: as ONNX stores them. An odd number of them is filled up."""
    flat = codes.reshape(-1).view(np.uint8)
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    pairs = flat.reshape(-1, 2)
    return np.asarray((pairs[:, 0] & 15) | (pairs[:, 1] << 4), np.uint8)


def unpacked(pairs: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The codes of 4 bits, unsigned, flat."""
    return np.stack([pairs & 15, pairs >> 4], -1).reshape(-1)
