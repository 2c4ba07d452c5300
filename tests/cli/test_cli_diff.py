"""``fx2onnx diff``: exit codes, text, JSON, and both files on the same inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from typer.testing import Result

import fx2onnx
from tests.cli import support
from tests.diff.disguise import disguised


def invoke(*arguments: object) -> Result:
    return support.invoke("diff", *arguments)


class Halves(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix = torch.nn.Conv2d(6, 5, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        half = torch.nn.functional.max_pool2d(x, 2)
        mixed = self.mix(torch.cat([x, torch.nn.functional.interpolate(half, scale_factor=2)], 1))
        return mixed, mixed.mean((-1, -2))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli_diff") / "plain.onnx"
    shapes = ({0: "batch", 2: "height", 3: "width"},)
    fx2onnx.export(Halves(), (torch.randn(2, 3, 8, 8),), path, dynamic_shapes=shapes)
    return path


@pytest.fixture
def changed(plain: Path, tmp_path: Path) -> Path:
    model = onnx.load(plain)
    (bias,) = (tensor for tensor in model.graph.initializer if tensor.name == "mix.bias")
    bias.raw_data = (numpy_helper.to_array(bias) + np.float32(0.5)).tobytes()
    pool = next(node for node in model.graph.node if node.op_type == "MaxPool")
    pool.op_type = "AveragePool"
    del pool.attribute[:]
    pool.attribute.extend([helper.make_attribute("kernel_shape", [2, 2]), helper.make_attribute("strides", [2, 2])])
    onnx.save(model, tmp_path / "changed.onnx")
    return tmp_path / "changed.onnx"


def test_equal_files(plain: Path, tmp_path: Path) -> None:
    onnx.save(disguised(onnx.load(plain)), tmp_path / "other.onnx")
    done = invoke(plain, tmp_path / "other.onnx")
    assert done.exit_code == 0, done.output
    assert "equal" in done.stdout
    found = json.loads(invoke(plain, tmp_path / "other.onnx", "--json").stdout)
    assert found["equal"] is True
    assert [(row["largest"], row["problem"]) for row in found["numbers"]["outputs"]] == [(0.0, ""), (0.0, "")]
    assert found["numbers"]["sizes"] == {"batch": 2, "height": 2, "width": 4}, "sizes that the conditions allow"


@pytest.mark.parametrize("engine", ["runner", "reference"])
def test_other_files(plain: Path, changed: Path, engine: str) -> None:
    done = invoke(plain, changed, "--json", "--engine", engine, "--dim", "height=6")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["equal"] is False
    assert [row["op_type"] for row in found["nodes"]["added"]] == ["AveragePool"]
    assert [row["op_type"] for row in found["nodes"]["removed"]] == ["MaxPool"]
    (weight,) = found["weights"]["changed"]
    assert (weight["name"], weight["read_by"]) == ("mix.bias", "mix/Conv")
    assert weight["largest"] == pytest.approx(0.5)
    numbers = found["numbers"]
    assert (numbers["engine"], numbers["sizes"]["height"]) == (engine, 6)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 6, 4)).astype(np.float32)
    runs = [fx2onnx.runner.InferenceSession(str(path)).run(None, {"x": x}) for path in (plain, changed)]
    for row, before, after in zip(numbers["outputs"], *runs, strict=True):
        assert row["largest"] == pytest.approx(float(np.abs(before - after).max()), rel=1e-4)
        assert row["scale"] == pytest.approx(float(np.abs(before).max()), rel=1e-5)


def test_the_text_has_what_the_json_has(plain: Path, changed: Path) -> None:
    shown = invoke(plain, changed).stdout
    for text in ("AveragePool", "MaxPool", "mix.bias", "mix/Conv", "1 added", "1 removed", "different", "seed 0",
                 "test_cli_diff.py:", "runner", "batch 2"):  # fmt: skip
        assert text in shown, text
    assert "numbers" not in invoke(plain, changed, "--no-numbers").stdout


def test_numbers_of_small_weights_have_six_digits(plain: Path, changed: Path) -> None:
    one, other = (
        next(numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer if each.name == "mix.bias")
        for path in (plain, changed)
    )
    before, after = (", ".join(f"{number:.6g}" for number in array.tolist()) for array in (one, other))
    assert f"[{before}] -> [{after}]" in invoke(plain, changed).stdout


def test_what_cannot_be_run_is_compared_all_the_same(plain: Path, tmp_path: Path) -> None:
    model = onnx.load(plain)
    model.graph.node.append(helper.make_node("Magic", ["x"], ["magic"], domain="com.example"))
    model.graph.output.append(helper.make_tensor_value_info("magic", TensorProto.FLOAT, None))
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    onnx.save(model, tmp_path / "magic.onnx")
    found = json.loads(invoke(plain, tmp_path / "magic.onnx", "--json").stdout)
    assert [row["op_type"] for row in found["nodes"]["added"]] == ["com.example::Magic"]
    assert "magic.onnx" in found["numbers"]["note"]
    assert found["numbers"]["outputs"] == []
    model.graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [1]))
    onnx.save(model, tmp_path / "more.onnx")
    assert (
        json.loads(invoke(plain, tmp_path / "more.onnx", "--json").stdout)["numbers"]["note"]
        == "the files take other inputs"
    )
    assert "not compared: the files take other inputs" in invoke(plain, tmp_path / "more.onnx").stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["missing.onnx"], "E302"),
        (["bad.onnx"], "E303"),
        (["{plain}", "--engine", "tvm"], "E001"),
        (["{plain}", "--dim", "depth=3"], "E001"),
        (["{plain}", "--dim", "batch=x"], "E001"),
        (["empty"], "E302"),
    ],
)
def test_errors(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.onnx").write_bytes(b"no model at all")
    (tmp_path / "empty").mkdir()
    given = [text.format(plain=plain) for text in arguments]
    done = invoke(plain, *given)
    assert done.exit_code == 2
    assert f"[{code}]" in done.stderr
    assert json.loads(invoke(plain, *given, "--json").stdout)["code"] == code


def test_sizes_that_no_file_allows(plain: Path) -> None:
    done = invoke(plain, plain, "--dim", "height=3", "--json")
    found: Any = json.loads(done.stdout)
    assert found["equal"] is True
    assert found["numbers"]["note"].startswith("no sizes were found")


def test_what_a_terminal_obeys_is_escaped(plain: Path, tmp_path: Path) -> None:
    model = onnx.load(plain)
    model.graph.node[0].name = "\x1b[31mred"
    model.graph.node[0].op_type = "Abs"
    del model.graph.node[0].attribute[:]
    onnx.save(model, tmp_path / "odd.onnx")
    shown = invoke(tmp_path / "odd.onnx", plain, "--no-numbers").stdout
    assert "\x1b[31m" not in shown
    assert r"\x1b[31mred" in shown
