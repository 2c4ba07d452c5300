"""The first wrong node of a file of another exporter, whose values have names of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from fx2onnx import FirstWrong, locate
from fx2onnx.semantics import registry

X = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(1))
BRANCHES = 3


class Branch(nn.Module):
    """Adds little to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        scores = torch.softmax(y @ y.transpose(-1, -2) / 4, -1)
        return x + self.down(torch.nn.functional.gelu(self.up(scores @ y))) / 64


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Branch() for _ in range(BRANCHES)), nn.LayerNorm(16), nn.Linear(16, 3)).eval()


@pytest.fixture(scope="module")
def written(net: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of torch.onnx."""
    path = tmp_path_factory.mktemp("foreign") / "foreign.onnx"
    torch.onnx.export(net, (X,), path, dynamo=True, verbose=False, external_data=False)
    return path


@pytest.fixture
def proto(written: Path) -> onnx.ModelProto:
    """What a test may harm."""
    made = onnx.load(written)
    assert made.producer_name == "pytorch"
    return made


def scaled(proto: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """The node's result is a twentieth too large."""
    place = next(index for index, each in enumerate(proto.graph.node) if each.name == node.name)
    (name,) = node.output
    node.output[0] = "unscaled"
    proto.graph.node.insert(place + 1, onnx.helper.make_node("Mul", ["unscaled", "factor"], [name], name="scaled"))
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(1.05), "factor"))


def located(net: nn.Module, proto: onnx.ModelProto, path: Path) -> FirstWrong:
    onnx.save(proto, path)
    found = locate(path, net, (X,))
    assert found is not None
    return found


@pytest.mark.long
def test_a_right_file(net: nn.Module, written: Path) -> None:
    assert locate(written, net, (X,)) is None


@pytest.mark.long_cases("Gelu-0", "Gelu-1", "Gelu-2", "LayerNormalization-2")
@pytest.mark.parametrize("branch", range(BRANCHES))
@pytest.mark.parametrize("op_type", ["Gelu", "Softmax", "LayerNormalization"])
def test_an_error_that_is_small_beside_what_it_is_added_to(
    op_type: str, branch: int, net: nn.Module, proto: onnx.ModelProto, tmp_path: Path
) -> None:
    """All values behind it are nearly PyTorch's, and wrong."""
    node = [each for each in proto.graph.node if each.op_type == op_type][branch]
    scaled(proto, node)
    found = located(net, proto, tmp_path / "wrong.onnx")
    assert found.stage == "translation"
    assert {node.name, "scaled"} & set(found.nodes[:2])
    assert found.module_path.split(".")[0] == str(branch)
    assert found.blame.startswith("pytorch")


@pytest.fixture
def wrong_softmax(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The runner's Softmax gives twice what it should."""
    versions = registry._table["", "Softmax"]
    kernel = versions[max(versions)]

    def wrong(out: Any, x: Any, **attributes: Any) -> None:
        kernel.fn(out, x, **attributes)
        out[0][...] *= 2

    monkeypatch.setitem(versions, max(versions), dataclasses.replace(kernel, fn=wrong, prepare=None))
    registry._count_change()
    yield
    registry._count_change()


@pytest.mark.usefixtures("wrong_softmax")
def test_an_engine_is_to_blame_for_a_sound_file(net: nn.Module, proto: onnx.ModelProto, tmp_path: Path) -> None:
    found = located(net, proto, tmp_path / "sound.onnx")
    assert found.stage == "engine"
    assert found.blame.startswith("runner: ")
    assert "Softmax at " in found.blame
    assert found.engines["onnxruntime"] == "agrees with PyTorch"
    assert "Softmax" in found.op_types
