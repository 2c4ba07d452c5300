"""Functions that keep their results (functools.lru_cache) keep none of a run without numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx
from tests.support import check

X = torch.randn(3, 4)


@functools.lru_cache(maxsize=8)
def grid_of(size: int) -> torch.Tensor:
    return torch.arange(size) * 2.0


def keeps(function: Callable[..., Any]) -> Callable[..., Any]:
    kept = functools.lru_cache(maxsize=8)(function)

    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return kept(*args)

    return wrapper


class OfItsFile(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + grid_of(4)


class OfItsClass(nn.Module):
    @functools.lru_cache(maxsize=8)  # noqa: B019 - what models do
    def _grid(self, size: int) -> torch.Tensor:
        return torch.arange(size) * 3.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self._grid(4)


class Decorated(OfItsClass):
    @keeps
    def _grid(self, size: int) -> torch.Tensor:
        return torch.arange(size) * 5.0


@pytest.mark.parametrize("kind", [OfItsFile, OfItsClass, Decorated, lambda: lambda x: x * grid_of(4)])
@pytest.mark.parametrize("eager_first", [False, True])
def test_a_kept_result(kind: Any, eager_first: bool) -> None:
    grid_of.cache_clear()
    module = kind()
    if eager_first:
        module(X)
    for _ in range(2):
        fx2onnx.export(module, (X,))
        assert type(module(X)) is torch.Tensor
    check(module, (X,))


class OfItsObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Decorated()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner._grid(x.shape[1]) + self.inner._grid(*x.shape[1:])


@pytest.mark.parametrize("kind", [OfItsObject, lambda: lambda x: x * grid_of(x.shape[1]) + grid_of(size=x.size(0))[:1]])
def test_a_result_kept_for_a_dynamic_size(kind: Any) -> None:
    module = kind()
    check(module, (X,), dynamic_shapes={"x": {0: "rows", 1: "n"}}, others=[(torch.randn(2, 7),), (torch.randn(5, 1),)])
    assert type(module(X)) is torch.Tensor


def test_a_size_that_is_a_key_of_a_dict_is_specialized() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * {4: 2.0}[x.shape[1]] + grid_of(x.shape[1])

    with pytest.raises(fx2onnx.UserError, match=r"E105.*n is used as the fixed number 4"):
        fx2onnx.export(forward, (X,), dynamic_shapes={"x": {1: "n"}})
