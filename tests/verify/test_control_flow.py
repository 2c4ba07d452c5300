"""Verification of modules with ``torch.cond``, ``while_loop`` and ``scan``, whose bodies every judge has to see into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan

import fx2onnx
from fx2onnx import verify


class Chooses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, flag: Tensor) -> Tensor:
        return torch.cond(flag, lambda y: torch.tanh(self.one(y)), lambda y: self.other(y).sigmoid(), (x,)) + 1.0


class Doubles(nn.Module):
    """Turns for ever on numbers whose sum is not positive."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.while_loop(lambda y: y.sum() < 50, lambda y: (y * 2,), (x,))[0] + 1


class Adds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return scan(lambda carry, row: (carry * 0.5 + row, carry * 1.0), torch.zeros(4), x)[1]


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...], str]] = {
    "cond": (Chooses, (torch.rand(3, 4), torch.tensor(True)), "Tanh"),
    "while_loop": (Doubles, (torch.rand(3, 4) + 0.1,), "Mul"),
    "scan": (Adds, (torch.rand(5, 4),), "Mul"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_bodies_are_verified(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, args, op_type = CASES[name]
    module, path = make().eval(), tmp_path / "model.onnx"
    fx2onnx.export(module, args, path)
    verdict = verify(path, module, args)
    assert verdict.ok, verdict
    proto = onnx.load(path)
    bodies = [each.g for node in proto.graph.node for each in node.attribute if each.type == onnx.AttributeProto.GRAPH]
    changed = next(node for body in bodies for node in body.node if node.op_type == op_type)
    changed.op_type = {"Tanh": "Sigmoid", "Mul": "Add"}[op_type]
    onnx.save(proto, tmp_path / "wrong.onnx")
    assert not verify(tmp_path / "wrong.onnx", module, args).ok


@pytest.mark.long
def test_inputs_on_which_a_loop_never_ends_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    args = (torch.rand(3) + 0.1,)
    fx2onnx.export(Doubles(), args, path)
    verdict = verify(path, Doubles(), args)
    assert verdict.ok
    assert any("take far longer than its sizes do" in text for text in verdict.left_out)


def test_float64_judges_bodies_too(tmp_path: Path) -> None:
    """Numbers that float32 hits badly: sums that cancel inside a body."""

    class Cancels(nn.Module):
        def forward(self, x: Tensor, flag: Tensor) -> Tensor:
            return torch.cond(flag, lambda y: (y * 1e4).sum(-1) - (y * 1e4).flip(-1).sum(-1), lambda y: y.sum(-1), (x,))

    path = tmp_path / "model.onnx"
    args = (torch.randn(4, 1000), torch.tensor(True))
    fx2onnx.export(Cancels(), args, path)
    assert verify(path, Cancels(), args).ok
