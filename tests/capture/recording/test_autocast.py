"""The casts of autocast, as recorded operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.capture.recorded import calls, info, recorded
from tests.support import check


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ((2, 3), (3, 4), (2, 4)),
        ((5, 2, 3), (3, 4), (5, 2, 4)),
        ((5, 2, 3), (5, 3, 4), (5, 2, 4)),
        ((5, 2, 3), (3,), (5, 2)),
        ((3,), (5, 3, 4), (5, 4)),
    ],
    ids=str,
)
def test_arguments_are_cast_as_autocast_does(
    one: tuple[int, ...], two: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    def product(x: Any, y: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ y

    tracer, result = recorded(product, one, two)
    assert calls(tracer) == ["to.dtype", "to.dtype", "matmul.default"]
    assert tracer.values.node_of(result).meta["val"] == info(*expected, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "function",
    [lambda x: x.relu(), lambda x: x.to(torch.float64), lambda x: torch.ones(2), lambda x: torch.cat([x, x])],
    ids=["relu", "to", "ones", "cat"],
)
def test_other_operators_run_as_they_are(function: Any) -> None:
    def run(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return function(x)

    tracer, result = recorded(run, (2, 3))
    plain, expected = recorded(function, (2, 3))
    assert calls(tracer) == calls(plain)
    assert result.dtype == expected.dtype


def test_lists_are_cast_too() -> None:
    def both(x: Any, y: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.cat([x, y @ y])

    tracer, result = recorded(both, (2, 2), (2, 2))
    assert result.dtype == torch.float32, "cat widens to the widest of its tensors"
    assert calls(tracer)[-1] == "cat.default"
    assert calls(tracer).count("to.dtype") == 3


@pytest.mark.long
def test_rows_that_data_picks() -> None:
    layer = torch.nn.Linear(4, 4)

    def rows(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x[x[:, 0] > 0]).float()

    samples = [(torch.randn(size, 4),) for size in (6, 3, 9)]
    check(rows, samples[0], others=samples[1:], dynamic_shapes=({0: "rows"},), rtol=0.05, atol=0.05)
