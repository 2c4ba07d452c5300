"""When the float64 run of a module cannot judge, float32 is compared as it is."""

from __future__ import annotations

import torch

import fx2onnx
from fx2onnx.verify import verify


class Masked(torch.nn.Module):
    """Overflows to minus infinity in float64 alone, as some masks do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        lowest = y.new_full((1, 4), torch.finfo(y.dtype).min)
        return torch.softmax(lowest.float() * 0.5 + y.float(), -1)


def test_a_judge_without_numbers_is_not_believed() -> None:
    module, x = Masked().eval(), torch.randn(3, 4)
    assert torch.isfinite(module(x)).all()
    assert not torch.isfinite(module.double()(x.double())).all()
    module = module.float()
    verdict = verify(fx2onnx.export(module, (x,)), module, (x,))
    assert verdict.ok, verdict.describe()


def test_wrong_numbers_are_still_found_out() -> None:
    module, x = Masked().eval(), torch.randn(3, 4)
    result = fx2onnx.export(module, (x,))
    other = Masked().eval()
    other.forward = lambda x: torch.softmax(other.linear(x), -1) * 1.5  # type: ignore[method-assign]
    assert not verify(result, other, (x,)).ok
