"""RNN, LSTM and GRU with the usual activations, as a few calls a step on whole rows of gates.

sigmoid(x) is tanh(x / 2) / 2 + 1 / 2, the halves of x are in the weights, and narrow directions are one recurrence whose weights
are block-diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy import add, multiply, subtract, tanh

from fx2onnx.semantics.kernels.activation import BOUNDS
from fx2onnx.semantics.kernels.elementwise import Call, reshaped
from fx2onnx.semantics.kernels.recurrence import Recurrence
from fx2onnx.semantics.kernels.threads import product
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import run_all
from fx2onnx.semantics.types import Array, clip, widen

JOINED_WIDTH = 64
"""The largest hidden size at which two directions are one recurrence: twice the multiplications take less than twice
the calls."""
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ORDERS = {"LSTM": (3, 1, 2, 0), "GRU": (0, 1, 2), "RNN": (0,)}
"""The gates of an operator as the steps want them."""
SIGMOIDS = {"LSTM": slice(1, 4), "GRU": slice(0, 2), "RNN": slice(0, 0)}
"""The gates, in that order, that go through the sigmoid."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Weights of one recurrence, of one direction or of two: rows of units (direction, hidden), columns (gate, unit)."""

    directions: tuple[int, ...]
    inputs: tuple[Array, ...]
    """[I, gates * hidden] and bias [gates * hidden] of each direction."""
    bias: tuple[Array, ...]
    recurrent: Array
    inner: Array
    """The recurrent bias of a GRU's last gate, which the reset gate may scale; zeros otherwise."""

    def apart(self) -> list[Joined]:
        """The weights of each direction alone."""
        count, hidden = len(self.directions), len(self.recurrent) // len(self.directions)
        blocks = self.recurrent.reshape(count, hidden, -1, count, hidden)
        return [
            Joined(
                (index,),
                self.inputs[place : place + 1],
                self.bias[place : place + 1],
                np.ascontiguousarray(blocks[place, :, :, place]).reshape(hidden, -1),
                self.inner.reshape(count, hidden)[place],
            )
            for place, index in enumerate(self.directions)
        ]


def join(op: str, w: Array, r: Array, b: Array | None) -> list[Joined]:
    """The weights as the steps want them."""
    gates, order, count, hidden = GATES[op], list(ORDERS[op]), w.shape[0], r.shape[2]
    groups = [tuple(range(count))] if count == 1 or hidden <= JOINED_WIDTH else [(index,) for index in range(count)]
    scale = np.ones((gates, 1), widen(w).dtype)
    scale[SIGMOIDS[op]] = 0.5
    made = []
    for group in groups:
        units = len(group) * hidden
        recurrent = np.zeros((len(group), hidden, gates, len(group), hidden), scale.dtype)
        inner = np.zeros((len(group), hidden), scale.dtype)
        inputs, biases = [], []
        for place, index in enumerate(group):
            by_gate = widen(r[index]).reshape(gates, hidden, hidden)[order] * scale[:, :, None]
            recurrent[place, :, :, place] = by_gate.transpose(2, 0, 1)
            inputs.append(
                np.ascontiguousarray(
                    (widen(w[index]).reshape(gates, hidden, w.shape[2])[order] * scale[:, :, None])
                    .reshape(gates * hidden, w.shape[2])
                    .T
                )
            )
            bias = (
                np.zeros((2, gates, hidden), scale.dtype)
                if b is None
                else widen(b[index]).reshape(2, gates, hidden)[:, order] * scale
            )
            if op == "GRU":
                inner[place] = bias[1, 2]
                bias[1, 2] = 0
            biases.append((bias[0] + bias[1]).reshape(-1))
        made.append(
            Joined(group, tuple(inputs), tuple(biases), recurrent.reshape(units, gates * units), inner.reshape(-1))
        )
    return made


HALVES = {char: np.asarray(0.5, char) for char in "fd"}
Walk = Callable[[Array, Array, Array, Array | None], list[Call]]
"""A function of a time's projected input, the hidden state before and after it, and its projected input to a GRU's new
state, that gives the calls."""


class _Ends:
    """The rows that have an input at each time, where lengths are given."""

    def __init__(self, run: Recurrence) -> None:
        self.run, self.rows = run, np.arange(run.batch)
        self.dead = np.empty((run.steps, run.batch, 1), np.bool_)
        self.order = np.empty((run.steps, run.batch), np.int64)

    def read(self, lengths: Array) -> None:
        self.run.lengths = self.run.checked_lengths(lengths)
        np.less_equal(self.run.lengths[:, None], np.arange(self.run.steps)[:, None, None], self.dead)
        self.order[...] = self.run.backwards()

    def begin(self, state: Array) -> tuple[Array, Call]:
        """Room for an initial state [directions, batch, hidden], and the call that copies it there; rows without input have 0, which is
        their last state in onnxruntime.
        """
        room = np.empty(state.shape, state.dtype)
        return room, lambda: np.copyto(room, np.where(self.dead[0] if len(self.dead) else True, 0, state))

    def turn(self, lines: Array, out: Array) -> None:
        """out = the lines [times, batch, *] in the other direction: each row from its last input to its first."""
        out[...] = lines[self.order, self.rows]


