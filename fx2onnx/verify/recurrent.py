"""Dynamically quantised LSTM and GRU of eager PyTorch step by step, so that the state that each step rounds can be moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fx2onnx.capture.overloads.quantized_recurrent import Step, gru_step, lstm_step
from fx2onnx.capture.overloads.quantized_weights import state_of

aten = torch.ops.aten
STEPS: dict[Any, Step] = {aten.quantized_lstm.input: lstm_step, aten.quantized_gru.input: gru_step}
Move = Callable[[torch.Tensor, str], torch.Tensor]
"""Moves a value as what an operator of that name gives."""


def is_stepped(func: Any, args: Sequence[Any]) -> bool:
    """Whether this is such a layer: in half precision there is nothing that a step rounds."""
    return func in STEPS and state_of(args[2][0])[0] == "quantized_dynamic"


def by_steps(func: Any, args: Sequence[Any], move: Move) -> tuple[torch.Tensor, ...]:
    """What the layer gives where each operand is moved before it is rounded. Shapes: those of ``torch.nn.LSTM`` and ``GRU``."""
    x, hx, params, (is_bidirectional, is_batch_first) = args[0], args[1], args[2], args[7:9]
    whole = [hx] if isinstance(hx, torch.Tensor) else list(hx)
    ways = 2 if is_bidirectional else 1
    x = x.transpose(0, 1) if is_batch_first else x
    ends = []
    for level in range(len(params) // ways):
        outputs = []
        for number in range(level * ways, level * ways + ways):
            states: Sequence[torch.Tensor] = [state[number] for state in whole]
            is_reverse = number % ways == 1
            found, states = _direction(STEPS[func], params[number], x.flip(0) if is_reverse else x, states, move)
            outputs.append(found.flip(0) if is_reverse else found)
            ends.append(states)
        x = torch.cat(outputs, 2)
    states = [torch.stack(group) for group in zip(*ends, strict=True)]
    return (x.transpose(0, 1) if is_batch_first else x, *states)


def _direction(
    step: Step, cell: Any, x: torch.Tensor, states: Sequence[torch.Tensor], move: Move
) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
    _, _, _, (reduce_range, *_), (first, second) = state_of(cell)
    linear = torch.ops.quantized.linear_dynamic
    outputs = []
    for product in linear(move(x, ""), first, bool(reduce_range)):
        after = step(product, linear(move(states[0], ""), second, bool(reduce_range)), states)
        states = [move(state, "sigmoid") for state in after]
        outputs.append(states[0])
    return torch.stack(outputs), states
