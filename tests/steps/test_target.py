"""``optimize`` for a target: opset, casts, known faults, what it cannot run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import fx2onnx
from fx2onnx.base.errors import UserError
from tests.cli.support import invoke


def saved(path: Path, nodes: list[onnx.NodeProto], dtype: int, opset: int, shape: tuple[int, ...] = (2, 3)) -> Path:
    x = helper.make_tensor_value_info("x", dtype, shape)
    y = helper.make_tensor_value_info("y", dtype, None)
    weight = helper.make_tensor("w", dtype, (shape[-1], 4), np.arange(shape[-1] * 4) / 8)
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)
    return path


def opens(path: Path) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception:  # onnxruntime has classes of its own
        return False
    return True


def test_bfloat16_computes_between_casts(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Tanh", ["z"], ["y"])]
    path = saved(tmp_path / "in.onnx", nodes, TensorProto.BFLOAT16, 20)
    assert not opens(path)
    result = fx2onnx.optimize_model(path, tmp_path / "out.onnx", target="onnxruntime")
    assert opens(tmp_path / "out.onnx")
    assert result.verified
    assert result.edits["bfloat16 MatMul in float"] == 1


def test_a_newer_opset_is_converted_down(tmp_path: Path) -> None:
    path = saved(tmp_path / "in.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], TensorProto.FLOAT, 20)
    assert fx2onnx.optimize_model(path, tmp_path / "out.onnx", target="onnxruntime-1.14").opset == 18
    assert fx2onnx.optimize_model(path, tmp_path / "out.onnx", target="onnxruntime-1.20").opset == 20


def test_a_known_fault_is_avoided(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("Cast", ["t"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["w"], ["v"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["c", "v"], ["m"]),
        helper.make_node("Cast", ["m"], ["y"], to=TensorProto.FLOAT16),
    ]
    path = saved(tmp_path / "in.onnx", nodes, TensorProto.FLOAT16, 20, (2, 3, 5))
    result = fx2onnx.optimize_model(path, tmp_path / "out.onnx", target="onnxruntime")
    assert result.edits["transpose-cast-matmul"] == 1
    assert any("onnxruntime is left out" in text for text in result.warnings)
    assert opens(tmp_path / "out.onnx")


def test_float64_gets_forms_in_float64(tmp_path: Path) -> None:
    nodes = [helper.make_node("Softplus", ["x"], ["z"]), helper.make_node("MatMul", ["z", "w"], ["y"])]
    path = saved(tmp_path / "in.onnx", nodes, TensorProto.DOUBLE, 20)
    assert not opens(path)
    result = fx2onnx.optimize_model(path, tmp_path / "out.onnx", target="onnxruntime")
    assert result.verified
    assert result.edits == {"double Softplus as other nodes": 1}
    x = np.random.default_rng(0).standard_normal((2, 3))
    found = onnxruntime.InferenceSession(tmp_path / "out.onnx").run(None, {"x": x})[0]
    np.testing.assert_allclose(found, np.log1p(np.exp(x)) @ np.arange(12).reshape(3, 4) / 8, rtol=1e-14)


def test_what_cannot_run_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    path = saved(tmp_path / "in.onnx", [helper.make_node("Hardmax", ["x"], ["y"])], TensorProto.DOUBLE, 20)
    with pytest.raises(UserError) as caught:
        fx2onnx.optimize_model(path, tmp_path / "out.onnx", target="onnxruntime")
    assert caught.value.code == "E204"
    assert "Hardmax" in str(caught.value)
    assert not (tmp_path / "out.onnx").exists()
    done = invoke("optimize", str(path), str(tmp_path / "out.onnx"), "--target", "nonesuch")
    assert (done.exit_code, "[E001]" in done.stderr) == (2, True)
