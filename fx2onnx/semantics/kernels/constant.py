"""Operators that make tensors out of attributes, shapes or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.shape import ints
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import FLOAT32, INT64, NARROW_FLOATS, Array, narrowed, numpy_dtype_of_code, string_array


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
