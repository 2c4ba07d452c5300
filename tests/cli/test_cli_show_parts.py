"""``fx2onnx inspect``: sizes by module, tied weights, dynamic dims, where nodes come from; the page's option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import fx2onnx
from fx2onnx.cli.show_parts import ShownWeight, owner_of
from fx2onnx.irx.names import SCOPES, STACK_TRACE, scope_of, source_of
from tests.cli.support import invoke


def facts(path: Path) -> Any:
    done = invoke("inspect", path, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(7, 6)
        self.blocks = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6))
        self.head = torch.nn.Bilinear(6, 6, 7, bias=False)
        self.out = torch.nn.Embedding(7, 6)
        self.out.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.embed(ids)) + self.out((ids + 1) % 7)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parts") / "tied.onnx"
    fx2onnx.export(Tied().eval(), (torch.tensor([[1, 2, 3]]),), path, dynamic_axes={"ids": {0: "batch", 1: "length"}})
    return path


def test_modules_and_their_sizes(tied: Path) -> None:
    found = {row["module"]: row for row in facts(tied)["modules"]}
    parameters = {name: parameter.numel() for name, parameter in Tied().named_parameters() if "head" not in name}
    assert found["blocks"]["parameters"] == sum(
        count for name, count in parameters.items() if name.startswith("blocks")
    )
    assert found["blocks.0"] == {
        "module": "blocks.0",
        "nodes": found["blocks.0"]["nodes"],
        "parameters": 56,
        "bytes": 224,
    }
    assert found["embed"]["parameters"] == 42
    assert found["out"]["parameters"] == 0, "it is the other one's weight"
    inner = ("embed", "blocks", "out")
    proto = onnx.load(tied)
    assert found[""]["nodes"] == len(proto.graph.node) >= sum(found[name]["nodes"] for name in inner)
    assert found[""]["bytes"] == sum(numpy_helper.to_array(tensor).nbytes for tensor in proto.graph.initializer)
    order = [row["module"] for row in facts(tied)["modules"]]
    assert order[0] == ""
    assert order.index("blocks") < order.index("blocks.0") < order.index("blocks.2")


def test_tied_weights_dims_and_lines(tied: Path) -> None:
    found = facts(tied)
    (row,) = found["tied"]
    assert (row["weights"], sorted(row["modules"]), row["bytes"]) == (["embed.weight"], ["embed", "out"], 168)
    output = onnx.load(tied).graph.output[0].name
    assert found["dims"] == {
        "batch": ["input ids, axis 0", f"output {output}, axis 0"],
        "length": ["input ids, axis 1", f"output {output}, axis 1"],
    }
    assert sum(row["nodes"] for row in found["sources"]) >= found["nodes"] - 1
    assert all("test_cli_show_parts.py:" in row["source"] for row in found["sources"])
    assert found["parameters"] == sum(numpy_helper.to_array(t).size for t in onnx.load(tied).graph.initializer)
    shown = invoke("inspect", tied).stdout
    for text in (
        "embed.weight",
        "read by",
        "blocks.0",
        "56",
        "test_cli_show_parts.py:",
        "input ids, axis 1",
        "parameters",
    ):
        assert text in shown, text


def copies(*arrays: np.ndarray[Any, Any], external: bool = False) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, f"w{index}") for index, array in enumerate(arrays)]
    if external:
        for tensor in tensors:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="w.data")
            tensor.external_data.add(key="offset", value="64")
    nodes = [
        helper.make_node("MatMul", ["x", t.name], [f"y{t.name}"], f"/layer/layer.{t.name}/MatMul") for t in tensors
    ]
    kind = tensors[0].data_type
    x = helper.make_tensor_value_info("x", kind, [2, len(arrays[0])])
    y = helper.make_tensor_value_info("yw0", kind, None)
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], tensors))


ONCE = np.arange(16, dtype=np.float32).reshape(4, 4)


@pytest.mark.parametrize(
    ("arrays", "tied"),
    [((ONCE, ONCE + 1, ONCE), [["w0", "w2"]]), ((ONCE * 0, ONCE * 0), []), ((ONCE[:2], ONCE[:2]), []), ((ONCE.astype(np.int64),) * 2, [])],
    ids=["same", "zeros", "few", "indices"],
)  # fmt: skip
def test_equal_contents_are_tied_where_that_says_something(arrays: Any, tied: list[list[str]], tmp_path: Path) -> None:
    onnx.save(copies(*arrays), tmp_path / "m.onnx")
    assert [row["weights"] for row in facts(tmp_path / "m.onnx")["tied"]] == tied


def test_one_place_in_another_file_is_tied(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(copies(ONCE, ONCE + 1, external=True).SerializeToString())
    found = facts(tmp_path / "m.onnx")
    assert [row["weights"] for row in found["tied"]] == [["w0", "w1"]]
    assert [row["module"] for row in found["modules"]] == ["", "layer", "layer.w0", "layer.w1"]


@pytest.mark.parametrize(
    ("name", "metadata", "scope"),
    [
        ("encoder.0/Gemm", {}, "encoder.0"),
        ("Add", {}, ""),
        ("/layer1/layer1.0/conv1/Conv", {}, "layer1.0.conv1"),
        ("node_linear", {SCOPES: "['', 'encoder', 'encoder.0', 'linear']"}, "encoder.0"),
        ("a/b", {SCOPES: "no list ["}, "a"),
        ("a/b", {SCOPES: "[" * 9000}, "a"),
        ("", {SCOPES: "['linear']"}, ""),
    ],
)
def test_modules_as_exporters_write_them(name: str, metadata: dict[str, str], scope: str) -> None:
    assert scope_of(name, metadata) == scope


def test_lines_as_exporters_write_them() -> None:
    assert source_of({"source": "net.py:3; net.py:7"}) == "net.py:3; net.py:7"
    trace = 'File "/a/net.py", line 3, in forward\n  x\nFile "/b/linear.py", line 9, in forward'
    assert source_of({STACK_TRACE: trace}) == "/b/linear.py:9"
    assert source_of({}) == ""


def test_a_weight_belongs_to_the_module_of_its_name() -> None:
    """An embedding that the head reads first is still the embedding's."""
    weight = ShownWeight("embed.weight", "FLOAT", [4, 2], 32, (), ["head", "embed"])
    assert owner_of(weight, {"", "embed", "head"}) == "embed"
    assert owner_of(weight, {"", "head"}) == "head"


