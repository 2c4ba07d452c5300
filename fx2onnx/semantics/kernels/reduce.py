"""Reduce*, ArgMax, ArgMin, CumSum, CumProd."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.norm import check_axis
from fx2onnx.semantics.kernels.shape import Ints, ints
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import INT64, Array, narrowed, widen

Axes = tuple[int, ...]


def _sum(x: Array, axes: Axes, keep: bool) -> Any:
    is_last = len(axes) == 1 and axes[0] == x.ndim - 1
    if x.dtype == np.float32 and is_last and x.flags.c_contiguous and x.ndim > 1 and x.shape[-1]:
        total = x.reshape(-1, x.shape[-1]) @ np.ones(x.shape[-1], x.dtype)
        return total.reshape(x.shape[:-1] + ((1,) if keep else ()))
    return np.sum(x, axis=axes, keepdims=keep, dtype=x.dtype)


def _mean(x: Array, axes: Axes, keep: bool) -> Any:
    count = math.prod(x.shape[axis] for axis in axes)
    if x.dtype.kind in "iu":
        total = np.sum(x, axis=axes, keepdims=keep, dtype=np.uint64 if x.dtype.kind == "u" else np.int64)
        return total // max(count, 1) + ((total < 0) & (total % max(count, 1) != 0))
    return np.divide(_sum(x, axes, keep), np.asarray(count, x.dtype))


def _extreme(ufunc: Any, edge: str) -> Callable[[Array, Axes, bool], Any]:
    def reduce(x: Array, axes: Axes, keep: bool) -> Any:
        if x.dtype.kind == "b":
            return ufunc.reduce(x, axis=axes, keepdims=keep, initial=edge == "max")
        if any(x.shape[axis] == 0 for axis in axes):
            info: Any = np.iinfo(x.dtype) if x.dtype.kind in "iu" else None
            top = (info.max if edge == "max" else info.min) if info else (np.inf if edge == "max" else -np.inf)
            return ufunc.reduce(x, axis=axes, keepdims=keep, initial=np.asarray(top, x.dtype)[()])
        if axes == (x.ndim - 1,) and x.shape[-1] <= SHORT < x.size:
            total = x[..., 0].copy()
            for place in range(1, x.shape[-1]):
                ufunc(total, x[..., place], out=total)
            return total[..., None] if keep else total
        return ufunc.reduce(x, axis=axes, keepdims=keep)

    return reduce


SHORT = 16
"""Numbers in a row up to which one pass over all rows for each place in them is faster than a pass over each row."""


def _log_sum_exp(x: Array, axes: Axes, keep: bool) -> Any:
    if any(x.shape[axis] == 0 for axis in axes):
        return np.log(np.sum(np.exp(x), axis=axes, keepdims=keep))
    top = np.max(x, axis=axes, keepdims=True)
    top = np.where(np.isfinite(top), top, np.zeros((), x.dtype))
    total = np.log(np.sum(np.exp(x - top), axis=axes, keepdims=True)) + top
    return total if keep else np.squeeze(total, axis=axes)


REDUCTIONS: dict[str, Callable[[Array, Axes, bool], Any]] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceProd": lambda x, axes, keep: np.prod(x, axis=axes, keepdims=keep, dtype=x.dtype),
    "ReduceMax": _extreme(np.maximum, "min"),
    "ReduceMin": _extreme(np.minimum, "max"),
    "ReduceL1": lambda x, axes, keep: np.sum(np.abs(x), axis=axes, keepdims=keep, dtype=x.dtype),
    "ReduceL2": lambda x, axes, keep: np.sqrt(np.sum(x * x, axis=axes, keepdims=keep, dtype=x.dtype)),
    "ReduceSumSquare": lambda x, axes, keep: np.sum(x * x, axis=axes, keepdims=keep, dtype=x.dtype),
    "ReduceLogSum": lambda x, axes, keep: np.log(np.sum(x, axis=axes, keepdims=keep, dtype=x.dtype)),
    "ReduceLogSumExp": _log_sum_exp,
}
_AXES_INPUT_SINCE = {"ReduceSum": 13}
_EXTREMES = ("ReduceMax", "ReduceMin")


def _register(op_type: str) -> None:
    def reduce(x: Array, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
        chosen = tuple(check_axis(axis, x.ndim) for axis in ints(axes))
        if not chosen and noop_with_empty_axes != 1:
            chosen = tuple(range(x.ndim))
        if not chosen and op_type in ("ReduceSum", "ReduceMean", "ReduceProd", *_EXTREMES):
            return x.copy()
        wide = widen(x)
        if wide.dtype.kind in "iu" and op_type in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"):
            wide = wide.astype(np.float64)
        return narrowed(np.asarray(REDUCTIONS[op_type](wide, chosen, keepdims == 1)), x.dtype)

    reduce.__doc__ = f"{op_type} over ``axes``, an attribute or an input by the opset; none given means all."
    kernel(op_type, (1, _AXES_INPUT_SINCE.get(op_type, 18)), shape_inputs=(1,))(reduce)


for _op_type in REDUCTIONS:
    _register(_op_type)


def _register_arg(op_type: str, pick: Callable[..., Any]) -> None:
    def arg(x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
        axis = check_axis(axis, x.ndim)
        if x.ndim == 0:
            return np.zeros((), INT64)
        wide = widen(x)
        if select_last_index:
            result = x.shape[axis] - 1 - pick(np.flip(wide, axis), axis=axis)
        else:
            result = pick(wide, axis=axis)
        result = np.asarray(result, INT64)
        return np.expand_dims(result, axis) if keepdims == 1 else result

    arg.__doc__ = f"The index of the first (or last) {op_type[3:].lower()}imum along ``axis``."
    kernel(op_type)(arg)


_register_arg("ArgMax", np.argmax)
_register_arg("ArgMin", np.argmin)


def _accumulated(ufunc: Any, x: Array, axis: int) -> Array:
    """``ufunc.accumulate``, which takes an axis before the last one number by number, with rows at a time."""
    if math.prod(x.shape[axis + 1 :]) < LEAST_ROW:
        return np.asarray(ufunc.accumulate(x, axis=axis, dtype=x.dtype))
    total = np.array(x, order="C")
    lines = np.moveaxis(total, axis, 0)
    for last, line in itertools.pairwise(lines):
        ufunc(last, line, line)
    return total


LEAST_ROW = 128
"""Numbers of a row from which a call for each is faster."""


def _register_cumulative(op_type: str, since: int, ufunc: Any, start: int) -> None:
    def cumulative(
        x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0, accumulate: Any = _accumulated
    ) -> Array:
        if axis.size != 1:
            raise ValueError("axis must be one number")
        if not {exclusive, reverse} <= {0, 1}:
            raise ValueError(f"exclusive is {exclusive} and reverse {reverse}; each must be 0 or 1")
        line = check_axis(int(axis.reshape(())), x.ndim)
        wide = widen(x)
        total = accumulate(ufunc, np.flip(wide, line) if reverse else wide, line)
        if exclusive:
            head = (slice(None),) * line
            moved = np.full_like(total, start)
            moved[(*head, slice(1, None))] = total[(*head, slice(None, -1))]
            total = moved
        return narrowed(np.ascontiguousarray(np.flip(total, line) if reverse else total), x.dtype)

    cumulative.__doc__ = f"The running {ufunc.__name__} along ``axis``; without the element itself if ``exclusive``."
    kernel(op_type, since)(cumulative)


_register_cumulative("CumSum", 11, np.add, 0)
_register_cumulative("CumProd", 26, np.multiply, 1)
