"""Operators that make tensors of attributes, shapes, numbers and chance, and Dropout.

A ``seed`` makes a node repeat itself; without one each run differs.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fx2onnx.base.stack_frames import public
from fx2onnx.semantics.kernels.cast import cast_array
from fx2onnx.semantics.kernels.shape import ints
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import (
    FLOAT32,
    INT64,
    NARROW_FLOATS,
    Array,
    Dtype,
    narrowed,
    numpy_dtype_of_code,
    string_array,
    widen,
)

_shared: np.random.Generator | None = None


@public
def set_seed(seed: int) -> None:
    """Make the nodes without a ``seed`` draw from one generator that starts here, as onnxruntime's ``set_seed`` does."""
    global _shared
    _shared = np.random.default_rng(seed)


def generator(seed: float | int | None) -> np.random.Generator:
    """A generator; the float attribute ``seed`` is taken by its bits."""
    if seed is None:
        return np.random.default_rng() if _shared is None else _shared.spawn(1)[0]
    return np.random.default_rng(seed if isinstance(seed, int) and seed >= 0 else list(struct.pack("<d", float(seed))))


DISTRIBUTIONS = {
    "RandomNormal": ("normal", {"mean": 0.0, "scale": 1.0}),
    "RandomUniform": ("uniform", {"low": 0.0, "high": 1.0}),
}
"""NumPy's name of each, and its parameters in order."""


def _register(op_type: str, method: str, defaults: Mapping[str, float]) -> None:
    def draw(shape: Sequence[int], dtype: Dtype, seed: float | None, given: Mapping[str, float]) -> Array:
        check_shape(shape, dtype, "a random tensor")
        parameters = (given.get(name, default) for name, default in defaults.items())
        return cast_array(getattr(generator(seed), method)(*parameters, tuple(shape)), dtype)

    def random(*, shape: Sequence[int], dtype: int = 1, seed: float | None = None, **given: float) -> Array:
        return draw(shape, numpy_dtype_of_code(dtype), seed, given)

    def random_like(x: Array, *, dtype: int | None = None, seed: float | None = None, **given: float) -> Array:
        return draw(x.shape, x.dtype if dtype is None else numpy_dtype_of_code(dtype), seed, given)

    random.__doc__ = f"Numbers of the {method} distribution."
    random_like.__doc__ = f"Numbers of the {method} distribution in x's shape."
    kernel(op_type, is_random=True)(random)
    kernel(f"{op_type}Like", is_random=True)(random_like)


for _op_type, (_method, _parameters) in DISTRIBUTIONS.items():
    _register(_op_type, _method, _parameters)


@kernel("Bernoulli", 15, is_random=True)
def bernoulli(x: Array, *, dtype: int | None = None, seed: float | None = None) -> Array:
    """1 with probability x."""
    drawn = generator(seed).random(x.shape) < widen(x)
    return cast_array(drawn, x.dtype if dtype is None else numpy_dtype_of_code(dtype))


