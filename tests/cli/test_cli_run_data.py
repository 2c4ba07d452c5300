"""``fx2onnx run``: dumps, profiles, comparisons and test case directories."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from typer.testing import Result

import fx2onnx
from fx2onnx.base.errors import VerificationError
from fx2onnx.cli.run_data import assert_outputs
from tests.cli import support


def invoke(*arguments: object) -> Result:
    return support.invoke("run", *arguments)


def save(nodes: list, inputs: list, outputs: list, constants: list, path: Path) -> Path:
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.fixture
def constant_add(tmp_path: Path) -> Path:
    """Two constant vectors added, and a second Add that nothing reads."""
    constants = [
        numpy_helper.from_array(np.array([41.7, 4.4, 8.6], np.float32), "a"),
        numpy_helper.from_array(np.array([10, 10, 20], np.float32), "b"),
    ]
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Add", ["a", "a"], ["dead"])]
    return save(nodes, [], [helper.make_tensor_value_info("sum", 1, [3])], constants, tmp_path / "add.onnx")


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A test case directory of two data sets; y = -x, and y is recorded for both."""
    folder = tmp_path / "case"
    folder.mkdir()
    info = helper.make_tensor_value_info
    save(
        [helper.make_node("Neg", ["x"], ["y"])], [info("x", 1, ["n"])], [info("y", 1, ["n"])], [], folder / "model.onnx"
    )
    for number in range(2):
        sub = folder / f"test_data_set_{number}"
        sub.mkdir()
        x = np.arange(3 + number, dtype=np.float32)
        (sub / "input_0.pb").write_bytes(numpy_helper.from_array(x, "x").SerializeToString())
        (sub / "output_0.pb").write_bytes(numpy_helper.from_array(-x, "y").SerializeToString())
    return folder


def test_constant_add_has_one_add(constant_add: Path, tmp_path: Path) -> None:
    done = invoke(constant_add, "--dump-graph", "--dump-ir", "--dump-dag", tmp_path / "dag.svg")
    assert done.exit_code == 0, done.output
    assert "[51.7, 14.4, 28.6]" in done.stdout
    assert "model  tiny  (add.onnx)" in done.stdout
    assert done.stdout.count("= Add(") == 1
    assert done.stdout.count(" add @out") == 1
    assert "dead" not in done.stdout
    assert sum(element.tag.endswith("rect") for element in ElementTree.parse(tmp_path / "dag.svg").iter()) == 1


def test_json_holds_dumps_and_profile(constant_add: Path) -> None:
    done = invoke(constant_add, "--dump-graph", "--dump-ir", "--profile", "--json")
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert shown["model"] == "tiny"
    assert shown["graph"].count("Add(") == 1
    assert shown["ir"].startswith("program tiny: 1 steps")
    assert [(row["op_type"], row["count"]) for row in shown["profile"]] == [("Add", 1)]


@pytest.mark.parametrize("engine", ["runner", "onnxruntime"])
def test_profile_and_trace(case: Path, tmp_path: Path, engine: str) -> None:
    if engine == "onnxruntime":
        pytest.importorskip("onnxruntime")
    trace = tmp_path / "trace.json"
    done = invoke(case / "model.onnx", "--dim", "n=5", "--profile", "--trace", trace, "--engine", engine)
    assert done.exit_code == 0, done.output
    assert "Neg" in done.stdout
    assert any(event["name"] == "model_run" for event in json.loads(trace.read_text()))


@pytest.mark.parametrize("engine", ["runner", "onnxruntime"])
def test_a_folder_runs_all_its_data_sets(case: Path, engine: str) -> None:
    if engine == "onnxruntime":
        pytest.importorskip("onnxruntime")
    done = invoke(case, "--engine", engine, "--json")
    assert done.exit_code == 0, done.output
    assert [data["outputs"][0]["shape"] for data in json.loads(done.stdout)["data_sets"]] == [[3], [4]]


