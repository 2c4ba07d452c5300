"""How numbers become codes and scales, and codes numbers again.

All functions take blocks: arrays of which the last axis shares a scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

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

    @property
    def bits(self) -> int:
        return self.dtype.bitwidth

    @property
    def offset(self) -> int:
        """The offset that makes signed quantized values unsigned."""
        return 1 << (self.bits - 1) if self.dtype in (D.INT8, D.INT4) else 0

    @property
    def held_as(self) -> np.dtype[Any]:
        """The dtype of ``codes``: one byte a value of 4 bits."""
        if self.dtype == D.FLOAT8E4M3FN:
            found: np.dtype[Any] = np.dtype(ml_dtypes.float8_e4m3fn)
            return found
        return np.dtype(np.int8 if self.offset else np.uint8)

    @property
    def cut(self) -> float:
        """By what share a scale of ``scales`` would have to be larger for all numbers of a block to fit."""
        return -self.low / self.high - 1 if self.dtype == D.INT4 else 0.0

    def scales(self, blocks: Array, dtype: Any) -> Array:
        """A scale a block, in ``dtype``; 1 where all are zero.

        The block's numbers fit, but of ``int4``: its scale has the sign that makes the number that is largest in size the code -8, so that
        one code more is of use, and what is as large on the other side becomes 7. Mean squares of errors are an eighth smaller on
        normal numbers. Source: onnxruntime's blockwise quantisation.
        """
        wide = blocks.astype(np.float32, copy=False)
        top, bottom = wide.max(-1), wide.min(-1)
        if self.has_zeros:
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

        Codes of 4 bits are those of onnxruntime's blockwise quantisation, ties included: two files of one checkpoint whose codes
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
        shifted: Array = _in_steps(numbers, steps)
        shifted += np.float32(self.offset) if zeros is None else zeros.astype(np.float32)[..., None]
        _round_up_halves(shifted)
        return (np.clip(shifted, 0, 15, out=shifted) - self.offset).astype(self.held_as)

    def values(self, codes: Array, scales: Array, zeros: Array | None) -> Array:
        """The numbers that codes stand for, computed in float32 and rounded to the dtype of the scales."""
        if self.kind == "nf4":
            wide = NF4[codes]
        else:
            wide = codes.astype(np.float32)
            if zeros is not None:
                wide -= zeros.astype(np.float32)[..., None]
        return (wide * scales.astype(np.float32)[..., None]).astype(scales.dtype)


def _in_steps(numbers: Array, steps: Array) -> Array:
    """``numbers / steps`` with the rounding of a product by the inverse, where float32 has one."""
    with np.errstate(over="ignore"):
        inverse = 1 / steps
    return numbers * inverse if np.isfinite(inverse).all() else numbers / steps


def _round_up_halves(numbers: Array) -> None:
    """In place, for numbers above -1."""
    numbers += np.float32(0.5)
    np.floor(numbers, out=numbers)


SCHEMES = {
    "int8": Scheme("int8", D.INT8, -127, 127),
    "int4": Scheme("int4", D.INT4, -8, 7),
    "uint4": Scheme("uint4", D.UINT4, 0, 15, has_zeros=True),
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
