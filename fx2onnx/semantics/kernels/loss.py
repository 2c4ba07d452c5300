"""Losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.softmax import log_softmax_into
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import Array, widen


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
