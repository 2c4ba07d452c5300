"""ScatterND with a reduction and CumSum, number by number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fx2onnx.runner.fast.compiled import compiled
from fx2onnx.semantics.registry import find_kernel
from fx2onnx.semantics.types import FLOAT32, INT64, Array

ADD, MUL, MAX, MIN = range(4)
_KINDS = {"add": ADD, "mul": MUL, "max": MAX, "min": MIN}
_TYPES = frozenset((FLOAT32, INT64, np.dtype(np.float64), np.dtype(np.int32)))


@compiled
def _places(indices: Array, dims: Array, places: Array) -> bool:
    """The rows of the index tuples; False where one is out of range."""
    for i in range(indices.shape[0]):
        place = 0
        for axis in range(indices.shape[1]):
            index, size = indices[i, axis], dims[axis]
            if index < -size or index >= size:
                return False
            place = place * size + (index + size if index < 0 else index)
        places[i] = place
    return True


@compiled
def _reduced(y: Array, places: Array, updates: Array, kind: int) -> None:
    """Shapes: y [rows, numbers], updates [places, numbers]. NaN wins over all."""
    for i in range(updates.shape[0]):
        target, given = y[places[i]], updates[i]
        for j in range(given.size):
            now, new = target[j], given[j]
            if kind == ADD:
                target[j] = now + new
            elif kind == MUL:
                target[j] = now * new
            elif kind == MAX:
                target[j] = new if new > now or new != new else now
            else:
                target[j] = new if new < now or new != new else now


def call_ScatterND(x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array | None:
    if reduction not in _KINDS or x.dtype not in _TYPES or updates.dtype != x.dtype or indices.dtype != INT64:
        return None
    depth = indices.shape[-1] if indices.ndim else 0
    if (
        not 0 < depth <= x.ndim
        or updates.shape != indices.shape[:-1] + x.shape[depth:]
        or not updates.size
        or not x.size
    ):
        return None
    row, places = math.prod(x.shape[depth:]), np.empty(math.prod(indices.shape[:-1]), INT64)
    tuples = np.require(indices, None, ["C", "W"]).reshape(-1, depth)
    if not _places(tuples, np.array(x.shape[:depth], INT64), places):
        return None
    y, given = np.array(x, order="C"), np.require(updates, None, ["C", "W"])
    _reduced(y.reshape(-1, row), places, given.reshape(-1, row), _KINDS[reduction])
    return y


@compiled
def _running_sums(y: Array) -> None:
    """Shapes: y [lines, count, numbers], summed along the second axis in place."""
    for n in range(y.shape[0]):
        for i in range(1, y.shape[1]):
            last, line = y[n, i - 1], y[n, i]
            for j in range(line.size):
                line[j] += last[j]


def _accumulated(ufunc: Any, x: Array, axis: int) -> Array:
    y = np.array(x, order="C")
    if y.dtype not in (np.float32, np.int64):
        return np.asarray(ufunc.accumulate(y, axis=axis, dtype=y.dtype))
    _running_sums(y.reshape(math.prod(y.shape[:axis]), y.shape[axis], math.prod(y.shape[axis + 1 :])))
    return y


def call_CumSum(x: Array, axis: Array, **attrs: Any) -> Array:
    kernel = find_kernel("", "CumSum", 14)
    assert kernel is not None
    y: Array = kernel.fn(x, axis, accumulate=_accumulated, **attrs)
    return y
