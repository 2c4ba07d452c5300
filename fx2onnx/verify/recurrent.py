"""Dynamically quantised LSTM and GRU of eager PyTorch step by step, so that the state that each step rounds can be moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fx2onnx.capture.quantized.recurrent import (
    States,
    Step,
    gru_step,
    lstm_step,
    reduces_range,
    through_layers,
)
from fx2onnx.capture.quantized.weights import state_of

aten = torch.ops.aten
STEPS: dict[Any, Step] = {aten.quantized_lstm.input: lstm_step, aten.quantized_gru.input: gru_step}
Move = Callable[[torch.Tensor, str], torch.Tensor]
"""Moves a value as what an operator of that name gives."""


def is_stepped(func: Any, args: Sequence[Any]) -> bool:
    """Whether this is such a layer: in half precision there is nothing that a step rounds."""
    return func in STEPS and state_of(args[2][0])[0] == "quantized_dynamic"


def by_steps(func: Any, args: Sequence[Any], move: Move) -> tuple[torch.Tensor, ...]:
    """What the layer gives where each operand is moved before it is rounded, and each state when it is made."""
    linear, step, params = torch.ops.quantized.linear_dynamic, STEPS[func], args[2]

    def direction(number: int, x: torch.Tensor, states: States) -> tuple[torch.Tensor, States]:
        (first, second), reduce_range = state_of(params[number])[4], reduces_range(params[number])
        outputs = []
        for product in linear(move(x, ""), first, reduce_range):
            after = step(product, linear(move(states[0], ""), second, reduce_range), states)
            states = [move(state, "sigmoid") for state in after]
            outputs.append(states[0])
        return torch.stack(outputs), states

    return through_layers(args[0], args[1], len(params), args[7], args[8], direction)
