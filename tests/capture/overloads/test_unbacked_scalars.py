"""Numbers read from data: arithmetic of tensors is arithmetic of symbols."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fx2onnx.capture.overloads.unbacked_scalars import number_of, truth_of
from fx2onnx.sizes.expr import Dim
from tests.capture.recorded import recorded

U0, U1 = Dim.unbacked(0), Dim.unbacked(1)
TWO = ((), torch.int64), ((), torch.int64)


def numbers(function: Any) -> list[Any]:
    """The numbers of the results of ``function(x, y)`` after those of x and y were read."""
    tracer, (x, y, *results) = recorded(lambda x, y: (x, y, *function(x, y)), *TWO)
    assert [number_of(tracer, tracer.values.node_of(tensor)) for tensor in (x, y)] == [U0, U1]
    return [number_of(tracer, tracer.values.node_of(result)) for result in results]


@pytest.mark.parametrize(
    ("function", "number"),
    [
        (lambda x, y: x + y, U0 + U1),
        (lambda x, y: x - y, U0 - U1),
        (lambda x, y: x + 3, U0 + 3),
        (lambda x, y: 3 - x, 3 - U0),
        (lambda x, y: x + torch.tensor(4), U0 + 4),
        (lambda x, y: (x + 1) - (y - 2), U0 - U1 + 3),
        (lambda x, y: x + 6 - x, 6),
        (lambda x, y: x * y, U0 * U1),
        (lambda x, y: x.div(2, rounding_mode="floor"), U0 // 2),
    ],
)
def test_sums_and_quotients_are_expressions(function: Any, number: Any) -> None:
    assert numbers(lambda x, y: [function(x, y)]) == [number]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.add(x, y, alpha=2),
        lambda x, y: x.div(2, rounding_mode="trunc"),
        lambda x, y: (x - y).div(2, rounding_mode="trunc"),
    ],
    ids=["scaled sum", "quotient of unknown sign", "quotient of a difference"],
)
def test_other_values_are_symbols_of_their_own(function: Any) -> None:
    (number,) = numbers(lambda x, y: [function(x, y)])
    assert number == Dim.unbacked(2)


def test_the_quotient_of_a_count_rounds_down() -> None:
    tracer, (count, half) = recorded(
        lambda x: (count := (x > 0).sum(), count.div(2, rounding_mode="trunc")), ((3,), torch.float32)
    )
    assert number_of(tracer, tracer.values.node_of(count)) == U0
    assert number_of(tracer, tracer.values.node_of(half)) == U0 // 2


@pytest.mark.parametrize(
    ("compare", "truth"),
    [
        (lambda x, y: x + 1 == 1 + x, True),
        (lambda x, y: x == x + 1, False),
        (lambda x, y: x + y != y + x, False),
        (lambda x, y: x == y, None),
        (lambda x, y: x < y, None),
    ],
    ids=["equal", "never equal", "not unequal", "unknown", "no comparison for equality"],
)
def test_truth_of_comparisons(compare: Any, truth: bool | None) -> None:
    tracer, (x, y, result) = recorded(lambda x, y: (x, y, compare(x, y)), *TWO)
    for tensor in (x, y):
        number_of(tracer, tracer.values.node_of(tensor))
    assert truth_of(tracer, tracer.values.node_of(result)) is truth
