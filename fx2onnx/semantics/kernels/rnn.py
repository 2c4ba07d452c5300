"""RNN, LSTM, GRU: the usual activations by ``joined_recurrence.py``, others and peepholes step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.elementwise import Call
from fx2onnx.semantics.kernels.joined_recurrence import GATES, HALVES, join, rectifies, usual_calls
from fx2onnx.semantics.kernels.recurrence import Activation, Recurrence, Step
from fx2onnx.semantics.registry import Calls, Facts, Prepared, kernel, run_all
from fx2onnx.semantics.types import Array, Spec, widen

KEPT_BYTES = 1 << 22
"""Projected inputs up to this size are kept by a plan with the calls that read them; larger ones are made at each run."""
USUAL = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}


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


def is_usual(op: str, attrs: Mapping[str, Any], n_directions: int) -> bool:
    given = [name.lower() for name in attrs.get("activations") or USUAL[op] * n_directions]
    is_known = given == [*USUAL[op]] * n_directions or (op == "RNN" and rectifies(attrs) and len(given) == n_directions)
    return is_known and attrs.get("clip") is None and not attrs.get("input_forget")


def _prepare(op: str) -> Callable[[Facts], Prepared | None]:
    def prepare(facts: Facts) -> Prepared | None:
        """The weights joined once, where they are constant."""
        w, r = facts.consts[1:3]
        b = facts.consts[3] if len(facts.consts) > 3 else None
        if w is None or r is None or (b is None and len(facts.inputs) > 3 and facts.inputs[3] is not None):
            return None
        attrs, x = facts.attrs, facts.inputs[0]
        if x is None or x[1].char not in HALVES or len(facts.inputs) > 7 or w.ndim != 3 or r.ndim != 3:
            return None
        if not is_usual(op, attrs, w.shape[0]):
            return None
        if (
            r.shape[1] != GATES[op] * r.shape[2]
            or w.shape[:2] != r.shape[:2]
            or (b is not None and b.shape != (w.shape[0], 2 * r.shape[1]))
        ):
            return None  # the kernel says what is wrong
        joined = facts.once("joined", (w, r, b), lambda: join(op, w, r, b))

        def calls(outs: list[Array], _: list[Array], x: Array, *inputs: Any) -> list[Call]:
            lengths, *starts = [*inputs[3:], None, None, None][: 2 + (op == "LSTM")]
            return usual_calls(op, Recurrence(x, w, r, None, dict(attrs), GATES[op]), joined, lengths, starts, outs)

        if 4 * math.prod(x[0][:2]) * r.shape[0] * r.shape[1] <= KEPT_BYTES:
            return Prepared(Calls(calls), inplace=(), is_long=True)
        return Prepared(lambda *operands: run_all(calls(*operands)), inplace=())

    return prepare


def _run_usual(
    op: str,
    run: Recurrence,
    weights: tuple[Array, Array, Array | None],
    starts: Sequence[Array | None],
    outs: list[Array],
) -> None:
    run_all(usual_calls(op, run, join(op, *weights), run.lengths, starts, outs))


def _give(outs: Sequence[Array], results: Sequence[Array], is_batch_first: bool) -> None:
    """The results in the outputs that are asked for, in the node's layout."""
    orders = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
    for out, result, order in zip(outs, results, orders, strict=False):
        out[...] = result.transpose(order) if is_batch_first else result


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
    n_outputs: int = 1,
    **attrs: Any,
) -> None:
    """i, o, f, c gates; C = f * C + i * g(c); H = o * h(C). Source: ONNX LSTM-14."""
    run = Recurrence(x, w, r, lengths, attrs, 4)
    h = run.hidden
    run.check("B", b, 8 * h)
    run.check("P", p, 3 * h)
    if p is None and not input_forget and is_usual("LSTM", attrs, run.n_directions):
        _run_usual("LSTM", run, (w, r, b), (initial_h, initial_c), out)
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
    n_outputs: int = 1,
    **attrs: Any,
) -> None:
    """z, r, h gates; H = (1 - z) * h + z * H. Source: ONNX GRU-14."""
    run = Recurrence(x, w, r, lengths, attrs, 3)
    h = run.hidden
    run.check("B", b, 6 * h)
    if is_usual("GRU", attrs, run.n_directions):
        _run_usual("GRU", run, (w, r, b), (initial_h,), out)
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
    n_outputs: int = 1,
    **attrs: Any,
) -> None:
    """H = f(x W + H R + b). Source: ONNX RNN-14."""
    run = Recurrence(x, w, r, lengths, attrs, 1)
    h = run.hidden
    run.check("B", b, 2 * h)
    if is_usual("RNN", attrs, run.n_directions):
        _run_usual("RNN", run, (w, r, b), (initial_h,), out)
        return

    def direction(index: int, functions: list[Activation]) -> tuple[Step, Array]:
        (f,) = functions
        weight, recurrent = widen(w[index]).T, widen(r[index]).T
        bias = 0 if b is None else widen(b[index][:h]) + widen(b[index][h:])

        def step(gates: Array, states: list[Array]) -> list[Array]:
            return [f(run.clipped(gates + states[0] @ recurrent))]

        return step, run.x @ weight + bias

    _give(out, run.run(USUAL["RNN"], (initial_h,), direction), run.is_batch_first)
