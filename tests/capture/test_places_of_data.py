"""Writing and reading at places that tensors of one integer tell: ``cache[position] = keys``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx
from tests.support import agree

X = torch.arange(168, dtype=torch.float32).reshape(6, 7, 4) / 8 - 1


def put(index: Callable[[Any, Any], Any], value: Callable[[Any, Any], Any] = lambda y, n: 5.0) -> Callable[..., Any]:
    def program(y: Any, n: Any) -> None:
        y[index(y, n)] = value(y, n)

    return program


def add(y: Any, n: Any) -> None:
    y[:, n] += 5.0


def scale(y: Any, n: Any) -> None:
    y[n.to(torch.int32)] *= 2


def of_a_row(y: Any, n: Any) -> None:
    y[n][2] = 3.0


def from_the_end(y: Any, n: Any) -> Any:
    y[n - 4, 0] = 1.0
    return y[n - 4, 0, n]


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "a row and a column": put(lambda y, n: (n, 0)),
    "added": add,
    "scaled": scale,
    "what was read there": put(lambda y, n: n, lambda y, n: y[n] * 2),
    "a row and a slice": put(lambda y, n: (n, slice(1, 3)), lambda y, n: y[0, 1:3]),
    "two places": put(lambda y, n: (-n, slice(None), n)),
    "all places": put(lambda y, n: (n, n, n)),
    "the last axis": put(lambda y, n: (..., n), lambda y, n: y.sum(-1)),
    "a new axis": put(lambda y, n: (None, n, ..., 1)),
    "a slice that ends there": put(lambda y, n: (slice(None, n), n), lambda y, n: torch.ones(4)),
    "of a row": of_a_row,
    "a row and a list": put(lambda y, n: (n, [0, 2]), lambda y, n: torch.zeros(2, 4)),
    "a row and a mask": put(lambda y, n: (n, y[0, :, 0] > 0)),
    "a list behind a slice": put(lambda y, n: (n, slice(None), [0, 2]), lambda y, n: y[0, :, :2]),
    "from the end": from_the_end,
    "leading ones": put(lambda y, n: n, lambda y, n: torch.ones(1, 1, 7, 4)),
    "a mask": put(lambda y, n: n > 2, lambda y, n: 0.0),
}


class Program(nn.Module):
    def __init__(self, program: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.program = program

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
        y = x.clone()
        read = self.program(y, n)
        return y if read is None else (y, read)


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_write_is_at_the_place_that_data_tells(name: str, dynamic: bool) -> None:
    module = Program(WRITES[name])
    result = fx2onnx.export(module, (X, torch.tensor(3)), dynamic_shapes={"x": {0: "r"}} if dynamic else None)
    for place, rows in ((3, 6), (2, 6), (1, 9 if dynamic else 6)):
        agree(module, result.model_proto, (torch.randn(rows, 7, 4), torch.tensor(place)))
