"""LSTM, GRU and RNN in training graphs: a loop over time forward and one backward, for any length of the sequence.

PyTorch's own gradient is that of the unrolled cells. Here everything that does not depend on the step before is computed
for all times at once: the product with the input's weights, and the gradients of all weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fx2onnx.base.changes import Changes
from fx2onnx.base.code_patch import THREAD, put_name
from fx2onnx.training.packed import Side, packed, run_packed

_LIBRARY: Any = torch.library.Library("fx2onnx", "FRAGMENT")  # type: ignore[no-untyped-call]
Tensors = tuple[torch.Tensor, ...]
Dropped = Callable[[torch.Tensor, float], torch.Tensor]
SCHEMAS = {
    "lstm_steps": "(Tensor x, Tensor h, Tensor c, Tensor weight) -> (Tensor, Tensor, Tensor)",
    "lstm_steps_backward": (
        "(Tensor grad, Tensor grad_cell, Tensor gates, Tensor cells, Tensor before, Tensor weight) "
        "-> (Tensor, Tensor, Tensor)"
    ),
    "lstm_cells_backward": (
        "(Tensor grad, Tensor grad_cells, Tensor gates, Tensor cells, Tensor before, Tensor weight) "
        "-> (Tensor, Tensor, Tensor)"
    ),
    "gru_steps": "(Tensor x, Tensor h, Tensor weight, Tensor bias) -> (Tensor, Tensor)",
    "gru_steps_backward": "(Tensor grad, Tensor gates, Tensor before, Tensor weight) -> (Tensor, Tensor, Tensor)",
    "rnn_steps": "(Tensor x, Tensor h, Tensor weight, bool is_relu) -> Tensor",
    "rnn_steps_backward": "(Tensor grad, Tensor states, Tensor weight, bool is_relu) -> (Tensor, Tensor)",
}
"""``x`` [time, batch, gates * size] is what the input adds to the gates; ``grad`` [time, batch, size]; ``before`` holds the
state before each step. Translated by ``forms.py``."""


def _sized(like: torch.Tensor, size: int | torch.SymInt) -> torch.Tensor:
    return like.new_empty([*like.shape[:-1], size])


_FAKES: dict[str, Callable[..., Any]] = {
    "lstm_steps": lambda x, h, c, weight: (_sized(x, h.shape[-1]), _sized(x, h.shape[-1]), torch.empty_like(x)),
    "lstm_steps_backward": lambda grad, grad_cell, gates, cells, before, weight: (
        torch.empty_like(gates), torch.empty_like(grad_cell), torch.empty_like(grad_cell)
    ),
    "lstm_cells_backward": lambda grad, grad_cells, gates, cells, before, weight: (
        torch.empty_like(gates), grad.new_empty(grad.shape[1:]), grad.new_empty(grad.shape[1:])
    ),
    "gru_steps": lambda x, h, weight, bias: (_sized(x, h.shape[-1]), _sized(x, 4 * h.shape[-1])),
    "gru_steps_backward": lambda grad, gates, before, weight: (
        _sized(grad, 3 * grad.shape[-1]), _sized(grad, 3 * grad.shape[-1]), grad.new_empty(grad.shape[1:])
    ),
    "rnn_steps": lambda x, h, weight, is_relu: torch.empty_like(x),
    "rnn_steps_backward": lambda grad, states, weight, is_relu: (torch.empty_like(grad), grad.new_empty(grad.shape[1:])),
}  # fmt: skip

for _name, _schema in SCHEMAS.items():
    _LIBRARY.define(_name + _schema)
    torch.library.register_fake(f"fx2onnx::{_name}", _FAKES[_name], lib=_LIBRARY)
_OPS: Any = torch.ops.fx2onnx


def _earlier(first: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """The state before each step."""
    return torch.cat([first.unsqueeze(0), states[:-1]])


def _of_weight(gates: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """The gradient of a weight, over all times at once."""
    return gates.flatten(0, 1).t() @ before.flatten(0, 1)


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, weight: torch.Tensor) -> Tensors:
        states, cells, gates = _OPS.lstm_steps(x, h, c, weight)
        ctx.save_for_backward(states, cells, gates, h, c, weight)
        return states, cells[-1]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Tensors:
        states, cells, gates, h, c, weight = ctx.saved_tensors
        before = _earlier(c, cells)
        raw, of_h, of_c = _OPS.lstm_steps_backward(grads[0], grads[1], gates, cells, before, weight)
        return raw, of_h, of_c, _of_weight(raw, _earlier(h, states))


class _LstmCells(torch.autograd.Function):
    """The states and cells after every step, with gradients for all of them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, weight: torch.Tensor) -> Tensors:
        states, cells, gates = _OPS.lstm_steps(x, h, c, weight)
        ctx.save_for_backward(states, cells, gates, h, c, weight)
        return states, cells

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Tensors:
        states, cells, gates, h, c, weight = ctx.saved_tensors
        before = _earlier(c, cells)
        raw, of_h, of_c = _OPS.lstm_cells_backward(grads[0], grads[1], gates, cells, before, weight)
        return raw, of_h, of_c, _of_weight(raw, _earlier(h, states))


