"""LSTM, GRU and RNN with the usual activations: one call for all steps of a direction.

sigmoid(x) is tanh(x / 2) / 2 + 1 / 2; the halves of x are in the weights that ``join`` makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.runner.fast.compiled import compiled, f32, i32, is_plain, number_of, operand, ordered, summing, tanh
from fx2onnx.semantics.kernels.attention import linear_attention
from fx2onnx.semantics.kernels.contrib.recurrent import prepare as prepare_quantized
from fx2onnx.semantics.kernels.elementwise import Call
from fx2onnx.semantics.kernels.joined_recurrence import GATES, Joined, join, rectifies
from fx2onnx.semantics.kernels.rnn import is_usual
from fx2onnx.semantics.kernels.threads import product
from fx2onnx.semantics.registry import Calls, Facts, Prepared
from fx2onnx.semantics.types import FLOAT32, Array


@compiled
def _add_product(h: Array, r: Array, first: int, last: int, gates: Array) -> None:
    """gates[first:last] += h @ r[:, first:last], four rows of r at a time."""
    size = h.size
    k = 0
    while k + 4 <= size:
        h0, h1, h2, h3 = h[k], h[k + 1], h[k + 2], h[k + 3]
        for j in range(first, last):
            gates[j] += h0 * r[k, j] + h1 * r[k + 1, j] + h2 * r[k + 2, j] + h3 * r[k + 3, j]
        k += 4
    while k < size:
        h0 = h[k]
        for j in range(first, last):
            gates[j] += h0 * r[k, j]
        k += 1


@compiled
def _lstm(lines: Array, bias: Array, r: Array, inner: Array, h: Array, c: Array, backwards: bool, option: int, y: Array, at: int) -> None:  # fmt: skip
    """The gates are c, o, f, i. Shapes: lines [steps, batch, 4 * hidden], y [steps, directions, batch, hidden]."""
    steps, batch, width = lines.shape
    hidden = width // 4
    gates = np.empty(width, np.float32)
    for step in range(steps):
        t = steps - 1 - step if backwards else step
        for b in range(batch):
            for j in range(width):
                gates[j] = lines[t, b, j] + bias[j]
            _add_product(h[b], r, 0, width, gates)
            for j in range(width):
                gates[j] = tanh(gates[j])
            for j in range(hidden):
                opened = gates[hidden + j] * f32(0.5) + f32(0.5)
                kept = gates[2 * hidden + j] * f32(0.5) + f32(0.5)
                taken = gates[3 * hidden + j] * f32(0.5) + f32(0.5)
                cell = kept * c[b, j] + taken * gates[j]
                c[b, j] = cell
                h[b, j] = opened * tanh(cell)
                y[t, at, b, j] = h[b, j]


@compiled
def _gru(lines: Array, bias: Array, r: Array, inner: Array, h: Array, c: Array, backwards: bool, option: int, y: Array, at: int) -> None:  # fmt: skip
    """The gates are z, r, h; ``option`` is ``linear_before_reset``."""
    steps, batch, width = lines.shape
    hidden = width // 3
    gates, reset = np.empty(width, np.float32), np.empty(hidden, np.float32)
    for step in range(steps):
        t = steps - 1 - step if backwards else step
        for b in range(batch):
            for j in range(2 * hidden):
                gates[j] = lines[t, b, j] + bias[j]
            for j in range(hidden):
                gates[2 * hidden + j] = inner[j]
            _add_product(h[b], r, 0, width if option else 2 * hidden, gates)
            for j in range(2 * hidden):
                gates[j] = tanh(gates[j]) * f32(0.5) + f32(0.5)
            if option:
                for j in range(hidden):
                    gates[2 * hidden + j] *= gates[hidden + j]
            else:
                for j in range(hidden):
                    reset[j] = gates[hidden + j] * h[b, j]
                _add_product(reset, r, 2 * hidden, width, gates)
            for j in range(hidden):
                new = tanh(gates[2 * hidden + j] + lines[t, b, 2 * hidden + j] + bias[2 * hidden + j])
                h[b, j] = new + gates[j] * (h[b, j] - new)
                y[t, at, b, j] = h[b, j]


@compiled
def _rnn(lines: Array, bias: Array, r: Array, inner: Array, h: Array, c: Array, backwards: bool, option: int, y: Array, at: int) -> None:  # fmt: skip
    """``option``: max(x, 0) in place of tanh."""
    steps, batch, width = lines.shape
    gates = np.empty(width, np.float32)
    for step in range(steps):
        t = steps - 1 - step if backwards else step
        for b in range(batch):
            for j in range(width):
                gates[j] = lines[t, b, j] + bias[j]
            _add_product(h[b], r, 0, width, gates)
            for j in range(width):
                if option:
                    h[b, j] = f32(0) if gates[j] < f32(0) else gates[j]
                else:
                    h[b, j] = tanh(gates[j])
                y[t, at, b, j] = h[b, j]


LOOPS: dict[str, Callable[..., None]] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


def _prepare(op: str, facts: Facts) -> Prepared | None:
    """Constant weights, all rows as long as the input, time first."""
    spec, attrs = facts.inputs[0], facts.attrs
    w, r = facts.consts[1:3]
    given, consts = [*facts.inputs, *[None] * 5], [*facts.consts, *[None] * 5]
    b = consts[3]
    if spec is None or not is_plain(spec) or w is None or r is None or (given[3] is not None and b is None):
        return None
    if given[4] is not None or len(facts.inputs) > 7 or attrs.get("layout") or w.ndim != 3 or r.ndim != 3:
        return None
    if any(one is not None and one[1] != FLOAT32 for one in given[:4]) or not is_usual(op, attrs, w.shape[0]):
        return None
    (steps, batch, ins), (count, width, hidden) = spec[0], r.shape
    direction = attrs.get("direction", "forward")
    if (
        width != GATES[op] * hidden
        or w.shape != (count, width, ins)
        or (b is not None and b.shape != (count, 2 * width))
    ):
        return None
    if count != (2 if direction == "bidirectional" else 1) or attrs.get("hidden_size", hidden) != hidden:
        return None
    if any(one is not None and one != ((count, batch, hidden), FLOAT32) for one in given[5 : 6 + (op == "LSTM")]):
        return None

    def parts() -> list[Joined]:
        return [
            one for joined in join(op, w, r, b) for one in (joined.apart() if len(joined.directions) > 1 else [joined])
        ]

    directions, option = facts.once("directions", (w, r, b), parts), int(attrs.get("linear_before_reset", 0))
    option = int(rectifies(attrs)) if op == "RNN" else option
    scratch = (
        ((count, steps * batch, width), FLOAT32),
        ((2, count, batch, hidden), FLOAT32),
        ((steps, count, batch, hidden), FLOAT32),
    )

    def calls(outs: list[Array], room: list[Array], x: Array, *inputs: Any) -> list[Call]:
        flat, made = operand(x, (steps * batch, ins))
        states, starts = room[1], [*inputs[4:6], None, None]
        for state, start in zip(states, starts, strict=False):
            made.append(partial(np.copyto, state, start) if start is not None else partial(state.fill, 0))
        y = outs[0] if math.prod(outs[0].shape) else room[2]
        for one in directions:
            (at,), lines = one.directions, room[0][one.directions[0]]
            made.append(product(flat, one.inputs[0], lines))
            backwards = direction == "reverse" or at == 1
            operands = lines.reshape(steps, batch, width), one.bias[0], one.recurrent, one.inner, *states[:, at]
            made.append(partial(LOOPS[op], *operands, backwards, option, y, at))
        made += [partial(np.copyto, last, state) for last, state in zip(outs[1:], states, strict=False)]
        return made

    return Prepared(Calls(calls), scratch, inplace=())


def prepare_LSTM(facts: Facts) -> Prepared | None:
    return _prepare("LSTM", facts)


def prepare_GRU(facts: Facts) -> Prepared | None:
    return _prepare("GRU", facts)


def prepare_RNN(facts: Facts) -> Prepared | None:
    return _prepare("RNN", facts)


@compiled
def _dynamic_lstm(lines: Array, r: Array, scale: Array, h: Array, c: Array, backwards: bool, y: Array, at: int) -> None:
    """An LSTM whose state is quantized by its own range at each step. The gates are o, i, f, c, those of sigmoids halved."""
    steps, batch, width = lines.shape
    hidden = width // 4
    sums, codes = np.empty(width, np.float32), np.empty((batch, hidden), np.float32)
    for step in range(steps):
        t = steps - 1 - step if backwards else step
        least, greatest = i32(0), i32(0)
        for b in range(batch):
            for j in range(hidden):
                least, greatest = min(least, ordered(h[b, j])), max(greatest, ordered(h[b, j]))
        low, high = number_of(least), number_of(greatest)
        by = (high - low) / f32(255) if high != low else f32(1)
        zero = min(max(np.rint(-low / by), f32(0)), f32(255))
        for b in range(batch):
            for j in range(hidden):
                codes[b, j] = min(max(np.rint(h[b, j] / by) + zero, f32(0)), f32(255)) - zero
        for b in range(batch):
            sums[:] = f32(0)
            _add_product(codes[b], r, 0, width, sums)
            for j in range(width):
                total = lines[t, b, j] + sums[j] * (by * (scale[0] if scale.size == 1 else scale[j]))
                sums[j] = tanh(total) if j >= 3 * hidden else tanh(total) * f32(0.5) + f32(0.5)
            for j in range(hidden):
                cell = sums[2 * hidden + j] * c[b, j] + sums[hidden + j] * sums[3 * hidden + j]
                c[b, j] = cell
                h[b, j] = sums[j] * tanh(cell)
                y[t, at, b, j] = h[b, j]


prepare_DynamicQuantizeLSTM: Any = partial(prepare_quantized, usual_steps=_dynamic_lstm)


@summing
def _linear_attention(q: Array, k: Array, v: Array, fade: Array, gate: Array, state: Array, y: Array) -> None:
    """``advance`` of LinearAttention; ``fade`` and ``gate`` are empty where there is none, or have one number a head or a feature."""
    (batch, heads, depth, width), groups = state.shape, q.shape[1] // state.shape[1]
    written = np.empty(width, np.float32)
    for b in range(batch):
        for h in range(heads):
            s = state[b, h]
            for t in range(q.shape[2]):
                key = k[b, h, t]
                for j in range(width):
                    written[j] = v[b, h, t, j]
                for i in range(depth if fade.size else 0):
                    by = fade[b, h, t, i if fade.shape[3] > 1 else 0]
                    for j in range(width):
                        s[i, j] *= by
                if gate.size:
                    for i in range(depth):
                        by = key[i]
                        for j in range(width):
                            written[j] -= by * s[i, j]
                    for j in range(width):
                        written[j] *= gate[b, h, t, j if gate.shape[3] > 1 else 0]
                for g in range(groups):
                    for j in range(width):
                        y[b, h * groups + g, t, j] = f32(0)
                for i in range(depth):
                    by = key[i]
                    for j in range(width):
                        s[i, j] += by * written[j]
                    for g in range(groups):
                        asked, out = q[b, h * groups + g, t, i], y[b, h * groups + g, t]
                        for j in range(width):
                            out[j] += asked * s[i, j]


def _advance(q: Array, k: Array, v: Array, fade: Array | None, gate: Array | None, state: Array, y: Array) -> None:
    none, lead = np.zeros((0, 0, 0, 0), FLOAT32), (*state.shape[:2], q.shape[2])
    fade, gate = (none if one is None else np.broadcast_to(one, (*lead, one.shape[3])) for one in (fade, gate))
    q, k, v, fade, gate = (np.require(one, FLOAT32, ["C", "W"]) for one in (q, k, v, fade, gate))
    _linear_attention(q, k, v, fade, gate, state, y)


def call_LinearAttention(*inputs: Any, state_window: int = 0, **attrs: Any) -> Any:
    return None if state_window else linear_attention(*inputs, advance=_advance, **attrs)
