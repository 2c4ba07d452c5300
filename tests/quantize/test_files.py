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


@pytest.mark.long_cases("int8", "nf4")
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
    with pytest.raises(UserError, match="no weight to quantize"):
        fx2onnx.optimize_model(tmp_path / "in.onnx", tmp_path / "out.onnx", quantize=Quantize("int8"))
    assert not (tmp_path / "out.onnx").exists()


def of(nodes: list[onnx.NodeProto], x: list[int | str], weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    inputs = [info("x", 1, x), *([info("c", onnx.TensorProto.BOOL, [])] if nodes[0].op_type == "If" else [])]
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info("y")], tensors)
    graph.output[0].type.tensor_type.elem_type = 1
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def normal(*sizes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(sizes, np.float32)


def product(weight: str, outer: list[str], inits: dict[str, np.ndarray]) -> onnx.GraphProto:
    nodes = [helper.make_node("MatMul", ["x", weight], [f"{weight}.y"])]
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in inits.items()]
    return helper.make_graph(nodes, weight, [], [helper.make_tensor_value_info(f"{weight}.y", 1, ["n", 64])], tensors)


@pytest.mark.parametrize("kind", ["int8", "int4", "nf4"])
@pytest.mark.parametrize("inside", [True, False])
def test_weights_of_branches(kind: str, inside: bool) -> None:
    weights = {name: normal(64, 64, seed=seed) for seed, name in enumerate(("w1", "w2"))}
    bodies = [product(name, [], {name: array} if inside else {}) for name, array in weights.items()]
    node = helper.make_node("If", ["c"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
    result = fx2onnx.optimize_model(of([node], ["n", 64], {} if inside else weights), quantize=kind)
    assert result.verified
    assert result.quantized is not None
    assert set(result.quantized.layers) == {"w1", "w2"}


def test_a_weight_that_both_branches_or_a_loop_read_stays() -> None:
    bodies = [product("w1", [], {}) for _ in range(2)]
    bodies[1].node[0].output[0] = bodies[1].output[0].name = "other"
    node = helper.make_node("If", ["c"], ["s"], then_branch=bodies[0], else_branch=bodies[1])
    more = helper.make_node("MatMul", ["s", "w2"], ["y"])
    weights = {"w1": normal(64, 64), "w2": normal(64, 64, seed=1)}
    result = fx2onnx.optimize_model(of([node, more], ["n", 64], weights), quantize="int8")
    assert result.verified
    assert result.quantized is not None
    assert result.quantized.kept == {"w1": "it is read in a loop, or in several branches"}


@pytest.mark.parametrize("kind", ["int8", "int4", "nf4"])
@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize(("direction", "count"), [("forward", 1), ("bidirectional", 2)])
def test_weights_of_recurrent_layers(kind: str, op_type: str, gates: int, direction: str, count: int) -> None:
    node = helper.make_node(op_type, ["x", "W", "R"], ["y"], hidden_size=32, direction=direction)
    weights = {"W": normal(count, gates * 32, 48), "R": normal(count, gates * 32, 32)}
    result = fx2onnx.optimize_model(of([node], ["t", "b", 48], weights), quantize=kind)
    assert result.verified
    assert result.quantized is not None
    assert set(result.quantized.layers) == {"W", "R"}
    assert result.after.total_bytes < result.before.total_bytes / 2


def waves(kind: str) -> np.ndarray:
    size, bins = 128, 65
    turns = np.outer(np.arange(bins), np.arange(size)) / size
    if kind == "cosines":
        turns = np.outer(np.arange(bins), np.arange(size) + 0.5) / (2 * size)
    window = np.hanning(size + 1)[:-1] if kind == "windowed" else np.ones(size)
    both = [np.cos(2 * np.pi * turns) * window, -np.sin(2 * np.pi * turns) * window]
    return np.concatenate(both[:1] if kind == "cosines" else both).astype(np.float32)


@pytest.mark.parametrize("kind", ["windowed", "plain", "cosines"])
@pytest.mark.parametrize("op_type", ["Conv", "MatMul"])
def test_fixed_transforms_are_no_weights(kind: str, op_type: str) -> None:
    basis = waves(kind)
    learnt = normal(len(basis), 64)
    if op_type == "Conv":
        nodes = [
            helper.make_node("Conv", ["x", "basis"], ["s"], strides=[64]),
            helper.make_node("Conv", ["s", "w"], ["y"]),
        ]
        model = of(nodes, [1, 1, 512], {"basis": basis[:, None], "w": learnt.T[:, :, None].copy()})
    else:
        nodes = [helper.make_node("MatMul", ["x", "basis"], ["s"]), helper.make_node("MatMul", ["s", "w"], ["y"])]
        model = of(nodes, ["n", 128], {"basis": basis.T.copy(), "w": learnt})
    result = fx2onnx.optimize_model(model, quantize="int8")
    assert result.verified
    assert result.quantized is not None
    assert list(result.quantized.layers) == ["w"]
    assert "fixed transform" in result.quantized.kept["basis"]
