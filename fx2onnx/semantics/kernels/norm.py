"""Normalizations; and Softmax, LogSoftmax, Hardmax in their two readings: one axis (13+) and flattened to 2-D (1-12)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.elementwise import Call, Outs, each, reshaped
from fx2onnx.semantics.registry import Calls, Facts, Prepared, kernel, same_as_first
from fx2onnx.semantics.types import FLOAT32, NARROW_FLOATS, Array, Spec, narrowed, numpy_dtype_of_code, vecdot, widen


def check_axis(axis: int, rank: int) -> int:
    """``axis`` counted from 0. Raises: ValueError out of range."""
    if not -rank <= axis < max(rank, 1):
        raise ValueError(f"axis {axis} is out of range for {rank} axes")
    return axis + rank if axis < 0 else axis


MOST_COLUMNS, LEAST_TURNED = 16, 256
"""Short rows of many numbers are turned: NumPy takes as long for a row as for a hundred numbers."""


def softmax_into(x: Array, y: Array, axis: int) -> None:
    """exp(x - max) / sum along ``axis``.

    Buffers: y may be x; one scratch of the other axes' size. Numerics: each step in x's own dtype, as ONNX's function body
    has it.
    """
    if x.size == 0:
        return
    is_rows = axis in (-1, y.ndim - 1) and y.flags.c_contiguous
    if is_rows and y.dtype.char in "fd" and y.shape[-1] <= MOST_COLUMNS and x.size >= LEAST_TURNED:
        turned = np.ascontiguousarray(x.reshape(-1, x.shape[-1]).T)
        softmax_into(turned, turned, 0)
        y.reshape(-1, y.shape[-1])[...] = turned.T
        return
    np.subtract(x, np.maximum.reduce(x, axis=axis, keepdims=True), out=y)
    np.exp(y, out=y)
    if y.dtype == FLOAT32 and is_rows:  # a product with ones takes a quarter of the time
        total = np.dot(y.reshape(-1, y.shape[-1]), np.ones(y.shape[-1], FLOAT32)).reshape(*y.shape[:-1], 1)
    else:
        total = np.add.reduce(y, axis=axis, keepdims=True)
    np.divide(y, total, out=y)


def log_softmax_into(x: Array, y: Array, axis: int) -> None:
    """x - max - log(sum(exp(x - max))) along ``axis``; y may be x."""
    if x.dtype in NARROW_FLOATS:
        wide = x.astype(np.float32)
        log_softmax_into(wide, wide, axis)
        y[...] = wide.astype(x.dtype)
        return
    if x.size == 0:
        return
    np.subtract(x, np.maximum.reduce(x, axis=axis, keepdims=True), out=y)
    np.subtract(y, np.log(np.add.reduce(np.exp(y), axis=axis, keepdims=True)), out=y)


def as_matrix(x: Array, axis: int) -> Array:
    """x as 2-D: the axes before ``axis``, the axes from it on. Raises: ValueError out of range."""
    if not -x.ndim <= axis <= x.ndim:
        raise ValueError(f"axis {axis} is out of range for {x.ndim} axes")
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _register(op_type: str, into: Callable[[Array, Array, int], None]) -> None:
    def one_axis(out: Outs, x: Array, *, axis: int = -1) -> None:
        into(x, out[0], check_axis(axis, x.ndim))

    one_axis.__doc__ = f"out[0] = {into.__doc__}"
    kernel(op_type, 13, kind="into", infer=same_as_first, inplace=(0,))(one_axis)

    def flattened(out: Outs, x: Array, *, axis: int = 1) -> None:
        into(as_matrix(x, axis), as_matrix(out[0], axis), 1)

    flattened.__doc__ = f"{op_type} over all axes from ``axis`` on, taken as one."
    kernel(op_type, 1, kind="into", infer=same_as_first)(flattened)


_register("Softmax", softmax_into)
_register("LogSoftmax", log_softmax_into)


@kernel("Hardmax", 13)
def hardmax(x: Array, *, axis: int = -1) -> Array:
    """1 at the first maximum along ``axis``, 0 elsewhere."""
    axis = check_axis(axis, x.ndim)
    y = np.zeros_like(x)
    if not y.size:
        return y
    np.put_along_axis(y, np.expand_dims(np.argmax(x, axis=axis), axis), np.ones((), x.dtype), axis=axis)
    return y


@kernel("Hardmax", 1)
def hardmax_1(x: Array, *, axis: int = 1) -> Array:
    """Hardmax over all axes from ``axis`` on, taken as one."""
    return hardmax(as_matrix(x, axis), axis=1).reshape(x.shape)


def softmax_array(x: Array) -> Array:
    """The softmax of the last axis as a fresh array."""
    y = np.empty_like(x)
    softmax_into(x, y, -1)
    return y


def _row_means(rows: Array) -> Array:
    """``np.mean`` along the last axis without its warning for rows of nothing."""
    total: Array = np.add.reduce(rows, axis=-1, keepdims=True)
    np.divide(total, np.asarray(max(rows.shape[-1], 1), total.dtype), out=total)
    return total


def _layer_norm_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x = inputs[0]
    axis = check_axis(attrs.get("axis", -1), x.ndim)
    small = x.shape[:axis] + (1,) * (x.ndim - axis)
    stash = numpy_dtype_of_code(attrs.get("stash_type", 1))
    return ((x.shape, x.dtype), (small, stash), (small, stash))[: max(attrs.get("n_outputs", 1), 1)]


def _prepare_layer_norm(facts: Facts) -> Prepared | None:
    """The same calls with everything that follows from the shapes made before: a row of few numbers costs only the calls."""
    spec, attrs = facts.inputs[0], facts.attrs
    if spec is None or spec[1] != FLOAT32 or len(facts.outputs) > 1 or 0 in spec[0]:
        return None
    shape, axis = spec[0], check_axis(attrs.get("axis", -1), len(spec[0]))
    matrix = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    ones = np.ones((matrix[1], 1), FLOAT32)
    width, least = (np.asarray(value, FLOAT32) for value in (matrix[1], matrix[1] * attrs.get("epsilon", 1e-5)))
    root = np.sqrt(width)

    def calls(out: Outs, room: list[Array], x: Array, weight: Array, bias: Array | None = None) -> list[Call]:
        y, is_row = out[0], matrix[0] == 1
        flat = y.reshape(matrix)
        rows, made = (flat, []) if x is y else reshaped(x, matrix)
        # one number in place takes NumPy three times as long
        total, mean, square, above, scale, factor = room if is_row else [room[0]] * 2 + [room[1]] * 4
        made += [
            partial(rows.dot, ones, total),
            each(np.divide, mean, total, width),
            each(np.subtract, flat, rows, mean),
            partial(flat.dot, flat.T, square) if is_row else partial(vecdot, flat, flat, square[:, 0]),
            each(np.add, above, square, least),
            each(np.sqrt, scale, above),
            each(np.divide, factor, root, scale),
            each(np.multiply, flat, flat, factor),
            each(np.multiply, y, y, weight),
        ]
        return made if bias is None else [*made, each(np.add, y, y, bias)]

    return Prepared(Calls(calls), (((matrix[0], 1), FLOAT32),) * (6 if matrix[0] == 1 else 2))


@kernel("LayerNormalization", 17, kind="into", infer=_layer_norm_infer, inplace=(0,), prepare=_prepare_layer_norm)
def layer_normalization(
    out: Outs,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    n_outputs: int = 1,
) -> None:
    """out[0] = (x - mean) * rstd * weight + bias, over axes ``axis..``.

    Shapes:   x [*, N1..Nk], weight, bias [N1..Nk]; out[0] as x; out[1], out[2] (if asked) [*, 1..1].
    Buffers:  out[0] may be x itself (the mean is taken before the first write); scratch of [*, 1..1].
    Numerics: two-pass variance in float32 at least; narrow floats are rounded once, in the end. Source: ONNX LayerNormalization-17.
    """
    axis = check_axis(axis, x.ndim)
    y = out[0]
    wide = widen(x)
    target = y if wide is x else wide
    width = math.prod(x.shape[axis:])
    rows = math.prod(x.shape[:axis])
    mean = _row_means(wide.reshape(rows, width)).reshape(x.shape[:axis] + (1,) * (x.ndim - axis))
    np.subtract(wide, mean, out=target)
    flat = target.reshape(rows, width)
    variance = vecdot(flat, flat).reshape(mean.shape)
    np.divide(variance, np.asarray(max(width, 1), variance.dtype), out=variance)
    np.add(variance, np.asarray(epsilon, variance.dtype), out=variance)
    np.sqrt(variance, out=variance)
    rstd = np.divide(np.ones((), variance.dtype), variance)
    np.multiply(target, rstd, out=target)
    np.multiply(target, widen(weight), out=target)
    if bias is not None:
        np.add(target, widen(bias), out=target)
    if wide is not x:
        y[...] = narrowed(target, x.dtype)
    for extra, stat in zip(out[1:], (mean, rstd), strict=False):
        extra[...] = stat


def _rms_norm_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    """The shape of x with the dtype of the weight."""
    return ((inputs[0].shape, inputs[1].dtype),)


@kernel("RMSNormalization", 23, kind="into", infer=_rms_norm_infer, inplace=(0,))
def rms_normalization(
    out: Outs, x: Array, weight: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> None:
    """out[0] = x / sqrt(mean(x ** 2) + epsilon) * weight, over axes ``axis..``."""
    axis = check_axis(axis, x.ndim)
    wide = widen(x)
    rows, width = math.prod(x.shape[:axis]), math.prod(x.shape[axis:])
    flat = wide.reshape(rows, width)
    square = vecdot(flat, flat).reshape(x.shape[:axis] + (1,) * (x.ndim - axis))
    root = np.sqrt(square / np.asarray(max(width, 1), wide.dtype) + np.asarray(epsilon, wide.dtype))
    if wide is x and weight.dtype == x.dtype:
        np.multiply(x, np.ones((), x.dtype) / root, out=out[0])
        np.multiply(out[0], weight, out=out[0])
    else:
        out[0][...] = narrowed(wide / root, x.dtype).astype(weight.dtype) * weight


def _per_channel(values: Array, rank: int) -> Array:
    return values.reshape((1, -1) + (1,) * (rank - 2))


def _batch_norm(x: Array, scale: Array, bias: Array, mean: Array, var: Array, epsilon: float) -> Array:
    for what, values in (("scale", scale), ("B", bias), ("mean", mean), ("var", var)):
        if values.ndim != 1 or (x.ndim > 1 and values.size != x.shape[1]):
            raise ValueError(f"{what} has the shape {list(values.shape)}, the input {list(x.shape)}")
    wide = np.result_type(widen(x).dtype, widen(scale).dtype, widen(mean).dtype)
    factor = scale.astype(wide) / np.sqrt(var.astype(wide) + np.asarray(epsilon, wide))
    shift = bias.astype(wide) - mean.astype(wide) * factor
    if x.ndim < 2:
        return np.asarray(x.astype(wide) * factor + shift).astype(x.dtype, copy=False)
    y = widen(x).astype(wide, copy=False) * _per_channel(factor, x.ndim)
    y += _per_channel(shift, x.ndim)
    return narrowed(y, x.dtype)


@kernel("BatchNormalization", 14)
def batch_normalization(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    n_outputs: int = 1,
) -> Array | tuple[Array, ...]:
    """(x - mean) / sqrt(var + epsilon) * scale + bias, per channel; in training the batch's own statistics."""
    if not training_mode:
        if n_outputs > 1:
            raise ValueError(f"{n_outputs} outputs are asked for; without training_mode there is one")
        return _batch_norm(x, scale, bias, mean, var, epsilon)
    if n_outputs < 3:
        raise ValueError(f"{n_outputs} outputs are asked for; with training_mode there are three")
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    wide = widen(x)
    batch_mean, batch_var = wide.mean(axis=axes), wide.var(axis=axes)
    kept = np.asarray(momentum, np.float64).astype(mean.dtype)
    new_mean = (mean * kept + batch_mean.astype(mean.dtype) * (1 - kept)).astype(mean.dtype)
    new_var = (var * kept + batch_var.astype(var.dtype) * (1 - kept)).astype(var.dtype)
    return _batch_norm(x, scale, bias, batch_mean, batch_var, epsilon), new_mean, new_var


