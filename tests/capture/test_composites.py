"""Gradients through composite operators whose C++ asks for plain sizes: sizes that are dynamic stay so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fx2onnx.base.changes import Changes
from fx2onnx.torchcompat.split import use_forms
from tests.support import check


class Gradient(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            own = x.detach().requires_grad_()
            return torch.autograd.grad(self.function(own).square().sum(), own)[0]


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fill_diagonal_": lambda x: (x @ x.t()).fill_diagonal_(0.5),
    "fill_diagonal_ of infinity": lambda x: (x @ x.t()).fill_diagonal_(float("-inf")).softmax(1),
    "where of bytes": lambda x: torch.where((x > 0.3).to(torch.uint8), x, -1.0),
    "masked_select": lambda x: x.masked_select(x > 0.3),
    "masked_select of rows": lambda x: x.masked_select(x[:, :1] > 0.3),
    "cumprod along": lambda x: x.cumprod(0),
    "cumprod beside": lambda x: x.cumprod(1),
    "cumprod of zeros": lambda x: (x - torch.where(x > 0.7, x, 0).detach()).cumprod(0) + 1,
    "take_along_dim": lambda x: torch.take_along_dim(x, x.argsort(1), 1),
    "take_along_dim, one row": lambda x: torch.take_along_dim(x[:1], x.argmax(1, keepdim=True), -1),
    "take_along_dim, flat": lambda x: torch.take_along_dim(x, x.reshape(-1).argsort()),
    "kron": lambda x: torch.kron(x, x[:, 0]),
    "cov": lambda x: torch.cov(x),
    "cov of columns": lambda x: x.t().cov(correction=0),
    "corrcoef": lambda x: torch.corrcoef(x),
    "gradient": lambda x: torch.gradient(x, spacing=(x[:, 0].abs().cumsum(0),), dim=0, edge_order=2)[0],
    "gradient by a step": lambda x: torch.stack(torch.gradient(x, spacing=0.5)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sizes_stay_dynamic(name: str) -> None:
    torch.manual_seed(0)
    others = [(torch.rand(rows, 4),) for rows in (3, 8)]
    check(Gradient(FUNCTIONS[name]), (torch.rand(5, 4),), others=others, dynamic_shapes={"x": {0: "rows"}})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_they_are_what_pytorch_computes(name: str) -> None:
    """In eager PyTorch with its Python dispatcher, in float64."""
    torch.manual_seed(0)
    x = torch.rand(6, 4, dtype=torch.float64)
    want = Gradient(FUNCTIONS[name])(x)
    with Changes(), torch._dispatch.python.enable_python_dispatcher():
        use_forms()
        got = Gradient(FUNCTIONS[name])(x)
    torch.testing.assert_close(got, want)


def test_the_kernels_are_pytorchs_own_again() -> None:
    split = torch._C.DispatchKey.CompositeImplicitAutograd
    with Changes():
        use_forms()
        assert split in torch.ops.aten.kron.default.py_kernels
    assert split not in torch.ops.aten.kron.default.py_kernels
