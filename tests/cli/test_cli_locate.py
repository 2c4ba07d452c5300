"""``fx2onnx locate`` and ``fx2onnx testcase``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import fx2onnx
from fx2onnx.sources import resolve
from tests.cli.support import factories, invoke

_MODELS = """
import torch

def net():
    layers = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    return layers, torch.randn(3, 16)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with factories(tmp_path, debug_models=_MODELS):
        source = resolve("debug_models:net")
        fx2onnx.export(source.module, source.args, "net.onnx")
        yield tmp_path


def spoil() -> str:
    proto = onnx.load("net.onnx")
    node = next(node for node in proto.graph.node if node.op_type == "Tanh")
    node.op_type = "Sigmoid"
    onnx.save(proto, "wrong.onnx")
    return str(node.name)


def arrays(folder: Path, side: str) -> list[np.ndarray]:
    return [
        numpy_helper.to_array(onnx.load_tensor(path)) for path in sorted(folder.glob(f"test_data_set_0/{side}_*.pb"))
    ]


@pytest.mark.long
def test_debug_names_the_node_and_writes_a_case(folder: Path) -> None:
    name = spoil()
    shown = invoke("locate", "wrong.onnx", "debug_models:net", "-q", "--case", "case")
    assert shown.exit_code == 1
    assert shown.stdout.startswith(f"first wrong: {name} (file")
    right = invoke("locate", "net.onnx", "debug_models:net", "-q")
    assert (right.exit_code, right.stdout) == (0, "")
    shown = invoke("locate", "wrong.onnx", "debug_models:net", "--case", "other", "--case-weights", "statistics")
    assert shown.exit_code == 1
    assert f"first wrong: {name} (file" in shown.stdout
    assert "aten.tanh.default" in shown.stdout
    assert (folder / "case" / "repro.py").read_text().startswith(f"# first wrong: {name}")
    (x,), (want,) = arrays(folder / "case", "input"), arrays(folder / "case", "output")
    assert np.allclose(np.tanh(x), want, atol=1e-6)
    assert invoke("run", "case").exit_code == 1, "the case shows the fault"
    found = json.loads(invoke("locate", "wrong.onnx", "debug_models:net", "--json").stdout)["first_wrong"]
    assert (found["stage"], found["nodes"], found["op_types"]) == ("file", [name], ["Sigmoid"])


def test_debug_of_a_right_file() -> None:
    shown = invoke("locate", "net.onnx", "debug_models:net")
    assert (shown.exit_code, shown.stdout) == (0, "net.onnx agrees with eager PyTorch\n")
    shown = invoke("locate", "net.onnx", "debug_models:net", "--json")
    assert json.loads(shown.stdout)["first_wrong"] is None


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["locate", "none.onnx", "debug_models:net"], "E302"),
        (["locate", "net.onnx", "debug_models:net", "--engine", "nonesuch"], "E001"),
        (["locate", "net.onnx", "debug_models:net", "--case", "."], "E301"),
        (["testcase", "net.onnx", "-o", "case", "--case-weights", "none"], "E001"),
        (["testcase", "net.onnx", "-o", "net.onnx"], "E301"),
        (["testcase", "none.onnx", "-o", "case"], "E302"),
        (["testcase", "debug_models:net", "-o", "case", "--source", "debug_models:net"], "E001"),
        (["testcase", "debug_models:net", "-o", "case", "--input", "x=random"], "E001"),
        (["testcase", "net.onnx", "-o", "case", "--input", "nonesuch=random"], "E401"),
    ],
)
def test_what_is_asked_for_wrongly(arguments: list[str], code: str, folder: Path) -> None:
    before = sorted(folder.iterdir())
    shown = invoke(*arguments, "--json")
    assert shown.exit_code == 2
    assert json.loads(shown.stdout)["code"] == code
    assert sorted(folder.iterdir()) == before, "nothing is written"


@pytest.mark.parametrize(
    "arguments", [["net.onnx", "--source", "debug_models:net"], ["debug_models:net"], ["net.onnx", "--seed", "3"]]
)
def test_a_test_case_agrees_with_itself(arguments: list[str], folder: Path) -> None:
    assert invoke("testcase", *arguments, "-o", "case", "-q").exit_code == 0
    assert sorted(path.name for path in (folder / "case").iterdir()) == ["model.onnx", "repro.py", "test_data_set_0"]
    assert invoke("run", "case").exit_code == 0
    assert invoke("run", "case", "--engine", "onnxruntime").exit_code == 0


def test_the_outputs_of_a_source_are_those_of_pytorch(folder: Path) -> None:
    assert invoke("testcase", "net.onnx", "--source", "debug_models:net", "-o", "case").exit_code == 0
    source = resolve("debug_models:net")
    (x,), (want,) = arrays(folder / "case", "input"), arrays(folder / "case", "output")
    assert np.array_equal(x, source.args[0].numpy())
    assert np.array_equal(want, source.module(*source.args).detach().numpy())


def test_stripped_weights_are_gone_and_their_statistics_kept(folder: Path) -> None:
    assert invoke("testcase", "net.onnx", "-o", "case", "--case-weights", "statistics").exit_code == 0
    before = {each.name: numpy_helper.to_array(each) for each in onnx.load("net.onnx").graph.initializer}
    after = {each.name: numpy_helper.to_array(each) for each in onnx.load("case/model.onnx").graph.initializer}
    statistics = json.loads((folder / "case" / "weights.json").read_text())
    (name,) = statistics
    assert statistics[name]["std"] == pytest.approx(before[name].std(), rel=1e-5)
    assert abs(np.corrcoef(before[name].ravel(), after[name].ravel())[0, 1]) < 0.5
    assert arrays(folder / "case", "output") == [], "they would give the weights away, and be wrong"
    assert invoke("run", "case").exit_code == 0
