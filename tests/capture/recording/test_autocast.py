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


BF16 = torch.bfloat16


def _written_in_place(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", BF16):
        first = x @ w
        with torch.no_grad():
            w.mul_(2)
        return (first + x @ w).float()


def _written_by_data(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", BF16):
        first = torch.nn.functional.linear(x, w)
        w.data.mul_(2)
        with torch.autocast("cpu", enabled=False):
            widened = x @ w
        return widened + first + torch.nn.functional.linear(x, w)


def _data_replaced(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", BF16):
        first = x @ w
        w.data = w.data * 2
        return (first + x @ w).float()


def _written_between_inner_regions(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", BF16):
        with torch.autocast("cpu", BF16):
            first = x @ w
        with torch.no_grad():
            w.mul_(2)
        with torch.autocast("cpu", BF16):
            return (first + x @ w).float()


def _written_between_regions(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", BF16):
        first = x @ w
    with torch.no_grad():
        w.mul_(2)
    with torch.autocast("cpu", BF16):
        return (first + x @ w).float()


def _cache_cleared(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", BF16):
        first = x @ w
        with torch.no_grad():
            w.mul_(2)
        torch.clear_autocast_cache()
        return (first + x @ w).float()


def _without_cache(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", BF16, cache_enabled=False):
        first = x @ w
        with torch.no_grad():
            w.mul_(2)
        return (first + x @ w).float()


def _views(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", BF16):
        first = x @ w.t()
        with torch.no_grad():
            w.mul_(2)
        return (first + x @ w.t()).float()


class _Weighted(torch.nn.Module):
    def __init__(self, forward: Any, requires_grad: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4), requires_grad)
        self.function = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.function(x, self.weight)
        return result


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize(
    "function",
    [
        _written_in_place,
        _written_by_data,
        _data_replaced,
        _written_between_inner_regions,
        _written_between_regions,
        _cache_cleared,
        _without_cache,
        _views,
    ],
)
def test_a_cast_is_kept_as_autocast_keeps_it(function: Any, requires_grad: bool) -> None:
    args, other = (torch.randn(3, 4),), (torch.randn(5, 4),)
    module = _Weighted(function, requires_grad)
    check(module, args, others=[other], dynamic_shapes=({0: "n"},), rtol=0.03, atol=0.03)


def test_a_cast_of_an_input_that_requires_gradients_is_kept() -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    check(_written_in_place, (torch.randn(3, 4), weight), rtol=0.03, atol=0.03)


def _einsum_of_two_types(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", BF16):
        first = torch.einsum("ij,jk->ik", x @ w, w)
        with torch.no_grad():
            w.mul_(2)
        return (first + torch.einsum("ij,jk->ik", x, w)).float()


def _einsum_of_three(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", BF16):
        return torch.einsum("bi,ij,jk->bk", x, w, (w @ w).t()).float()


def _einsum_of_heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", BF16):
        return torch.einsum("bi,hij->bhj", x @ w, w.expand(2, 4, 4)).float()


@pytest.mark.parametrize("function", [_einsum_of_two_types, _einsum_of_three, _einsum_of_heads])
def test_operands_that_einsum_casts_behind_views(function: Any) -> None:
    args, other = (torch.randn(3, 4),), (torch.randn(5, 4),)
    check(_Weighted(function, True), args, others=[other], dynamic_shapes=({0: "n"},), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kind", [torch.nn.GRU, torch.nn.LSTM])
def test_a_recurrent_layer_behind_a_linear_one(kind: Any) -> None:
    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.layer = torch.nn.Linear(4, 4), kind(4, 3, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", BF16):
                result: torch.Tensor = self.layer(self.linear(x))[0].float()
            return result

    args, other = (torch.randn(2, 3, 4),), (torch.randn(5, 3, 4),)
    check(Recurrent(), args, others=[other], dynamic_shapes=({0: "n"},), rtol=0.05, atol=0.05)
