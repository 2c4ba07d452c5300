"""Functions of NumPy that torch's arrays lack, or have in another form, computed by what they have."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import numpy as np
import torch

from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.capture.python.held import Value
from fx2onnx.capture.shapes.numpy_nodes import as_numpy
from fx2onnx.torchcompat.frames import check
from fx2onnx.torchcompat.late_imports import torch_arrays

tnp: Value
ndarray: Value
tnp, ndarray, _ = torch_arrays()


@answers_for_caller
def _grid(slices: Value) -> Value:
    """``np.mgrid[slices]``"""
    axes = [tnp.arange(each.start or 0, each.stop, each.step or 1) for each in slices]
    return tnp.stack(tnp.meshgrid(*axes, indexing="ij"))


@answers_for_caller
def _window(name: str, length: Value, *args: Value) -> Value:
    """``np.hanning(length)`` and its like."""
    return ndarray(getattr(torch, f"{name}_window")(length, False, *args, dtype=torch.float64))


@answers_for_caller
def _running(
    function: Callable[..., Value], array: Value, axis: Value = None, dtype: Value = None, **kwargs: Value
) -> Value:
    """``np.cumsum`` and ``np.cumprod``: NumPy counts integers and booleans by int64."""
    array = tnp.asarray(array)
    is_real = array.tensor.is_floating_point() or array.tensor.is_complex()
    return function(array, axis, dtype if is_real or dtype is not None else np.int64, **kwargs)


@answers_for_caller
def _where(condition: Value, *sides: Value) -> Value:
    """``np.where`` whose sides get the dtype that NumPy gives two arrays."""
    dtypes = [side.dtype for side in sides if type(side) is ndarray]
    if len(dtypes) == 2:
        sides = tuple(side.astype(tnp.result_type(*dtypes)) for side in sides)
    return tnp.where(condition, *sides)


@answers_for_caller
def _divmod(array: Value, divisor: Value) -> Value:
    return tnp.floor_divide(array, divisor), tnp.remainder(array, divisor)


@answers_for_caller
def _spaced(
    name: str,
    start: Value,
    stop: Value,
    num: Value = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Value = None,
    **kwargs: Value,
) -> Value:
    """``np.linspace`` and its like, of which torch's leave out the dtype. Without its end, it is one of a number more."""
    found = getattr(tnp, name)(start, stop, num if endpoint else num + 1, **kwargs)
    found = found if endpoint else found[:-1]
    if dtype is not None:
        is_floor = name == "linspace" and np.issubdtype(np.dtype(dtype), np.integer)
        found = (tnp.floor(found) if is_floor else found).astype(dtype)
    return (found, as_numpy((stop - start) / (num - 1 if endpoint else num))) if retstep else found


@answers_for_caller
def _others_spaced(
    name: str, start: Value, stop: Value, num: Value = 50, endpoint: bool = True, **kwargs: Value
) -> Value:
    """``np.logspace`` and ``np.geomspace``, which give no step."""
    return _spaced(name, start, stop, num, endpoint, **kwargs)


@answers_for_caller
def _interpolated(
    x: Value, xp: Value, fp: Value, left: Value = None, right: Value = None, period: Value = None
) -> Value:
    """``np.interp``: the line through the points on both sides of each number."""
    places, points, values = (tnp.asarray(each).tensor.double() for each in (x, xp, fp))
    if period is not None:
        period, left, right = abs(period), None, None
        places, (points, order) = places % period, (points % period).sort()
        points = torch.cat([points[-1:] - period, points, points[:1] + period])
        values = torch.cat([values[order[-1:]], values[order], values[order[:1]]])
    last = points.shape[0] - 1
    lower = torch.searchsorted(points, places.contiguous(), right=True).sub(1).clamp(0, max(last - 1, 0))
    upper = torch.clamp(lower + 1, max=last)
    (start, width), (low, high) = (points[lower], points[upper] - points[lower]), (values[lower], values[upper])
    found = low + (high - low) * torch.where(width == 0, 0.0, (places - start) / width)
    found = torch.where(places < points[0], values[0] if left is None else left, found)
    return ndarray(torch.where(places > points[-1], values[-1] if right is None else right, found))


@answers_for_caller
def _unraveled(indices: Value, shape: Value, order: str = "C") -> Value:
    """``np.unravel_index``"""
    _check_index(indices, functools.reduce(operator.mul, shape, 1))
    found: list[Value] = []
    for size in [*shape][:: -1 if order == "C" else 1]:
        found.append(indices % size)
        indices = indices // size
    return tuple(found[:: -1 if order == "C" else 1])


@answers_for_caller
def _raveled(multi_index: Value, dims: Value, mode: str = "raise", order: str = "C") -> Value:
    """``np.ravel_multi_index``"""
    total: Value = 0
    for index, size in [*zip(multi_index, dims, strict=True)][:: 1 if order == "C" else -1]:
        _check_index(index, size)
        total = total * size + index
    return total


@answers_for_caller
def _check_index(index: Value, size: Value) -> None:
    """NumPy raises where a number is no index of an axis of that size."""
    if type(index) is not ndarray:
        check(index >= 0)
        check(index < size)


@answers_for_caller
def _outer(_: str, function: Callable[..., Value], one: Value, other: Value) -> Value:
    """``np.add.outer`` and its like."""
    one, other = tnp.asarray(one), tnp.asarray(other)
    return function(one.reshape((*one.shape, *(1 for _ in other.shape))), other)


_REDUCED = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_and": "all",
    "logical_or": "any",
}
_ACCUMULATED = {"add": "cumsum", "multiply": "cumprod"}


@answers_for_caller
def _by_method(table: dict[str, str], name: str, _: Value, array: Value, axis: Value = 0, **kwargs: Value) -> Value:
    """``np.add.reduce`` and its like: ``np.sum`` along the first axis."""
    if name not in table:
        raise NotImplementedError(f"of {name}")
    array = tnp.stack([*map(tnp.asarray, array)]) if isinstance(array, list | tuple) else array
    function = OTHERS.get(table[name]) or getattr(tnp, table[name])
    return function(array, axis=axis, **kwargs)


OF_UFUNCS: dict[str, Callable[..., Value]] = {
    "outer": _outer,
    "reduce": functools.partial(_by_method, _REDUCED),
    "accumulate": functools.partial(_by_method, _ACCUMULATED),
}
_WINDOWS = {"hanning": "hann", "hamming": "hamming", "blackman": "blackman", "bartlett": "bartlett", "kaiser": "kaiser"}
OTHERS: dict[str, Callable[..., Value]] = {
    "mgrid": _grid,
    "asanyarray": tnp.asarray,
    "linspace": functools.partial(_spaced, "linspace"),
    **{name: functools.partial(_others_spaced, name) for name in ("logspace", "geomspace")},
    "interp": _interpolated,
    "unravel_index": _unraveled,
    "ravel_multi_index": _raveled,
    "cumsum": functools.partial(_running, tnp.cumsum),
    "cumprod": functools.partial(_running, tnp.cumprod),
    "divmod": _divmod,
    "rint": lambda array: tnp.rint(array * 1.0),
    "where": _where,
    **{name: functools.partial(_window, own) for name, own in _WINDOWS.items()},
}
