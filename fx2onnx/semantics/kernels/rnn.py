"""RNN, LSTM, GRU.

With the usual activations a step is a few calls on whole rows of gates: sigmoid(x) is tanh(x / 2) / 2 + 1 / 2, the halves
of x are in the weights, and narrow directions are one recurrence whose weights are block-diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy import add, matmul, multiply, subtract, tanh

from fx2onnx.semantics.kernels.recurrence import GATES, Activation, Joined, Recurrence, Step, join
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import Facts, Prepared, kernel
from fx2onnx.semantics.types import Array, Spec, widen

USUAL = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
_HALVES = {char: np.asarray(0.5, char) for char in "fd"}
Walk = Callable[[Any, Array, Array], None]
"""From the projected input (of a GRU: of the gates, and of the new state) and the hidden state, writes the one after it."""


def _lstm_step(joined: Joined, cell: Array) -> Walk:
    recurrent, units = joined.recurrent, cell.shape[1]
    gates, product = np.empty((len(cell), 4 * units), cell.dtype), np.empty_like(cell)
    sigmoids, half = gates[:, : 3 * units], _HALVES[cell.dtype.char]
    i, o, f, c = (gates[:, k * units : (k + 1) * units] for k in range(4))

    def step(projected: Array, hidden: Array, out: Array) -> None:
        matmul(hidden, recurrent, gates)
        add(gates, projected, gates)
        tanh(gates, gates)
        multiply(sigmoids, half, sigmoids)
        add(sigmoids, half, sigmoids)
        multiply(cell, f, cell)
        multiply(i, c, product)
        add(cell, product, cell)
        tanh(cell, product)
        multiply(o, product, out)

    return step


def _gru_step(joined: Joined, batch: int, resets_before: bool) -> Walk:
    units, dtype = len(joined.recurrent), joined.recurrent.dtype
    gates, inner = np.empty((batch, 3 * units), dtype), np.empty((batch, units), dtype)
    both, last = gates[:, : 2 * units], gates[:, 2 * units :]
    update, reset = gates[:, :units], gates[:, units : 2 * units]
    whole = joined.recurrent
    parts = (
        [np.ascontiguousarray(part) for part in (whole[:, : 2 * units], whole[:, 2 * units :])] if resets_before else []
    )
    half = _HALVES[dtype.char]

    def step(projected: tuple[Array, Array], hidden: Array, out: Array) -> None:
        of_gates, of_state = projected
        if resets_before:
            matmul(hidden, parts[0], both)
            add(both, of_gates, both)
        else:
            matmul(hidden, whole, gates)
            add(gates, of_gates, gates)
        tanh(both, both)
        multiply(both, half, both)
        add(both, half, both)
        if resets_before:
            multiply(reset, hidden, reset)
            matmul(reset, parts[1], inner)
        else:
            multiply(last, reset, inner)
        add(inner, of_state, inner)
        tanh(inner, inner)
        subtract(hidden, inner, out)
        multiply(out, update, out)
        add(out, inner, out)

    return step


def _gru_inputs(projected: Array, bias: Array, resets_after: bool) -> Iterable[tuple[Array, Array]]:
    """The terms that are added to a step's gates, and to its new state: the recurrent bias of the state is scaled by the reset
    gate, where that comes after the product.
    """
    cut = projected.shape[2] // 3 * 2
    if not resets_after:
        return zip(projected[:, :, :cut], projected[:, :, cut:] + bias, strict=True)
    of_gates = projected.copy()
    of_gates[:, :, cut:] = bias
    return zip(of_gates, projected[:, :, cut:], strict=True)


def _rnn_step(joined: Joined) -> Walk:
    recurrent = joined.recurrent

    def step(projected: Array, hidden: Array, out: Array) -> None:
        matmul(hidden, recurrent, out)
        add(out, projected, out)
        tanh(out, out)

    return step


def _walk(
    steps: Iterable[Any], outputs: Array, hidden: Array, cells: list[Array], alive: Array | None, step: Walk
) -> Array:
    """All times; the last hidden state. ``alive`` [times, batch, 1] says which rows have an input at a time."""
    if alive is None:
        for projected, out in zip(steps, outputs, strict=True):
            step(projected, hidden, out)
            hidden = out
        return hidden
    for projected, out, on in zip(steps, outputs, alive, strict=True):
        before = [cell.copy() for cell in cells]
        step(projected, hidden, out)
        for cell, old in zip(cells, before, strict=True):
            np.copyto(cell, old, where=~on)
        hidden = np.where(on, out, hidden)
        np.copyto(out, 0, where=~on)
    return hidden


def _usual(
    op: str, run: Recurrence, joined: list[Joined], starts: Sequence[Array | None], attrs: Mapping[str, Any]
) -> list[Array]:
    """Y [times, directions, batch, hidden] and the last states [directions, batch, hidden].

    Numerics: the zeros between joined directions would make NaN of one NaN in the other, so that each then runs alone.
    """
    gates, width, dtype = GATES[op], run.hidden, run.x.dtype
    y = np.empty((run.steps, run.n_directions, run.batch, width), dtype)
    lasts = [np.empty((run.n_directions, run.batch, width), dtype) for _ in starts]
    rows = np.arange(run.batch)
    flat = np.ascontiguousarray(run.x).reshape(run.steps * run.batch, run.x.shape[2])
    is_ragged = run.lengths is not None and bool((run.lengths != run.steps).any())
    alive = (
        np.arange(run.steps)[:, None, None] < run.lengths[:, None] if is_ragged and run.lengths is not None else None
    )
    for one in joined:
        count = len(one.directions)
        shape = (run.steps, run.batch, gates, count, width)
        check_shape(shape, dtype, "the projected input of a recurrence")
        projected = np.empty(shape, dtype)
        for place, index in enumerate(one.directions):
            line = (np.matmul(flat, one.inputs[place]) + one.bias[place]).reshape(run.steps, run.batch, gates, width)
            if is_ragged:
                line = line[run.order(index), rows]
            elif run.is_reverse(index):
                line = line[::-1]
            projected[:, :, :, place] = line
        states = [
            np.stack([run.start(state, index) for index in one.directions], axis=1).reshape(run.batch, count * width)
            for state in starts
        ]
        outputs = np.empty((run.steps, run.batch, count * width), dtype)
        rows_of_gates = projected.reshape(run.steps, run.batch, gates * count * width)
        steps: Iterable[Any] = rows_of_gates
        if op == "LSTM":
            step = _lstm_step(one, states[1])
        elif op == "GRU":
            step = _gru_step(one, run.batch, not attrs.get("linear_before_reset", 0))
            steps = _gru_inputs(rows_of_gates, one.inner, bool(attrs.get("linear_before_reset", 0)))
        else:
            step = _rnn_step(one)
        states[0] = _walk(steps, outputs, states[0], states[1:], alive, step)
        if count > 1 and np.isnan(states[0]).any():
            return _usual(op, run, one.apart(), starts, attrs)
        for place, index in enumerate(one.directions):
            line = outputs.reshape(run.steps, run.batch, count, width)[:, :, place]
            if is_ragged:
                y[run.order(index), index, rows] = line
            else:
                y[:, index] = line[::-1] if run.is_reverse(index) else line
            for last, state in zip(lasts, states, strict=True):
                last[index] = state.reshape(run.batch, count, width)[:, place]
    return [y, *lasts]


def _infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, r = inputs[0], inputs[2]
    if x.ndim != 3 or r.ndim != 3:
        raise ValueError(f"the input has {x.ndim} axes and R {r.ndim}, both must have 3")
    hidden, count = attrs.get("hidden_size"), r.shape[0]
    hidden = r.shape[2] if hidden is None else hidden
    is_batch_first = bool(attrs.get("layout", 0))
    steps, batch = x.shape[:2][::-1] if is_batch_first else x.shape[:2]
    y = (batch, steps, count, hidden) if is_batch_first else (steps, count, batch, hidden)
    last = (batch, count, hidden) if is_batch_first else (count, batch, hidden)
    return ((y, x.dtype), (last, x.dtype))[: attrs.get("n_outputs", 1)]


def _lstm_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    y, last = _infer(inputs, {**attrs, "n_outputs": 2})
    return (y, last, last)[: attrs.get("n_outputs", 1)]


def _is_usual(op: str, attrs: Mapping[str, Any], n_directions: int) -> bool:
    given = [name.lower() for name in attrs.get("activations") or USUAL[op] * n_directions]
    return given == [*USUAL[op]] * n_directions and attrs.get("clip") is None and not attrs.get("input_forget")


def _give(outs: Sequence[Array], results: Sequence[Array], is_batch_first: bool) -> None:
    """The results in the outputs that are asked for, in the node's layout."""
    orders = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
    for out, result, order in zip(outs, results, orders, strict=False):
        out[...] = result.transpose(order) if is_batch_first else result


