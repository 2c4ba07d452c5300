"""The first wrong node of files that are right on the sample, and wrong on other inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

import fx2onnx
from fx2onnx.verify import FirstWrong, Verdict, locate, verify

aten = torch.ops.aten
IDS = torch.tensor([[3, 1, 2, 3, 1], [2, 2, 1, 3, 3]])
MASK = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]])


class Padded(nn.Module):
    """The mean of the embeddings that are not masked, by heads."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, 8), nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.head(self.words(ids)) * mask[..., None]
        heads = torch.tanh(hidden.reshape(ids.shape[0], ids.shape[1], 2, 4).transpose(1, 2))
        return torch.softmax(heads @ heads.transpose(-1, -2), -1) @ heads


@pytest.fixture
def module() -> Padded:
    torch.manual_seed(0)
    return Padded().eval()


@pytest.fixture
def proto(module: Padded, tmp_path: Path) -> onnx.ModelProto:
    """A file that is right."""
    shapes = {"ids": {0: "batch", 1: "length"}, "mask": {0: "batch", 1: "length"}}
    fx2onnx.export(module, (IDS, MASK), tmp_path / "net.onnx", external_data=False, dynamic_shapes=shapes)
    assert locate(tmp_path / "net.onnx", module, (IDS, MASK)) is None
    return onnx.load(tmp_path / "net.onnx")


def located(proto: onnx.ModelProto, path: Path, module: nn.Module) -> FirstWrong:
    onnx.save(proto, path)
    found = locate(path, module, (IDS, MASK))
    assert found is not None
    assert found.on in found.describe()
    assert found.as_dict()["on"] == found.on
    return found


def clip_ids(proto: onnx.ModelProto) -> None:
    """A Min node on the ids, which lets those of the sample pass."""
    graph = proto.graph
    for node in graph.node:
        node.input[:] = ["clipped" if name == "ids" else name for name in node.input]
    graph.initializer.append(numpy_helper.from_array(np.array(3), "most"))
    graph.node.insert(0, helper.make_node("Min", ["ids", "most"], ["clipped"], name="clip"))


@pytest.mark.long
def test_ids_beyond_those_of_the_sample(module: Padded, proto: onnx.ModelProto, tmp_path: Path) -> None:
    clip_ids(proto)
    found = located(proto, tmp_path / "wrong.onnx", module)
    assert found.nodes[0] == "clip"
    assert found.module_path == "words"
    assert "\n  on " in found.describe()


@pytest.mark.long
def test_a_size_that_is_baked(module: Padded, proto: onnx.ModelProto, tmp_path: Path) -> None:
    node = next(node for node in proto.graph.node if node.op_type == "Reshape")
    proto.graph.initializer.append(numpy_helper.from_array(np.array([2, 5, 2, 4]), "sizes"))
    node.input[1] = "sizes"
    found = located(proto, tmp_path / "wrong.onnx", module)
    assert node.name in found.nodes
    assert found.on.startswith("sizes ")
    assert found.shape != (2, 5, 2, 4)


@pytest.mark.long
def test_an_input_that_vanished(module: Padded, proto: onnx.ModelProto, tmp_path: Path) -> None:
    (value,) = [value for value in proto.graph.input if value.name == "mask"]
    proto.graph.input.remove(value)
    proto.graph.initializer.append(numpy_helper.from_array(MASK.numpy(), "mask"))
    readers = {node.name for node in proto.graph.node if "mask" in node.input}
    found = located(proto, tmp_path / "wrong.onnx", module)
    assert readers & set(found.nodes)
    assert "mask" in found.on
    assert (found.stage, found.blame) == ("file", "the file")
    assert "the file was changed" in found.why
    assert found.case is not None


@pytest.mark.long
def test_what_is_wrong_on_the_sample_is_found_there(module: Padded, proto: onnx.ModelProto, tmp_path: Path) -> None:
    next(node for node in proto.graph.node if node.op_type == "Softmax").op_type = "LogSoftmax"
    assert located(proto, tmp_path / "wrong.onnx", module).on == ""


@pytest.mark.long
def test_the_inputs_of_a_verdict(module: Padded, proto: onnx.ModelProto, tmp_path: Path) -> None:
    verdict = verify(tmp_path / "net.onnx", module, (IDS, MASK))
    assert (verdict.ok, verdict.wrong_on) == (True, None)
    clip_ids(proto)
    onnx.save(proto, tmp_path / "wrong.onnx")
    verdict = verify(tmp_path / "wrong.onnx", module, (IDS, MASK))
    assert verdict.wrong_on is not None
    (ids, mask), named = verdict.wrong_on
    assert int(ids.max()) > 3
    assert mask.shape == ids.shape
    assert named == {}
    assert "wrong_on" not in verdict.as_dict()
    json.dumps(verdict.summary())
    assert verdict == Verdict(**{name: getattr(verdict, name) for name in Verdict.__slots__ if name != "wrong_on"})
    found = locate(tmp_path / "wrong.onnx", module, (IDS, MASK), verdict=verdict)
    assert found is not None
    assert found.nodes[0] == "clip"
    assert found == locate(tmp_path / "wrong.onnx", module, (IDS, MASK))


@pytest.mark.long
def test_the_error_of_an_export_says_where(module: Padded) -> None:
    def wrapped(
        op: Any,
        weight: Any,
        indices: Any,
        padding_idx: int = -1,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Any:
        return op.Gather(weight, op.Mod(indices, op.const(4)))

    with pytest.raises(fx2onnx.VerificationError) as caught:
        fx2onnx.export(module, (IDS, MASK), custom_translations={aten.embedding.default: wrapped}, verify=True)
    found = caught.value.first_wrong
    assert found.stage == "translation"
    assert "Mod" in found.op_types
    assert found.on
    assert "clipped" in found.blame or Path(__file__).name in found.blame
