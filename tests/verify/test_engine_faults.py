"""An engine's fault becomes an entry of its target's table, and is known by it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx import locate, verify
from fx2onnx.base.errors import UserError
from fx2onnx.judge import engines
from fx2onnx.targets import faults
from fx2onnx.targets.fault_entries import FaultEntry, add_entries, entry_of, read_entries
from fx2onnx.targets.form import find
from fx2onnx.targets.lint import lint
from tests.cli.support import invoke

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
RELEASE = ".".join(onnxruntime.__version__.split(".")[:2])


class Net(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.sin(x) + 1.0, 0) * nn.functional.leaky_relu(x, 0.25)


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "ADDED", [])


@pytest.fixture
def wrong_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime sums along the other axis."""
    sound = engines.ENGINES["onnxruntime"]

    def harmed(model: Any) -> Any:
        proto = onnx.load(model) if isinstance(model, str) else onnx.load_from_string(model)
        for node in proto.graph.node:
            for attribute in node.attribute if node.op_type == "Softmax" else ():
                attribute.i = 1 - attribute.i
        return sound(proto.SerializeToString())

    monkeypatch.setitem(engines.ENGINES, "onnxruntime", harmed)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fx2onnx.export(Net(), (X,), tmp_path / "net.onnx", input_names=["x"])
    return tmp_path / "net.onnx"


@pytest.mark.long
@pytest.mark.usefixtures("wrong_softmax")
def test_what_was_found_is_known_afterwards(path: Path, tmp_path: Path) -> None:
    found = locate(path, Net(), (X,))
    assert found is not None
    assert found.stage == "engine"
    (entry,) = found.faults
    assert (entry.runtime, entry.since, entry.until) == ("onnxruntime", RELEASE, RELEASE)
    assert entry.node.op_type == "Softmax"
    assert entry.node.attributes == {"axis": 0}
    assert "numbers differ" in entry.what
    assert json.dumps(entry.as_dict()) in found.describe()
    table = tmp_path / "faults.json"
    assert add_entries(found.faults, table) == 1
    assert add_entries(found.faults, table) == 0, "it is there"
    assert read_entries(table) == [entry]

    faults.add_table(table)
    again = locate(path, Net(), (X,))
    assert again is not None
    assert again.faults == ()
    assert f"a known fault of onnxruntime: {entry.what}" in again.why
    verdict = verify(path, Net(), (X,))
    assert not verdict.ok
    assert any(note.startswith("a known fault of onnxruntime") for note in verdict.notes)
    findings = lint(onnx.load(path), find("onnxruntime"))
    assert [(each.rule, each.op_type) for each in findings] == [("fault", "Softmax")]
    assert not lint(onnx.load(path), find("onnxruntime-1.19")), "an older release was not tried"
    assert not lint(onnx.load(path), find("openvino"))


def _entry(node: ir.Node) -> FaultEntry:
    return entry_of(node, "onnxruntime", onnxruntime.__version__, "is off")


def test_an_entry_is_as_narrow_as_what_was_seen(tmp_path: Path) -> None:
    def model(alpha: float, second: str, scale: float, first: str = "Mul") -> list[ir.Node]:
        text = f"""<ir_version: 9, opset_import: ["" : 20]> g (float[2, 3] x) => (float[a, b] y)
            <float[1] scale = {{{scale}}}> {{ t = Transpose<perm=[1, 0]>(x)  m = {first}(t, scale)  y = {second}<alpha={alpha}>(m) }}"""
        return list(ir.from_proto(onnx.parser.parse_model(text)).graph)

    entry = _entry(model(0.1, "LeakyRelu", 2.0)[-1])
    add_entries([entry], tmp_path / "faults.json")
    (read,) = read_entries(tmp_path / "faults.json")
    assert read == entry
    assert read.node.fits(model(0.1, "LeakyRelu", 2.0)[-1])
    for other in (
        model(0.2, "LeakyRelu", 2.0),
        model(0.1, "Elu", 2.0),
        model(0.1, "LeakyRelu", 3.0),
        model(0.1, "LeakyRelu", 2.0, "Div"),
    ):
        assert not read.node.fits(other[-1])
    loose = json.loads((tmp_path / "faults.json").read_text())
    del loose[0]["node"]["inputs"], loose[0]["node"]["attributes"]
    (tmp_path / "loose.json").write_text(json.dumps(loose))
    assert read_entries(tmp_path / "loose.json")[0].node.fits(model(0.2, "LeakyRelu", 3.0)[-1])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting"),
        ("{}", "is a list"),
        ("[{}]", "has no node"),
        ('[{"node": {"op_type": 3}}]', "node.op_type is 3"),
        ('[{"node": {"op_type": "Add", "inputs": [3]}}]', "inputs"),
        ('[{"node": {"op_type": "Add", "input": []}}]', "input is not known"),
        ('[{"node": {"op_type": "Add"}, "name": "a"}]', "runtime is missing"),
    ],
)
def test_a_file_that_is_no_table(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "faults.json").write_text(text)
    with pytest.raises(UserError, match="no table of faults") as caught:
        faults.add_table(tmp_path / "faults.json")
    assert why in caught.value.why
    assert faults.ADDED == []


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "fault_models.py").write_text(
        "import torch\nfrom tests.verify.test_engine_faults import Net, X\ndef net():\n    return Net(), X\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield "fault_models:net"
    sys.modules.pop("fault_models", None)


@pytest.mark.long
@pytest.mark.usefixtures("wrong_softmax")
def test_the_commands_write_and_read_the_table(path: Path, source: str, tmp_path: Path) -> None:
    table = tmp_path / "faults.json"
    shown = invoke("locate", path, source, "--faults", table, "--json")
    assert shown.exit_code == 1
    (entry,) = json.loads(shown.stdout)["first_wrong"]["faults"]
    assert json.loads(table.read_text()) == [entry]
    shown = invoke("verify", path, source, "--faults", table, "--json")
    assert shown.exit_code == 1
    assert any(note.startswith("a known fault of onnxruntime") for note in json.loads(shown.stdout)["notes"])
    shown = invoke("lint", path, "--faults", table, "--json")
    assert [each["rule"] for each in json.loads(shown.stdout)["findings"]] == ["fault"]
    assert "E302" in invoke("lint", path, "--faults", tmp_path / "none.json").output
