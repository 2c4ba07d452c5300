"""Tensors that forward makes ones of a subclass of ``torch.Tensor``, and tensors of one that a module holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx
from tests.support import check


class Signal(torch.Tensor):
    @property
    def rows(self) -> int:
        return self.shape[0]

    def louder(self) -> torch.Tensor:
        return self * 2


class Minus(torch.Tensor):
    """Subtracts where it is added to."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = torch.Tensor.sub if func in (torch.Tensor.add, torch.add) else func
        return super().__torch_function__(func, types, args, kwargs or {})


def _methods(x: torch.Tensor) -> torch.Tensor:
    signal = (x * 2).as_subclass(Signal)
    return signal.sin()[: signal.rows - 1].louder()


def _classes(x: torch.Tensor) -> Any:
    signal = x.as_subclass(Signal)
    mixed = torch.cat([signal, x]) + 1
    plain = mixed.as_subclass(torch.Tensor)
    assert (type(mixed), type(plain), type(x)) == (Signal, torch.Tensor, torch.Tensor)
    return mixed.louder(), plain * 3


def _writes(x: torch.Tensor) -> Any:
    y = x * 2
    signal = y.as_subclass(Signal)
    signal.mul_(3)
    signal[0] = 1
    return y + 1, signal.louder()


def _own_function(x: torch.Tensor) -> Any:
    signal = x.as_subclass(Minus)
    return signal.add(1), torch.add(signal.exp(), 2)


@pytest.mark.parametrize("forward", [_methods, _classes, _writes, _own_function])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_as_subclass(forward: Any, is_dynamic: bool) -> None:
    others = [(torch.randn(5, 4),), (torch.randn(1, 4),)] if is_dynamic else []
    check(
        forward,
        (torch.randn(3, 4),),
        others=others,
        dynamic_shapes=({0: "n"},) if is_dynamic else None,
        capture="fake",
    )


class Held(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.buffer = nn.Buffer(torch.randn(4))
        self.own = [torch.randn(4).as_subclass(kind)]  # type: ignore[type-var]
        self.kind = kind

    def forward(self, x: torch.Tensor) -> Any:
        weight: Any = self.weight.as_subclass(self.kind)  # type: ignore[type-var]
        return torch.add(weight, x), self.own[0] + x, torch.add(self.buffer.as_subclass(self.kind), 1)  # type: ignore[type-var]


@pytest.mark.parametrize("kind", [Signal, Minus])
def test_of_held_tensors(kind: type) -> None:
    check(Held(kind), (torch.randn(3, 4),), others=[(torch.randn(5, 4),)], dynamic_shapes=({0: "n"},), capture="fake")


class Dispatching(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) * 2


def test_a_class_that_takes_operators_is_refused() -> None:
    with pytest.raises(fx2onnx.UserError, match=r"E107[^\n]*a subclass of torch.Tensor"):
        fx2onnx.export(lambda x: torch.Tensor(x.as_subclass(Dispatching) + 1), (torch.ones(3),), capture="fake")
