"""Dicts of state that each turn of a loop of a dynamic length writes into and replaces; against eager PyTorch at other lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx.base.errors import UserError
from tests.support import check

State = dict[str, torch.Tensor]


def _step(x: torch.Tensor, state: State, resets: bool = True) -> tuple[torch.Tensor, State]:
    state["current"] = 0.5 * state["current"] + x
    state["voltage"] = 0.9 * state["voltage"] + state["current"]
    spikes = (state["voltage"] > 1).float()
    new = state.copy()
    new["voltage"] = new["voltage"] - spikes if resets else new["voltage"].clone()
    return spikes, new


def copied_in_a_function(x: torch.Tensor) -> Any:
    state, out = {"voltage": x[:, 0] * 0, "current": x[:, 0] * 0}, []
    for step in range(x.shape[1]):
        spikes, state = _step(x[:, step], state)
        out.append(spikes)
    return torch.stack(out, 1), state["voltage"], state["current"]


def some_not_read_by_the_next(x: torch.Tensor) -> Any:
    state, out = {"voltage": x[:, 0] + 1, "input": x[:, 0] * 2}, []
    for row in x.unbind(1):
        state["input"] = row
        state["voltage"] = state["voltage"] * 0.9 + state["input"]
        out.append(state["voltage"] > 0)
        state = {**state, "voltage": state["voltage"].tanh()}
    return torch.stack(out), state["voltage"], state["input"]


def two_dicts(x: torch.Tensor) -> Any:
    one, two, seen = {"h": x[:, 0] * 0}, {"h": x[:, 0] + 1, "c": x[:, 0]}, []
    for row in x.unbind(1):
        one["h"], two["h"] = one["h"] + two["h"] * row, two["h"] - row
        two["c"] = two["c"] * 0.5 + one["h"]
        one, two = {"h": one["h"].tanh()}, dict(two)
        seen.append(one["h"])
    return torch.stack(seen), one["h"], two["h"], two["c"]


class Layer(torch.nn.Module):
    """A neuron whose state are its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("voltage", torch.full((2, 3), 0.3))
        self.register_buffer("current", torch.full((2, 3), 0.2))

    def forward(self, x: torch.Tensor) -> Any:
        spikes, state = self.run(x, dict(self.named_buffers()))
        return spikes, state["voltage"]

    def run(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        out = []
        for step in range(x.shape[1]):
            spikes, state = _step(x[:, step], state, resets=False)
            out.append(spikes)
        return torch.stack(out, 1), state


@pytest.mark.parametrize("program", [copied_in_a_function, some_not_read_by_the_next, two_dicts, Layer()])
def test_dicts_that_turns_replace(program: Callable[..., Any]) -> None:
    check(
        program,
        (torch.randn(2, 5, 3),),
        dynamic_shapes=({1: "steps"},),
        others=[(torch.randn(2, n, 3),) for n in (1, 2, 9)],
    )


def test_a_dict_that_is_seen_elsewhere_is_refused() -> None:
    """Only the first turn writes into the dict that both names have."""

    def program(x: torch.Tensor) -> Any:
        state = begun = {"h": x[:, 0] * 0}
        for row in x.unbind(1):
            state["h"] = state["h"] * 0.9 + row
            state = {"h": state["h"].tanh()}
        return begun["h"], state["h"]

    with pytest.raises(UserError) as refused:
        fx2onnx.export(program, (torch.randn(2, 5, 3),), dynamic_shapes=({1: "steps"},))
    assert refused.value.code == "E105"
