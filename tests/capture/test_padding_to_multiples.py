"""Padding to a multiple that Python decides on: one program for all sizes where both ways do the same, both ways where not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import fx2onnx
from tests.support import agree

Dim = torch.export.Dim


class Program(torch.nn.Module):
    """``function`` of a signal; its convolutions have a stride each."""

    def __init__(self, function: Callable[..., Any], strides: Sequence[int] = ()) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.convolutions = torch.nn.ModuleList(torch.nn.Conv1d(2, 2, by, by) for by in strides)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def exported(module: torch.nn.Module, sample: int, least: int) -> onnx.ModelProto:
    shapes = {"x": {2: Dim("n", min=least, max=5000)}}
    return fx2onnx.export(module, (torch.randn(1, 2, sample),), dynamic_shapes=shapes).model_proto


def check(module: torch.nn.Module, model: onnx.ModelProto, sizes: Sequence[int]) -> None:
    agree(module, model, *((torch.randn(1, 2, size),) for size in sizes))


def count_ifs(model: onnx.ModelProto) -> int:
    return sum(node.op_type == "If" for node in model.graph.node)


TESTS: list[Callable[[int, int], bool]] = [
    lambda n, k: n % k != 0, lambda n, k: n % k >= 1, lambda n, k: n % k > 0, lambda n, k: bool(n % k),
    lambda n, k: n // k * k != n, lambda n, k: (k - n % k) % k != 0,
]  # fmt: skip


@pytest.mark.long
@settings(max_examples=15, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(
    st.sampled_from(TESTS),
    st.lists(st.integers(2, 5), min_size=1, max_size=3),
    st.booleans(),
    st.integers(250, 300),
    st.lists(st.integers(200, 900), min_size=6, max_size=6),
)
def test_layers_that_pad_their_input(
    asks: Callable[..., bool], strides: list[int], crops: bool, sample: int, sizes: list[int]
) -> None:
    def forward(self: Program, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[-1]
        whole = x
        for convolution, k in zip(self.convolutions, strides, strict=True):
            if asks(x.shape[-1], k):
                x = F.pad(x, (0, k - x.shape[-1] % k))
            x = torch.relu(convolution(x))
        x = F.interpolate(x, scale_factor=float(np.prod(strides)))
        return x[..., :length] if crops else torch.cat([x, whole], -1)

    module = Program(forward, strides).eval()
    model = exported(module, sample, 200)
    step = int(np.prod(strides))
    check(module, model, [*sizes, -(-200 // step) * step, -(-400 // step) * step])
    if asks in TESTS[:4] and len(set(strides)) == 1:
        assert count_ifs(model) == 0


def _literal(self: Program, x: torch.Tensor) -> torch.Tensor:
    if x.shape[-1] % 2 == 1:
        x = F.pad(x, (0, 1))
    return torch.cat([x[..., 0::2], x[..., 1::2]], 1)


def _before(self: Program, x: torch.Tensor) -> torch.Tensor:
    if x.shape[-1] % 4:
        x = F.pad(x, (4 - x.shape[-1] % 4, 0), value=1.0)
    return x.reshape(1, -1, 4).sum(1)


def _zeros(self: Program, x: torch.Tensor) -> torch.Tensor:
    rest = -x.shape[-1] % 6
    if rest > 0:
        x = F.pad(x, (0, rest))
    return x.unflatten(-1, (-1, 6)).softmax(-1)


def _counted(self: Program, x: torch.Tensor) -> torch.Tensor:
    """``int`` of a size is kept a size before the other ways are run."""
    parts = int(-(-x.shape[-1] // 8))
    if x.shape[-1] % 8:
        x = F.pad(x, (0, parts * 8 - x.shape[-1]))
    return x.reshape(2, parts, 8)


@pytest.mark.parametrize("function", [_literal, _before, _zeros, _counted])
@pytest.mark.parametrize("sample", [24, 25])
def test_one_program(function: Callable[..., Any], sample: int) -> None:
    module = Program(function)
    model = exported(module, sample, 2)
    check(module, model, range(2, 50))
    assert count_ifs(model) == 0


def _twice(self: Program, x: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (0, 4 - x.shape[-1] % 4)) * 2 if x.shape[-1] % 4 else x


def _other_length(self: Program, x: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (0, 5 - x.shape[-1] % 4)) if x.shape[-1] % 4 else x


def _literal_of_four(self: Program, x: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (0, 1)) if x.shape[-1] % 4 else x


def _by_later_size(self: Program, x: torch.Tensor) -> torch.Tensor:
    n = x.shape[-1]
    if n % 4:
        x = F.pad(x, (0, 4 - n % 4))
    return x * (5 if n % 8 == 3 else 3)


@pytest.mark.parametrize("function", [_twice, _other_length, _literal_of_four, _by_later_size])
@pytest.mark.parametrize("sample", [24, 27])
def test_ways_that_differ_are_both_in_the_file(function: Callable[..., Any], sample: int) -> None:
    module = Program(function)
    model = exported(module, sample, 2)
    check(module, model, range(2, 50))
    assert count_ifs(model) > 0


@pytest.mark.long
def test_many_decisions_that_all_pad() -> None:
    """Six of them are 64 paths, joined to one program as they come."""

    def forward(self: Program, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[-1]
        for convolution in self.convolutions:
            if x.shape[-1] % 2:
                x = F.pad(x, (0, 1))
            x = convolution(x)
        return F.interpolate(x, scale_factor=64.0)[..., :length]

    module = Program(forward, [2] * 6).eval()
    model = exported(module, 200, 100)
    assert count_ifs(model) == 0
    check(module, model, [100, 127, 128, 129, 255, 256, 300, 1000, 1024])
