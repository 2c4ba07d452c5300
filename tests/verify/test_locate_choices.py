"""The first wrong node behind choices among equal numbers, among random numbers, and of outputs in another order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

import fx2onnx
from fx2onnx import locate
from fx2onnx.aten_map import TABLE
from fx2onnx.verify.locating.aten_values import takes_equal
from fx2onnx.verify.locating.side_by_side import SideBySide, Suspect

EXPERTS = torch.tensor([[2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2] * 4])


class Routed(nn.Module):
    """Rows in the order of their experts, as PyTorch happens to sort them, and back in their own order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.drop, self.up, self.down = nn.Dropout(), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, experts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        _, order = torch.sort(experts.reshape(-1))
        rows = x.reshape(-1, 4)[order] * 2
        back = torch.empty_like(order).scatter(0, order, torch.arange(len(order)))
        made = self.down(self.up(self.drop(rows)).relu())[back]
        return made.reshape(x.shape), x.sum(-1), experts.reshape(-1)[order]


@pytest.fixture
def routed(tmp_path: Path) -> tuple[Routed, tuple[torch.Tensor, torch.Tensor], Path]:
    module, args = Routed().eval(), (torch.randn(1, 64, 4), EXPERTS)
    fx2onnx.export(module, args, tmp_path / "m.onnx", output_names=["made", "sums", "sorted"])
    return module, args, tmp_path / "m.onnx"


@pytest.mark.long
def test_places_of_equal_numbers_are_nobodys_fault(routed: tuple[Routed, tuple[torch.Tensor, ...], Path]) -> None:
    module, args, path = routed
    assert locate(path, module, args) is None
    model = onnx.load(path)
    weight = next(each for each in model.graph.initializer if "down" in each.name and "weight" in each.name)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.5, weight.name))
    onnx.save(model, path)
    found = locate(path, module, args)
    assert found is not None
    assert [name.split("/")[0] for name in found.nodes] == ["down"], found.describe()


@pytest.fixture
def unwritten_memory() -> Iterator[None]:
    """Holds the largest integers and NaN."""
    torch.use_deterministic_algorithms(True)  # fills what is not written
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.long
@pytest.mark.usefixtures("unwritten_memory")
def test_numbers_that_nobody_wrote_are_nobodys_fault(routed: tuple[Routed, tuple[torch.Tensor, ...], Path]) -> None:
    module, args, path = routed
    assert torch.empty(3, dtype=torch.int64).eq(torch.iinfo(torch.int64).max).all()
    axes = {"x": {1: "rows"}, "experts": {1: "rows"}}
    fx2onnx.export(module, args, path, output_names=["made", "sums", "sorted"], dynamic_shapes=axes)
    assert any(node.op_type == "ConstantOfShape" for node in onnx.load(path).graph.node)
    test_places_of_equal_numbers_are_nobodys_fault(routed)


def test_a_sort_of_other_numbers_is_wrong(routed: tuple[Routed, tuple[torch.Tensor, ...], Path]) -> None:
    module, args, path = routed
    model = onnx.load(path)
    node = next(node for node in model.graph.node if node.op_type == "TopK")
    largest = next(each for each in node.attribute if each.name == "largest")
    largest.i = 1 - largest.i
    onnx.save(model, path)
    found = locate(path, module, args)
    assert found is not None
    assert node.name in found.nodes


def test_random_numbers_that_pytorch_does_not_draw(routed: tuple[Routed, tuple[torch.Tensor, ...], Path]) -> None:
    """Dropout is in the graph, and draws nothing here."""
    module, args, path = routed
    model = onnx.load(path)
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    place, node = next((at, node) for at, node in enumerate(model.graph.node) if relu.input[0] in node.output)
    name, node.output[0] = node.output[0], "before"
    noise = [
        helper.make_node("RandomNormalLike", ["before"], ["noise"], name="noise", scale=0.1),
        helper.make_node("Add", ["before", "noise"], [name], name="added"),
    ]
    for offset, each in enumerate(noise):
        model.graph.node.insert(place + 1 + offset, each)
    onnx.save(model, path)
    found = locate(path, module, args)
    assert found is not None
    assert {"noise", "added"} & set(found.nodes), found.describe()


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x) + torch.rand_like(x).sum())