@kernel("Multinomial", 7, is_random=True)
def multinomial(x: Array, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Array:
    """``sample_size`` class numbers a row, drawn by the unnormalized log probabilities x."""
    if sample_size < 1:
        raise ValueError(f"sample_size is {sample_size}, it must be 1 or more")
    check_shape((x.shape[0], sample_size), np.dtype(np.int64), "a random tensor")
    wide = widen(x).astype(np.float64)
    weight = np.exp(wide - wide.max(axis=1, keepdims=True))
    total = np.cumsum(weight / weight.sum(axis=1, keepdims=True), axis=1)
    drawn = generator(seed).random((x.shape[0], sample_size))
    rows = [np.searchsorted(edges, points) for edges, points in zip(total, drawn, strict=True)]
    chosen = np.minimum(np.array(rows).reshape(x.shape[0], sample_size), x.shape[1] - 1)
    return cast_array(chosen, numpy_dtype_of_code(dtype))


@kernel("Constant")
def constant(
    *,
    value: Array | None = None,
    sparse_value: Array | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
) -> Array:
    """The one attribute that is given, as a tensor."""
    if value is not None:
        return value
    if sparse_value is not None:
        return sparse_value
    if value_float is not None or value_floats is not None:
        return np.array(value_float if value_float is not None else value_floats, FLOAT32)
    if value_int is not None or value_ints is not None:
        return np.array(value_int if value_int is not None else value_ints, INT64)
    if value_string is not None:
        return string_array([value_string], ())
    if value_strings is not None:
        return string_array(value_strings, (len(value_strings),))
    raise ValueError("no value attribute is given")


@kernel("ConstantOfShape", 9, shape_inputs=(0,))
def constant_of_shape(shape: Array, *, value: Array | None = None) -> Array:
    """A tensor of one value; float32 zeros by default."""
    fill = np.zeros(1, FLOAT32) if value is None else value
    if fill.size != 1:
        raise ValueError("value must have one element")
    if shape.ndim != 1:
        raise ValueError(f"the shape has {shape.ndim} axes, it must have one")
    dims = ints(shape)
    check_shape(dims, fill.dtype, "the result of ConstantOfShape")
    return np.full(dims, fill.reshape(-1)[0], fill.dtype)


@kernel("Range", 11, shape_inputs=(0, 1, 2))
def range_(start: Array, limit: Array, delta: Array, **_: Any) -> Array:
    """start, start + delta, ... before ``limit``."""
    if not start.dtype == limit.dtype == delta.dtype:
        raise TypeError("start, limit and delta have different dtypes")
    dtype = start.dtype
    first, last, step = (_number(item) for item in (start, limit, delta))
    if step == 0:
        raise ValueError("delta is 0")
    if dtype.kind in "iu":
        count = max(-((int(first) - int(last)) // int(step)), 0)
    else:
        count = max(int(np.ceil((last - first) / step)), 0)
    check_shape((count,), dtype, "the result of Range")
    if dtype in NARROW_FLOATS:
        return narrowed(np.arange(count, dtype=np.float32) * np.float32(step) + np.float32(first), dtype)
    return narrowed(np.arange(count, dtype=dtype) * np.asarray(step, dtype) + np.asarray(first, dtype), dtype)


def _number(item: Array) -> Any:
    one = item.reshape(())
    return float(one) if one.dtype in NARROW_FLOATS else one.item()


@kernel("EyeLike", 9)
def eye_like(x: Array, *, dtype: int | None = None, k: int = 0) -> Array:
    """Ones on the k-th diagonal, in x's shape."""
    if x.ndim != 2:
        raise ValueError(f"the input has {x.ndim} axes, not 2")
    wanted = x.dtype if dtype is None else numpy_dtype_of_code(dtype)
    check_shape(x.shape, wanted)
    return np.eye(x.shape[0], x.shape[1], k, dtype=np.float32).astype(wanted)


@kernel("Dropout", 12, kind="view", is_random=True)
def dropout(
    x: Array, ratio: Array | None = None, training: Array | None = None, *, seed: int | None = None, n_outputs: int = 1
) -> Any:
    """x, or in training x with a share ``ratio`` zeroed and the rest scaled up; and the mask.

    Numerics: with a seed, NumPy's legacy generator, as in ONNX's own cases; without one each run differs.
    """
    if ratio is not None and not 0 <= float(ratio) < 1:
        raise ValueError(f"ratio is {float(ratio)}, not from 0 to below 1")
    if training is None or not bool(training):
        return (x, np.ones(x.shape, np.bool_)) if n_outputs > 1 else x
    share = 0.5 if ratio is None else float(ratio)
    if share == 0:
        return x, np.ones(x.shape, np.bool_)
    draw = generator(None).random if seed is None else np.random.RandomState(seed % (1 << 32)).random_sample
    mask = np.asarray(draw(x.shape) >= share)
    return (x * mask * np.asarray(1.0 / (1.0 - share), x.dtype)).astype(x.dtype), mask


@kernel("Dropout", (1, 6, 7, 10), kind="view")
def dropout_10(
    x: Array, *, ratio: float = 0.5, is_test: int = 0, n_outputs: int = 1, version: int = 10, **_: Any
) -> Any:
    """x: these versions describe inference only."""
    return (x, np.ones(x.shape, np.bool_ if version >= 10 else x.dtype)) if n_outputs > 1 else x
