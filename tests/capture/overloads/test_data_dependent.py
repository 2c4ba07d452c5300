"""Result types by formula, against eager PyTorch at other sizes than the sample's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.capture.recorded import N, recorded, sizes_at


def tensors(result: Any) -> list[torch.Tensor]:
    return torch.utils._pytree.tree_leaves(result)


def agree(function: Any, shape: tuple[Any, ...], sizes: tuple[int, ...]) -> None:
    tracer, results = recorded(function, shape, hints={"n": sizes[0]})
    for size in sizes:
        eager = tensors(function(torch.rand([size if dim is N else dim for dim in shape])))
        assert [sizes_at(each, n=size) for each in tensors(results)] == [tuple(each.shape) for each in eager]
    assert [each.dtype for each in tensors(results)] == [each.dtype for each in eager]
    assert not tracer.sizes.specializations


POOLS = [
    (kernel, stride, padding, dilation)
    for kernel in (2, 3)
    for stride in (1, 2, 4)
    for padding in (0, 1)
    for dilation in (1, 2)
]


@pytest.mark.parametrize("numbers", POOLS, ids=str)
def test_max_pool_with_ceil_mode(numbers: tuple[int, ...]) -> None:
    kernel, stride, padding, dilation = numbers
    agree(lambda x: F.max_pool1d(x, kernel, stride, padding, dilation, True), (2, 3, N), (6, 7, 8, 9, 13))


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_avg_pool_with_ceil_mode(stride: int) -> None:
    agree(lambda x: F.avg_pool2d(x, 3, stride, 1, True), (1, 2, N, 5), (4, 5, 6, 7, 10))


FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...], tuple[int, ...]]] = {
    "cov": (lambda x: x.cov(), (N, 4), (3, 5)),
    "cov of one": (lambda x: x.cov(), (N,), (3, 5)),
    "corrcoef": (lambda x: x.corrcoef(), (N, 4), (3, 5)),
    "lstsq": (lambda x: torch.linalg.lstsq(x, x[..., :2]), (2, 5, 3), (3,)),
    "lstsq gelsd": (lambda x: torch.linalg.lstsq(x, x[..., :2], driver="gelsd"), (2, 5, 3), (3,)),
    "combinations": (lambda x: torch.combinations(x, 3), (5,), (3,)),
    "combinations with replacement": (lambda x: torch.combinations(x, 2, True), (5,), (3,)),
    "histogram": (lambda x: torch.histogram(x, 7), (N, 2), (3, 5)),
    "histogram of edges": (lambda x: torch.histogram(x, torch.linspace(0, 1, 5)), (N, 2), (3, 5)),
    "histogramdd": (lambda x: torch.histogramdd(x, [3, 4]), (N, 2), (3, 5)),
    "geqrf": (lambda x: torch.geqrf(x), (5, 3), (3,)),
    "ctc_loss": (lambda x: F.ctc_loss(x.log_softmax(-1), torch.ones(2, 2).long(), (6, 6), (2, 2), reduction="none"), (6, 2, 4), (3,)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_types(name: str) -> None:
    agree(*FUNCTIONS[name])


def test_combinations_of_an_unknown_number() -> None:
    tracer, result = recorded(lambda x: torch.combinations(x), (N,), hints={"n": 4})
    assert sizes_at(result, u0=9) == (9, 2)
    assert "u0" in tracer.values.symbols