def test_one_data_set(case: Path) -> None:
    done = invoke(case / "model.onnx", "--test-data", case / "test_data_set_1", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["outputs"][0]["first"] == [0, -1, -2, -3]


def test_wrong_recorded_output(case: Path) -> None:
    wrong = numpy_helper.from_array(np.array([0, -1, -2, -3.5], np.float32), "y")
    (case / "test_data_set_1" / "output_0.pb").write_bytes(wrong.SerializeToString())
    done = invoke(case)
    assert done.exit_code == 1
    assert "1 of 4 values, first at [3]: -3.0 instead of -3.5" in done.stderr
    assert invoke(case, "--atol", "0.6").exit_code == 0


@pytest.mark.parametrize(("name", "dtype", "near"), [("float", np.float32, 3e-7), ("half", np.float16, 1e-3)])
def test_numbers_near_zero_are_compared_by_the_outputs_scale(
    tmp_path: Path, name: str, dtype: Any, near: float
) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, y = (helper.make_tensor_value_info(each, kind, [2]) for each in "xy")
    save([helper.make_node("Identity", ["x"], ["y"])], [x], [y], [], tmp_path / "model.onnx")
    given, wanted = np.array([1.7, 0], dtype), np.array([1.7, near], dtype)
    (tmp_path / "input_0.pb").write_bytes(numpy_helper.from_array(given, "x").SerializeToString())
    (tmp_path / "output_0.pb").write_bytes(numpy_helper.from_array(wanted, "y").SerializeToString())
    done = invoke(tmp_path)
    assert done.exit_code == 0, done.output
    assert "equal to" in done.stdout
    assert invoke(tmp_path, "--quiet").stdout == ""
    strict = invoke(tmp_path, "--atol", "1e-7")
    assert strict.exit_code == 1
    assert "--atol" in strict.stderr.partition("next")[2]
    wanted[1] = 100 * near
    (tmp_path / "output_0.pb").write_bytes(numpy_helper.from_array(wanted, "y").SerializeToString())
    assert invoke(tmp_path).exit_code == 1


def test_random_inputs_are_of_sizes_that_the_model_is_for(tmp_path: Path) -> None:
    net, file = torch.nn.Conv1d(1, 1, 4), tmp_path / "conv.onnx"
    fx2onnx.export(net, (torch.ones(1, 1, 9),), file, dynamic_shapes=({2: "length"},))
    done = invoke(file, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["inputs"][0]["shape"] == [1, 1, 4]
    assert invoke(file, "--dim", "length=3").exit_code == 2


def test_sequences_come_from_files(tmp_path: Path) -> None:
    info = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    out = helper.make_tensor_value_info("y", TensorProto.INT64, [])
    save([helper.make_node("SequenceLength", ["s"], ["y"])], [info], [out], [], tmp_path / "model.onnx")
    items = numpy_helper.from_list([np.ones(2, np.float32), np.ones(3, np.float32)], "s")
    (tmp_path / "input_0.pb").write_bytes(items.SerializeToString())
    done = invoke(tmp_path, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["outputs"][0]["first"] == [2]


def test_saved_outputs_are_compared(case: Path, tmp_path: Path) -> None:
    saved = tmp_path / "o.npz"
    file = case / "model.onnx"
    assert invoke(file, "--seed", 3, "--output", saved).exit_code == 0
    assert invoke(file, "--seed", 3, "--assert-outputs", saved, "--rtol", "0", "--atol", "0").exit_code == 0
    done = invoke(file, "--seed", 4, "--assert-outputs", saved, "--json")
    assert done.exit_code == 1
    assert '"code": "E501"' in done.stdout


@pytest.mark.parametrize(
    ("given", "wanted", "text"),
    [
        (np.ones(3, np.float32), np.ones(3), "float32 instead of float64"),
        (np.ones(3), np.ones((3, 1)), r"shape \[3\] instead of \[3, 1\]"),
        (np.array([1, 2]), np.array([1, 3]), "2 instead of 3"),
        (np.array([np.nan]), np.array([1.0]), "nan instead of 1.0"),
        ([np.ones(1)], [np.ones(1), np.ones(1)], "1 items instead of 2"),
        (np.array(["a"], object), np.array(["b"], object), "1 of 1 strings"),
        (None, np.ones(1), "NoneType"),
        ({"a": 1.0}, {"b": 1.0}, "other keys"),
    ],
)
def test_differences(given: object, wanted: object, text: str) -> None:
    assert_outputs({"y": wanted}, {"y": wanted}, 0, 0, "twin")
    with pytest.raises(VerificationError, match=text):
        assert_outputs({"y": given}, {"y": wanted}, 1e-3, 1e-7, "file")


MISTAKES: dict[str, tuple[Callable[[Path], list[object]], str]] = {
    "no test data": (lambda case: [case / "model.onnx", "--test-data", case.parent], "E302"),
    "data and inputs": (lambda case: [case, "--dim", "n=3"], "E001"),
    "several sets, one file": (lambda case: [case, "--output", case / "o.npz"], "E001"),
    "empty folder": (lambda case: [case / "test_data_set_0"], "E302"),
    "no such file": (lambda case: [case / "model.onnx", "--assert-outputs", case / "o.npz"], "E302"),
    "not a .npz file": (lambda case: [case / "model.onnx", "--assert-outputs", case / "model.onnx"], "E302"),
    "dump of another engine": (lambda case: [case, "--dump-ir", "--engine", "onnxruntime"], "E001"),
    "no folder for the picture": (lambda case: [case, "--dump-dag", case / "no" / "d.svg"], "E301"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str, case: Path) -> None:
    arguments, code = MISTAKES[name]
    done = invoke(*arguments(case))
    assert done.exit_code == 2, done.output
    assert f"[{code}]" in done.stderr


def test_garbled_data_is_an_error(case: Path) -> None:
    (case / "test_data_set_0" / "input_0.pb").write_bytes(b"\x08\x99nothing")
    done = invoke(case)
    assert done.exit_code == 2
    assert "[E302]" in done.stderr


def test_a_failing_node_still_shows_the_program(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    index = [numpy_helper.from_array(np.array([7]), "i")]
    path = save([node], [info("x", 1, ["n"])], [info("y", 1, [1])], index, tmp_path / "m.onnx")
    done = invoke(path, "--dump-ir")
    assert done.exit_code == 2
    assert "[E403]" in done.stderr
    assert "gather @out" in done.stdout
