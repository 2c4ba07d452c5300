"""Scripted and traced modules with dynamic sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx2onnx
from tests.support import check

X, OTHER, ONE = torch.randn(4, 3), torch.randn(7, 3), torch.randn(1, 3)


class BySize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        if x.shape[0] > 5:
            return self.layer(x) * 2
        return self.layer(x) + x.size(0)


class ByData(nn.Module):
    def forward(self, x):
        return x * 2 if bool(x.sum() > 0) else x - x.size(0)


class Shapes(nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        grid = torch.zeros(rows, columns) + torch.arange(rows).unsqueeze(1)
        return (grid + x).view(rows * columns).reshape(columns, rows), x.size(0) // 2 + 1, len(x.shape)


class Optional(nn.Module):
    def forward(self, x):
        mean: torch.Tensor | None = None
        if x.size(0) > 5:
            mean = x.mean(0)
        return x if mean is None else x - mean


class Lists(nn.Module):
    def forward(self, x):
        states: list[torch.Tensor] = [x, x * 2]
        h: torch.Tensor | None = None
        for turn in range(3):
            states.append(states[-1] + turn)
            h = x if h is None else h * 0.5 + x
        if x.size(0) > 5:
            states.append(x * 3)
        table = {"all": torch.cat(states)}
        assert h is not None
        return table["all"], h, F.pad(x, [0, x.size(0) % 4])


@pytest.mark.parametrize("kind", [BySize, ByData, Shapes, Optional, Lists])
def test_scripted(kind: type[nn.Module]) -> None:
    check(torch.jit.script(kind().eval()), (X,), others=[(OTHER,), (-OTHER,)], dynamic_shapes=({0: "rows"},))


class Until(nn.Module):
    def forward(self, x):
        while bool(x.max() < 20.0):
            x = x * 2 + 1
        return x


def test_an_error_names_torchscript() -> None:
    with pytest.raises(fx2onnx.UserError, match=r"(?s)E104.*the module is TorchScript.*pass the module itself"):
        fx2onnx.export(torch.jit.script(Until()), (X,))


@pytest.mark.parametrize("others", [[(OTHER,)]])
def test_within_another_module(others: Sequence[Any]) -> None:
    module = nn.Sequential(
        nn.Linear(3, 3), torch.jit.script(BySize().eval()), torch.jit.trace(nn.Linear(2, 2), (torch.ones(1, 2),))
    )
    check(module, (X,), others=others, dynamic_shapes=({0: "rows"},))


class Calls(nn.Module):
    def forward(self, x):
        return halves(x * 1, n=2)


@torch.jit.script
def halves(x, n: int = 2):
    return x[: x.size(0) // n], x[x.size(0) // n :]


def test_a_scripted_function() -> None:
    check(Calls(), (X,), others=[(OTHER,)], dynamic_shapes=({0: "rows"},))


@torch.jit.script
def weighed(x, weight: float):
    return torch.stack([row * weight for row in x.t()]).sum(0) * len(x)


@torch.jit.script
def in_parallel(x, count: int):
    """Strided parts, each by a task of its own, and put back where they were."""
    tasks = [torch.jit.fork(weighed, x[part::count], 0.5 + part) for part in range(count)]
    out = torch.zeros(x.size(0), dtype=x.dtype)
    for part, task in enumerate(tasks):
        out[part::count] = torch.jit.wait(task)
    return out, torch.tensor([1.5, 2.1], dtype=torch.float64)


class Parallel(nn.Module):
    def forward(self, x):
        return in_parallel(x + 0, 2)


def test_tasks_of_a_scripted_function() -> None:
    check(Parallel(), (X,), others=[(OTHER,)], dynamic_shapes=({0: "rows"},))


@torch.jit.script
def add_rows(image, index, data):
    for row, values in zip(image, data):  # noqa: B905 - TorchScript's zip has no strict
        row.index_add_(0, index, values)
    return image


@torch.jit.script
def add_apart(image, index, data, count: int):
    tasks: list[torch.jit.Future[torch.Tensor]] = []
    for rows, values in zip(image.tensor_split(count), data.tensor_split(count)):  # noqa: B905
        tasks.append(torch.jit.fork(add_rows, rows, index, values))
    _ = [torch.jit.wait(task) for task in tasks]
    return image


@torch.jit.script
def decayed(x):
    state = torch.zeros(x.size(1))
    states: list[torch.Tensor] = []
    for row in range(x.size(0)):
        state = state * 0.5 + x[row]
        states.append(state * row)
    return torch.stack(states)


@torch.jit.script
def sorted_rows(x):
    found: list[torch.Tensor] = []
    for row in x:
        places = torch.sort(row)[1]
        found.append(decayed(x[:, places]).sum(0) - row[places])
    return torch.stack(found)


INDEX = torch.tensor([3, 0, 3])
LOOPS: dict[str, Any] = {
    "writes rows": lambda x: add_rows(torch.zeros(x.shape[0], 5), INDEX, x * 2),
    "in tasks": lambda x: add_apart(torch.ones(x.shape[0], 5), INDEX, x, 2) * 2,
    "carries": lambda x: decayed(x).cumsum(1),
    "calls another": lambda x: sorted_rows(x) + 1,
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_loops_of_scripted_functions_are_loops_of_the_file(name: str) -> None:
    check(LOOPS[name], (X,), others=[(OTHER,), (ONE,)], dynamic_shapes=({0: "rows"},))


def test_a_trace_keeps_its_way() -> None:
    def by_size(x):
        x = decayed(x)
        return x * 2 if x.shape[0] > 5 else x - 1

    traced = torch.jit.trace(by_size, (X,), check_trace=False)
    with pytest.raises(fx2onnx.UserError, match="E105"):
        fx2onnx.export(traced, (X,), dynamic_shapes=({0: "rows"},))
    check(lambda x: traced(x), (X,))


def test_a_number_that_python_takes_is_not_of_another_input() -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(
            lambda x, y: x * float([1.0, 2.0, 3.0, 4.0][x.shape[0] - 1]) + y[:1],
            (X, OTHER[:4]),
            dynamic_shapes=({0: "rows"}, None),
        )
    assert not any("axis 0" in step for step in caught.value.next)


def test_traced() -> None:
    class Traced(nn.Module):
        def forward(self, x):
            return Shapes()(x)[0] * (x.size(0) * 2 - 1)

    check(torch.jit.trace(Traced(), (X,)), (X,), others=[(OTHER,)], dynamic_shapes=({0: "rows"},))
    sequence, longer = torch.randn(5, 2, 3), torch.randn(7, 3, 3)
    traced = torch.jit.trace(nn.LSTM(3, 4), (sequence,))
    check(traced, (sequence,), others=[(longer,)], dynamic_shapes=({0: "time", 1: "batch"},))
