"""Functions that are recorded once and copied for other tensors of the same types."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

import fx2onnx
from fx2onnx.capture.recording.below_autograd import repeated
from tests.support import agree

Function = Callable[..., Sequence[torch.Tensor]]
CALLS: list[Function] = []


class Repeating(torch.nn.Module):
    """Calls ``function`` for pairs of its inputs; ``CALLS`` says how often it ran."""

    def __init__(self, function: Function, pairs: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.function, self.pairs = function, pairs

    def counted(self, *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        CALLS.append(self.function)
        return self.function(*tensors)

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for first, second in self.pairs:
            found += repeated(self.counted, "key", inputs[first], inputs[second])
        return found


def blended(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    mean = torch.lerp(x, y, 0.25)
    return [mean, (mean * y).sqrt() + torch.arange(3.0)]


def inputs(*sizes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.rand(size, generator=generator) + 0.5 for size in sizes)


def compared(module: Repeating, tensors: tuple[torch.Tensor, ...]) -> int:
    """Check the export beside eager PyTorch. Returns how often the function ran in it."""
    CALLS.clear()
    proto = fx2onnx.export(module, tensors, capture="fake").model_proto
    calls = len(CALLS)
    agree(module, proto, tensors)
    return calls


def test_equal_types_are_recorded_once() -> None:
    module = Repeating(blended, [(0, 1), (1, 2), (2, 0), (3, 4)])
    assert compared(module, inputs((2, 3), (2, 3), (2, 3), (3,), (3,))) == 2


def test_a_tensor_that_is_given_twice_is_another_program() -> None:
    module = Repeating(lambda x, y: [x - y if x is not y else x + y], [(0, 0), (0, 1), (1, 1), (1, 0)])
    assert compared(module, inputs((2, 3), (2, 3))) == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: [x.t(), x * y],
        lambda x, y: [x, x * y],
        lambda x, y: [(x.clone().add_(1)) * y],
        lambda x, y: [x * y] * 2,
    ],
    ids=["a view", "an argument", "a write", "one result twice"],
)
def test_what_a_copy_would_not_show_runs_again(function: Function) -> None:
    module = Repeating(function, [(0, 1), (1, 2), (2, 0)])
    assert compared(module, inputs((3, 3), (3, 3), (3, 3))) == 3
