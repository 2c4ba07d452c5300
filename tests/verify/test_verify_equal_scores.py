"""Scores that are equal, in an order that decides how many boxes come out."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
import torchvision
from torch import nn

import fx2onnx
from fx2onnx import verify


class Detector(nn.Module):
    """Boxes in chains of three, of which the first and the last stay where the first is taken first, or the middle one alone.

    Their places are differences of large numbers: engines that add in another order differ by more than rounding's usual share.
    """

    def __init__(self) -> None:
        super().__init__()
        chain = torch.tensor([[0.0, 0.0, 10.0, 10.0], [0.0, 4.0, 10.0, 14.0], [0.0, 8.0, 10.0, 18.0]])
        self.register_buffer("boxes", torch.cat([chain + torch.tensor([20.0 * i, 0.0] * 2) for i in range(30)]))
        self.weight = nn.Parameter(torch.randn(700, 4) * 1e3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        moves = (x @ self.weight) - (x.flip(1) @ self.weight.flip(0))
        boxes = self.boxes + moves
        scores = torch.sigmoid(30.0 + moves[:, 0])
        kept = torchvision.ops.nms(boxes, scores, 0.3)
        return boxes[kept], scores[kept]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Detector, torch.Tensor]:
    torch.manual_seed(0)
    module, x = Detector(), torch.randn(90, 700)
    path = tmp_path_factory.mktemp("equal") / "m.onnx"
    fx2onnx.export(module, (x,), path)
    return path, module, x


def test_the_same_choice_is_right(exported: tuple[Path, Detector, torch.Tensor]) -> None:
    path, module, x = exported
    verdict = verify(path, module, (x,), seeds=())
    assert verdict.ok, verdict.describe()
    assert any(row.by == "rounding" for row in verdict.rows)


def test_boxes_beside_them_are_wrong(exported: tuple[Path, Detector, torch.Tensor], tmp_path: Path) -> None:
    path, module, x = exported
    model = onnx.load(path)
    (boxes,) = (each for each in model.graph.initializer if each.name == "boxes")
    array = onnx.numpy_helper.to_array(boxes).copy()
    array[0, 0] += 2.0
    boxes.CopyFrom(onnx.numpy_helper.from_array(array, "boxes"))
    boxes.name = "boxes.other"  # of the module's name, the weight itself would be compared
    for node in model.graph.node:
        node.input[:] = ["boxes.other" if name == "boxes" else name for name in node.input]
    onnx.save(model, tmp_path / "wrong.onnx")
    assert not verify(tmp_path / "wrong.onnx", module, (x,), seeds=()).ok


class MostFrequent(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        numbers, places = x.mode(0)
        return numbers, places


def test_any_place_of_the_most_frequent_number_is_right(tmp_path: Path) -> None:
    x = torch.randint(3, (80, 5), generator=torch.Generator().manual_seed(0))
    fx2onnx.export(MostFrequent(), (x,), tmp_path / "m.onnx", dynamic_shapes={"x": {0: "rows"}}, verify=True)


def test_a_place_of_another_number_is_wrong(tmp_path: Path) -> None:
    x = torch.rand(20, 5, generator=torch.Generator().manual_seed(0))
    result = fx2onnx.export(MostFrequent(), (x,), output_names=["numbers", "places"])
    model = result.model_proto
    (maker,) = (node for node in model.graph.node if "places" in node.output)
    maker.output[list(maker.output).index("places")] = "right"
    one = onnx.numpy_helper.from_array(torch.ones((), dtype=torch.int64).numpy(), "one")
    model.graph.initializer.append(one)
    model.graph.node.append(onnx.helper.make_node("Add", ["right", "one"], ["places"]))
    onnx.save(model, tmp_path / "wrong.onnx")
    assert not verify(tmp_path / "wrong.onnx", MostFrequent(), (x,)).ok
