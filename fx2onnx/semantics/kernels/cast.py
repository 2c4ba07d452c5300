"""Cast and CastLike between all dtypes, strings and the small floats included; float16 in kernels by way of float32."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from fx2onnx.semantics.kernels.elementwise import Call, Outs
from fx2onnx.semantics.registry import Calls, Facts, Kernel, Prepared, bind, kernel
from fx2onnx.semantics.types import (
    FLOAT32,
    LEAST_HALVES,
    NARROW_FLOATS,
    NARROW_INTS,
    STRING_DTYPE,
    Array,
    Dtype,
    floats_of_halves,
    halves_of_floats,
    is_float,
    narrowed,
    numpy_dtype_of_code,
    widen,
)

_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
_SATURATE = frozenset(
    np.dtype(t)
    for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz)
)
_NAMES = {"FLOAT": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7, "STRING": 8, "BOOL": 9,
          "FLOAT16": 10, "DOUBLE": 11, "UINT32": 12, "UINT64": 13}  # fmt: skip


def cast_array(x: Array, dtype: Dtype, saturate: bool = True, round_mode: str = "up") -> Array:
    """``x`` in another dtype.

    Numerics: floats go to integers toward zero, those out of range as the processor has it, as in onnxruntime; to float8 with ``saturate`` the finite range is clipped to; to integers
    of 2 and 4 bits the low bits are kept.
    """
    if x.dtype == dtype:
        return x.copy()
    if x.dtype == np.float16 and dtype == np.float32:
        return widen(x)
    if x.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"ONNX does not cast {x.dtype} to {dtype}")
    if dtype == STRING_DTYPE:
        return _to_strings(x)
    if x.dtype == STRING_DTYPE:
        return _from_strings(x, dtype)
    if dtype in _SATURATE:
        return _to_float8(x, dtype, saturate)
    if dtype == _E8M0:
        return _to_e8m0(x, saturate, round_mode)
    if dtype in NARROW_INTS:
        return _to_narrow_int(x, dtype)
    if x.dtype in NARROW_FLOATS and not is_float(dtype):
        x = x.astype(np.float32)
    if x.dtype in NARROW_INTS and dtype.kind != "f":
        x = x.astype(np.int8)
    if dtype in NARROW_FLOATS and dtype.kind != "f" and x.dtype.kind in "iub":
        x = x.astype(np.float32)
    return narrowed(x, dtype)


def _to_float8(x: Array, dtype: Dtype, saturate: bool) -> Array:
    wide = x if x.dtype.kind == "f" else x.astype(np.float32)
    if saturate:
        top = float(ml_dtypes.finfo(dtype).max)
        wide = np.asarray(np.clip(wide, -top, top))
    return wide.astype(dtype)


def _to_e8m0(x: Array, saturate: bool, round_mode: str) -> Array:
    """Powers of two only: the exponent of |x|, rounded up, down or to the nearest."""
    wide = np.abs(x.astype(np.float32))
    bits = wide.view(np.uint32)
    exponent = (bits >> 23).astype(np.int64)
    fraction = bits & 0x7FFFFF
    if round_mode == "up":
        exponent += (fraction > 0) & ~((exponent == 0) & (fraction <= 0x400000)) if saturate else fraction > 0
    elif round_mode == "nearest":
        exponent += fraction >= 0x400000
    elif round_mode != "down":
        raise ValueError(f"round_mode is {round_mode!r}, not up, down or nearest")
    special = ~np.isfinite(wide)
    exponent = np.where(exponent > 254, 254 if saturate else 255, exponent)
    exponent = np.where(special, np.where(np.isinf(wide) & saturate, 254, 255), exponent)
    return exponent.astype(np.uint8).view(_E8M0)


def _to_narrow_int(x: Array, dtype: Dtype) -> Array:
    info = ml_dtypes.iinfo(dtype)
    bits = int(info.bits)
    if is_float(x.dtype):
        x = np.trunc(x.astype(np.float32) if x.dtype in NARROW_FLOATS else x)
    whole = x.astype(np.int64) & ((1 << bits) - 1)
    if int(info.min) < 0:
        whole = np.where(whole >= 1 << (bits - 1), whole - (1 << bits), whole)
    return whole.astype(np.int8 if int(info.min) < 0 else np.uint8).astype(dtype)


def _to_strings(x: Array) -> Array:
    out = np.empty(x.shape, dtype=object)
    flat = out.reshape(-1)
    source = x.reshape(-1)
    if x.dtype.kind == "b":
        flat[:] = ["1" if item else "0" for item in source]
    elif is_float(x.dtype):
        if x.dtype in NARROW_FLOATS and x.dtype.kind != "f":
            source = source.astype(np.float32)
        flat[:] = [_float_text(item) for item in source]
    else:
        flat[:] = [str(int(item)) for item in source]
    return flat.reshape(x.shape)


def _float_text(item: Any) -> str:
    """Eight digits, as onnxruntime writes them."""
    if np.isnan(item):
        return "NaN"
    if np.isinf(item):
        return "INF" if item > 0 else "-INF"
    return f"{float(item):.8g}"


def _from_strings(x: Array, dtype: Dtype) -> Array:
    items = [item.decode() if isinstance(item, bytes) else str(item) for item in x.reshape(-1)]
    if is_float(dtype):
        return cast_array(np.array([float(item) for item in items], np.float64).astype(np.float32 if dtype.itemsize < 8 else np.float64), dtype).reshape(x.shape)  # fmt: skip
    if dtype.kind == "b":
        return np.array([bool(int(item)) for item in items], np.bool_).reshape(x.shape)
    numbers = [int(item) if item.lstrip("+-").isdigit() else int(float(item)) for item in items]
    return cast_array(np.array(numbers, np.int64 if dtype.kind != "u" else np.uint64), dtype).reshape(x.shape)


@kernel("Cast", 6)
def cast(x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    """x in the dtype ``to``."""
    return cast_array(x, numpy_dtype_of_code(to), bool(saturate), round_mode)


@kernel("Cast", 1)
def cast_1(x: Array, *, to: str) -> Array:
    """Cast of opsets 1-5: ``to`` is a name."""
    if to not in _NAMES:
        raise ValueError(f"unknown type {to!r}")
    return cast_array(x, numpy_dtype_of_code(_NAMES[to]))


@kernel("CastLike", 15)
def cast_like(x: Array, like: Array, *, saturate: int = 1, round_mode: str = "up") -> Array:
    """x in the dtype of ``like``."""
    return cast_array(x, like.dtype, bool(saturate), round_mode)


Convert = Callable[[Array, Array], None]

_BY_FLOATS = frozenset({
    "AveragePool", "BatchNormalization", "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization",
    "LayerNormalization", "LogSoftmax", "LpNormalization", "MaxPool", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceSum", "ReduceSumSquare", "RMSNormalization", "Softmax",
})  # fmt: skip


def is_by_floats(kernel: Kernel) -> bool:
    """Return whether float32 gives the results of the kernel on float16, rounded once: NumPy computes float16 number by number."""
    return kernel.elementwise or (not kernel.domain and kernel.op_type in _BY_FLOATS)


def in_floats(
    kernel: Kernel,
    facts: Facts,
    prepare: Callable[[Facts], Prepared | None] | None,
    widen: Convert = floats_of_halves,
    narrow: Convert = halves_of_floats,
) -> Prepared | None:
    """The kernel on float16 by way of float32, as ``prepare`` computes that. None for kernels that are not ``is_by_floats`` and for
    few numbers.
    """
    half, (shape, dtype) = np.dtype(np.float16), facts.outputs[0]
    given = [spec is not None and spec[1] == half for spec in facts.inputs]
    if not any(given) or not is_by_floats(kernel) or kernel.op_type in _BY_BITS or len(facts.outputs) > 1:
        return None
    if max(math.prod(one[0]) for one in (facts.outputs[0], *facts.inputs) if one is not None) < LEAST_HALVES:
        return None
    if kernel.op_type in _COMPARING and widen is floats_of_halves:
        return None
    specs = [
        (spec[0], FLOAT32) if spec is not None and is_half else spec
        for spec, is_half in zip(facts.inputs, given, strict=True)
    ]
    consts = [
        one if one is None or not is_half else one.astype(FLOAT32) if one.size < LEAST_HALVES else None
        for one, is_half in zip(facts.consts, given, strict=True)
    ]
    result_spec = (shape, FLOAT32 if dtype == half else dtype)
    inner = None
    if prepare is not None:
        inner = prepare(Facts(specs, consts, [result_spec], [False] * len(given), facts.attrs, facts.kept))
    late = [is_half and const is None for is_half, const in zip(given, consts, strict=True)]
    scratch = [spec for spec, is_late in zip(specs, late, strict=True) if spec is not None and is_late]
    allowed = kernel.inplace if inner is None or inner.inplace is None else inner.inplace
    over = next((place for place in allowed if late[place : place + 1] == [True] and specs[place] == result_spec), None)
    scratch += [result_spec] if dtype == half and over is None else []

    def calls(out: Outs, room: list[Array], *operands: Array) -> list[Call]:
        rooms, made = iter(room), list[Call]()
        wide = list(operands)
        for place, (x, const, is_half) in enumerate(zip(operands, consts, given, strict=True)):
            if late[place]:
                wide[place] = next(rooms)
                made.append(functools.partial(widen, x, wide[place]))
            elif is_half and const is not None:
                wide[place] = const
        result = out[0] if dtype != half else next(rooms) if over is None else wide[over]
        if inner is not None:
            made += bind(inner.fn, [result], list(rooms), *wide)
        else:
            made += bind(kernel.fn, [result], *wide, **facts.attrs)
        return made if result is out[0] else [*made, functools.partial(narrow, result, out[0])]

    return Prepared(Calls(calls), (*scratch, *(inner.scratch if inner is not None else ())), inplace=())


_BY_BITS = frozenset({"Abs", "Neg", "Where"})
"""Operators that NumPy computes by the bits, for float16, too."""
_COMPARING = frozenset({"Clip", "Max", "Min", "Relu"})
"""Operators that NumPy computes without rounding float16: it takes them as long as its conversions."""
