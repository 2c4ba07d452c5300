"""The common part of RNN, LSTM and GRU: activations, directions, lengths, and steps with any activations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.types import Array, widen

Activation = Callable[[Array], Array]
Step = Callable[[Array, list[Array]], list[Array]]
"""A function of the projected input of one time and the states that gives the states after it; the first is the
output."""
Direction = Callable[[int, list[Activation]], tuple[Step, Array]]
"""The step of a direction and the projected input of all times."""


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


_ACTIVATIONS: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "sigmoid": (sigmoid, ()),
    "tanh": (np.tanh, ()),
    "relu": (lambda x: np.maximum(x, 0), ()),
    "affine": (lambda x, a, b: a * x + b, (1.0, 0.0)),
    "leakyrelu": (lambda x, a: np.where(x >= 0, x, a * x), (0.01,)),
    "thresholdedrelu": (lambda x, a: np.where(x > a, x, 0), (1.0,)),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), (1.0, 1.0)),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), (0.2, 0.5)),
    "elu": (lambda x, a: np.where(x >= 0, x, a * np.expm1(x)), (1.0,)),
    "softsign": (lambda x: x / (1 + np.abs(x)), ()),
    "softplus": (lambda x: np.log1p(np.exp(x)), ()),
}
"""Each function, with what alpha and beta are by default for those that take them."""


def _activate(function: Callable[..., Any], parameters: Sequence[float], x: Array) -> Array:
    return np.asarray(function(x, *parameters), x.dtype)


def activations(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> list[Activation]:
    """The named functions; alpha and beta are dealt out in order to those that take them."""
    given = iter(alphas), iter(betas)
    made: list[Activation] = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise ValueError(f"the activation {name!r} is none of {', '.join(_ACTIVATIONS)}")
        function, defaults = _ACTIVATIONS[name.lower()]
        parameters = [next(values, default) for values, default in zip(given, defaults, strict=False)]
        made.append(functools.partial(_activate, function, parameters))
    return made


class Recurrence:
    """The settings that the three operators share: directions, layouts, lengths, clipping."""

    def __init__(
        self, x: Array, w: Array, r: Array, lengths: Array | None, attrs: dict[str, Any], n_gates: int
    ) -> None:
        self.attrs = attrs
        self.direction = attrs.get("direction", "forward")
        if self.direction not in ("forward", "reverse", "bidirectional"):
            raise ValueError(f"the direction is {self.direction!r}")
        self.is_batch_first = bool(attrs.get("layout", 0))
        if x.ndim != 3:
            raise ValueError(f"the input has {x.ndim} axes, it must have 3")
        self.x = widen(x.transpose(1, 0, 2) if self.is_batch_first else x)
        self.steps, self.batch, _ = self.x.shape
        self.n_directions = w.shape[0]
        if self.n_directions != (2 if self.direction == "bidirectional" else 1):
            raise ValueError(f"weights for {self.n_directions} directions, direction {self.direction}")
        given = attrs.get("hidden_size")
        self.hidden: int = r.shape[2] if given is None else given
        self.check("W", w, n_gates * self.hidden, self.x.shape[2])
        self.check("R", r, n_gates * self.hidden, self.hidden)
        self.lengths = None if lengths is None else self.checked_lengths(lengths)
        self.clip = attrs.get("clip")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip is {self.clip:g}, it must be positive")
        check_shape(
            (self.steps, self.n_directions, self.batch, self.hidden), self.x.dtype, "the result of a recurrence"
        )

    def check(self, name: str, array: Array | None, *shape: int) -> None:
        """Raises: ValueError where an operand has not this shape for each direction."""
        if array is not None and array.shape != (self.n_directions, *shape):
            raise ValueError(f"{name} has the shape {list(array.shape)}, not {[self.n_directions, *shape]}")

    def checked_lengths(self, lengths: Array) -> Array:
        """A length for each row. Raises: ValueError for others."""
        flat = lengths.reshape(-1)
        if flat.size != self.batch or (flat < 0).any() or (flat > self.steps).any():
            raise ValueError("sequence_lens do not fit the input")
        return flat

    def moved(self, state: Array) -> Array:
        """An initial state as [directions, batch, hidden]."""
        moved = np.swapaxes(state, 0, 1) if self.is_batch_first else state
        self.check("an initial state", moved, self.batch, self.hidden)
        return moved

    def start(self, state: Array | None, index: int) -> Array:
        """An initial state of one direction; 0 in rows without input, whose last state is 0 in onnxruntime."""
        if state is None:
            return np.zeros((self.batch, self.hidden), self.x.dtype)
        begun = widen(self.moved(state)[index])
        return (
            begun.copy() if self.lengths is None else np.where(self.lengths[:, None] > 0, begun, 0).astype(begun.dtype)
        )

    def clipped(self, x: Array) -> Array:
        return x if not self.clip else np.clip(x, -self.clip, self.clip)

    def is_reverse(self, index: int) -> bool:
        return self.direction == "reverse" or index == 1

    def backwards(self) -> Array:
        """[steps, batch]: which input step each row reads from its last one on."""
        time = np.arange(self.steps)[:, None]
        ends = np.full(self.batch, self.steps) if self.lengths is None else self.lengths
        return np.where(time < ends, ends - 1 - time, time)

    def sweep(self, index: int, states: list[Array], step: Step, projected: Array) -> tuple[Array, list[Array]]:
        """All steps of one direction over ``projected`` [steps, batch, *]; hidden outputs in input order, last states."""
        outputs = np.zeros((self.steps, self.batch, self.hidden), self.x.dtype)
        order = self.backwards() if self.is_reverse(index) else np.arange(self.steps)[:, None]
        rows = np.arange(self.batch)
        for time in range(self.steps):
            new = step(projected[order[time], rows], states)
            if self.lengths is not None:
                alive = (time < self.lengths)[:, None]
                shown = np.where(alive, new[0], 0)
                states = [np.where(alive, n, s) for n, s in zip(new, states, strict=True)]
            else:
                shown, states = new[0], new
            outputs[order[time], rows] = shown
        return outputs, states

    def run(self, names: Sequence[str], starts: Sequence[Array | None], direction: Direction) -> list[Array]:
        """All directions, as ``_usual`` gives them; ``names`` are the usual activations, ``starts`` the initial states."""
        given = self.attrs.get("activations") or tuple(names) * self.n_directions
        if len(given) != len(names) * self.n_directions:
            raise ValueError(f"{len(given)} activations, not {len(names) * self.n_directions}")
        alphas, betas = (self.attrs.get(f"activation_{name}") or () for name in ("alpha", "beta"))
        functions = activations(given, alphas, betas)
        outputs, lasts = [], []
        for index in range(self.n_directions):
            step, projected = direction(index, functions[index * len(names) : (index + 1) * len(names)])
            y, last = self.sweep(index, [self.start(state, index) for state in starts], step, projected)
            outputs.append(y)
            lasts.append(last)
        return [np.stack(outputs, axis=1), *(np.stack(states) for states in zip(*lasts, strict=True))]
