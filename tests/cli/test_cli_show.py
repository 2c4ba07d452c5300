"""``fx2onnx inspect``: files of ours and of others, exported folders, and what is neither."""

from __future__ import annotations

import dataclasses
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
from fx2onnx.files.folder_commit import MANIFEST, VERSION, FileEntry
from fx2onnx.manifest.form import CacheState, GraphForm, Manifest, Medium, Port
from fx2onnx.sizes.stated import StatedCondition
from tests.cli import support


def invoke(*arguments: object) -> Result:
    return support.invoke("inspect", *arguments)


def facts(path: Path) -> Any:
    done = invoke(path, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


class Halves(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Conv2d(6, 5, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        half = torch.nn.functional.max_pool2d(x, 2)
        return self.mix(torch.cat([x, torch.nn.functional.interpolate(half, scale_factor=2)], 1)) * self.calls


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "halves.onnx"
    shapes = ({0: "batch", 2: "height", 3: "width"},)
    fx2onnx.export(Halves(), (torch.randn(2, 3, 8, 8),), path, dynamic_shapes=shapes, state="io", opset_version=18)
    return path


def test_a_file_of_ours(ours: Path) -> None:
    found = facts(ours)
    assert found["opsets"] == {"ai.onnx": 18}
    assert found["producer"] == f"fx2onnx {fx2onnx.__version__}"
    assert found["ir_version"] == onnx.load(ours).ir_version
    x, calls = found["inputs"]
    assert x == {"name": "x", "dtype": "float32", "shape": ["batch", 3, "height", "width"]}
    assert calls["shape"] == []
    assert found["outputs"][0]["shape"] == ["batch", 5, "height", "width"]
    assert found["state"] == {"calls": "calls.next"}
    assert found["metadata"] == {}
    assert {"".join(row["dims"]): row["condition"] for row in found["conditions"]} == {
        "height": "height % 2 == 0",
        "width": "width % 2 == 0",
    }
    assert all("test_cli_show.py" in row["where"] for row in found["conditions"])
    nodes = onnx.load(ours).graph.node
    assert found["nodes"] == len(nodes) == sum(found["operators"].values())
    assert found["operators"]["Conv"] == 1
    assert found["weights"]["bytes"] >= (6 * 5 + 5) * 4


def test_the_text_has_what_the_json_has(ours: Path) -> None:
    done = invoke(ours)
    assert done.exit_code == 0, done.output
    for text in (
        "halves.onnx", "ai.onnx 18", "[batch, 3, height, width]", "[batch, 5, height, width]", "Conv 1",
        "height % 2 == 0", "test_cli_show.py", "calls.next", f"fx2onnx {fx2onnx.__version__}",
    ):  # fmt: skip
        assert text in done.stdout


def foreign(**parts: Any) -> onnx.ModelProto:
    """An If over a function, a sequence output, an input without shape, an int4 and a sparse weight."""
    names = ("x", "flag", "rows")
    x, flag, rows = (
        helper.make_tensor_value_info(names[0], TensorProto.FLOAT, ["n", None, 4]),
        helper.make_tensor_value_info(names[1], TensorProto.BOOL, []),
        helper.make_tensor_sequence_value_info(names[2], TensorProto.DOUBLE, None),
    )
    anything = helper.make_tensor_value_info("anything", TensorProto.BFLOAT16, None)
    constant = numpy_helper.from_array(np.ones((2, 3), np.float16))
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=constant), helper.make_node("Relu", ["x"], ["then"])],
        "branch", [], [helper.make_tensor_value_info("then", TensorProto.FLOAT, None)],
    )  # fmt: skip
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 20)]
    )
    nodes = [
        helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch),
        helper.make_node("Twice", ["y"], ["z"], domain="local"),
        helper.make_node("Magic", ["z"], ["rows"], domain="com.example"),
    ]
    weight = helper.make_tensor("w", TensorProto.INT4, [3, 3], [0] * 9)
    graph = helper.make_graph(nodes, "", [x, flag, anything], [rows], [weight])
    values = numpy_helper.from_array(np.ones(2, np.float32), "s")
    indices = numpy_helper.from_array(np.array([0, 5], np.int64), "s_indices")
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [10]))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.example", 3), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], **parts)
    helper.set_model_props(model, {"author": "someone", "long": "y" * 500})
    return model


