"""Products of many tensors in the order that opt_einsum plans, at sizes that are not the sample's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx
from tests.support import agree

opt_einsum = pytest.importorskip("opt_einsum", reason="opt_einsum is not installed: pip install opt_einsum")

PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "by name": lambda x, w: torch.einsum("bnd,de,bme->bnm", x, w, x),
    "with dots": lambda x, w: torch.einsum("...nd,de,...me,md->...n", x, w, x, x[0]),
    "by numbers": lambda x, w: torch.einsum(x, [0, 1, 2], w, [2, 3], x, [0, 4, 3], [0, 1, 4]),
    "the library's own": lambda x, w: opt_einsum.contract("bnd,de,bme->bnm", x, w, x),
    "of shapes": lambda x, w: (x * len(opt_einsum.contract_path("bn,nd,d->b", x.shape[:2], x.shape[1:], (3,), shapes=True)[0])),
}  # fmt: skip


class Program(nn.Module):
    def __init__(self, program: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.program = program
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.program(x, self.weight)


@pytest.mark.long_cases(but=["the library's own", "of shapes"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_plan_is_of_the_sample_and_the_result_right_at_other_sizes(name: str) -> None:
    module = Program(PRODUCTS[name])
    result = fx2onnx.export(module, (torch.randn(2, 4, 3),), dynamic_shapes=({0: "b", 1: "n"},))
    calls = [(torch.randn(batch, count, 3),) for batch, count in ((2, 4), (1, 1), (3, 17))]
    agree(module, result.model_proto, *calls, atol=1e-4)
