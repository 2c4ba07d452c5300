"""``fx2onnx run`` on a small model made here."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.support import invoke

ENGINES = ["onnxruntime", "runner"]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "onnxruntime":
        pytest.importorskip("onnxruntime")
    return str(request.param)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """x [batch, 3] -> doubled = x + x, count = the shape of x."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["doubled"]), helper.make_node("Shape", ["x"], ["count"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [
            helper.make_tensor_value_info("doubled", TensorProto.FLOAT, ["batch", 3]),
            helper.make_tensor_value_info("count", TensorProto.INT64, [2]),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(proto, tmp_path / "small.onnx")
    return tmp_path / "small.onnx"


def test_outputs_are_described(model: Path, engine: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1, -2, 3], [4, np.nan, 6]], np.float32))
    done = invoke("run", model, "-i", f"x={tmp_path / 'x.npy'}", "--engine", engine, "--json")
    assert done.exit_code == 0, done.output
    doubled, count = json.loads(done.stdout)["outputs"]
    assert (doubled["name"], doubled["shape"], doubled["dtype"]) == ("doubled", [2, 3], "float32")
    assert (doubled["min"], doubled["max"], doubled["nan"], doubled["first"][:3]) == (-4.0, 12.0, 1, [2.0, -4.0, 6.0])
    assert (count["dtype"], count["first"]) == ("int64", [2, 3])


def test_the_table_names_inputs_and_outputs(model: Path, engine: str) -> None:
    done = invoke("run", model, "--dim", "batch=4", "--engine", engine)
    assert done.exit_code == 0, done.output
    assert "[4, 3]" in done.stdout
    assert "float32  random\n" in done.stdout
    assert "doubled" in done.stdout
    assert "count" in done.stdout


def test_outputs_are_saved_and_the_seed_decides_the_inputs(model: Path, engine: str, tmp_path: Path) -> None:
    saved = []
    for number, seed in enumerate((3, 3, 4)):
        file = tmp_path / f"outputs{number}.npz"
        done = invoke("run", model, "--seed", seed, "--output", file, "--engine", engine)
        assert done.exit_code == 0, done.output
        saved.append(np.load(file)["doubled"])
    assert np.array_equal(saved[0], saved[1])
    assert not np.array_equal(saved[0], saved[2])
    assert saved[0].shape == (1, 3)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--input", "y=random"], "E401"),
        (["--input", "x"], "E001"),
        (["--dim", "batch=x"], "E001"),
        (["--dim", "rows=2"], "E001"),
        (["--output", "/no/such/folder/o.npz"], "E301"),
    ],
)
def test_mistakes(model: Path, engine: str, arguments: list[str], code: str) -> None:
    done = invoke("run", model, *arguments, "--engine", engine)
    assert done.exit_code == 2
    assert f"[{code}]" in done.stderr


def test_a_file_that_is_no_model(engine: str, tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"\x08\x99nothing")
    done = invoke("run", tmp_path / "x.onnx", "--engine", engine)
    assert done.exit_code == 2, done.output
    assert "[E30" in done.stderr


def test_a_missing_onnxruntime_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = invoke("run", model, "--engine", "onnxruntime")
    assert done.exit_code == 2
    assert "pip install onnxruntime" in done.stderr


HOSTILE = "[bold]a[/] <img src=x onerror=1> \x1b]8;;https://example.org\x1b\\b\x1b[2J \u202ec"


@pytest.mark.parametrize("arguments", [[], ["--dump-graph", "--dump-ir"], ["--profile"], ["--input", "y=missing.npy"]])
def test_names_of_a_file_are_no_orders(arguments: list[str], tmp_path: Path) -> None:
    """Neither markup nor control sequences of a terminal, in tables, dumps, pictures and errors."""
    shape = ["[red]n[/]\x1b[31m"]
    graph = helper.make_graph(
        [helper.make_node("Neg", [HOSTILE], ["b" + HOSTILE], name="n" + HOSTILE)],
        "g" + HOSTILE,
        [helper.make_tensor_value_info(HOSTILE, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("b" + HOSTILE, TensorProto.FLOAT, shape)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(proto, tmp_path / "hostile.onnx")
    picture = tmp_path / "dag.svg"
    done = invoke("run", tmp_path / "hostile.onnx", "--dump-dag", picture, *arguments)
    assert done.exit_code == (2 if "--input" in arguments else 0), done.output
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", done.output)
    assert "[bold]a[/]" in done.output
    assert r"\x1b]8;;" in done.output
    text = picture.read_text()
    assert "<img" not in text
    assert r"\x1b[2J" in "".join(ElementTree.fromstring(text).itertext())