def _lstm_step(joined: Joined, lead: tuple[int, ...]) -> tuple[list[Array], Walk]:
    """The cell lies before the gates c, o, f, i, so that one product has both terms of the next cell."""
    recurrent, units = joined.recurrent, len(joined.recurrent)
    whole, terms = (np.empty((*lead, n * units), recurrent.dtype) for n in (5, 2))
    cell, _, opened, *_ = (whole[..., k * units : (k + 1) * units] for k in range(5))
    gates, sigmoids, half = whole[..., units:], whole[..., 2 * units :], HALVES[recurrent.dtype.char]
    first, second = terms[..., :units], terms[..., units:]
    between: list[Call] = [
        partial(tanh, gates, gates),
        partial(multiply, sigmoids, half, sigmoids),
        partial(add, sigmoids, half, sigmoids),
        partial(multiply, whole[..., : 2 * units], whole[..., 3 * units :], terms),
        partial(add, first, second, cell),
        partial(tanh, cell, first),
    ]

    def step(line: Array, hidden: Array, out: Array, _: Array | None) -> list[Call]:
        begin: list[Call] = [product(hidden, recurrent, gates), partial(add, gates, line, gates)]
        return [*begin, *between, partial(multiply, opened, first, out)]

    return [cell], step


def _gru_step(joined: Joined, lead: tuple[int, ...], resets_before: bool) -> tuple[list[Array], Walk]:
    whole, units, dtype = joined.recurrent, len(joined.recurrent), joined.recurrent.dtype
    gates, inner = np.empty((*lead, 3 * units), dtype), np.empty((*lead, units), dtype)
    update, reset, last = (gates[..., k * units : (k + 1) * units] for k in range(3))
    both, half = gates[..., : 2 * units], HALVES[dtype.char]
    parts = [np.ascontiguousarray(part) for part in (whole[:, : 2 * units], whole[:, 2 * units :])]
    opened = [partial(tanh, both, both), partial(multiply, both, half, both), partial(add, both, half, both)]

    def step(line: Array, hidden: Array, out: Array, of_state: Array | None) -> list[Call]:
        if resets_before:
            begin: list[Call] = [
                product(hidden, parts[0], both),
                partial(add, both, line[..., : 2 * units], both),
                *opened,
            ]
            begin += [partial(multiply, reset, hidden, reset), product(reset, parts[1], inner)]
        else:
            begin = [product(hidden, whole, gates), partial(add, gates, line, gates), *opened]
            begin += [partial(multiply, last, reset, inner)]
        end: list[Call] = [
            partial(subtract, hidden, inner, out),
            partial(multiply, out, update, out),
            partial(add, out, inner, out),
        ]
        return [*begin, partial(add, inner, of_state, inner), partial(tanh, inner, inner), *end]

    return [], step


def rectifies(attrs: Mapping[str, Any]) -> bool:
    """Return whether all activations of an RNN are max(x, 0)."""
    return {name.lower() for name in attrs.get("activations") or ("tanh",)} == {"relu"}


def _rnn_step(joined: Joined, is_rectified: bool) -> tuple[list[Array], Walk]:
    zero, most, *_ = BOUNDS[joined.recurrent.dtype.char]

    def step(line: Array, hidden: Array, out: Array, _: Array | None) -> list[Call]:
        activate: Call = partial(clip, out, zero, most, out) if is_rectified else partial(tanh, out, out)
        return [product(hidden, joined.recurrent, out), partial(add, out, line, out), activate]

    return [], step


