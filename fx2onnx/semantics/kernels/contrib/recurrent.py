"""onnxruntime's recurrent operators: DynamicQuantizeLSTM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.contrib import MICROSOFT
from fx2onnx.semantics.kernels.contrib.quantized import quantized, right_operand, scaled_product, steps_of_range
from fx2onnx.semantics.kernels.integer_products import EXACT
from fx2onnx.semantics.kernels.recurrence import activations
from fx2onnx.semantics.kernels.threads import whole_product
from fx2onnx.semantics.limits import count_iteration
from fx2onnx.semantics.registry import Facts, Prepared, kernel
from fx2onnx.semantics.types import FLOAT32, Array, Spec

MOST_EXACT = EXACT // 255**2
"""The largest state whose products with weights are summed exactly in float32."""


class _Weights:
    """The quantized weights of one direction, [inputs, 4 * hidden]."""

    def __init__(self, codes: Array, scale: Array, zero: Array, order: Array | None) -> None:
        self.codes, self.scale, self.zero = (
            _in_order(one, order) for one in (codes, scale.reshape(-1), zero.reshape(-1))
        )
        self.wide = right_operand(self.codes, self.zero)

    def times(self, x: Array) -> Array:
        """x, quantized by its own range, times the weights."""
        rows = x.reshape(-1, x.shape[-1])
        if rows.shape[1] <= MOST_EXACT:
            steps, size, _ = steps_of_range(rows)
            y = np.matmul(steps, self.wide)
            y *= size * self.scale
            return np.asarray(y.reshape(*x.shape[:-1], y.shape[-1]))
        codes, scale, zero = quantized(rows)
        y = scaled_product(codes, self.codes, np.asarray(scale * self.scale), zero, self.zero, right=self.wide)
        return y.reshape(*x.shape[:-1], y.shape[-1])


def _in_order(x: Array, order: Array | None) -> Array:
    """x, whose last axis is in this order, if it is more than one number."""
    return x.copy() if order is None or x.shape[-1] == 1 else x[..., order].copy()


class _Direction:
    """The operands of one direction that do not change from run to run.

    Where ``is_usual`` the gates are o, i, f, c: sigmoids are side by side, and what they are multiplied by, i and f with c and the cell.
    A sigmoid is tanh(x / 2) / 2 + 1 / 2, so theirs are halved.
    """

    def __init__(self, weights: Sequence[Array | None], index: int, is_usual: bool) -> None:
        w, r, b, *scales = (None if one is None else one[index] for one in weights)
        assert w is not None
        assert r is not None
        hidden = len(r)
        order = np.arange(4 * hidden).reshape(4, hidden)[[1, 0, 2, 3]].reshape(-1) if is_usual else None
        w_scale, w_zero, r_scale, r_zero = (np.asarray(one) for one in scales)
        self.inputs, self.recurrent = _Weights(w, w_scale, w_zero, order), _Weights(r, r_scale, r_zero, order)
        bias = np.zeros(4 * hidden, FLOAT32) if b is None else b[: 4 * hidden] + b[4 * hidden :]
        self.bias = _in_order(bias, order)
        if is_usual:
            halves = np.repeat(np.array([0.5, 0.5, 0.5, 1], FLOAT32), hidden)
            self.recurrent.wide = self.recurrent.wide * halves
            self.inputs.scale, self.bias = self.inputs.scale * halves, self.bias * halves


def _usual_steps(lines: Array, r: Array, scale: Array, h: Array, c: Array, backwards: bool, y: Array, at: int) -> None:
    """All steps of one direction with the usual activations.

    Shapes: lines [steps, batch, 4 * hidden], the products with the input; r [hidden, 4 * hidden]; y [steps, directions, batch, hidden].
    """
    (batch, hidden), half, most = h.shape, np.asarray(0.5, FLOAT32), np.float32(255)
    factor = scale[0] if scale.size == 1 else scale
    states = np.zeros((len(lines) + 1, h.size + 1), FLOAT32)  # ends in 0, which the range of a state has to have
    states[0, :-1] = h.reshape(-1)
    codes, room, pair = np.empty_like(h), np.empty_like(h), np.empty((batch, 2 * hidden), FLOAT32)
    step_size, sums_size = np.empty((), FLOAT32), np.empty(scale.shape if scale.size > 1 else (), FLOAT32)
    whole = np.empty((batch, 5 * hidden), FLOAT32)
    sums, sigmoids, opened = (whole[:, : count * hidden] for count in (4, 3, 1))
    taken_and_kept, new_and_cell, cell = (whole[:, k * hidden : (k + 2) * hidden] for k in (1, 3, 4))
    first, second = pair[:, :hidden], pair[:, hidden:]
    cell[...] = c
    divide, rint, multiply, add, tanh = np.divide, np.rint, np.multiply, np.add, np.tanh
    product, state = whole_product(codes, r, sums), h
    targets = states[1:, :-1].reshape(-1, batch, hidden)
    for line, flat, target in zip(lines[::-1] if backwards else lines, states, targets, strict=False):
        low, high = flat[flat.argmin()], flat[flat.argmax()]
        by = (high - low) / most if high != low else np.float32(1)
        step_size.fill(by)
        rint(divide(state, step_size, codes), codes)
        room_above = most - rint(-low / by)
        if rint(high / by) > room_above:  # both ends were rounded up
            np.minimum(codes, room_above, out=codes)
        product()
        multiply(step_size, factor, sums_size)
        multiply(sums, sums_size, sums)
        add(sums, line, sums)
        tanh(sums, sums)
        multiply(sigmoids, half, sigmoids)
        add(sigmoids, half, sigmoids)
        multiply(taken_and_kept, new_and_cell, pair)
        add(first, second, cell)
        multiply(opened, tanh(cell, room), target)
        state = target
    y[:: -1 if backwards else 1, at] = targets
    h[...], c[...] = state, cell


def _any_steps(
    gates: Array, recurrent: _Weights, ends: Array, terms: Any, h: Array, c: Array, is_reverse: bool, y: Array, at: int
) -> tuple[Array, Array]:
    """All steps of one direction, whose rows end at ``ends``; the last states. ``terms``: activations, peepholes, clip, ``input_forget``."""
    ((f, g, hh), peep, clip, input_forget), (batch, hidden) = terms, h.shape
    for time in range(len(gates)):
        count_iteration()
        alive = time < ends
        places = np.maximum(ends - 1 - time, 0) if is_reverse else np.full(batch, time)
        total = gates[places, np.arange(batch)] + recurrent.times(np.where((time <= ends)[:, None], h, 0))
        i, o, fg, cell = (total[:, k * hidden : (k + 1) * hidden] for k in range(4))
        i = f(_clipped(i + peep[0] * c, clip))
        fg = 1 - i if input_forget else f(_clipped(fg + peep[2] * c, clip))
        new_c = fg * c + i * g(_clipped(cell, clip))
        new_h = f(_clipped(o + peep[1] * new_c, clip)) * hh(new_c)
        h, c = np.where(alive[:, None], new_h, h), np.where(alive[:, None], new_c, c)
        y[places[alive], at, alive] = h[alive]
    return h, c


def _infer(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    """Raises: ValueError for operands that do not fit one another."""
    x, w, r, b, _, h, c, p, *scales = inputs
    count = 2 if attrs.get("direction") == "bidirectional" else 1
    operands = {"B": b, "P": p, "initial_h": h, "initial_c": c}
    steps, batch, hidden = _checked_sizes(x, w, r, operands, count, attrs.get("hidden_size"))
    for name, values in zip(("scale of W", "zero point of W", "scale of R", "zero point of R"), scales, strict=True):
        if values.shape not in ((count,), (count, 1), (count, 4 * hidden)):
            raise ValueError(f"the {name} has the shape {list(values.shape)}, the weights have {4 * hidden} columns")
    given, last = attrs.get("activations") or (), ((count, batch, hidden), FLOAT32)
    if len(given) not in (0, 3 * count):
        raise ValueError(f"{len(given)} activations, not {3 * count}")
    return (((steps, count, batch, hidden), FLOAT32), last, last)[: max(attrs.get("n_outputs", 1), 1)]


WEIGHTS = (1, 2, 3, 8, 9, 10, 11)
"""The places of the inputs W, R and B, and of scale and zero point of W and of R."""


def prepare(facts: Facts, usual_steps: Callable[..., None] = _usual_steps) -> Prepared | None:
    """The weights made ready once, where they are constant, the activations the usual ones, and all rows as long as the input.

    ``usual_steps`` computes all steps of one direction.
    """
    given, attrs, weights = facts.inputs, facts.attrs, [facts.consts[place] for place in WEIGHTS]
    x, r = given[0], weights[1]
    if any(value is None and given[place] is not None for place, value in zip(WEIGHTS, weights, strict=True)):
        return None
    names = [name.lower() for name in attrs.get("activations") or ()]
    if x is None or r is None or given[4] is not None or given[7] is not None or attrs.get("input_forget"):
        return None
    if names != ["sigmoid", "tanh", "tanh"] * (len(names) // 3) or attrs.get("clip") or x[1] != FLOAT32:
        return None
    (count, hidden, _), batch = r.shape, x[0][1]
    if hidden > MOST_EXACT or not batch:
        return None
    directions = facts.once("directions", weights, lambda: [_Direction(weights, index, True) for index in range(count)])

    def run(outs: list[Array], room: list[Array], x: Array, *operands: Any) -> None:
        count_iteration(len(x) * count)
        for index, one in enumerate(directions):
            lines = one.inputs.times(x)
            lines += one.bias
            states = room[0][:, index]
            for state, start in zip(states, operands[4:6], strict=True):
                state[...] = 0 if start is None else start[index]
            backwards = attrs.get("direction") == "reverse" or index == 1
            usual_steps(lines, one.recurrent.wide, one.recurrent.scale, *states, backwards, outs[0], index)
        for last, state in zip(outs[1:], room[0], strict=False):
            last[...] = state

    return Prepared(run, (((2, count, batch, hidden), FLOAT32),))


@kernel("DynamicQuantizeLSTM", domain=MICROSOFT, kind="into", infer=_infer, prepare=prepare)
def dynamic_quantize_lstm(
    out: list[Array],
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    lengths: Array | None,
    initial_h: Array | None,
    initial_c: Array | None,
    p: Array | None,
    *scales: Array,
    direction: str = "forward",
    input_forget: int = 0,
    clip: float = 0.0,
    n_outputs: int = 1,
    **attrs: Any,
) -> None:
    """LSTM whose weights are quantized, and whose input and states are quantized by their own range before each product.

    Shapes:   x [T, B, I], w [D, I, 4 * H], r [D, H, 4 * H] (gates i, o, f, c), scales [D] or [D, 4 * H].
    Numerics: onnxruntime cuts the batch between its threads, and quantizes each part by its own range; here it is whole.
    """
    count, hidden, _ = r.shape
    ends = _ends(lengths, *x.shape[:2])
    names = attrs.get("activations") or ("Sigmoid", "Tanh", "Tanh") * count
    functions = activations(names, attrs.get("activation_alpha") or (), attrs.get("activation_beta") or ())
    y = out[0]
    y[...] = 0
    for index in range(count):
        one = _Direction((w, r, b, *scales), index, False)
        gates = one.inputs.times(x[: ends.max(initial=0)]) + one.bias
        peep = np.zeros((3, hidden), FLOAT32) if p is None else p[index].reshape(3, hidden)
        terms = functions[3 * index : 3 * index + 3], peep, clip, bool(input_forget)
        h, c = (np.zeros(y.shape[2:], FLOAT32) if one is None else one[index] for one in (initial_h, initial_c))
        last = _any_steps(gates, one.recurrent, ends, terms, h, c, direction == "reverse" or index == 1, y, index)
        for target, state in zip(out[1:], last, strict=False):
            target[index] = state
            if lengths is not None:
                target[index, ends == 0] = 0  # rows without input have no last state


def _ends(lengths: Array | None, steps: int, batch: int) -> Array:
    """The number of steps of each row. Raises: ValueError for lengths that do not fit."""
    ends = np.full(batch, steps) if lengths is None else lengths.reshape(-1)
    if ends.size != batch or (ends < 0).any() or (ends > steps).any():
        raise ValueError("sequence_lens do not fit the input")
    return ends


def _checked_sizes(
    x: Array, w: Array, r: Array, operands: Mapping[str, Array | None], n_directions: int, hidden_size: int | None
) -> tuple[int, int, int]:
    """Steps, rows and hidden size. Raises: ValueError for operands that do not fit them."""
    if x.ndim != 3 or w.ndim != 3 or r.ndim != 3:
        raise ValueError(f"the input has {x.ndim} axes, W {w.ndim} and R {r.ndim}; each must have 3")
    steps, batch, width = x.shape
    hidden = r.shape[1] if hidden_size is None else hidden_size
    shapes = {
        "W": (width, 4 * hidden), "R": (hidden, 4 * hidden), "B": (8 * hidden,), "P": (3 * hidden,),
        "initial_h": (batch, hidden), "initial_c": (batch, hidden),
    }  # fmt: skip
    for name, array in {"W": w, "R": r, **operands}.items():
        if array is not None and array.shape != (n_directions, *shapes[name]):
            raise ValueError(f"{name} has the shape {list(array.shape)}, not {[n_directions, *shapes[name]]}")
    return steps, batch, hidden


def _clipped(x: Array, clip: float) -> Array:
    return np.clip(x, -clip, clip) if clip else x