def _prepare(op: str) -> Callable[[Facts], Prepared | None]:
    def prepare(facts: Facts) -> Prepared | None:
        """The weights joined once, where they are constant."""
        w, r = facts.consts[1:3]
        b = facts.consts[3] if len(facts.consts) > 3 else None
        if w is None or r is None or (b is None and len(facts.inputs) > 3 and facts.inputs[3] is not None):
            return None
        attrs, kernel_of = facts.attrs, _KERNELS[op]
        if len(facts.inputs) > 7 or not _is_usual(op, attrs, w.shape[0]) or w.ndim != 3 or r.ndim != 3:
            return None
        if (
            r.shape[1] != GATES[op] * r.shape[2]
            or w.shape[:2] != r.shape[:2]
            or (b is not None and b.shape != (w.shape[0], 2 * r.shape[1]))
        ):
            return None  # the kernel says what is wrong
        joined = facts.once("joined", (w, r, b), lambda: join(op, w, r, b))

        def call(out: list[Array], room: list[Array], *inputs: Any) -> None:
            kernel_of(out, *inputs, joined=joined, **attrs)

        return Prepared(call, inplace=())

    return prepare


@kernel("LSTM", kind="into", infer=_lstm_infer, prepare=_prepare("LSTM"))
def lstm(
    out: list[Array],
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
    joined: list[Joined] | None = None,
    n_outputs: int = 1,
    **attrs: Any,
) -> None:
    """i, o, f, c gates; C = f * C + i * g(c); H = o * h(C). Source: ONNX LSTM-14."""
    run = Recurrence(x, w, r, lengths, attrs, 4)
    h = run.hidden
    run.check("B", b, 8 * h)
    run.check("P", p, 3 * h)
    if p is None and not input_forget and _is_usual("LSTM", attrs, run.n_directions):
        results = _usual("LSTM", run, joined or join("LSTM", w, r, b), (initial_h, initial_c), attrs)
        _give(out, results, run.is_batch_first)
        return

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

    _give(out, run.run(USUAL["LSTM"], (initial_h, initial_c), direction), run.is_batch_first)


