"""onnxruntime's recurrent operators: DynamicQuantizeLSTM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.contrib import MICROSOFT
from fx2onnx.semantics.kernels.contrib.quantized import quantized, right_operand, scaled_product, steps_of_range
from fx2onnx.semantics.kernels.integer_products import EXACT
from fx2onnx.semantics.kernels.recurrence import activations
from fx2onnx.semantics.kernels.threads import whole_product
from fx2onnx.semantics.limits import check_shape, count_iteration
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import FLOAT32, Array

MOST_EXACT = EXACT // 255**2
"""The largest state whose products with weights are summed exactly in float32."""


class _Weights:
    """The quantized weights of one direction, [inputs, 4 * hidden]."""

    def __init__(self, codes: Array, scale: Array, zero: Array, index: int, name: str) -> None:
        n_directions, _, columns = codes.shape
        for what, values in (("scale", scale), ("zero point", zero)):
            if values.shape not in ((n_directions,), (n_directions, 1), (n_directions, columns)):
                raise ValueError(
                    f"the {what} of {name} has the shape {list(values.shape)}, the weights {list(codes.shape)}"
                )
        self.codes, self.scale, self.zero = codes[index], scale[index].reshape(-1), zero[index].reshape(-1)
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


def _kept_weights(kept: dict[Any, Any], name: str, index: int, *given: Array) -> _Weights:
    """The weights of one direction, made again where they are others than at the last run: they may be fed."""
    key = [(one.shape, one.dtype, one.tobytes()) for one in given]
    found = kept.get((name, index))  # another thread may put its own there at any time
    if found is None or found[0] != key:
        codes, scale, zero = (one.copy() for one in given)
        found = kept[name, index] = key, _Weights(codes, scale, zero, index, name)
    made: _Weights = found[1]
    return made


def _usual_steps(lines: Array, r: Array, scale: Array, h: Array, c: Array, backwards: bool, y: Array, at: int) -> None:
    """All steps of one direction with the usual activations; the gates are i, o, f, c, and a sigmoid is tanh(x / 2) / 2 + 1 / 2.

    Shapes: lines [steps, batch, 4 * hidden], the products with the input; r [hidden, 4 * hidden], whole numbers; y [steps, directions, batch, hidden].
    """
    (batch, hidden), half, most, none = h.shape, np.asarray(0.5, FLOAT32), np.float32(255), np.float32(0)
    by_gate = np.repeat(np.array([0.5, 0.5, 0.5, 1], FLOAT32), hidden)
    r, lines, factor = r * by_gate, lines * by_gate, scale[0] if scale.size == 1 else scale
    codes, room, pair = np.empty_like(h), np.empty_like(h), np.empty((batch, 2, hidden), FLOAT32)
    whole = np.empty((batch, 5, hidden), FLOAT32)
    sums, sigmoids = (whole.reshape(batch, -1)[:, : count * hidden] for count in (4, 3))
    opened, cell = whole[:, 1], whole[:, 4]
    taken_and_kept, new_and_cell, (first, second) = whole[:, :3:2], whole[:, 3:], pair.transpose(1, 0, 2)
    cell[...] = c
    multiply, state = whole_product(codes, r, sums), h
    for line, target in zip(*((lines[::-1], y[::-1, at]) if backwards else (lines, y[:, at])), strict=True):
        flat = state.reshape(-1)
        low, high = min(flat[flat.argmin()], none), max(flat[flat.argmax()], none)
        by = (high - low) / most if high != low else np.float32(1)
        np.rint(np.divide(state, by, out=codes), out=codes)
        room_above = most - np.rint(-low / by)
        if np.rint(high / by) > room_above:  # both ends were rounded up
            np.minimum(codes, room_above, out=codes)
        multiply()
        np.multiply(sums, by * factor, out=sums)
        np.add(sums, line, out=sums)
        np.tanh(sums, out=sums)
        np.multiply(sigmoids, half, out=sigmoids)
        np.add(sigmoids, half, out=sigmoids)
        np.multiply(taken_and_kept, new_and_cell, out=pair)
        np.add(first, second, out=cell)
        np.multiply(opened, np.tanh(cell, out=room), out=target)
        state = target
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


@kernel("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    lengths: Array | None,
    initial_h: Array | None,
    initial_c: Array | None,
    p: Array | None,
    w_scale: Array,
    w_zero: Array,
    r_scale: Array,
    r_zero: Array,
    *,
    direction: str = "forward",
    input_forget: int = 0,
    hidden_size: int | None = None,
    clip: float = 0.0,
    n_outputs: int = 1,
    kept: dict[Any, Any] | None = None,
    usual_steps: Callable[..., None] = _usual_steps,
    **attrs: Any,
) -> tuple[Array, ...]:
    """LSTM whose weights are quantized, and whose input and states are quantized by their own range before each product.

    Shapes:   x [T, B, I], w [D, I, 4 * H], r [D, H, 4 * H] (gates i, o, f, c), scales [D] or [D, 4 * H].
    ``usual_steps``: computes all steps of one direction where its activations are the usual ones, and nothing is clipped or missing.
    Numerics: onnxruntime cuts the batch between its threads, and quantizes each part by its own range; here it is whole.
    """
    kept, n_directions = {} if kept is None else kept, 2 if direction == "bidirectional" else 1
    operands = {"B": b, "P": p, "initial_h": initial_h, "initial_c": initial_c}
    steps, batch, hidden = _checked_sizes(x, w, r, operands, n_directions, hidden_size)
    ends = _ends(lengths, steps, batch)
    names = tuple(attrs.get("activations") or ("Sigmoid", "Tanh", "Tanh") * n_directions)
    if len(names) != 3 * n_directions:
        raise ValueError(f"{len(names)} activations, not {3 * n_directions}")
    functions = activations(names, attrs.get("activation_alpha") or (), attrs.get("activation_beta") or ())
    check_shape((steps, n_directions, batch, hidden), FLOAT32, "the result of a recurrence")
    is_usual = names == ("Sigmoid", "Tanh", "Tanh") * n_directions and not (clip or input_forget) and p is None
    is_usual = is_usual and lengths is None and x.dtype == FLOAT32 and batch > 0
    y = np.zeros((steps, n_directions, batch, hidden), FLOAT32)
    last_h, last_c = np.zeros((2, n_directions, batch, hidden), FLOAT32)
    for index, longest in enumerate([int(ends.max(initial=0))] * n_directions):
        bias = np.zeros(4 * hidden, FLOAT32) if b is None else b[index][: 4 * hidden] + b[index][4 * hidden :]
        peep = np.zeros((3, hidden), FLOAT32) if p is None else p[index].reshape(3, hidden)
        recurrent = _kept_weights(kept, "R", index, r, r_scale, r_zero)
        gates = _kept_weights(kept, "W", index, w, w_scale, w_zero).times(x[:longest]) + bias
        h = np.zeros((batch, hidden), FLOAT32) if initial_h is None else initial_h[index].copy()
        c = np.zeros((batch, hidden), FLOAT32) if initial_c is None else initial_c[index].copy()
        is_reverse = direction == "reverse" or index == 1
        if is_usual and hidden <= MOST_EXACT:
            count_iteration(longest)
            usual_steps(gates, recurrent.wide, recurrent.scale, h, c, is_reverse, y, index)
            last_h[index], last_c[index] = h, c
            continue
        terms = functions[3 * index : 3 * index + 3], peep, clip, bool(input_forget)
        h, c = _any_steps(gates, recurrent, ends, terms, h, c, is_reverse, y, index)
        last_h[index], last_c[index] = h, c
    return (y, last_h, last_c)[: max(n_outputs, 1)]


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