class _Gru(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, h: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        states, gates = _OPS.gru_steps(x, h, weight, bias)
        ctx.save_for_backward(states, gates, h, weight)
        return states  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Tensors:
        states, gates, h, weight = ctx.saved_tensors
        before = _earlier(h, states)
        of_x, of_state, of_h = _OPS.gru_steps_backward(grads[0], gates, before, weight)
        return of_x, of_h, _of_weight(of_state, before), of_state.sum((0, 1))


class _Rnn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, h: torch.Tensor, weight: torch.Tensor, is_relu: bool) -> torch.Tensor:
        states = _OPS.rnn_steps(x, h, weight, is_relu)
        ctx.save_for_backward(states, h, weight)
        ctx.is_relu = is_relu
        return states  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states, h, weight = ctx.saved_tensors
        raw, of_h = _OPS.rnn_steps_backward(grads[0], states, weight, ctx.is_relu)
        return raw, of_h, _of_weight(raw, _earlier(h, states)), None


def _lstm_gates(x: torch.Tensor, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.linear(x, parts[0], parts[2] + parts[3] if len(parts) == 4 else None)


def _every_lstm_state(x: torch.Tensor, hx: Tensors, parts: Sequence[torch.Tensor]) -> Tensors:
    return _LstmCells.apply(_lstm_gates(x, parts), hx[0], hx[1], parts[1])  # type: ignore[no-untyped-call, no-any-return]


def _every_state(side: Callable[..., tuple[torch.Tensor, Tensors]]) -> Side:
    return lambda x, hx, parts: side(x, hx, parts)[:1]


def _lstm_side(x: torch.Tensor, hx: Tensors, parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Tensors]:
    states, cell = _Lstm.apply(_lstm_gates(x, parts), hx[0], hx[1], parts[1])  # type: ignore[no-untyped-call]
    return states, (states[-1], cell)


def _gru_side(x: torch.Tensor, hx: Tensors, parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Tensors]:
    gates = torch.nn.functional.linear(x, parts[0], parts[2] if len(parts) == 4 else None)
    bias = parts[3] if len(parts) == 4 else parts[1].new_zeros(parts[1].shape[0])
    states = _Gru.apply(gates, hx[0], parts[1], bias)  # type: ignore[no-untyped-call]
    return states, (states[-1],)


def _rnn_side(*, is_relu: bool) -> Callable[..., tuple[torch.Tensor, Tensors]]:
    def side(x: torch.Tensor, hx: Tensors, parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Tensors]:
        gates = torch.nn.functional.linear(x, parts[0], parts[2] + parts[3] if len(parts) == 4 else None)
        states = _Rnn.apply(gates, hx[0], parts[1], is_relu)  # type: ignore[no-untyped-call]
        return states, (states[-1],)

    return side


_SIDES = {
    "lstm": _lstm_side, "gru": _gru_side, "rnn_tanh": _rnn_side(is_relu=False), "rnn_relu": _rnn_side(is_relu=True),
}  # fmt: skip


@contextlib.contextmanager
def looped(dropped: Dropped) -> Iterator[None]:
    """While a module is captured, recurrent layers are such loops; ``dropped`` leaves out numbers between layers."""
    with Changes():
        for name, side in _SIDES.items():
            every = _every_lstm_state if name == "lstm" else _every_state(side)
            put_name(torch._VF, name, _layers(getattr(torch._VF, name), side, every, dropped))
        with packed():
            yield


def _by_torch(
    plain: Callable[..., Any], x: torch.Tensor, first: Tensors, own: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Tensors]:
    """One layer in one direction, in eager PyTorch."""
    states = tuple(state.unsqueeze(0) for state in first)
    hx = states if len(states) > 1 else states[0]
    out, *ends = plain(x, hx, list(own), len(own) == 4, 1, 0.0, False, False, False)
    return out, tuple(end[0] for end in ends)


def _layers(plain: Callable[..., Any], side: Callable[..., Any], every: Side, dropped: Dropped) -> Callable[..., Any]:
    """As ``torch.lstm`` and the like; projections are left to these. ``every`` gives the states after each step."""

    def run(input: torch.Tensor, hx: Any, params: Any, *more: Any) -> Any:
        is_padded = not isinstance(hx, torch.Tensor) or hx.is_floating_point()
        if not is_padded and THREAD.captures:
            return run_packed(every, input, hx, params, *more)
        parts = 4 if is_padded and more[0] else 2
        states = (hx,) if isinstance(hx, torch.Tensor) else tuple(hx)
        is_projected = is_padded and len(params) != parts * more[1] * (2 if more[4] else 1)
        if not is_padded or is_projected:
            return plain(input, hx, params, *more)
        _, layers, p, train, both, batch_first = more
        value = input.transpose(0, 1) if batch_first else input
        last: list[Tensors] = []
        for layer in range(layers):
            found = []
            for reverse in range(2 if both else 1):
                place = len(last)
                x = value.flip(0) if reverse else value
                own = params[parts * place : parts * (place + 1)]
                first = tuple(state[place] for state in states)
                out, ends = side(x, first, own) if THREAD.captures else _by_torch(plain, x, first, own)
                found.append(out.flip(0) if reverse else out)
                last.append(ends)
            value = torch.cat(found, -1) if both else found[0]
            if p and train and layer < layers - 1:
                value = dropped(value, p)
        output = value.transpose(0, 1) if batch_first else value
        return (output, *(torch.stack(parts_of) for parts_of in zip(*last, strict=True)))

    return run