def _gru_inputs(joined: Joined, projected: Array, resets_after: bool) -> tuple[Array, list[Call]]:
    """The terms that are added to the new state at each time, and the calls that make them: the recurrent bias of the state is
    scaled by the reset gate where that comes after the product, and is added to the gates then.
    """
    last = projected[..., projected.shape[-1] // 3 * 2 :]
    of_state = np.empty(last.shape, last.dtype)
    if not resets_after:
        return of_state, [partial(add, last, joined.inner, of_state)]
    return of_state, [partial(np.copyto, of_state, last), partial(np.copyto, last, joined.inner)]


def _steps(
    states: list[Array], lines: Array, of_state: Array | None, outputs: Array, step: Walk, ends: _Ends | None
) -> list[Call]:
    """The calls of all times. A row without an input keeps its states; its outputs are 0 in the end."""
    hidden, *cells = states
    saved = [np.empty_like(cell) for cell in cells] if ends is not None else []
    calls: list[Call] = []
    for time, (line, out) in enumerate(zip(lines, outputs, strict=True)):
        calls += [partial(np.copyto, room, cell) for room, cell in zip(saved, cells, strict=False)]
        calls += step(line, hidden, out, None if of_state is None else of_state[time])
        if ends is not None:
            dead = ends.dead[time].reshape(*out.shape[:-1], 1)
            kept = zip((out, *cells), (hidden, *saved), strict=True)
            calls += [partial(np.copyto, value, old, where=dead) for value, old in kept]
        hidden = out
    states[0] = hidden
    return calls


def _of_joined(
    op: str,
    run: Recurrence,
    one: Joined,
    flat: Array,
    starts: Sequence[Array | None],
    results: Sequence[Array],
    ends: _Ends | None,
) -> tuple[Array, list[Call]]:
    """The last hidden state of one recurrence, and its calls."""
    gates, width, count, dtype = GATES[op], run.hidden, len(one.directions), flat.dtype
    lead = () if run.batch == 1 else (run.batch,)
    shape = (run.steps, run.batch, gates, count, width)
    check_shape(shape, dtype, "the projected input of a recurrence")
    projected, room = np.empty(shape, dtype), np.empty((len(flat), gates * width), dtype)
    calls: list[Call] = []
    for place, index in enumerate(one.directions):
        lines, bias = room.reshape(*shape[:3], width), one.bias[place].reshape(gates, width)
        calls.append(product(flat, one.inputs[place], room))
        target = projected[:, :, :, place]
        if ends is not None and run.is_reverse(index):
            calls += [partial(add, lines, bias, lines), partial(ends.turn, lines, target)]
        else:
            calls.append(partial(add, lines[::-1] if run.is_reverse(index) else lines, bias, target))
    rows = projected.reshape(run.steps, *lead, gates * count * width)
    of_state = None
    if op == "GRU":
        resets_after = bool(run.attrs.get("linear_before_reset", 0))
        of_state, made = _gru_inputs(one, rows, resets_after)
        calls += made
        cells, step = _gru_step(one, lead, not resets_after)
    else:
        cells, step = _lstm_step(one, lead) if op == "LSTM" else _rnn_step(one, rectifies(run.attrs))
    states = [np.empty((*lead, count * width), dtype), *cells]
    for state, start in zip(states, starts, strict=True):
        parts = state.reshape(run.batch, count, width)
        for place, index in enumerate(one.directions):
            calls.append(partial(np.copyto, parts[:, place], 0 if start is None else start[index]))
    outputs = np.empty((run.steps, *lead, count * width), dtype)
    calls += _steps(states, rows, of_state, outputs, step, ends)
    y, *lasts = results
    for place, index in enumerate(one.directions):
        for last, state in zip(lasts, states, strict=False):
            calls.append(partial(np.copyto, last[index], state.reshape(run.batch, count, width)[:, place], "unsafe"))
    everything = outputs.reshape(run.steps, run.batch, count, width)
    if ends is not None:
        calls.append(partial(np.copyto, everything, 0, where=ends.dead[..., None]))
    for place, index in enumerate(one.directions):
        line = everything[:, :, place]
        if ends is not None and run.is_reverse(index):
            calls.append(partial(ends.turn, line, y[:, index]))
        else:
            calls.append(partial(np.copyto, y[:, index], line[::-1] if run.is_reverse(index) else line, "unsafe"))
    return states[0], calls


def usual_calls(
    op: str,
    run: Recurrence,
    joined: list[Joined],
    lengths: Array | None,
    starts: Sequence[Array | None],
    outs: Sequence[Array],
) -> list[Call]:
    """The calls that write Y and the last states.

    Numerics: the zeros between joined directions would make NaN of one NaN in the other, so that each then runs alone.
    """
    orders = ((1, 2, 0, 3), (1, 0, 2), (1, 0, 2))
    results = [out.transpose(order) if run.is_batch_first else out for out, order in zip(outs, orders, strict=False)]
    given = [None if start is None else widen(run.moved(start)) for start in starts]
    calls: list[Call] = []
    ends = None
    if lengths is not None:
        ends = _Ends(run)
        calls.append(partial(ends.read, lengths))
        for place, start in enumerate(given):
            if start is not None:
                given[place], begin = ends.begin(start)
                calls.append(begin)
    flat, copy = reshaped(run.x, (run.steps * run.batch, run.x.shape[2]))
    calls += copy
    for one in joined:
        hidden, made = _of_joined(op, run, one, flat, given, results, ends)
        calls += made
        if len(one.directions) > 1:
            calls.append(
                partial(_part_where_nan, hidden, partial(usual_calls, op, run, one.apart(), lengths, starts, outs))
            )
    return calls


def _part_where_nan(hidden: Array, make: Callable[[], list[Call]]) -> None:
    if np.isnan(hidden).any():
        run_all(make())
