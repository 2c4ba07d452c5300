"""Scales and zero points of a file have to be those of the module that PT2E quantised, each at its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.ao.quantization.fx import _decomposed  # noqa: F401   makes the operators

import fx2onnx
from fx2onnx import verify
from fx2onnx.judge.verdict import Verdict
from fx2onnx.verify.steps import compare_steps

Q = torch.ops.quantized_decomposed
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Rounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = Q.quantize_per_tensor.default(x, 0.03, 5, -128, 127, torch.int8)
        hidden = self.first(Q.dequantize_per_tensor.default(codes, 0.03, 5, -128, 127, torch.int8))
        codes = Q.quantize_per_tensor.default(hidden, 0.02, -3, -128, 127, torch.int8)
        return self.second(Q.dequantize_per_tensor.default(codes, 0.02, -3, -128, 127, torch.int8))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, onnx.ModelProto]:
    path = tmp_path_factory.mktemp("steps") / "model.onnx"
    module = torch.export.export(Rounded().eval(), (X,)).module()
    fx2onnx.export(module, (X,), path)
    assert verify(path, module, (X,)).ok
    return module, onnx.load(path)


def harmed(model: onnx.ModelProto, place: int, change: Any) -> onnx.ModelProto:
    """The last node back from codes with another scale (place 1) or zero point (place 2)."""
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    node = [node for node in wrong.graph.node if node.op_type == "DequantizeLinear"][-1]
    own = next(value for value in wrong.graph.initializer if value.name == node.input[place])
    array = onnx.numpy_helper.to_array(own)
    wrong.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(change(array), array.dtype), "harmed"))
    node.input[place] = "harmed"
    return wrong


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "change", "said"),
    [
        (1, lambda scale: scale * np.float32(1.001), "has the scale 0.02002"),
        (2, lambda zero: zero + 1, "zero point -2"),
    ],
)
def test_another_scale_or_zero_point_is_found(
    place: int, change: Any, said: str, exported: tuple[nn.Module, onnx.ModelProto], tmp_path: Path
) -> None:
    module, model = exported
    wrong = harmed(model, place, change)
    onnx.save(wrong, tmp_path / "wrong.onnx")
    rows = [row for row in verify(tmp_path / "wrong.onnx", module, (X,)).rows if row.engine == "scales"]
    assert len(rows) == 1
    assert said in rows[0].problem
    wrong.producer_name = "another"
    onnx.save(wrong, tmp_path / "wrong.onnx")
    assert any(said in note for note in verify(tmp_path / "wrong.onnx", module, (X,)).notes)


class Residual(nn.Module):
    """Each layer's output and each sum in steps of its own; in place where torchvision's networks are."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place, layer in enumerate(self.layers):
            near = rounded(layer(rounded(x, 0.02 + place / 100)).relu_(), 0.025 + place / 100)
            near += x
            x = rounded(near, 0.031 + place / 50)
        return x.reshape(x.shape[0], -1).relu()


def rounded(x: torch.Tensor, scale: float) -> torch.Tensor:
    codes = Q.quantize_per_tensor.default(x, scale, 0, -128, 127, torch.int8)
    return Q.dequantize_per_tensor.default(codes, scale, 0, -128, 127, torch.int8)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def residual(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, onnx.ModelProto]:
    path = tmp_path_factory.mktemp("places") / "model.onnx"
    args = (torch.randn(2, 3, 8),)
    batch = torch.export.Dim("batch")
    module = torch.export.export(Residual().eval(), args, dynamic_shapes={"x": {0: batch}}).module()
    fx2onnx.export(module, args, path, dynamic_shapes=({0: batch},))
    return module, onnx.load(path)


def exchanged(model: onnx.ModelProto, one: int, other: int) -> onnx.ModelProto:
    """With the scale and zero point of another node."""
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    wrong.graph.node[one].input[1:] = model.graph.node[other].input[1:]
    return wrong


def scales_that_differ(model: onnx.ModelProto, module: nn.Module) -> list[str]:
    verdict = Verdict()
    compare_steps(verdict, model, "", module)
    return [row.problem for row in verdict.rows]


@pytest.mark.long
def test_the_scale_of_another_place_is_found(residual: tuple[nn.Module, onnx.ModelProto]) -> None:
    module, model = residual
    assert scales_that_differ(model, module) == []
    steps = [
        place for place, node in enumerate(model.graph.node) if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    ]
    assert len(steps) == 18
    scale_of = {place: model.graph.node[place].input[1] for place in steps}
    for one in steps:
        for other in steps:
            if scale_of[one] != scale_of[other]:
                (problem,) = scales_that_differ(exchanged(model, one, other), module)
                assert "is of another place: here the module has" in problem


@pytest.mark.long
def test_parts_that_are_quantised_each_for_itself_keep_the_check_of_all_scales(
    exported: tuple[nn.Module, onnx.ModelProto], residual: tuple[nn.Module, onnx.ModelProto]
) -> None:
    """A node of the file that may belong to either part: a scale of the other part passes, one of none does not."""
    both = nn.ModuleList([exported[0], residual[0]])
    assert scales_that_differ(residual[1], both) == []
    assert scales_that_differ(exchanged(residual[1], 0, 2), both) == []
    assert scales_that_differ(harmed(residual[1], 1, lambda scale: scale * np.float32(1.001)), both) != []


class Written(nn.Module):
    """Writes a sum in place that it reads again by its old name, and another through a view of it."""

    def __init__(self, through_a_view: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.through_a_view = through_a_view

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = rounded(self.first(x), 0.02)
        (kept.view(-1, 8) if self.through_a_view else kept).add_(rounded(self.second(x), 0.03))
        return rounded(kept, 0.04)


@pytest.mark.long
@pytest.mark.parametrize("through_a_view", [False, True])
def test_places_behind_what_is_written_in_place(through_a_view: bool, tmp_path: Path) -> None:
    """The written tensor's graph reads it by the name that it had; through a view nothing is said of places."""
    args = (torch.randn(3, 8),)
    module = torch.export.export(Written(through_a_view).eval(), args, strict=True).module()
    for node in module.graph.nodes:
        if node.op == "call_function" and str(node.target) == "aten.add_.Tensor":
            node.replace_all_uses_with(node.args[0])
    fx2onnx.export(module, args, tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    steps = [place for place, node in enumerate(model.graph.node) if node.op_type == "QuantizeLinear"]
    assert scales_that_differ(model, module) == []
    problems = [
        scales_that_differ(exchanged(model, one, other), module) for one in steps for other in steps if one != other
    ]
    assert all(problems) != through_a_view
    assert any(problems) != through_a_view
