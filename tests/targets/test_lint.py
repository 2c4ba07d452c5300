"""``fx2onnx lint`` and ``find``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper
from torch import nn

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.targets import match
from fx2onnx.targets.fit import fit
from fx2onnx.targets.form import Target, chosen_opset, find, names
from fx2onnx.targets.lint import lint
from tests.cli.support import invoke


def model(
    nodes: list[onnx.NodeProto], dtype: int = onnx.TensorProto.FLOAT, opset: int = 20, **more: object
) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, dtype, ["n", 4]) for name in "xy")
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("mine", 1)]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=imports, ir_version=9, **more)


STEP = helper.make_node("Constant", [], ["step"], value=onnx.numpy_helper.from_array(np.array(2)))

ROWS = helper.make_node("Constant", [], ["rows"], value=onnx.numpy_helper.from_array(np.array([[0], [0]])))
PADS = helper.make_node("Constant", [], ["pads"], value=onnx.numpy_helper.from_array(np.zeros(4, np.int64)))
ADDED = helper.make_node("ScatterND", ["x", "rows", "x"], ["y"], reduction="add")
RECURRENT = helper.make_node("GRU", ["x", "x", "x"], ["y"], hidden_size=4, layout=1)


def rules(proto: onnx.ModelProto, target: str = "onnxruntime") -> list[tuple[str, str]]:
    return [(finding.rule, finding.op_type) for finding in lint(proto, find(target))]


def test_a_file_that_runs_has_no_findings() -> None:
    assert rules(model([helper.make_node("Relu", ["x"], ["y"])])) == []


@pytest.mark.parametrize(
    ("proto", "target", "expected"),
    [
        (model([helper.make_node("Relu", ["x"], ["y"])], opset=22), "onnxruntime-1.17", ("opset", "")),
        (model([helper.make_node("Elu", ["x"], ["y"])], onnx.TensorProto.DOUBLE), "onnxruntime", ("dtype", "Elu")),
        (model([helper.make_node("Gelu", ["x"], ["y"], domain="mine")]), "onnxruntime", ("domain", "Gelu")),
        (model([helper.make_node("FastGelu", ["x"], ["y"], domain="com.microsoft")]), "onnxruntime", None),
        (model([helper.make_node("DeformConv", ["x", "x", "x"], ["y"])]), "onnxruntime-1.20", ("operator", "DeformConv")),
        (model([STEP, helper.make_node("STFT", ["x", "step"], ["y"])]), "onnxruntime", ("fault", "STFT")),
        (model([helper.make_node("Elu", ["x"], ["y"])], onnx.TensorProto.DOUBLE), "onnx", None),
        (model([helper.make_node("ArgMax", ["x"], ["y"], select_last_index=1)]), "rten", ("attribute", "ArgMax")),
        (model([helper.make_node("ArgMax", ["x"], ["y"], select_last_index=0)]), "rten", None),
        (model([helper.make_node("Cast", ["x"], ["y"], to=1)]), "openvino", None),
        (model([helper.make_node("Unique", ["x"], ["y"])]), "tensorrt", ("operator", "Unique")),
        (model([helper.make_node("Relu", ["x"], ["y"])]), "tensorrt", None),
        (model([helper.make_node("DeformConv", ["x", "x", "x"], ["y"])]), "tensorrt", None),
        (model([helper.make_node("Elu", ["x"], ["y"])], onnx.TensorProto.DOUBLE), "onnxruntime-web", ("dtype", "Elu")),
        (model([helper.make_node("Elu", ["x"], ["y"])], onnx.TensorProto.DOUBLE, opset=9), "onnxruntime-web", None),
        (model([helper.make_node("Identity", ["x"], ["y"])], onnx.TensorProto.FLOAT8E5M2), "onnxruntime-web", None),
        (model([PADS, helper.make_node("Pad", ["x", "pads"], ["y"])], onnx.TensorProto.INT16), "onnxruntime-web", ("dtype", "Pad")),
        (model([PADS, helper.make_node("Pad", ["x", "pads"], ["y"])], onnx.TensorProto.FLOAT8E5M2, 25), "onnxruntime-web", None),
        (model([helper.make_node("FusedMatMul", ["x", "x"], ["y"], domain="com.microsoft")]), "onnxruntime-web", None),
        (model([helper.make_node("Nothing", ["x"], ["y"], domain="com.microsoft")]), "onnxruntime-web", ("domain", "Nothing")),
        (model([helper.make_node("Nothing", ["x"], ["y"], domain="com.microsoft")]), "qnn", None),
        (model([ROWS, ADDED], onnx.TensorProto.FLOAT16), "onnxruntime", ("dtype", "ScatterND")),
        (model([ROWS, ADDED], onnx.TensorProto.FLOAT16), "onnx", None),
        (model([ROWS, ADDED]), "onnxruntime", None),
        (model([RECURRENT]), "onnxruntime", ("attribute", "GRU")),
        (model([helper.make_node("Erf", ["x"], ["y"])]), "coreml", None),
        (model([helper.make_node("Erf", ["x"], ["y"]), helper.make_node("Hardmax", ["y"], ["z"])]), "coreml", ("operator", "Hardmax")),
    ],
)  # fmt: skip
def test_each_rule(proto: onnx.ModelProto, target: str, expected: tuple[str, str] | None) -> None:
    assert rules(proto, target)[:1] == ([] if expected is None else [expected])


def test_functions_are_judged_by_what_they_hold() -> None:
    body = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [helper.make_node("Elu", ["a"], ["b"])], [helper.make_opsetid("", 20)]
    )
    call = helper.make_node("Twice", ["x"], ["y"], domain="mine")
    assert rules(model([call], onnx.TensorProto.DOUBLE, functions=[body])) == [("dtype", "Elu")]
    assert rules(model([call], functions=[body])) == []


def test_branches_are_looked_into() -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["x"], ["z"])],
            name,
            [],
            [helper.make_tensor_value_info("z", onnx.TensorProto.DOUBLE, None)],
        )
        for name, op in (("then", "Erf"), ("else", "Abs"))
    }
    flag = helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.array(True)))
    proto = model([flag, helper.make_node("If", ["c"], ["y"], **branches)], onnx.TensorProto.DOUBLE)
    assert rules(proto) == [("dtype", "Erf")]


class Plain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.erf(x)


class Shrunk(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True)


def test_what_an_operator_lacks_is_refused_where_the_target_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        fx2onnx.export(Shrunk(), (torch.randn(1, 1, 8, 8),), tmp_path / "m.onnx", target="rten", opset_version=19)
    assert caught.value.code == "E204"
    assert "Resize(float, float) with antialias=1" in str(caught.value)
    assert "test_lint.py" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    fx2onnx.export(Plain(), (torch.randn(3, dtype=torch.float64),), path, target="onnx")
    done = invoke("lint", str(path), "--json")
    assert done.exit_code == 1
    facts = json.loads(done.stdout)
    (finding,) = facts["findings"]
    assert (finding["rule"], finding["op_type"], facts["ok"]) == ("dtype", "Erf", False)
    assert "test_lint.py" in finding["where"]
    assert "float between casts" in finding["instead"]
    text = invoke("lint", str(path)).stdout
    assert "Erf" in text
    assert "test_lint.py" in text
    good = tmp_path / "[good].onnx"
    fx2onnx.export(Plain(), (torch.randn(3, dtype=torch.float64),), good)
    assert invoke("lint", str(good)).exit_code == 0
    for paths, code in (((good, good), 0), ((good, path), 1), ((path, good), 1)):
        done = invoke("lint", *map(str, paths), "--json")
        assert done.exit_code == code
        assert [(row["file"], row["ok"]) for row in json.loads(done.stdout)] == [(str(p), p == good) for p in paths]
    assert str(good) in invoke("lint", str(good), str(path)).stdout.replace("\n", "")
    assert invoke("lint", str(good), str(tmp_path / "none.onnx")).exit_code == 2


def test_bad_input(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    for arguments, code in (
        ((str(tmp_path / "text.onnx"),), "E303"),
        ((str(tmp_path / "none.onnx"),), "E302"),
        ((str(tmp_path / "text.onnx"), "--target", "onnxruntine"), "E001"),
    ):
        done = invoke("lint", *arguments)
        assert (done.exit_code, f"[{code}]" in done.stderr) == (2, True)


class TestFind:
    @pytest.mark.parametrize(
        ("target", "asked", "expected"),
        [
            (None, None, 20),
            ("onnxruntime", None, 20),
            ("onnxruntime", 17, 17),
            ("onnxruntime-1.14", None, 18),
            ("onnxruntime-1.14.1", 17, 17),
            ("onnxruntime-1.15", None, 18),
            ("onnxruntime-1.16", None, 19),
            ("onnxruntime-1.17", None, 20),
            ("onnxruntime-1.23", 23, 23),
            ("onnxruntime-1.31", None, 20),
            ("onnxruntime-1.99", 26, 26),
            ("runner", 21, 21),
            ("onnx", 26, 26),
        ],
    )
    def test_opset(self, target: str | None, asked: int | None, expected: int) -> None:
        assert chosen_opset(target, asked, 20) == expected

    @pytest.mark.parametrize("target", ["tensorrd", "onnxruntime-2.0", "onnxruntime-1.3", "", "onnxruntime-1.x", "-1"])
    def test_unknown(self, target: str) -> None:
        with pytest.raises(UserError) as caught:
            find(target)
        assert caught.value.code == "E001"

    @pytest.mark.parametrize(
        ("place", "meant"),
        [("browser", "onnxruntime-web"), ("WebGPU", "onnxruntime-web"), ("nvidia", "tensorrt"), ("iOS", "coreml")],
    )
    def test_a_place_stands_for_its_runtime(self, place: str, meant: str) -> None:
        with pytest.raises(UserError, match=f"did you mean '{meant}'"):
            find(place)

    def test_every_table_is_found_and_says_where_it_comes_from(self) -> None:
        assert {"onnx", "onnxruntime", "runner"} <= set(names())
        for name in set(names()) - {"onnx"}:
            target = find(name)
            assert target.source
            assert target.date


def test_files_of_scikit_learn_are_read() -> None:
    """Maps among their outputs, which onnx_ir does not read."""
    path = Path(__file__).parents[1] / "data" / "foreign" / "skl2onnx_pca.onnx"
    assert lint(onnx.load(path), find("onnxruntime")) == []
    assert {finding.rule for finding in lint(onnx.load(path), find("openvino"))} == {"operator"}


@pytest.mark.parametrize("target", ["onnxruntime-web", "openvino", "qnn"])
@pytest.mark.parametrize("opset", [13, 20])
def test_ordinary_functions_are_not_refused(target: str, opset: int) -> None:
    """Pads, comparisons, reductions and selections, which every one of these runtimes has."""

    class Every(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            pads = [torch.nn.functional.pad(x, (1, 2), mode=mode) for mode in ("constant", "reflect", "replicate")]
            more = x == 1, x != 1, x.logsumexp(-1), torch.einsum("ij,kj->ik", x, x), x.mean(-1), torch.tril(x)
            return *pads, *more

    args = (torch.randn(4, 4),)
    fx2onnx.export(Every(), args, None, target=target, opset_version=opset)
    plain = fx2onnx.export(Every(), args, None, opset_version=opset)
    assert [finding for finding in lint(plain.model_proto, find(target)) if finding.rule != "size"] == []


@pytest.mark.parametrize(("first", "found"), [("n", [("attribute", "NonMaxSuppression")]), (2, [])])
def test_a_node_without_any_known_size(first: object, found: list[tuple[str, str]]) -> None:
    """OpenVINO wants some size of its boxes and scores."""
    shapes = {"boxes": [first, "m", "k"], "scores": [first, "c", "m"]}
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.INT64, None)
    node = helper.make_node("NonMaxSuppression", [*shapes], ["y"])
    graph = helper.make_graph([node], "g", inputs, [output])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    assert rules(proto, "openvino") == found


def test_no_dtype_is_advised_or_taken_that_was_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    row = [14, 14, {"T": "float"}, "1.0", "1.0"], [14, 14, {"T": "int8"}, "1.0", "1.0"]
    target = Target("partly-tried", "partly-tried", rows={"::Relu": [row[0]]}, fails={"::Relu": [row[1]]})
    monkeypatch.setattr(match, "find", lambda name: target)
    (finding,) = lint(model([helper.make_node("Relu", ["x"], ["y"])], onnx.TensorProto.INT8), target)
    assert finding.rule == "dtype"
    assert "other dtypes" in finding.instead
    assert "int32" not in finding.instead
    fitted = fit(ir.from_proto(model([helper.make_node("Relu", ["x"], ["y"])], onnx.TensorProto.INT8)), target)
    assert not fitted.casts
    assert [node.op_type for node in fitted.left] == ["Relu"]