@pytest.mark.long
def test_the_page_is_written_whole_or_not_at_all(tied: Path, tmp_path: Path) -> None:
    done = invoke("inspect", tied, "--html", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    assert "tied.onnx" in done.stdout
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    before = tied.read_bytes()
    for page, code in ((tied, "E301"), (tmp_path / "missing" / "page.html", "E301")):
        refused = invoke("inspect", tied, "--html", page)
        assert (refused.exit_code, f"[{code}]" in refused.stderr) == (2, True)
    assert tied.read_bytes() == before
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    assert invoke("inspect", tmp_path / "bad.onnx", "--html", tmp_path / "bad.html").exit_code == 2
    assert not (tmp_path / "bad.html").exists()


def test_a_verdict_as_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page_models.py").write_text(
        "import torch\ndef relu():\n    return torch.nn.ReLU(), (torch.randn(2, 3),)\n"
    )
    fx2onnx.export(torch.nn.ReLU(), (torch.randn(2, 3),), "m.onnx")
    done = invoke("verify", "m.onnx", "page_models:relu", "--engine", "runner", "--html", "v.html")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "v.html").read_text()
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert (data["file"], data["source"], data["verdict"]["ok"]) == ("m.onnx", "page_models:relu", True)
    assert {row["engine"] for row in data["verdict"]["rows"]} == {"runner"}
    refused = invoke("verify", "m.onnx", "page_models:none", "--html", "m.onnx")
    assert refused.exit_code == 2
    assert "[E301]" in refused.stderr, "before the model is built"
