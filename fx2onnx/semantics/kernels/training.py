"""Losses, the optimizer steps of ai.onnx.preview.training, and what training graphs need of the runner's own domain, which no model can name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.norm import log_softmax_into
from fx2onnx.semantics.registry import PRIVATE_DOMAIN, kernel
from fx2onnx.semantics.types import Array, narrowed, widen


@kernel("SumTo", domain=PRIVATE_DOMAIN)
def sum_to(x: Array, like: Array) -> Array:
    """x summed over the axes along which ``like`` was broadcast to it."""
    extra = x.ndim - like.ndim
    axes = tuple(range(extra)) + tuple(
        extra + axis for axis, dim in enumerate(like.shape) if dim == 1 and x.shape[extra + axis] != 1
    )
    return np.array(x.sum(axis=axes, keepdims=True)).reshape(like.shape)


@kernel("SwapLast", domain=PRIVATE_DOMAIN, kind="view")
def swap_last(x: Array) -> Array:
    """x with its last two axes exchanged."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)) if x.ndim > 1 else x


@kernel("OnesLike", domain=PRIVATE_DOMAIN)
def ones_like(x: Array) -> Array:
    """Ones in x's shape."""
    return np.ones_like(x)


@kernel("ZerosLike", domain=PRIVATE_DOMAIN)
def zeros_like(x: Array) -> Array:
    """Zeros in x's shape."""
    return np.zeros_like(x)


DOMAIN = "ai.onnx.preview.training"


def _groups(tensors: tuple[Array, ...], n: int) -> list[tuple[Array, ...]]:
    """[x1, x2, g1, g2, ...] -> [(x1, g1, ...), (x2, g2, ...)]."""
    if len(tensors) % n:
        raise ValueError(f"{len(tensors)} tensors are no multiple of {n}")
    count = len(tensors) // n
    return [tuple(tensors[k * count + i] for k in range(n)) for i in range(count)]


def _columns(rows: Sequence[tuple[Array, ...]]) -> tuple[Array, ...]:
    return tuple(item for column in zip(*rows, strict=True) for item in column)


@kernel("Adagrad", domain=DOMAIN)
def adagrad(
    rate: Array,
    step: Array,
    *tensors: Array,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Array, ...]:
    """x - r * g / (sqrt(h + g * g) + epsilon), r = rate / (1 + step * decay_factor)."""
    r = rate / (1 + step * decay_factor)
    rows = []
    for x, g, h in _groups(tensors, 3):
        gradient = norm_coefficient * x + g
        squares = h + gradient * gradient
        rows.append((narrowed(x - r * gradient / (np.sqrt(squares) + epsilon), x.dtype), narrowed(squares, x.dtype)))
    return _columns(rows)


@kernel("Adam", domain=DOMAIN)
def adam(
    rate: Array,
    step: Array,
    *tensors: Array,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Array, ...]:
    """The Adam step with bias-corrected rate."""
    rows = []
    count = float(step.reshape(()))
    for x, g, v, h in _groups(tensors, 4):
        gradient = norm_coefficient * x + g
        mean = alpha * v + (1 - alpha) * gradient
        squares = beta * h + (1 - beta) * gradient * gradient
        r = rate * np.sqrt(1 - beta**count) / (1 - alpha**count) if count > 0 else rate
        moved = x - r * mean / (np.sqrt(squares) + epsilon)
        rows.append(tuple(narrowed(item, x.dtype) for item in ((1 - norm_coefficient_post) * moved, mean, squares)))
    return _columns(rows)


@kernel("Momentum", domain=DOMAIN)
def momentum(
    rate: Array, step: Array, *tensors: Array, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Array, ...]:
    """Stochastic gradient descent with (Nesterov) momentum."""
    if mode not in ("standard", "nesterov"):
        raise ValueError(f"the mode is {mode!r}")
    share = beta if float(step.reshape(())) > 0 else 1.0
    rows: list[Any] = []
    for x, g, v in _groups(tensors, 3):
        gradient = norm_coefficient * x + g
        speed = alpha * v + share * gradient
        change = gradient + alpha * speed if mode == "nesterov" else speed
        rows.append((narrowed(x - rate * change, x.dtype), narrowed(speed, x.dtype)))
    return _columns(rows)


@kernel("NegativeLogLikelihoodLoss", 12)
def negative_log_likelihood_loss(
    scores: Array,
    target: Array,
    weight: Array | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int | None = None,
) -> Array:
    """-weight[t] * scores[n, t, ...], then averaged by weight or summed."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"the reduction {reduction!r} is none of none, mean, sum")
    if target.shape != scores.shape[:1] + scores.shape[2:]:
        raise ValueError(f"targets of shape {list(target.shape)} do not fit scores of shape {list(scores.shape)}")
    wide = widen(scores)
    ignored = np.zeros(target.shape, np.bool_) if ignore_index is None else target == ignore_index
    chosen = np.where(ignored, 0, target)
    if chosen.size and not 0 <= chosen.min() <= chosen.max() < scores.shape[1]:
        raise IndexError(f"a target is out of range for {scores.shape[1]} classes")
    picked = np.take_along_axis(wide, chosen[:, None], axis=1)[:, 0]
    share = np.ones(target.shape, wide.dtype) if weight is None else widen(weight)[chosen]
    share = np.where(ignored, np.zeros((), wide.dtype), share)
    loss = -picked * share
    if reduction == "sum":
        loss = np.asarray(loss.sum())
    elif reduction == "mean":
        loss = np.asarray(loss.sum() / share.sum())
    return loss.astype(scores.dtype)


@kernel("SoftmaxCrossEntropyLoss", 12)
def softmax_cross_entropy_loss(
    scores: Array, target: Array, weight: Array | None = None, **attrs: Any
) -> tuple[Array, Array]:
    """The NegativeLogLikelihoodLoss of log_softmax(scores); and that log_softmax."""
    log_prob = np.empty_like(scores)
    log_softmax_into(scores, log_prob, 1)
    return negative_log_likelihood_loss(log_prob, target, weight, **attrs), log_prob