def test_a_file_of_others(tmp_path: Path) -> None:
    path = tmp_path / "foreign.onnx"
    path.write_bytes(foreign(producer_name="").SerializeToString())
    found = facts(path)
    assert found["opsets"] == {"ai.onnx": 20, "com.example": 3, "local": 1}
    assert [value["shape"] for value in found["inputs"]] == [["n", None, 4], [], None]
    assert [value["dtype"] for value in found["inputs"]] == ["float32", "bool", "bfloat16"]
    assert found["outputs"] == [{"name": "rows", "dtype": "sequence(float64)", "shape": None}]
    operators = {"If": 1, "Constant": 2, "Relu": 2, "local::Twice": 1, "com.example::Magic": 1, "Add": 1}
    assert (found["operators"], found["nodes"], found["functions"]) == (operators, 8, 1)
    assert found["weights"] == {"tensors": 4, "bytes": 5 + 8 + 2 * 12, "external": []}
    assert found["conditions"] == []
    assert found["metadata"] == {"author": "someone", "long": "y" * 500}
    shown = invoke(path)
    assert shown.exit_code == 0
    for text in ("[n, ?, 4]", "[...]", "com.example::Magic 1", "someone", "(no name)"):
        assert text in shown.stdout
    assert "y" * 201 not in shown.stdout.replace("\n", "")


@pytest.mark.parametrize("is_there", [True, False])
def test_weights_beside_the_file_are_not_read(is_there: bool, tmp_path: Path) -> None:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1000, 1000])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.data")
    out = helper.make_tensor_value_info("w", TensorProto.FLOAT, [1000, 1000])
    model = helper.make_model(helper.make_graph([], "g", [], [out], [weight]))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    if is_there:
        (tmp_path / "w.data").write_bytes(b"short")
    beside = [{"file": "w.data", "bytes": 4_000_000, "is_there": is_there}]
    assert facts(tmp_path / "m.onnx")["weights"] == {"tensors": 1, "bytes": 4_000_000, "external": beside}
    assert ("the file is missing" in invoke(tmp_path / "m.onnx").stdout) is not is_there


def test_initializers_are_no_inputs(tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "w")]
    node = helper.make_node("Add", ["x", "w"], ["y"])
    weight = numpy_helper.from_array(np.ones(2, np.float32), "w")
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", 1, [2])], [weight])
    onnx.save(helper.make_model(graph, ir_version=3), tmp_path / "old.onnx")
    assert [value["name"] for value in facts(tmp_path / "old.onnx")["inputs"]] == ["x"]


@pytest.mark.long
def test_malformed_metadata_is_shown_as_it_stands(ours: Path, tmp_path: Path) -> None:
    for key in ("fx2onnx.conditions", "fx2onnx.state"):
        for text in ("{", "[1]", "7", "[" * 100_000):
            model = onnx.load(ours)
            del model.metadata_props[:]
            helper.set_model_props(model, {key: text})
            onnx.save(model, tmp_path / "odd.onnx")
            assert facts(tmp_path / "odd.onnx")["metadata"] == {key: text}


