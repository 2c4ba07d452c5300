"""ai.onnx.preview.training: optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import Array, narrowed

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