@kernel("BatchNormalization", (1, 7, 9))
def batch_normalization_9(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    is_test: int = 0,
    n_outputs: int = 1,
    **_: Any,
) -> Array | tuple[Array, ...]:
    """BatchNormalization of opsets 1-13: training is asked for by the number of outputs."""
    if not spatial:
        wide = (scale, bias, mean, var)
        scale, bias, mean, var = (values.reshape((1, *x.shape[1:])) for values in wide)
        return np.asarray((x - mean) / np.sqrt(var + np.asarray(epsilon, x.dtype)) * scale + bias)
    if n_outputs == 1:
        return _batch_norm(x, scale, bias, mean, var, epsilon)
    y, new_mean, new_var = batch_normalization(
        x, scale, bias, mean, var, epsilon=epsilon, momentum=momentum, training_mode=1
    )
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    return y, new_mean, new_var, x.mean(axis=axes), x.var(axis=axes)


@kernel("InstanceNormalization")
def instance_normalization(x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5, **_: Any) -> Array:
    """(x - mean) * rstd * scale + bias, statistics per sample and channel."""
    if x.ndim < 2 or scale.shape != (x.shape[1],) or bias.shape != scale.shape:
        raise ValueError(f"scale {list(scale.shape)} and bias {list(bias.shape)} do not fit {list(x.shape)}")
    y = normalize_rows(x.reshape(x.shape[0] * x.shape[1], math.prod(x.shape[2:])), epsilon).reshape(x.shape)
    y = y * _per_channel(widen(scale), x.ndim) + _per_channel(widen(bias), x.ndim)
    return narrowed(y, x.dtype)


