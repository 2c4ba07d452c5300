"""Zeros of Python's that differ in their sign only, checked against eager PyTorch."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest
import torch

import fx2onnx
from fx2onnx.capture.python.held import is_equal_number
from tests.support import check, run_engines


def _signs(x: torch.Tensor, zero: float) -> torch.Tensor:
    return torch.copysign(torch.ones_like(x), x.abs() * zero)


def _negated(x: torch.Tensor) -> torch.Tensor:
    zero = 0.0
    for _ in range(x.shape[0]):
        zero = -zero
    return _signs(x, zero)


def _multiplied(x: torch.Tensor) -> torch.Tensor:
    zero = 0.0
    for _ in x:
        zero = zero * -1
    return _signs(x, zero)


def _listed(x: torch.Tensor) -> torch.Tensor:
    zero, found = 0.0, []
    for row in x:
        zero = -zero
        found.append(_signs(row, zero))
    return torch.stack(found)


def _held(x: torch.Tensor) -> torch.Tensor:
    held, zeros, pair = types.SimpleNamespace(zero=0.0), {"zero": 0.0}, (0.0, 1)
    for _ in range(x.shape[0]):
        held.zero, zeros["zero"], pair = -held.zero, -zeros["zero"], (-pair[0], pair[1] + 1)
    return _signs(x, held.zero) + _signs(x, zeros["zero"]) * 2 + _signs(x, pair[0]) * 4


def _in_a_while(x: torch.Tensor) -> torch.Tensor:
    zero, count = 0.0, 0
    while count < x.shape[0]:
        zero, count = -zero, count + 1
    return _signs(x, zero)


def _by_size(x: torch.Tensor) -> torch.Tensor:
    return _signs(x, -0.0 if x.shape[0] > 3 else 0.0)


def _at_one(x: torch.Tensor) -> torch.Tensor:
    zero = -0.0 if x.shape[0] == 1 else 0.0
    return torch.copysign(x, torch.tensor([zero]))


def _padded_at_one(x: torch.Tensor) -> torch.Tensor:
    padded = torch.nn.functional.pad(x, (0, 1), value=-0.0 if x.shape[0] == 1 else 0.0)
    return torch.copysign(torch.ones_like(padded), padded)


def _by_data(x: torch.Tensor) -> torch.Tensor:
    zero = 0.0
    if x.sum() > 0:
        zero = -0.0
    return _signs(x, zero)


def _on_two_paths(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return _signs(x, -0.0)
    return _signs(x, 0.0)


def _returned(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    return (x, -0.0) if x.sum() > 0 else (x, 0.0)


@pytest.mark.parametrize(
    "forward",
    [_negated, _multiplied, _listed, _held, _in_a_while, _by_size, _at_one, _padded_at_one, _by_data, _on_two_paths],
)
def test_the_sign_of_a_zero_that_python_changes(forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
    ramp = torch.arange(20.0).reshape(4, 5) + 1
    others = [(ramp[:3],), (-ramp[:2],), (ramp[:1],), (-ramp[:1, :1],)]
    check(forward, (ramp,), others=others, dynamic_shapes={"x": {0: "n", 1: "m"}})


def test_the_sign_of_a_zero_that_forward_returns() -> None:
    result = fx2onnx.export(_returned, (torch.ones(3),), dynamic_shapes={"x": {0: "n"}})
    inputs = [(torch.full((2,), number),) for number in (1.0, -1.0)]
    zeros = [outputs[1] for each in inputs for outputs in run_engines(result.model_proto, each).values()]
    assert [str(float(zero)) for zero in zeros] == ["-0.0", "-0.0", "0.0", "0.0"]


def test_a_zero_that_a_scripted_module_negates_is_put_back() -> None:
    class Negating(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.zero = 0.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.zero = -self.zero
            return x + 1

    scripted = torch.jit.script(Negating())
    fx2onnx.export(scripted, (torch.ones(3),))
    assert str(scripted.zero) == "0.0"


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        (0.0, -0.0, False), (-0.0, -0.0, True), (complex(1, 0.0), complex(1, -0.0), False), (complex(0.0, 1), complex(-0.0, 1), False),
        (complex(1, -0.0), complex(1, -0.0), True), (1, True, False), (2, 2, True), ("a", "a", True), (torch.ones(2), torch.ones(2), False),
    ],
)  # fmt: skip
def test_numbers_are_equal_with_the_signs_of_both_parts(one: object, other: object, is_equal: bool) -> None:
    assert is_equal_number(one, other) == is_equal
