"""What the backward pass computes has the line and the module of the forward operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fx2onnx
from fx2onnx.irx.names import scope_of

X, Y = torch.linspace(-1, 1, 6).reshape(2, 3), torch.ones(2, 3)


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.exp2()


class Inner(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sinh()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.inner = nn.Linear(3, 3), Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        y = self.inner(y)
        y = y.atan()
        y = Squared.apply(y)
        return checkpoint(self.again, y, use_reentrant=False)  # type: ignore[no-any-return]

    def again(self, y: torch.Tensor) -> torch.Tensor:
        return y.erf()


def line_of(function: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(place for place, line in enumerate(lines) if text in line)


def places(module: nn.Module, kind: str) -> Iterator[tuple[int, str]]:
    """Line in this file and module of each node of that operator."""
    result = fx2onnx.export(module, (X,), training=fx2onnx.Training(F.mse_loss, (Y,)))
    for node in result.owned.model.graph:
        if node.op_type == kind:
            file, line = node.metadata_props["source"].split(":")
            assert file.endswith("test_lines.py")
            yield int(line), scope_of(node.name or "", {})


@pytest.mark.parametrize(
    ("operator", "function", "text", "modules"),
    [
        ("Cosh", Inner.forward, "sinh", "inner"),
        ("Gemm", Net.forward, "self.fc(x)", "fc"),
        ("Exp", Net.again, "y.erf()", ""),
        ("Pow", Squared.backward, "exp2", ""),
    ],
)
def test_the_forward_line(operator: str, function: Callable[..., Any], text: str, modules: str) -> None:
    found = list(places(Net(), operator))
    assert found
    assert {line for line, _ in found} == {line_of(function, text)}
    assert {scope for _, scope in found} == {modules}


def test_second_derivatives() -> None:
    """The gradient's gradient belongs to the same line."""

    class Force(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                energy = x.sinh().sum()
                (force,) = torch.autograd.grad(energy, x, create_graph=True)
                return torch.autograd.grad(force.sum(), x)[0]

    result = fx2onnx.export(Force(), (X,))
    lines = {
        node.op_type: int(node.metadata_props["source"].split(":")[1])
        for node in result.owned.model.graph
        if node.op_type == "Sinh"
    }
    assert lines == {"Sinh": line_of(Force.forward, "sinh")}


class Segments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        y = torch.segment_reduce(y, "prod", lengths=torch.tensor([1, 1]))
        return y + 1  # type: ignore[no-any-return]


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.middle = Segments()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.middle(x).tanh()  # type: ignore[no-any-return]


def test_an_operator_without_a_form_in_the_backward_pass() -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(Outer(), (X,), training=fx2onnx.Training(F.mse_loss, (Y,)))
    error = caught.value
    assert error.code == "E201"
    assert "_segment_reduce_backward" in error.what
    assert error.where is not None
    assert error.where.line == line_of(Segments.forward, "segment_reduce")
    assert error.module_path == "middle"


def test_the_line_that_overwrites(tmp_path: Path) -> None:
    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.count: torch.Tensor
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.fc(x).exp()
            z = y * y
            y.add_(1)
            self.count.add_(1)
            return z  # type: ignore[no-any-return]

    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(Overwrites(), (X,), training=fx2onnx.Training(F.mse_loss, (Y,)))
    assert caught.value.where is not None
    assert caught.value.where.line == line_of(Overwrites.forward, "y.add_(1)")
    assert "modified by an inplace operation" in caught.value.why