def normalize_rows(rows: Array, epsilon: float) -> Array:
    """(rows - mean) / sqrt(var + epsilon) along the last axis, in float32 at least."""
    centred: Array = widen(rows) - _row_means(widen(rows))
    variance = vecdot(centred, centred)[..., None] / np.asarray(max(rows.shape[-1], 1), centred.dtype)
    centred /= np.sqrt(variance + np.asarray(epsilon, centred.dtype))
    return centred


@kernel("GroupNormalization", 21)
def group_normalization(
    x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:
    """Normalizes each group of channels; scale and bias per channel."""
    _check_groups(x, num_groups)
    y = normalize_rows(x.reshape(x.shape[0] * num_groups, math.prod(x.shape[1:]) // num_groups), epsilon).reshape(
        x.shape
    )
    return narrowed(y * _per_channel(widen(scale), x.ndim) + _per_channel(widen(bias), x.ndim), x.dtype)


@kernel("GroupNormalization", 18)
def group_normalization_18(x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5) -> Array:
    """GroupNormalization of opsets 18-20: scale and bias per group."""
    _check_groups(x, num_groups)
    y = normalize_rows(x.reshape(x.shape[0], num_groups, -1), epsilon)
    y = y * widen(scale)[None, :, None] + widen(bias)[None, :, None]
    return narrowed(y.reshape(x.shape), x.dtype)


def _check_groups(x: Array, num_groups: int) -> None:
    if num_groups < 1 or x.ndim < 2 or x.shape[1] % num_groups:
        raise ValueError(f"{x.shape} cannot be split into {num_groups} groups of channels")


@kernel("LpNormalization")
def lp_normalization(x: Array, *, axis: int = -1, p: int = 2) -> Array:
    """x / norm along ``axis``; 0 where the norm is 0."""
    if p not in (1, 2):
        raise ValueError(f"p is {p}, not 1 or 2")
    wide = widen(x)
    axis = check_axis(axis, x.ndim)
    size = np.abs(wide).sum(axis, keepdims=True) if p == 1 else np.sqrt((wide * wide).sum(axis, keepdims=True))
    return narrowed(np.where(size == 0, np.zeros((), wide.dtype), wide / size), x.dtype)


@kernel("MeanVarianceNormalization", 9)
def mean_variance_normalization(x: Array, *, axes: Sequence[int] = (0, 2, 3)) -> Array:
    """(x - mean) / (std + 1e-9) over ``axes``."""
    if not x.size:
        return x.copy()
    wide = widen(x)
    centred = wide - wide.mean(axis=tuple(axes), keepdims=True)
    std = np.sqrt((centred * centred).mean(axis=tuple(axes), keepdims=True))
    return narrowed((centred / (std + np.asarray(1e-9, wide.dtype))), x.dtype)


@kernel("LRN")
def lrn(x: Array, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Array:
    """x / (bias + alpha / size * sum of squares over ``size`` neighbouring channels) ** beta."""
    if size < 1:
        raise ValueError(f"size is {size}")
    wide = widen(x)
    channels = x.shape[1]
    square = wide * wide
    total = np.zeros_like(wide)
    for offset in range(max(-((size - 1) // 2), -channels), min(size // 2, channels) + 1):
        low, high = max(0, -offset), min(channels, channels - offset)
        if low < high:
            total[:, low:high] += square[:, low + offset : high + offset]
    base = np.asarray(bias, wide.dtype) + np.asarray(alpha / size, wide.dtype) * total
    return narrowed((wide / base ** np.asarray(beta, wide.dtype)), x.dtype)
