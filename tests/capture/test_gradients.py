"""Gradients, function transforms and autograd functions inside forward: what they compute is part of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import fx2onnx
from tests.support import agree, check

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Square(torch.autograd.Function):
    """Its backward is not the derivative of its forward, so that the two can be told apart."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * 7 * ctx.saved_tensors[0]


def _autograd_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        return torch.autograd.grad((y**3).sum(), y)[0]


def _backward(x: torch.Tensor) -> Any:
    with torch.enable_grad():
        y = x.detach().clone().requires_grad_()
        (y * y.sin()).sum().backward()
        return y.grad


def _gradient_of_a_layer(x: torch.Tensor) -> Any:
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        loss = nn.functional.linear(y, torch.eye(4) * 2).softmax(-1)[:, 0].sum()
        return torch.autograd.grad(loss, y)[0]


def _own_function_gradient(x: torch.Tensor) -> Any:
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        return torch.autograd.grad(Square.apply(y).sum(), y)[0]


def _gradient_past_a_write(x: torch.Tensor) -> Any:
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        written = y * 2
        written.zero_()
        return torch.autograd.grad((written + y * y).sum(), y)[0]


def _tangent(x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(torch.nn.functional.softplus(forward_ad.make_dual(x, x + 1)))


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "autograd.grad": _autograd_grad,
    "backward": _backward,
    "gradient past a write": _gradient_past_a_write,
    "gradient of a layer": _gradient_of_a_layer,
    "autograd.Function": Square.apply,
    "gradient of an autograd.Function": _own_function_gradient,
    "func.grad": lambda x: torch.func.grad(lambda v: (v**3).sum())(x),
    "func.vjp": lambda x: torch.func.vjp(lambda v: v.sin(), x)[1](x + 1)[0],
    "func.jvp": lambda x: torch.func.jvp(lambda v: v.sin(), (x,), (x + 1,)),
    "func.jacrev": lambda x: torch.func.jacrev(lambda v: v.sin().sum(0))(x),
    "func.jacfwd": lambda x: torch.func.jacfwd(lambda v: v.sin().sum(0))(x),
    "func.hessian": lambda x: torch.func.hessian(lambda v: (v**3).sum())(x[0]),
    "vmap": lambda x: torch.vmap(lambda row: row * row.sum())(x),
    "vmap along other axes": lambda x: torch.vmap(lambda a, b: a @ b, in_dims=(0, None), out_dims=1)(x, x.t()),
    "vmap of grad": lambda x: torch.vmap(torch.func.grad(lambda row: (row**2).sum()))(x),
    "vmap of jacrev": lambda x: torch.vmap(torch.func.jacrev(lambda row: row.sin() * row.sum()))(x),
    "vmap of jacfwd": lambda x: torch.vmap(torch.func.jacfwd(lambda row: row.sin() * row.sum()))(x),
    "vmap of hessian": lambda x: torch.vmap(torch.func.hessian(lambda row: (row**3).sum()))(x),
    "vmap of vjp": lambda x: torch.vmap(lambda row: torch.func.vjp(torch.sin, row)[1](row)[0])(x),
    "vmap of jvp": lambda x: torch.vmap(lambda row: torch.func.jvp(torch.sin, (row,), (row * 2,)))(x),
    "vmap of tangents": lambda x: torch.vmap(
        lambda tangent: torch.func.jvp(lambda v: v * v, (x,), (tangent.expand_as(x),))[1]
    )(torch.eye(4)),
    "func.linearize": lambda x: torch.func.linearize(lambda v: v.sin() * v.sum(), x)[1](x + 1),
    "forward_ad": _tangent,
    "functional_call": lambda x: torch.func.functional_call(nn.Linear(4, 2), {"weight": x[:2], "bias": x[0, :2]}, (x,)),
    "checkpoint": lambda x: checkpoint(torch.sin, x, use_reentrant=False),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_inside_forward(name: str) -> None:
    report = check(FUNCTIONS[name], (X,), others=[(X * 2 - 1,)]).report
    assert report.strategy == "fake"


def test_gradients_are_on_where_forward_takes_some() -> None:
    class Force(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.energy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.detach().requires_grad_()
            return -torch.autograd.grad(self.energy(y).sum(), y)[0]

    module = Force()
    result = fx2onnx.export(module, (X,))
    assert result.report.strategy == "fake"
    assert any("gradients are on" in attempt for attempt in result.report.attempts)
    agree(torch.enable_grad()(lambda x: module(x).detach()), result.model_proto, (X,), atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "autograd.grad",
        "backward",
        "autograd.Function",
        "func.grad",
        "vmap of grad",
        "vmap of tangents",
        "func.linearize",
        "forward_ad",
    ],
)
def test_with_dynamic_sizes(name: str) -> None:
    check(FUNCTIONS[name], (X,), others=[(torch.randn(5, 4),)], dynamic_shapes=({0: "n"},))


def test_of_the_modules_own_parameters() -> None:
    class Adapted(nn.Module):
        """One step of gradient descent inside forward."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weights = dict(self.fc.named_parameters())
            gradients = torch.func.grad(lambda w: torch.func.functional_call(self.fc, w, (x,)).square().mean())(weights)
            stepped = {name: weight - 0.1 * gradients[name] for name, weight in weights.items()}
            return torch.func.functional_call(self.fc, stepped, (x,))  # type: ignore[no-any-return]

    result = check(Adapted(), (X,), others=[(X * 3 + 1,)])
    assert {"fc.weight", "fc.bias"} <= set(result.model.graph.initializers)


def test_associative_scan() -> None:
    check(lambda x: associative_scan(lambda a, b: a * b + b, x, dim=0, combine_mode="generic"), (X,), others=[(X + 2,)])


def test_associative_scan_for_accelerators_is_refused_as_pytorch_does() -> None:
    with pytest.raises(fx2onnx.UserError, match="need to be on CUDA") as caught:
        fx2onnx.export(lambda x: associative_scan(torch.add, x, dim=0), (X,))
    assert caught.value.code == "E101"
    assert caught.value.where is not None


def test_gradients_are_off_afterwards_as_before() -> None:
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            fx2onnx.export(_autograd_grad, (X,))
            assert torch.is_grad_enabled() is enabled
