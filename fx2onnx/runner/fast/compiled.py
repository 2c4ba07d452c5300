"""Tools of compiled forms: decorators, functions of one number, and operands as lines of memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numba
import numpy as np

from fx2onnx.semantics.kernels.elementwise import Call
from fx2onnx.semantics.types import FLOAT32, Array

F = TypeVar("F", bound=Callable[..., Any])

f32, i32 = np.float32, np.int32
_SETTINGS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
_EXACT = {"contract", "nsz"}


def compiled(fn: F) -> F:
    """The function as machine code, made at its first call on this machine and read from disk later. Sums keep their order."""
    made: F = numba.njit(**_SETTINGS, fastmath=_EXACT)(fn)
    return made


def summing(fn: F) -> F:
    """``compiled`` for functions whose sums may be taken in any order, which the number of lanes decides."""
    made: F = numba.njit(**_SETTINGS, fastmath={*_EXACT, "reassoc"})(fn)
    return made


def inlined(fn: F) -> F:
    """A function of one number, for use in compiled loops."""
    made: F = numba.njit(inline="always")(fn)
    return made


@inlined
def exp(x: Any) -> Any:
    """exp(x) of float32 to one or two units in the last place; NaN stays NaN. Source: the polynomial of Cephes ``expf``."""
    y = min(max(x, f32(-104.0)), f32(88.722839))
    n = np.floor(y * f32(1.44269504) + f32(0.5))
    r = y - n * f32(0.693359375)
    r = r - n * f32(-2.12194440e-4)
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    p = p * r * r + r + f32(1)
    half = i32(n) >> i32(1)
    low = i32((half + i32(127)) << i32(23)).view(np.float32)
    high = i32((i32(n) - half + i32(127)) << i32(23)).view(np.float32)
    z = p * low * high
    z = f32(np.inf) if x > f32(88.722839) else z
    return z if x == x else x


@inlined
def expm1(x: Any) -> Any:
    """exp(x) - 1 of x <= 0, without cancellation near 0."""
    y = max(x, f32(-0.5))
    p = f32(1.9875691500e-4)
    p = p * y + f32(1.3981999507e-3)
    p = p * y + f32(8.3334519073e-3)
    p = p * y + f32(4.1665795894e-2)
    p = p * y + f32(1.6666665459e-1)
    p = p * y + f32(5.0000001201e-1)
    p = p * y * y + y
    return p if x > f32(-0.5) else exp(x) - f32(1)


@inlined
def tanh(x: Any) -> Any:
    """tanh(x) of float32. Source: the 13/6 rational approximation of Eigen's ``generic_fast_tanh``."""
    y = min(max(x, f32(-7.90531110763549805)), f32(7.90531110763549805))
    t = y * y
    p = f32(-2.76076847742355e-16)
    p = p * t + f32(2.00018790482477e-13)
    p = p * t + f32(-8.60467152213735e-11)
    p = p * t + f32(5.12229709037114e-08)
    p = p * t + f32(1.48572235717979e-05)
    p = p * t + f32(6.37261928875436e-04)
    p = p * t + f32(4.89352455891786e-03)
    q = f32(1.19825839466702e-06)
    q = q * t + f32(1.18534705686654e-04)
    q = q * t + f32(2.26843463243900e-03)
    q = q * t + f32(4.89352518554385e-03)
    z = y * p / q
    return z if x == x else x


@inlined
def erf(x: Any) -> Any:
    """erf(x) of float32. Source: the 13/8 rational approximation of Eigen's ``generic_fast_erf``."""
    y = min(max(x, f32(-4)), f32(4))
    t = y * y
    p = f32(-2.72614225801306e-10)
    p = p * t + f32(2.77068142495902e-08)
    p = p * t + f32(-2.10102402082508e-06)
    p = p * t + f32(-5.69250639462346e-05)
    p = p * t + f32(-7.34990630326855e-04)
    p = p * t + f32(-2.95459980854025e-03)
    p = p * t + f32(-1.60960333262415e-02)
    q = f32(-1.45660718464996e-05)
    q = q * t + f32(-2.13374055278905e-04)
    q = q * t + f32(-1.68282697438203e-03)
    q = q * t + f32(-7.37332916720468e-03)
    q = q * t + f32(-1.42647390514189e-02)
    z = y * p / q
    return z if x == x else x


@inlined
def ordered(x: Any) -> Any:
    """The bits of a float32 as an integer that is ordered as the numbers are, so that maxima are vectorised; NaN is above or below all."""
    bits = f32(x).view(np.int32)
    return bits ^ ((bits >> i32(31)) & i32(0x7FFFFFFF))


@inlined
def number_of(bits: Any) -> Any:
    """The number of ``ordered`` bits."""
    return i32(bits ^ ((bits >> i32(31)) & i32(0x7FFFFFFF))).view(np.float32)


@inlined
def into_code(x: Any, zero: Any, low: Any, high: Any) -> Any:
    """saturate(round(x) + zero) as an int32; NaN is the least code."""
    y = np.rint(x) + zero
    y = y if y == y else low
    return i32(min(max(y, low), high))


def operand(x: Array, shape: Sequence[int], dtype: Any = None) -> tuple[Array, list[Call]]:
    """x in C order, writable (as the compiled functions have their types) and of this shape, and the calls that copy it there."""
    if x.flags.c_contiguous and x.flags.writeable and dtype in (None, x.dtype):
        return x.reshape(shape), []
    room = np.empty(shape, dtype or x.dtype)
    return room, [partial(np.copyto, room.reshape(x.shape), x, "unsafe")]


def in_memory_order(x: Array) -> Array:
    """[N, *dims, C] of channels-last memory, else x."""
    if x.ndim > 2 and not x.flags.c_contiguous:
        moved = np.moveaxis(x, 1, -1)
        if moved.flags.c_contiguous:
            return moved
    return x


def is_plain(spec: Any) -> bool:
    """Return whether a value is there, in float32 and not empty."""
    return spec is not None and spec[1] == FLOAT32 and math.prod(spec[0]) > 0
