"""RNN, LSTM, GRU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import Array, widen

Activation = Callable[[Array], Array]
Step = Callable[[Array, list[Array]], list[Array]]
"""From the projected input of one time and the states to the states after it; the first is the output."""
Direction = Callable[[int, list[Activation]], tuple[Step, Array]]
"""The step of a direction and the projected input of all times."""


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


_ACTIVATIONS: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "sigmoid": (_sigmoid, ()),
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


class _Recurrence:
    """What the three operators share: directions, layouts, lengths, clipping."""

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
        self.lengths = None if lengths is None else lengths.reshape(-1)
        if self.lengths is not None and (
            self.lengths.size != self.batch or (self.lengths < 0).any() or (self.lengths > self.steps).any()
        ):
            raise ValueError("sequence_lens do not fit the input")
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

    def start(self, state: Array | None, index: int) -> Array:
        if state is None:
            return np.zeros((self.batch, self.hidden), self.x.dtype)
        moved = np.swapaxes(state, 0, 1) if self.is_batch_first else state
        self.check("an initial state", moved, self.batch, self.hidden)
        return np.array(widen(moved[index]))

    def clipped(self, x: Array) -> Array:
        return x if not self.clip else np.clip(x, -self.clip, self.clip)

    def order(self, index: int) -> Array:
        """[steps, batch]: which input step each row of the recurrence reads."""
        reverse = self.direction == "reverse" or index == 1
        time = np.arange(self.steps)[:, None] + np.zeros((1, self.batch), np.int64)
        if not reverse:
            return time
        ends = np.full(self.batch, self.steps) if self.lengths is None else self.lengths
        return np.where(time < ends, ends - 1 - time, time)

    def sweep(self, index: int, states: list[Array], step: Step, projected: Array) -> tuple[Array, list[Array]]:
        """All steps of one direction over ``projected`` [steps, batch, *]; hidden outputs in input order, last states."""
        outputs = np.zeros((self.steps, self.batch, self.hidden), self.x.dtype)
        order = self.order(index)
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

    def run(
        self, names: Sequence[str], starts: Sequence[Array | None], direction: Direction, dtype: Any
    ) -> tuple[Array, ...]:
        """All directions; ``names`` are the usual activations of one, ``starts`` the initial states."""
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
        y = np.stack(outputs, axis=1)
        final = [np.stack(states) for states in zip(*lasts, strict=True)]
        if self.is_batch_first:
            y = y.transpose(2, 0, 1, 3)
            final = [state.transpose(1, 0, 2) for state in final]
        return tuple(np.ascontiguousarray(item).astype(dtype, copy=False) for item in (y, *final))


@kernel("LSTM")
def lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    lengths: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
    *,
    input_forget: int = 0,
    **attrs: Any,
) -> tuple[Array, ...]:
    """i, o, f, c gates; C = f * C + i * g(c); H = o * h(C). Source: ONNX LSTM-14."""
    run = _Recurrence(x, w, r, lengths, attrs, 4)
    h = run.hidden
    run.check("B", b, 8 * h)
    run.check("P", p, 3 * h)

    def direction(index: int, functions: list[Activation]) -> tuple[Step, Array]:
        f, g, hh = functions
        weight, recurrent = widen(w[index]).T, widen(r[index]).T
        bias = 0 if b is None else widen(b[index][: 4 * h]) + widen(b[index][4 * h :])
        peep = None if p is None else widen(p[index]).reshape(3, h)

        def step(gates: Array, states: list[Array]) -> list[Array]:
            hidden, cell = states
            total = gates + hidden @ recurrent
            i, o, fg, c = (total[:, k * h : (k + 1) * h] for k in range(4))
            if peep is not None:
                i, fg = i + peep[0] * cell, fg + peep[2] * cell
            i = f(run.clipped(i))
            fg = 1 - i if input_forget else f(run.clipped(fg))
            new_cell = fg * cell + i * g(run.clipped(c))
            if peep is not None:
                o = o + peep[1] * new_cell
            return [f(run.clipped(o)) * hh(new_cell), new_cell]

        return step, run.x @ weight + bias

    return run.run(("Sigmoid", "Tanh", "Tanh"), (initial_h, initial_c), direction, x.dtype)


@kernel("GRU")
def gru(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    lengths: Array | None = None,
    initial_h: Array | None = None,
    *,
    linear_before_reset: int = 0,
    **attrs: Any,
) -> tuple[Array, ...]:
    """z, r, h gates; H = (1 - z) * h + z * H. Source: ONNX GRU-14."""
    run = _Recurrence(x, w, r, lengths, attrs, 3)
    h = run.hidden
    run.check("B", b, 6 * h)

    def direction(index: int, functions: list[Activation]) -> tuple[Step, Array]:
        f, g = functions
        weight, recurrent = widen(w[index]).T, widen(r[index]).T
        both = np.zeros(6 * h, run.x.dtype) if b is None else widen(b[index])

        def step(gates: Array, states: list[Array]) -> list[Array]:
            hidden = states[0]
            zr = gates[:, : 2 * h] + hidden @ recurrent[:, : 2 * h] + both[3 * h : 5 * h]
            z, reset = f(run.clipped(zr[:, :h])), f(run.clipped(zr[:, h:]))
            if linear_before_reset:
                inner = gates[:, 2 * h :] + reset * (hidden @ recurrent[:, 2 * h :] + both[5 * h :])
            else:
                inner = gates[:, 2 * h :] + (reset * hidden) @ recurrent[:, 2 * h :] + both[5 * h :]
            return [(1 - z) * g(run.clipped(inner)) + z * hidden]

        return step, run.x @ weight + both[: 3 * h]

    return run.run(("Sigmoid", "Tanh"), (initial_h,), direction, x.dtype)


@kernel("RNN")
def rnn(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    lengths: Array | None = None,
    initial_h: Array | None = None,
    **attrs: Any,
) -> tuple[Array, ...]:
    """H = f(x W + H R + b). Source: ONNX RNN-14."""
    run = _Recurrence(x, w, r, lengths, attrs, 1)
    h = run.hidden
    run.check("B", b, 2 * h)

    def direction(index: int, functions: list[Activation]) -> tuple[Step, Array]:
        (f,) = functions
        weight, recurrent = widen(w[index]).T, widen(r[index]).T
        bias = 0 if b is None else widen(b[index][:h]) + widen(b[index][h:])

        def step(gates: Array, states: list[Array]) -> list[Array]:
            return [f(run.clipped(gates + states[0] @ recurrent))]

        return step, run.x @ weight + bias

    return run.run(("Tanh",), (initial_h,), direction, x.dtype)
