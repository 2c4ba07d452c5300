"""The check that a file passes before a command reads it."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from test_hostile import model, recursive_function, shape_clash, unknown_domain, unknown_op, value
from test_hostile_files import external_model

from fx2onnx.base.errors import UserError
from fx2onnx.semantics.check import check_model, open_file
from fx2onnx.semantics.reading.load import LoadedProto, load_model
from tests.cli.support import invoke

COMMANDS = [
    ["lint", "FILE"],
    ["show", "FILE"],
    ["diff", "FILE", "GOOD"],
    ["diff", "GOOD", "FILE"],
    ["optimize", "FILE", "OUT"],
    ["verify", "FILE", "tests.runner.test_check:identity"],
    ["debug", "FILE", "tests.runner.test_check:identity"],
    ["testcase", "FILE", "--output", "OUT"],
    ["run", "FILE"],
    ["run", "FILE", "--engine", "onnxruntime"],
]


def identity() -> object:
    return torch.nn.Identity(), (torch.zeros(3, 4),)


@pytest.fixture(autouse=True)
def no_native_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a malformed file reaches native shape inference")

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", refuse)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_names_the_file_and_what_is_wrong(command: list[str], tmp_path: Path) -> None:
    names = {"FILE": tmp_path / "bad.onnx", "GOOD": tmp_path / "good.onnx", "OUT": tmp_path / "out"}
    onnx.save(shape_clash(), names["FILE"])
    onnx.save(model([helper.make_node("Neg", ["x"], ["y"])], [value("x", [1])], [value("y", [1])]), names["GOOD"])
    words = [str(names.get(word, word)) for word in command]
    error = json.loads(invoke(*words, "--json").stdout)
    assert error["code"] == "E303"
    assert "y = MatMul(x, w)" in error["node"]
    assert "inner dims differ" in error["why"]
    assert "bad.onnx" in error["what"] or command == ["run", "FILE"] or command[0] == "testcase"
    assert not names["OUT"].exists()


@pytest.mark.parametrize(
    "proto",
    [
        unknown_op(),
        unknown_domain(),
        model([helper.make_node("Affine", ["x"], ["y"], alpha=2.0, beta=1.0)], [value("x", [1])], [value("y", [1])]),
        model([helper.make_node("FusedConv", ["x"], ["y"], domain="fx2onnx")], [value("x", [1])], [value("y", [1])]),
        model([helper.make_node("FastGelu", ["x"] * 9, ["y"], domain="com.microsoft")], [value("x", [1])], [value("y", [1])]),
        model(
            [helper.make_node("Mine", ["x"], ["z"], domain="mine"), helper.make_node("MatMul", ["z", "x"], ["y"])],
            [value("x", [2, 3])],
            [value("y", None)],
        ),
    ],
    ids=["operator", "domain", "old", "private", "contrib", "readers"],
)  # fmt: skip
def test_operators_without_a_kernel_are_no_errors(proto: onnx.ModelProto) -> None:
    check_model(LoadedProto(proto, ()))


def test_other_things_beside_an_unknown_operator_are_checked() -> None:
    proto = unknown_domain()
    proto.graph.node.add(op_type="Neg", input=["missing"], output=["z"])
    with pytest.raises(UserError, match="made nowhere"):
        check_model(LoadedProto(proto, ()))


def test_files_of_weights_are_not_opened(tmp_path: Path) -> None:
    path = external_model(tmp_path, "missing.bin", 0, 16)
    proto = open_file(path).proto
    proto.graph.node.append(helper.make_node("Reshape", ["w", "shape"], ["v"]))
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [1, 1])
    shape.ClearField("int64_data")
    shape.data_location = TensorProto.EXTERNAL
    shape.external_data.add(key="location", value="missing.bin")
    proto.graph.initializer.append(shape)
    check_model(LoadedProto(proto, (str(tmp_path),)))  # nothing is said of numbers that were not read
    proto.graph.node.append(helper.make_node("MatMul", ["w", "w"], ["u"]))
    proto.graph.initializer[0].dims[:] = [3, 4]
    with pytest.raises(UserError, match=r"claims 16 external bytes"):
        check_model(LoadedProto(proto, (str(tmp_path),)))


def test_names_in_functions_that_nothing_calls_are_text() -> None:
    proto = recursive_function()
    del proto.graph.node[:]
    proto.graph.node.add(op_type="Neg", input=["x"], output=["y"])
    data = proto.SerializeToString().replace(b"Self", b"\xd8elf")
    with pytest.raises(UserError, match="not text"):
        check_model(load_model(data))


@pytest.mark.parametrize("text", ["producer_name", "metadata"])
def test_what_a_model_says_of_itself_is_text(text: str) -> None:
    proto = model([helper.make_node("Neg", ["x"], ["y"])], [value("x", [1])], [value("y", [1])])
    proto.producer_name = "Self"
    helper.set_model_props(proto, {"key": "Self"})
    data = proto.SerializeToString()
    place = data.index(b"Self") if text == "producer_name" else data.rindex(b"Self")
    with pytest.raises(UserError, match="not text"):
        check_model(load_model(data[:place] + b"\xd8" + data[place + 1 :]))


def test_numbers_that_others_are_divided_by_are_positive() -> None:
    node = helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=0)
    proto = model([node], [value("x", [1, 4, 2, 2])], [value("y", [None] * 4)])
    with pytest.raises(UserError, match="above 0"):
        check_model(LoadedProto(proto, ()))


def test_inputs_too_large_to_draw_are_an_error(tmp_path: Path) -> None:
    onnx.save(
        model([helper.make_node("Neg", ["x"], ["y"])], [value("x", [1 << 40, 1 << 40])], [value("y", None)]),
        tmp_path / "m.onnx",
    )
    found = invoke("run", str(tmp_path / "m.onnx"), "--json")
    assert json.loads(found.stdout)["code"] == "E401"
