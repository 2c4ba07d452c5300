"""Derivatives inside a loss, and numbers of half precision inside a step, verified against eager PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fx2onnx

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


class Potential(nn.Module):
    """An energy and its force."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.net(x)
            (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return energy, force


def penalised(outputs: tuple[torch.Tensor, torch.Tensor], energy: torch.Tensor) -> torch.Tensor:
    """As the penalty of WGAN-GP: forces of length 1."""
    return F.mse_loss(outputs[0], energy) + (outputs[1].norm(2, -1) - 1).square().mean()


def test_a_penalty_on_gradients() -> None:
    torch.manual_seed(0)
    module = Potential()
    training = fx2onnx.Training(penalised, (torch.ones(5, 1),), torch.optim.AdamW(module.parameters()))
    result = fx2onnx.export(module, (X,), training=training, verify=True)
    engines = result.report.verdict["versions"]
    assert {"onnxruntime", "runner"} <= set(engines)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_with_a_scaled_loss(dtype: torch.dtype) -> None:
    """onnxruntime's CPU provider has no products in bfloat16: there the runner is compared alone."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 16), nn.Linear(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype):
                return self.second(F.gelu(self.first(x))).float()  # type: ignore[no-any-return]

    torch.manual_seed(0)
    module = Mixed()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    training = fx2onnx.Training(F.mse_loss, (torch.ones(5, 2),), optimizer, loss_scale=True)
    result = fx2onnx.export(module, (X,), training=training, verify=True)
    assert "runner" in result.report.verdict["versions"]
    products = [node for node in result.model_proto.graph.node if node.op_type in ("MatMul", "Gemm")]
    assert len(products) >= 5
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
