"""``fx2onnx optimize IN OUT --quantize``: files of any origin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import fx2onnx
from fx2onnx import Quantize
from fx2onnx.base.errors import UserError


def foreign(path: Path, opset: int = 13) -> None:
    """A file as another tool might write it: weights as they are multiplied, a convolution with a scale behind it."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((48, 64), np.float32),
        "b1": rng.standard_normal(64, np.float32),
        "w2": rng.standard_normal((64, 40), np.float32),
        "k": rng.standard_normal((32, 4, 3, 3), np.float32),
        "s": rng.standard_normal((1, 32, 1, 1), np.float32),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], beta=0.5),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
        helper.make_node("Conv", ["image", "k"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Mul", ["c", "s"], ["z"]),
    ]
    float_info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "foreign",
        [float_info("x", 1, ["n", 48]), float_info("image", 1, [1, 4, 6, 6])],
        [float_info("y", 1, ["n", 40]), float_info("z", 1, [1, 32, 6, 6])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)


@pytest.mark.parametrize("kind", ["int8", "int4", "uint4", "nf4", "float8"])
def test_a_foreign_file(tmp_path: Path, kind: str) -> None:
    foreign(tmp_path / "in.onnx")
    result = fx2onnx.optimize_model(tmp_path / "in.onnx", tmp_path / "out.onnx", quantize=Quantize(kind, block=16))
    assert result.verified
    assert result.quantized is not None
    assert len(result.quantized.layers) == (2 if kind == "nf4" else 3)
    assert {row.engine for row in result.comparison.rows} == {"runner", "onnxruntime"}  # type: ignore[union-attr]
    assert result.after.total_bytes < result.before.total_bytes
    onnx.checker.check_model(onnx.load(tmp_path / "out.onnx"))


def test_an_older_runtime_opens_it_still(tmp_path: Path) -> None:
    """Codes of 8 bits are in every IR version, and a runtime refuses a newer one than it knows."""
    foreign(tmp_path / "in.onnx")
    quantize, target = Quantize("int8"), "onnxruntime-1.17"
    fx2onnx.optimize_model(tmp_path / "in.onnx", tmp_path / "out.onnx", quantize=quantize, target=target)
    assert onnx.load(tmp_path / "out.onnx").ir_version == 8


def test_the_worst_layer_stays(tmp_path: Path) -> None:
    foreign(tmp_path / "in.onnx")
    quantize = Quantize("int4", block=16, keep_worst=1, exclude="k*")
    result = fx2onnx.optimize_model(tmp_path / "in.onnx", tmp_path / "out.onnx", quantize=quantize)
    assert result.verified
    assert result.quantized is not None
    assert len(result.quantized.layers) == 1
    assert any("would change" in why for why in result.quantized.kept.values())


def test_a_file_without_weights_is_one_clear_error(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    info = [helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    graph = helper.make_graph([node], "g", info[:1], info[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "in.onnx"
    )
    with pytest.raises(UserError, match="no weight to quantise"):
        fx2onnx.optimize_model(tmp_path / "in.onnx", tmp_path / "out.onnx", quantize=Quantize("int8"))
    assert not (tmp_path / "out.onnx").exists()
