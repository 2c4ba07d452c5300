"""Decisions by data within the calls of submodules: each call is joined by itself, where paths through the module would be too many."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.base.errors import UserError
from tests.support import check

SAMPLE = (torch.linspace(-2, 3, 40).sin().mul(3).reshape(1, 5, 8),)
OTHERS = [
    (torch.linspace(-9, 9, rows * 8).cos().mul(scale).reshape(1, rows, 8),)
    for rows, scale in ((1, 9.0), (7, 0.1), (4, -2.0))
]
AXES = ({1: "rows"},)
CALLS = 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0


class TwoWays(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x > 1).any():
            return self.linear(x) * 2
        return self.linear(x)


class ThreeWays(Block):
    """Rows by a mask, so that a size of one way is known only when the model runs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = (x > 1).any(-1)
        if mask.any():
            if mask.all():
                y = torch.full_like(x, 0.5)
            else:
                y = torch.empty_like(x)
                y[~mask] = self.linear(x[~mask])
                y[mask] = 1.0
        else:
            y = self.linear(x)
        return y


class Inner(Block):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = TwoWays(), ThreeWays()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) if x.mean().item() > 0 else self.two(x) - self.one(x)


class GivesItsInput(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if (x > 1).any() else x


class GivesAView(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if (x > 1).any() else x[..., :]


class Raises(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.isnan(x).any():
            raise ValueError("not a number")
        return self.linear(x) if (x > 1).any() else -self.linear(x)


class NumberOfData(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = int((x[0, :, 0] > 0).sum())
        return self.linear(x) + x[:, :n].sum(1, keepdim=True) if n > 1 else self.linear(x)


class Counts(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x > 1).any():
            self.calls = self.calls + 1
            return self.linear(x)
        return -self.linear(x)


class Stack(nn.Module):
    def __init__(self, block: type[nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(block() for _ in range(CALLS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Around(Stack):
    """Decides itself, too, and has a size from data around the calls."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.nonzero().shape[0]
        x = super().forward(x)
        return x + n if x.sum() > 0 else x - n


class WritesResult(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        for block in self.blocks:
            y = block(x)
            y += 1
            x = x + y
        return x


class WritesInput(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, y = x * 1, x * 0
        for block in self.blocks:
            given = block(x)
            x += 1
            y = y + given
        return y


@pytest.mark.long_cases("ThreeWays", "Inner", "NumberOfData", "GivesAView", "Raises")
@pytest.mark.parametrize("block", [TwoWays, ThreeWays, Inner, GivesItsInput, GivesAView, Raises, NumberOfData])
def test_each_call_has_its_branches(block: Any) -> None:
    result = check(Stack(block), SAMPLE, others=OTHERS, dynamic_shapes=AXES)
    ifs = sum(node.op_type == "If" for node in result.model_proto.graph.node)
    assert ifs >= CALLS, "one after the other, not one within another"


@pytest.mark.long
def test_around_calls() -> None:
    check(Around(TwoWays), SAMPLE, others=OTHERS, dynamic_shapes=AXES)


@pytest.mark.long_cases("writes an input that may be the result", "changes an attribute")
@pytest.mark.parametrize(
    "module",
    [lambda: WritesResult(GivesItsInput), lambda: WritesInput(GivesItsInput), lambda: Stack(Counts)],
    ids=["writes a result that may be the input", "writes an input that may be the result", "changes an attribute"],
)
def test_refused(module: Any) -> None:
    with pytest.raises(UserError, match="more than 16 paths") as caught:
        fx2onnx.export(module(), SAMPLE, dynamic_shapes=AXES)
    assert caught.value.code == "E104"