def test_random_numbers_that_pytorch_draws_too_are_nobodys_fault(tmp_path: Path) -> None:
    module, x, path = Noisy().eval(), torch.randn(3, 4), tmp_path / "m.onnx"
    fx2onnx.export(module, (x,), path)
    model = onnx.load(path)
    weight = next(each for each in model.graph.initializer if "down" in each.name and "weight" in each.name)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.5, weight.name))
    onnx.save(model, path)
    found = locate(path, module, (x,))
    assert found is not None
    assert [name.split("/")[0] for name in found.nodes] == ["down"], found.describe()


def test_only_what_is_wrong_in_the_file_itself_is_named(
    routed: tuple[Routed, tuple[torch.Tensor, ...], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that differs with PyTorch's inputs alone did not make the file wrong."""
    module, args, path = routed
    model = onnx.load(path)
    weight = next(each for each in model.graph.initializer if "down" in each.name and "weight" in each.name)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.5, weight.name))
    onnx.save(model, path)
    suspects = SideBySide.suspects

    def more(side: SideBySide) -> Iterator[Suspect]:
        found = list(suspects(side))
        innocent = next(name for name in side.known if name not in side.deviating)
        yield from [Suspect(innocent, found[0].difference), *found]

    monkeypatch.setattr(SideBySide, "suspects", more)
    named = locate(path, module, args)
    assert named is not None
    assert [name.split("/")[0] for name in named.nodes] == ["down"], named.describe()


def test_outputs_in_another_order(routed: tuple[Routed, tuple[torch.Tensor, ...], Path]) -> None:
    module, args, path = routed
    model = onnx.load(path)
    outputs = [*model.graph.output][::-1]
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    onnx.save(model, path)
    found = locate(path, module, args)
    assert found is not None
    assert "the file has forward's outputs 1 to 3 in the order 3, 2, 1" in found.describe()
    made = {name for node in model.graph.node for name in [node.name] if node.output[0] in ("made", "sorted")}
    assert set(found.nodes) == made


@pytest.mark.parametrize(
    ("got", "is_right"),
    [([0, 2, 1, 3], True), ([2, 0, 1, 3], True), ([0, 0, 1, 3], False), ([1, 2, 0, 3], False), ([0, 2, 1, 4], False)],
)
def test_which_places_are_as_good(got: list[int], is_right: bool) -> None:
    own, want = np.array([1.0, 2.0, 1.0, 3.0]), np.array([0, 2, 1, 3])
    assert takes_equal(np.array(got), want, own, 0) is is_right


@pytest.mark.parametrize(("got", "is_right"), [([2, 1], True), ([0, 1], True), ([1, 1], False), ([2, 0], False)])
def test_which_place_without_its_axis_is_as_good(got: list[int], is_right: bool) -> None:
    own = np.array([[1.0, 3.0], [2.0, 2.0], [1.0, 4.0]])
    assert takes_equal(np.array(got), np.array([0, 1]), own, 0) is is_right


class Attends(nn.Module):
    """No dropout here."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x) + 1.0


def test_engines_that_drop_numbers_and_others_that_do_not_are_not_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = torch.ops.aten.scaled_dot_product_attention.default
    (entry,) = TABLE.entries[attention]

    def drops(op: Any, **arguments: Any) -> Any:
        return entry.function(op, **(arguments | {"dropout_p": 0.25}))

    monkeypatch.setitem(TABLE.entries, attention, [replace(entry, function=drops)])
    args = (torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0)),)
    found = locate(fx2onnx.export(Attends(), args), Attends(), args)
    assert found is not None
    assert found.stage == "translation"


class Ordered(nn.Module):
    """Rows in the order of their scores, of which many are equal."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = torch.sort(x[:, 0], descending=True).indices
        return x[order] * 2.0


def test_an_order_of_equal_numbers_is_said_to_be_one(tmp_path: Path) -> None:
    x = torch.cat([EXPERTS.reshape(-1, 1).float(), torch.randn(64, 3)], 1)
    result = fx2onnx.export(Ordered(), (x,), tmp_path / "m.onnx")
    found = locate(result, Ordered(), (x,))
    assert found is not None
    assert found.stage == "ties", found.describe()
    assert found.op_types == ("TopK",)
    assert "aten.sort" in found.aten[-1]
    assert "which of equal numbers" in found.describe()
