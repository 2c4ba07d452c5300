"""Softmax, normalizations and rotations: each row is read while it is in the cache."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.runner.fast.compiled import (
    compiled,
    exp,
    f32,
    i32,
    inlined,
    is_plain,
    number_of,
    operand,
    ordered,
    summing,
)
from fx2onnx.semantics.kernels.attention import rotary_embedding, turn_pairs
from fx2onnx.semantics.kernels.contrib.attention import rotary_embedding_of_microsoft
from fx2onnx.semantics.kernels.elementwise import Call, Outs
from fx2onnx.semantics.kernels.norm import check_axis
from fx2onnx.semantics.registry import Calls, Facts, Prepared
from fx2onnx.semantics.types import FLOAT32, Array


@inlined
def _largest(x: Any, r: int) -> Any:
    """The largest number of row r, by the order of their bits."""
    most = i32(-2147483648)
    for j in range(x.shape[1]):
        most = max(most, ordered(x[r, j]))
    return number_of(most)


@summing
def _softmax(x: Array, y: Array) -> None:
    for r in range(x.shape[0]):
        top = _largest(x, r)
        total = f32(0)
        for j in range(x.shape[1]):
            e = exp(x[r, j] - top)
            y[r, j] = e
            total += e
        by = f32(1) / total
        for j in range(x.shape[1]):
            y[r, j] *= by


@summing
def _log_softmax(x: Array, y: Array) -> None:
    for r in range(x.shape[0]):
        top = _largest(x, r)
        total = f32(0)
        for j in range(x.shape[1]):
            total += exp(x[r, j] - top)
        by = top + f32(np.log(total))
        for j in range(x.shape[1]):
            y[r, j] = x[r, j] - by if total == total else total


@summing
def _layer_norm(x: Array, weight: Array, bias: Array, y: Array, epsilon: Any) -> None:
    width = x.shape[1]
    for r in range(x.shape[0]):
        total = f32(0)
        for j in range(width):
            total += x[r, j]
        mean = total / f32(width)
        square = f32(0)
        for j in range(width):
            d = x[r, j] - mean
            square += d * d
        by = f32(1) / np.sqrt(square / f32(width) + epsilon)
        for j in range(width):
            y[r, j] = (x[r, j] - mean) * by * weight[j] + bias[j]


@summing
def _rms_norm(x: Array, weight: Array, bias: Array, y: Array, epsilon: Any) -> None:
    width = x.shape[1]
    for r in range(x.shape[0]):
        square = f32(0)
        for j in range(width):
            square += x[r, j] * x[r, j]
        by = f32(1) / np.sqrt(square / f32(width) + epsilon)
        for j in range(width):
            y[r, j] = x[r, j] * by * weight[j] + bias[j]


@summing
def _instance_norm(x: Array, weight: Array, bias: Array, y: Array, epsilon: Any) -> None:
    width, channels = x.shape[1], weight.size
    for r in range(x.shape[0]):
        total = f32(0)
        for j in range(width):
            total += x[r, j]
        mean = total / f32(width)
        square = f32(0)
        for j in range(width):
            d = x[r, j] - mean
            square += d * d
        by = weight[r % channels] / np.sqrt(square / f32(width) + epsilon)
        shift = bias[r % channels]
        for j in range(width):
            y[r, j] = (x[r, j] - mean) * by + shift


def _of_rows(facts: Facts, loop: Any) -> Prepared | None:
    spec = facts.inputs[0]
    if spec is None or not is_plain(spec) or any(facts.channels_last):
        return None
    axis = check_axis(facts.attrs.get("axis", -1), len(spec[0]))
    if math.prod(spec[0][axis + 1 :]) > 1:
        return None
    shape = (math.prod(spec[0]) // spec[0][axis], spec[0][axis])

    def calls(out: Outs, room: list[Array], x: Array) -> list[Call]:
        source, made = operand(x, shape)
        return [*made, partial(loop, source, out[0].reshape(shape))]

    return Prepared(Calls(calls), inplace=())


def prepare_Softmax(facts: Facts) -> Prepared | None:
    return _of_rows(facts, _softmax)


def prepare_LogSoftmax(facts: Facts) -> Prepared | None:
    return _of_rows(facts, _log_softmax)


def _normalization(loop: Any, facts: Facts) -> Prepared | None:
    spec, weight = facts.inputs[:2]
    bias = facts.inputs[2] if len(facts.inputs) > 2 else None
    if spec is None or not is_plain(spec) or len(facts.outputs) > 1 or any(facts.channels_last):
        return None
    axis = check_axis(facts.attrs.get("axis", -1), len(spec[0]))
    shape = (math.prod(spec[0][:axis]), math.prod(spec[0][axis:]))
    if any(one is not None and (one[1] != FLOAT32 or math.prod(one[0]) != shape[1]) for one in (weight, bias)):
        return None
    epsilon, zeros = f32(facts.attrs.get("epsilon", 1e-5)), np.zeros(shape[1], FLOAT32)

    def calls(out: Outs, room: list[Array], x: Array, weight: Array, bias: Array | None = None) -> list[Call]:
        source, made = operand(x, shape)
        scale, first = operand(weight, (shape[1],))
        shift, second = (zeros, []) if bias is None else operand(bias, (shape[1],))
        return [*made, *first, *second, partial(loop, source, scale, shift, out[0].reshape(shape), epsilon)]

    return Prepared(Calls(calls), inplace=())


prepare_LayerNormalization: Any = partial(_normalization, _layer_norm)
prepare_RMSNormalization: Any = partial(_normalization, _rms_norm)


def call_InstanceNormalization(x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5, **_: Any) -> Array | None:
    if x.dtype != FLOAT32 or x.ndim < 3 or not x.size or scale.shape != (x.shape[1],) or bias.shape != scale.shape:
        return None
    y, shape = np.empty(x.shape, FLOAT32), (x.shape[0] * x.shape[1], math.prod(x.shape[2:]))
    weight, shift = np.array(scale, FLOAT32), np.array(bias, FLOAT32)
    source = np.require(x, FLOAT32, ["C", "W"]).reshape(shape)
    _instance_norm(source, weight, shift, y.reshape(shape), f32(epsilon))
    return y


@compiled
def _affine(x: Array, factor: Array, shift: Array, y: Array) -> None:
    """Row r of x times number r of the factors, which repeat, plus that of the shifts."""
    channels = factor.size
    for r in range(x.shape[0]):
        by, add = factor[r % channels], shift[r % channels]
        for j in range(x.shape[1]):
            y[r, j] = x[r, j] * by + add


def call_BatchNormalization(
    x: Array, scale: Array, bias: Array, mean: Array, var: Array, *, epsilon: float = 1e-5, **attrs: Any
) -> Array | None:
    """Images and lines in float32, without training."""
    given = scale, bias, mean, var
    is_trained = attrs.get("training_mode", 0) or attrs.get("n_outputs", 1) > 1 or not attrs.get("spatial", 1)
    if is_trained or x.dtype != FLOAT32 or x.ndim < 3 or not x.size:
        return None
    if any(one.shape != (x.shape[1],) or one.dtype != FLOAT32 for one in given):
        return None
    factor = scale / np.sqrt(var + f32(epsilon))
    y, shape = np.empty(x.shape, FLOAT32), (x.shape[0] * x.shape[1], math.prod(x.shape[2:]))
    source = np.require(x, FLOAT32, ["C", "W"]).reshape(shape)
    _affine(source, factor, bias - mean * factor, y.reshape(shape))
    return y


@compiled
def _turned(x: Array, cos: Array, sin: Array, is_by_head: bool, y: Array) -> None:
    """Shapes: x, y [batch, heads, length, depth] if ``is_by_head``, else [batch, length, heads, depth]; cos, sin [batch, length, pairs]."""
    pairs = cos.shape[2]
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            for j in range(x.shape[2]):
                at = j if is_by_head else i
                c, s = cos[b, at], sin[b, at]
                first, second = x[b, i, j, :pairs], x[b, i, j, pairs : 2 * pairs]
                one, other = y[b, i, j, :pairs], y[b, i, j, pairs : 2 * pairs]
                for k in range(pairs):  # LLVM takes vectors for one output at a time
                    one[k] = first[k] * c[k] - second[k] * s[k]
                for k in range(pairs):
                    other[k] = second[k] * c[k] + first[k] * s[k]
                for k in range(2 * pairs, x.shape[3]):
                    y[b, i, j, k] = x[b, i, j, k]


def _turn(heads: Array, cos: Array, sin: Array, interleaved: int, target: Array) -> None:
    if interleaved or any(one.dtype != FLOAT32 for one in (heads, cos, sin)):
        turn_pairs(heads, cos, sin, interleaved, target)
        return
    is_by_head = target.flags.c_contiguous
    x, y = (one if is_by_head else one.transpose(0, 2, 1, 3) for one in (heads, target))
    x, cos, sin = (np.require(one, FLOAT32, ["C", "W"]) for one in (x, cos, sin))
    _turned(x, cos, sin, is_by_head, y)


def call_RotaryEmbedding(x: Array, second: Array, *others: Any, **attrs: Any) -> Array:
    """The second input is a table, or the positions of onnxruntime's operator."""
    fn: Any = rotary_embedding if second.dtype.kind == "f" else rotary_embedding_of_microsoft
    y: Array = fn(x, second, *others, turn=_turn, **attrs)
    return y
