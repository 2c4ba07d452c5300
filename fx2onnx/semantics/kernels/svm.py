"""ai.onnx.ml: support vector machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.ml import ML, binary_scores, class_labels, kept_floats, transformed
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import FLOAT32, Array, narrowed


def _kernel_values(x: Array, vectors: Array, kind: str, params: Sequence[float]) -> Array:
    gamma, coef0, degree = (*params, 0.0, 0.0, 3.0)[:3] if params else (0.0, 0.0, 3.0)
    if kind == "LINEAR":
        return np.asarray(x @ vectors.T)
    if kind == "POLY":
        return np.asarray((gamma * (x @ vectors.T) + coef0) ** degree)
    if kind == "RBF":
        distance = ((x[:, None, :] - vectors[None]) ** 2).sum(-1)
        return np.asarray(np.exp(-gamma * distance))
    if kind == "SIGMOID":
        return np.asarray(np.tanh(gamma * (x @ vectors.T) + coef0))
    raise ValueError(f"the kernel_type is {kind!r}")


@kernel("SVMRegressor", domain=ML)
def svm_regressor(
    x: Array,
    *,
    coefficients: Sequence[float],
    support_vectors: Sequence[float] = (),
    n_supports: int = 0,
    rho: Sequence[float] = (0.0,),
    kernel_type: str = "LINEAR",
    kernel_params: Sequence[float] = (),
    one_class: int = 0,
    post_transform: str = "NONE",
    kept: dict[str, Any] | None = None,
) -> Array:
    """Sum of weighted kernel values plus rho."""
    y: Array
    wide, weights = x.astype(FLOAT32), kept_floats(kept, "coefficients", coefficients)
    if n_supports:
        vectors = kept_floats(kept, "support_vectors", support_vectors).reshape(n_supports, -1)
        y = _kernel_values(wide, vectors, kernel_type, kernel_params) @ weights + rho[0]
    else:
        y = wide @ weights + rho[0]
    if one_class:
        y = np.where(y > 0, 1.0, -1.0)
    return narrowed(transformed(np.asarray(y)[:, None], post_transform), FLOAT32)


@kernel("SVMClassifier", domain=ML)
def svm_classifier(
    x: Array,
    *,
    coefficients: Sequence[float],
    support_vectors: Sequence[float] = (),
    vectors_per_class: Sequence[int] = (),
    rho: Sequence[float] = (),
    prob_a: Sequence[float] = (),
    prob_b: Sequence[float] = (),
    kernel_type: str = "LINEAR",
    kernel_params: Sequence[float] = (),
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    post_transform: str = "NONE",
    kept: dict[str, Any] | None = None,
) -> tuple[Array, Array]:
    """One machine a pair of classes, by votes; linear scores without support vectors.

    Source: onnxruntime and onnx.reference for the form of the scores, which ONNX does not give.
    """
    rows = (x.reshape(1, -1) if x.ndim == 1 else x).astype(FLOAT32)
    if not vectors_per_class:
        n_classes = len(classlabels_ints or classlabels_strings or ())
        scores = (
            rows @ kept_floats(kept, "coefficients", coefficients).reshape(n_classes, -1).T
            + np.asarray(rho, FLOAT32)[:1]
        )
        chosen = scores.argmax(1)
    else:
        vectors = kept_floats(kept, "support_vectors", support_vectors).reshape(sum(vectors_per_class), -1)
        values = _kernel_values(rows, vectors, kernel_type, kernel_params)
        scores = np.stack(
            list(_duels(values, kept_floats(kept, "coefficients", coefficients), vectors_per_class, rho)), axis=1
        )
        chosen = _votes(scores, len(vectors_per_class)).argmax(1)
        if prob_a:
            scores = _probabilities(scores, len(vectors_per_class), prob_a, prob_b)
    labels = class_labels(chosen, classlabels_ints, classlabels_strings)
    if scores.shape[1] == 1:
        return labels, narrowed(
            binary_scores(scores[:, 0], post_transform, is_share=post_transform.startswith("SOFTMAX")), FLOAT32
        )
    return labels, narrowed(transformed(scores, post_transform), FLOAT32)


def _pairs(n_classes: int) -> Iterator[tuple[int, int]]:
    return ((i, j) for i in range(n_classes) for j in range(i + 1, n_classes))


def _duels(
    values: Array, coefficients: Array, vectors_per_class: Sequence[int], rho: Sequence[float]
) -> Iterator[Array]:
    """The decision value of each pair of classes; above 0 the first one wins."""
    n_classes = len(vectors_per_class)
    weights = coefficients.reshape(n_classes - 1, -1)
    edges = np.cumsum([0, *vectors_per_class])
    for number, (i, j) in enumerate(_pairs(n_classes)):
        left, right = slice(edges[i], edges[i + 1]), slice(edges[j], edges[j + 1])
        yield values[:, left] @ weights[j - 1, left] + values[:, right] @ weights[i, right] + np.float32(rho[number])


def _votes(scores: Array, n_classes: int) -> Array:
    votes = np.zeros((len(scores), n_classes), np.int64)
    for number, (i, j) in enumerate(_pairs(n_classes)):
        votes[:, i] += scores[:, number] > 0
        votes[:, j] += scores[:, number] <= 0
    return votes


LEAST_PROBABILITY = 1e-7
"""libsvm keeps pairwise probabilities this far from 0 and 1."""

MAX_COUPLING_ROUNDS = 100


def _probabilities(scores: Array, n_classes: int, a: Sequence[float], b: Sequence[float]) -> Array:
    """Platt's sigmoid of each duel, coupled to one distribution over the classes.

    Source: libsvm's ``sigmoid_predict`` and ``multiclass_probability`` (Wu, Lin and Weng 2004, second method).
    """
    duel = 1 / (1 + np.exp(scores * np.asarray(a, FLOAT32) + np.asarray(b, FLOAT32)))
    duel = np.clip(duel, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    r = np.zeros((len(scores), n_classes, n_classes))
    for number, (i, j) in enumerate(_pairs(n_classes)):
        r[:, i, j], r[:, j, i] = duel[:, number], 1 - duel[:, number]
    return np.array([_coupled(row) for row in r], FLOAT32).reshape(len(scores), n_classes)


def _coupled(r: Array) -> Array:
    """The distribution p that minimizes the sum of (r[j, i] p[i] - r[i, j] p[j])² over all pairs."""
    n = len(r)
    q = -r.T * r
    np.fill_diagonal(q, (r * r).sum(axis=0))
    p = np.full(n, 1 / n)
    for _ in range(max(MAX_COUPLING_ROUNDS, n)):
        qp = q @ p
        pqp = p @ qp
        if np.abs(qp - pqp).max() < 0.005 / n:
            break
        for t in range(n):
            change = (pqp - qp[t]) / q[t, t]
            p[t] += change
            pqp = (pqp + change * (change * q[t, t] + 2 * qp[t])) / (1 + change) ** 2
            qp = (qp + change * q[t]) / (1 + change)
            p /= 1 + change
    return p
