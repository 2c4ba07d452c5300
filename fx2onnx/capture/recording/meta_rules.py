"""Result types of frequent overloads by formula, for contiguous tensors with symbolic sizes.

Running a convolution on fake tensors with symbolic sizes takes torch about a hundred symbolic operations; the formula
takes five. Only shapes whose strides are those of a fresh contiguous tensor are answered; everything else runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fx2onnx.base.dims import Scalar
from fx2onnx.capture.overloads.registry import Kind, register

aten = torch.ops.aten
TensorType = tuple[Any, ...]
"""(dtype, sizes, strides, offset, device), as ``Replay`` has it."""

Rule = Callable[[Sequence[Any]], TensorType | None]


def contiguous_strides(sizes: Sequence[Scalar]) -> tuple[Scalar, ...]:
    strides: list[Scalar] = []
    step: Scalar = 1
    for size in reversed(sizes):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def is_contiguous(kind: TensorType) -> bool:
    return bool(kind[3] == 0 and kind[2] == contiguous_strides(kind[1]))


def _fresh(kind: TensorType, sizes: Sequence[Scalar]) -> TensorType:
    return (kind[0], tuple(sizes), contiguous_strides(sizes), 0, kind[4])


@register(
    Kind.RESULT_TYPE,
    aten.relu.default,
    aten.hardswish.default,
    aten.hardsigmoid.default,
    aten.silu.default,
    aten.gelu.default,
    aten.sigmoid.default,
    aten.tanh.default,
)
def _same(parts: Sequence[Any]) -> TensorType | None:
    """The result has the type of a floating-point first argument."""
    kind = parts[0]
    return _fresh(kind, kind[1]) if kind[0].is_floating_point and is_contiguous(kind) else None


def _convolution(rank: int) -> Rule:
    """conv(input, weight, bias, stride, padding, dilation, groups) -> floor((in + 2 p - d (k - 1) - 1) / s) + 1."""

    def rule(parts: Sequence[Any]) -> TensorType | None:
        kind, weight = parts[0], parts[1]
        if len(kind[1]) != rank + 2 or not is_contiguous(kind) or not is_contiguous(weight) or kind[0] != weight[0]:
            return None
        if kind[1][1] != weight[1][1] * _pairs(parts, 6, 1, 1)[0]:
            return None
        stride, padding, dilation = (_pairs(parts, index, default, rank) for index, default in ((3, 1), (4, 0), (5, 1)))
        sizes: list[Scalar] = [kind[1][0], weight[1][0]]
        for axis in range(rank):
            reach = dilation[axis] * (weight[1][axis + 2] - 1) + 1
            sizes.append((kind[1][axis + 2] + 2 * padding[axis] - reach) // stride[axis] + 1)
        return _fresh(kind, sizes)

    return rule


def _pool(rank: int, dilated: bool) -> Rule:
    """pool(self, kernel, stride, padding[, dilation], ceil_mode): as a convolution, the stride defaulting to the kernel."""

    def rule(parts: Sequence[Any]) -> TensorType | None:
        kind = parts[0]
        ceil_mode = parts[4 + dilated] if len(parts) > 4 + dilated else (bool, False)
        if len(kind[1]) <= rank or not is_contiguous(kind) or ceil_mode[1]:
            return None
        kernel = _pairs(parts, 1, 1, rank)
        stride = _pairs(parts, 2, 1, rank) if len(parts) > 2 and parts[2] else kernel
        padding = _pairs(parts, 3, 0, rank)
        dilation = _pairs(parts, 4, 1, rank) if dilated else [1] * rank
        sizes = list(kind[1])
        for axis in range(rank):
            place = len(sizes) - rank + axis
            reach = dilation[axis] * (kernel[axis] - 1) + 1
            sizes[place] = (sizes[place] + 2 * padding[axis] - reach) // stride[axis] + 1
        return _fresh(kind, sizes)

    return rule


def _pairs(parts: Sequence[Any], index: int, default: int, rank: int) -> list[int]:
    """An int list argument; keys hold it as (type, value) pairs, one number standing for all axes."""
    if index >= len(parts):
        return [default] * rank
    found = parts[index]
    values = [found[1]] if found and isinstance(found[0], type) else [value for _, value in found]
    return values * rank if len(values) == 1 else values


@register(Kind.RESULT_TYPE, aten.layer_norm.default)
def _layer_norm(parts: Sequence[Any]) -> TensorType | None:
    """Only where the normalised sizes are plain numbers that fit."""
    sizes = tuple(value for _, value in parts[1]) if all(isinstance(part, tuple) for part in parts[1]) else ()
    return _same(parts) if sizes and parts[0][1][-len(sizes) :] == sizes else None


@register(Kind.RESULT_TYPE, aten.batch_norm.default)
def _batch_norm(parts: Sequence[Any]) -> TensorType | None:
    """Only where the number of channels is a plain number that fits the statistics."""
    statistics = parts[3]
    if len(statistics) != 5 or len(parts[0][1]) < 2 or parts[0][1][1:2] != statistics[1]:
        return None
    return _same(parts)


@register(Kind.RESULT_TYPE, aten.linear.default)
def _linear(parts: Sequence[Any]) -> TensorType | None:
    kind, weight = parts[0], parts[1]
    if not is_contiguous(kind) or kind[0] != weight[0] or len(weight[1]) != 2 or kind[1][-1:] != weight[1][1:]:
        return None
    return _fresh(kind, (*kind[1][:-1], weight[1][0]))


@register(Kind.RESULT_TYPE, aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
def _binary(parts: Sequence[Any]) -> TensorType | None:
    """Two floating-point tensors of one dtype and one shape."""
    kind, other = parts[0], parts[1]
    if not isinstance(other, tuple) or len(other) != 5 or kind[:2] != other[:2] or not kind[0].is_floating_point:
        return None
    return _same([kind]) if is_contiguous(other) else None


for _rank in (1, 2, 3):
    register(Kind.RESULT_TYPE, getattr(aten, f"conv{_rank}d").default)(_convolution(_rank))
    register(Kind.RESULT_TYPE, getattr(aten, f"max_pool{_rank}d").default)(_pool(_rank, dilated=True))
    register(Kind.RESULT_TYPE, getattr(aten, f"avg_pool{_rank}d").default)(_pool(_rank, dilated=False))