@kernel("GRU", kind="into", infer=_infer, prepare=_prepare("GRU"))
def gru(
    out: list[Array],
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    lengths: Array | None = None,
    initial_h: Array | None = None,
    *,
    joined: list[Joined] | None = None,
    n_outputs: int = 1,
    **attrs: Any,
) -> None:
    """z, r, h gates; H = (1 - z) * h + z * H. Source: ONNX GRU-14."""
    run = Recurrence(x, w, r, lengths, attrs, 3)
    h = run.hidden
    run.check("B", b, 6 * h)
    if _is_usual("GRU", attrs, run.n_directions):
        _give(out, _usual("GRU", run, joined or join("GRU", w, r, b), (initial_h,), attrs), run.is_batch_first)
        return

    def direction(index: int, functions: list[Activation]) -> tuple[Step, Array]:
        f, g = functions
        weight, recurrent = widen(w[index]).T, widen(r[index]).T
        both = np.zeros(6 * h, run.x.dtype) if b is None else widen(b[index])

        def step(gates: Array, states: list[Array]) -> list[Array]:
            hidden = states[0]
            zr = gates[:, : 2 * h] + hidden @ recurrent[:, : 2 * h] + both[3 * h : 5 * h]
            z, reset = f(run.clipped(zr[:, :h])), f(run.clipped(zr[:, h:]))
            if attrs.get("linear_before_reset", 0):
                inner = gates[:, 2 * h :] + reset * (hidden @ recurrent[:, 2 * h :] + both[5 * h :])
            else:
                inner = gates[:, 2 * h :] + (reset * hidden) @ recurrent[:, 2 * h :] + both[5 * h :]
            return [(1 - z) * g(run.clipped(inner)) + z * hidden]

        return step, run.x @ weight + both[: 3 * h]

    _give(out, run.run(USUAL["GRU"], (initial_h,), direction), run.is_batch_first)


@kernel("RNN", kind="into", infer=_infer, prepare=_prepare("RNN"))
def rnn(
    out: list[Array],
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    lengths: Array | None = None,
    initial_h: Array | None = None,
    *,
    joined: list[Joined] | None = None,
    n_outputs: int = 1,
    **attrs: Any,
) -> None:
    """H = f(x W + H R + b). Source: ONNX RNN-14."""
    run = Recurrence(x, w, r, lengths, attrs, 1)
    h = run.hidden
    run.check("B", b, 2 * h)
    if _is_usual("RNN", attrs, run.n_directions):
        _give(out, _usual("RNN", run, joined or join("RNN", w, r, b), (initial_h,), attrs), run.is_batch_first)
        return

    def direction(index: int, functions: list[Activation]) -> tuple[Step, Array]:
        (f,) = functions
        weight, recurrent = widen(w[index]).T, widen(r[index]).T
        bias = 0 if b is None else widen(b[index][:h]) + widen(b[index][h:])

        def step(gates: Array, states: list[Array]) -> list[Array]:
            return [f(run.clipped(gates + states[0] @ recurrent))]

        return step, run.x @ weight + bias

    _give(out, run.run(USUAL["RNN"], (initial_h,), direction), run.is_batch_first)


_KERNELS: dict[str, Callable[..., None]] = {"LSTM": lstm, "GRU": gru, "RNN": rnn}
