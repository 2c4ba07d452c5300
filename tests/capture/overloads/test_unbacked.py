"""Results whose size depends on data: constants are computed, and one mask has one size."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fx2onnx.sizes.expr import Dim
from tests.capture.recorded import N, calls, info, recorded, sizes_at

U0, U1 = Dim.unbacked(0), Dim.unbacked(1)
INTEGERS = torch.int64


@pytest.mark.parametrize(
    ("function", "infos"),
    [
        (lambda x: x.nonzero(), [info(U0, 2, dtype=INTEGERS)]),
        (lambda x: torch.where(x > 0), [info(U0, dtype=INTEGERS)] * 2),
        (lambda x: x.argwhere(), [info(U0, 2, dtype=INTEGERS)]),
        (lambda x: x[x > 0], [info(U0)]),
        (lambda x: x.masked_select(x > 0), [info(U0)]),
        (lambda x: x[x[:, 0] > 0], [info(U0, 3)]),
        (lambda x: torch.unique(x, return_inverse=True), [info(U0), info(N, 3, dtype=INTEGERS)]),
        (lambda x: torch.unique(x, dim=1), [info(N, U0)]),
        (
            lambda x: torch.unique_consecutive(x, return_counts=True, dim=0),
            [info(U0, 3), info(U0, dtype=INTEGERS)],
        ),
        (lambda x: x.repeat_interleave(x[:, 0].long(), 0), [info(U0, 3)]),
        (lambda x: x.repeat_interleave(x[:, 0].long(), 0, output_size=7), [info(7, 3)]),
        (lambda x: x.flatten().long().bincount(), [info(U0, dtype=INTEGERS)]),
    ],
    ids=[
        "nonzero", "where", "argwhere", "mask", "masked_select", "rows", "unique", "unique_dim", "consecutive",
        "repeat", "repeat of a known size", "bincount",
    ],
)  # fmt: skip
def test_types(function: Any, infos: list[Any]) -> None:
    tracer, result = recorded(function, (N, 3), hints={"n": 4})
    results = [result] if isinstance(result, torch.Tensor) else result
    assert [tracer.values.node_of(each).meta["val"] for each in results] == infos
    assert tracer.values.symbols.keys() == ({"u0"} if "u0" in str(infos[0]) else set())


def test_two_selections_by_one_mask_have_one_size() -> None:
    def selected(x: Any, y: Any) -> Any:
        mask = x[:, 0] > 0
        return x[mask], y[mask], y[x[:, 1] > 0]

    tracer, results = recorded(selected, (4, 3), (4,))
    assert [tracer.values.node_of(each).meta["val"] for each in results] == [info(U0, 3), info(U0), info(U1)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.nonzero(),
        lambda x: torch.where(x > 0)[1],
        lambda x: torch.unique(x),
        lambda x: torch.repeat_interleave(torch.tensor([1, 0, 2])),
    ],
    ids=["nonzero", "where", "unique", "repeat_interleave"],
)
def test_results_of_constants_are_constants(function: Any) -> None:
    values = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    tracer, result = recorded(lambda x: function(torch.tensor([[1.0, 0.0], [0.0, 3.0]])), (2,))
    assert not tracer.values.symbols
    assert torch.equal(tracer.values.value_of(tracer.values.node_of(result)), function(values))


def test_the_start_of_narrow_is_read() -> None:
    tracer, result = recorded(lambda x, start: x.narrow(0, start, 2), (5, 3), ((), INTEGERS))
    assert sizes_at(result, u0=1) == (2, 3)
    assert "u0" in tracer.values.symbols


@pytest.mark.parametrize("stacked", [True, False])
def test_grouped_products_of_any_float(stacked: bool) -> None:
    first = (2, 4, 8) if stacked else (4, 8)
    tracer, result = recorded(
        lambda x, y, ends: torch.ops.aten._grouped_mm.default(x, y, None if stacked else ends),
        first, (2, 8, 4), ((2,), torch.int32),
    )  # fmt: skip
    assert tracer.values.node_of(result).meta["val"] == info(*first[:-1], 4)
    assert calls(tracer) == ["_grouped_mm.default"]
