"""Result types of frequent overloads by formula, for contiguous tensors with symbolic sizes.

Running a convolution on fake tensors with symbolic sizes takes torch about a hundred symbolic operations; the formula
takes five. A rule says nothing of other strides than those of a fresh contiguous tensor: then the operator runs.

A rule answers only for operands that eager PyTorch takes: for others the operator runs, which refuses them.

A rule takes the positional arguments as ``MetaCache`` has them in its keys: a ``TensorFacts`` for a tensor, ``(type, value)`` for a
number, None, ..., a tuple for a list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import torch

from fx2onnx.capture.recording.meta_cache import PooledType, TensorFacts, contiguous_strides
from fx2onnx.capture.registry import Kind, register
from fx2onnx.sizes.expr import Dim, DimLike, Scalar

aten = torch.ops.aten

Rule: TypeAlias = Callable[..., TensorFacts | None]
Number: TypeAlias = tuple[type, int]
Numbers: TypeAlias = Number | tuple[Number, ...]
"""A number, ``(int, 2)``, or a list of numbers, ``((int, 2), (int, 3))``."""
_ZERO, _ONE = (int, 0), (int, 1)
NONE: Any = (type(None), None)


def is_contiguous(kind: TensorFacts) -> bool:
    return kind.offset == 0 and kind.strides == contiguous_strides(kind.sizes)


def window_count(
    size: Scalar, kernel: Scalar, stride: Scalar, padding: Scalar, dilation: Scalar, more: Scalar = 0
) -> Scalar:
    """floor((size + 2 padding + more - dilation (kernel - 1) - 1) / stride) + 1: the result of a convolution or pooling."""
    return (size + 2 * padding + more - (dilation * (kernel - 1) + 1)) // stride + 1


def fresh(kind: TensorFacts, sizes: Sequence[Scalar]) -> TensorFacts:
    """The type of a contiguous tensor of other sizes, whole numbers all."""
    dims, strides = (cast("tuple[DimLike, ...]", tuple(group)) for group in (sizes, contiguous_strides(sizes)))
    return TensorFacts(kind.dtype, dims, strides, 0, kind.device)


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
def _same(kind: TensorFacts, *rest: object) -> TensorFacts | None:
    """The result has the type of a floating-point first argument."""
    return fresh(kind, kind.sizes) if kind.dtype.is_floating_point and is_contiguous(kind) else None


def _fits(operand: object, *sizes: DimLike) -> bool:
    """Return whether an optional operand, such as a bias, is None or has these sizes. The dtypes of operands are checked elsewhere."""
    return operand in (None, NONE) or (isinstance(operand, TensorFacts) and operand.sizes == sizes)


def _are_at_least(least: int, numbers: Sequence[DimLike]) -> bool:
    return all(isinstance(number, Dim) or number >= least for number in numbers)


def _numbers(numbers: Numbers, rank: int) -> list[int]:
    """One number stands for all axes."""
    values = [part[1] if isinstance(part, tuple) else part for part in numbers if not isinstance(part, type)]
    return values * rank if len(values) == 1 else values


def _windowed(
    kind: TensorFacts, leading: Sequence[DimLike], kernel: Sequence[DimLike], *numbers: Numbers
) -> TensorFacts | None:
    """A window for each size after the leading ones; ``numbers`` are stride, padding and dilation."""
    sizes = kind.sizes[len(leading) :]
    columns: list[Sequence[Scalar]] = [sizes, kernel, *(_numbers(each, len(sizes)) for each in numbers)]
    if any(len(column) != len(sizes) for column in columns):
        return None
    return PooledType(*fresh(kind, [*leading, *(window_count(*window) for window in zip(*columns, strict=True))]))


def _convolution(rank: int) -> Rule:
    def rule(
        kind: TensorFacts,
        weight: TensorFacts,
        bias: object = None,
        stride: Numbers = _ONE,
        padding: Numbers = _ZERO,
        dilation: Numbers = _ONE,
        groups: Number = _ONE,
    ) -> TensorFacts | None:
        ranks = {len(kind.sizes), len(weight.sizes)}
        if ranks != {rank + 2} or not is_contiguous(kind) or not is_contiguous(weight):
            return None
        for name, numbers, least in (("dilation", dilation, 1), ("padding", padding, 0)):
            if not _are_at_least(
                least, _numbers(numbers, rank)
            ):  # torch's own code for tensors without data takes them
                raise RuntimeError(
                    f"{name} of a convolution should be at least {least}, but got {_numbers(numbers, rank)}"
                )
        count, channels = groups[1] if isinstance(groups, tuple) else groups, weight.sizes[0]
        fits = kind.dtype == weight.dtype and kind.sizes[1] == weight.sizes[1] * count
        fits = fits and _are_at_least(1, [count, *_numbers(stride, rank)])
        fits = fits and (isinstance(channels, Dim) or isinstance(count, Dim) or channels % count == 0)
        if not fits or not _fits(bias, channels):
            return None
        return _windowed(kind, (kind.sizes[0], weight.sizes[0]), weight.sizes[2:], stride, padding, dilation)

    return rule


def _pool(rank: int, dilated: bool) -> Rule:
    """pool(self, kernel, stride, padding[, dilation], ceil_mode): as a convolution, the stride defaulting to the kernel."""

    def rule(
        kind: TensorFacts, kernel: Numbers, stride: Numbers = (), padding: Numbers = _ZERO, *rest: Number
    ) -> TensorFacts | None:
        ceil_mode = rest[dilated] if len(rest) > dilated else (bool, False)
        if len(kind.sizes) <= rank or not is_contiguous(kind) or ceil_mode[1]:
            return None
        dilation = rest[0] if dilated and rest else _ONE
        windows, pads, steps = (_numbers(each, rank) for each in (kernel, padding, stride or kernel))
        if not _are_at_least(1, [*windows, *steps, *_numbers(dilation, rank)]) or not _are_at_least(0, pads):
            return None
        if any(2 * pad > window for pad, window in zip(pads, windows, strict=False)):
            return None
        return _windowed(kind, kind.sizes[:-rank], windows, stride or kernel, padding, dilation)

    return rule


@register(Kind.RESULT_TYPE, aten.layer_norm.default)
def _layer_norm(
    kind: TensorFacts, normalized: tuple[object, ...], weight: object = None, bias: object = None, *rest: object
) -> TensorFacts | None:
    """The result type of layer_norm; None unless the normalized sizes are plain numbers that fit."""
    sizes = tuple(part[1] for part in normalized if isinstance(part, tuple))
    is_plain = sizes and len(sizes) == len(normalized) and kind.sizes[-len(sizes) :] == sizes
    return _same(kind) if is_plain and all(_fits(each, *sizes) for each in (weight, bias)) else None


@register(Kind.RESULT_TYPE, aten.batch_norm.default)
def _batch_norm(
    kind: TensorFacts, weight: object, bias: object, mean: object, variance: object, *rest: object
) -> TensorFacts | None:
    """The result type of batch_norm; None unless the number of channels is a plain number that fits the statistics."""
    fits = isinstance(mean, TensorFacts) and len(kind.sizes) > 1 and kind.sizes[1:2] == mean.sizes
    fits = fits and all(_fits(each, kind.sizes[1]) for each in (weight, bias, variance))
    return _same(kind) if fits else None


@register(Kind.RESULT_TYPE, aten.group_norm.default)
def _group_norm(
    kind: TensorFacts, groups: Number, weight: object = None, bias: object = None, *rest: object
) -> TensorFacts | None:
    """The result type of group_norm; None unless the number of channels is a plain number that fits the groups and the
    weight."""
    channels = kind.sizes[1] if len(kind.sizes) > 1 else None
    fits = isinstance(channels, int) and groups[1] > 0 and channels % groups[1] == 0
    return _same(kind) if fits and all(_fits(each, kind.sizes[1]) for each in (weight, bias)) else None


@register(Kind.RESULT_TYPE, aten.linear.default)
def _linear(kind: TensorFacts, weight: TensorFacts, bias: object = None) -> TensorFacts | None:
    fits = (
        _fits(bias, *weight.sizes[:1])
        and kind.dtype == weight.dtype
        and len(weight.sizes) == 2
        and kind.sizes[-1:] == weight.sizes[1:]
    )
    return fresh(kind, (*kind.sizes[:-1], weight.sizes[0])) if fits and is_contiguous(kind) else None


@register(Kind.RESULT_TYPE, aten.scaled_dot_product_attention.default)
def _attended(
    query: TensorFacts,
    key: TensorFacts,
    value: TensorFacts,
    mask: TensorFacts | tuple[type, object] = NONE,
    *rest: object,
) -> TensorFacts | None:
    """query [.., L, E], key [.., S, E], value [.., S, V] and a mask that broadcasts to [.., L, S] -> [.., L, V]; of four axes a kernel
    may give them in another order.
    """
    kinds, lead = (query, key, value), query.sizes[:-2]
    fits = all(kind.dtype == query.dtype and kind.sizes[:-2] == lead for kind in kinds) and len(lead) > 0
    fits = fits and query.sizes[-1] == key.sizes[-1] and key.sizes[-2] == value.sizes[-2]
    if isinstance(mask, TensorFacts):
        scores = (*lead, query.sizes[-2], key.sizes[-2])
        pairs = zip(reversed(mask.sizes), reversed(scores), strict=False)
        fits = fits and len(mask.sizes) <= len(scores) and all(size in (1, wide) for size, wide in pairs)
    is_in_order = len(lead) != 2 or all(map(is_contiguous, kinds))
    return fresh(query, (*query.sizes[:-1], value.sizes[-1])) if fits and is_in_order else None


@register(Kind.RESULT_TYPE, aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
def _binary(kind: TensorFacts, other: object, *rest: object) -> TensorFacts | None:
    """Two floating-point tensors of one dtype and one shape, or one and a number."""
    is_number = isinstance(other, tuple) and other[0] in (int, float)
    fits = isinstance(other, TensorFacts) and kind[:2] == other[:2] and is_contiguous(other)
    return _same(kind) if fits or is_number else None


@register(Kind.RESULT_TYPE, aten.softmax.int, aten.log_softmax.int)
def _softmax(kind: TensorFacts, axis: Number, dtype: object = NONE) -> TensorFacts | None:
    rank = len(kind.sizes)
    return _same(kind) if dtype == NONE and -rank <= axis[1] < rank else None


@register(Kind.RESULT_TYPE, aten.embedding.default)
def _embedding(weight: TensorFacts, places: TensorFacts, *rest: object) -> TensorFacts | None:
    fits = len(weight.sizes) == 2 and places.dtype in (torch.int64, torch.int32)
    fits = fits and weight.sizes[0] != 0 and is_contiguous(weight) and is_contiguous(places)
    return fresh(weight, (*places.sizes, weight.sizes[1])) if fits else None


@register(Kind.RESULT_TYPE, aten.cdist.default)
def _distances(
    kind: TensorFacts, other: TensorFacts, p: tuple[type, float] = (float, 2.0), mode: object = NONE
) -> TensorFacts | None:
    """[*, P, M] and [*, R, M] -> [*, P, R], whichever way PyTorch computes it: that depends on whether P and R are above 25."""
    fits = kind.dtype == other.dtype and kind.dtype.is_floating_point and min(len(kind.sizes), len(other.sizes)) > 1
    batches = _broadcast(kind.sizes[:-2], other.sizes[:-2]) if fits and kind.sizes[-1] == other.sizes[-1] else None
    is_known = batches is not None and p[1] >= 0 and mode == NONE
    return fresh(kind, (*(batches or ()), kind.sizes[-2], other.sizes[-2])) if is_known else None


def _broadcast(one: Sequence[DimLike], other: Sequence[DimLike]) -> list[DimLike] | None:
    """The common sizes where each pair of sizes is equal or one of them is 1, or missing; else None."""
    missing = len(one) - len(other)
    pairs = list(zip([*[1] * -missing, *one], [*[1] * missing, *other], strict=True))
    return (
        [second if first == 1 else first for first, second in pairs]
        if all(first == second or 1 in (first, second) for first, second in pairs)
        else None
    )


for _rank in (1, 2, 3):
    register(Kind.RESULT_TYPE, getattr(aten, f"conv{_rank}d").default)(_convolution(_rank))
    register(Kind.RESULT_TYPE, getattr(aten, f"max_pool{_rank}d").default)(_pool(_rank, dilated=True))
    register(Kind.RESULT_TYPE, getattr(aten, f"avg_pool{_rank}d").default)(_pool(_rank, dilated=False))