def test_what_a_terminal_obeys_is_escaped(tmp_path: Path) -> None:
    out = helper.make_tensor_value_info("\x1b[31mred", TensorProto.FLOAT, [])
    node = helper.make_node("Constant", [], [out.name], value_float=1.0)
    model = helper.make_model(helper.make_graph([node], "[bold]\x07", [], [out]))
    onnx.save(model, tmp_path / "m.onnx")
    shown = invoke(tmp_path / "m.onnx").stdout
    assert "\x1b[31m" not in shown
    assert "\x07" not in shown
    assert r"\x1b[31mred" in shown
    assert "[bold]" in shown


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (None, "E302", "no such file"),
        (b"", "E303", "it is empty"),
        (b"no model at all", "E303", "is not an ONNX model"),
        (b"\x08\x09", "E303", "it has no graph"),
        (b"PK\x03\x04" + bytes(100), "E303", "is not an ONNX model"),
    ],
)
def test_what_is_no_model(content: bytes | None, code: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    done = invoke(path)
    assert done.exit_code == 2
    assert f"[{code}]" in done.stderr
    assert words in done.stderr
    assert str(path) in done.stderr
    assert json.loads(invoke(path, "--json").stdout)["code"] == code


def test_a_folder_without_a_manifest(ours: Path, tmp_path: Path) -> None:
    done = invoke(tmp_path)
    assert done.exit_code == 2
    assert "[E302]" in done.stderr
    (tmp_path / "only.onnx").write_bytes(ours.read_bytes())
    assert facts(tmp_path)["file"] == str(tmp_path / "only.onnx")
    (tmp_path / "other.onnx").write_bytes(ours.read_bytes())
    several = invoke(tmp_path)
    assert several.exit_code == 2
    assert "only.onnx, other.onnx" in several.stderr


def folder_with(manifest: Manifest, folder: Path) -> Path:
    (folder / MANIFEST).write_text(json.dumps(dataclasses.asdict(manifest)))
    return folder


CACHE = tuple(
    CacheState(f"{layer}.key", f"past.{layer}", f"present.{layer}", "float16", ("batch_size", 2, "past", 4), "past", 2)
    for layer in range(12)
)
LIMIT = StatedCondition("past <= 62", "modeling.py:534, in forward", "past", (0, 63, 1), 1)
DECODER = GraphForm(
    "decoder_model.onnx", "decode",
    (Port("input_ids", "tokens", "int64", ("batch_size", 1)),), (Port("logits", "logits", "float32", ("batch_size", 1, 50)),),
    CACHE, tokens_per_call=1, conditions=(LIMIT,),
)  # fmt: skip
ENCODER = GraphForm("vision_encoder.onnx", "image", (Port("pixel_values", "media", "float32", (1, 3, 16, 16)),), ())
FOLDER = Manifest(
    VERSION, (ENCODER, DECODER), source="hf:.", task="image-text-to-text", options={"dtype": None, "batch": 2},
    media=(Medium("image"),), baked={"grid": [1]},
    files={"decoder_model.onnx": FileEntry(1_500_000, "0" * 32)},
)  # fmt: skip


def test_a_folder_as_json(tmp_path: Path) -> None:
    found = facts(folder_with(FOLDER, tmp_path))
    assert (found["version"], found["source"], found["task"]) == (VERSION, "hf:.", "image-text-to-text")
    encoder, decoder = found["graphs"]
    assert (encoder["kind"], encoder["conditions"]) == ("image", [])
    assert decoder["conditions"] == [
        {"dims": ["past"], "condition": "past <= 62", "where": "modeling.py:534, in forward"}
    ]
    assert decoder["inputs"] == [{"name": "input_ids", "role": "tokens", "dtype": "int64", "shape": ["batch_size", 1]}]
    assert len(decoder["cache"]) == 12
    assert found["files"] == {"decoder_model.onnx": 1_500_000}
    assert "obsolete" not in found


def test_a_folder_as_text(tmp_path: Path) -> None:
    done = invoke(folder_with(FOLDER, tmp_path))
    assert done.exit_code == 0, done.output
    for text in (
        "hf:.", "image-text-to-text", "batch 2", "decoder_model.onnx", "decode", "1 a call", "tokens", "0.key ... 11.key (12)",
        "[batch_size, 2, past, 4]", "past <= 62", "modeling.py:534, in forward", "grid", "1.5 MB", "length past",
    ):  # fmt: skip
        assert text in done.stdout, text
    assert "5.key" not in done.stdout
    assert "dtype None" not in done.stdout


def test_a_damaged_folder_is_one_error(tmp_path: Path) -> None:
    for text, words in (("{", "it is no JSON"), (json.dumps({"version": VERSION}), "graphs is missing")):
        (tmp_path / MANIFEST).write_text(text)
        done = invoke(tmp_path)
        assert done.exit_code == 2
        assert "[E302]" in done.stderr
        assert words in done.stderr
