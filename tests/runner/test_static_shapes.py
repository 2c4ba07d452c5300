"""Shape errors that follow from what the model says are found when the session is made; others are left to the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError


def session_of(nodes: list[Any], inputs: dict[str, list[Any]], weights: dict[str, Any], **options: int) -> Any:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()]
    constants = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_empty_tensor_value_info("y")], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    settings = ort.SessionOptions()
    for name, size in options.items():
        settings.add_free_dimension_override_by_name(name, size)
    return ort.InferenceSession(proto, settings)


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


node = helper.make_node
SHAPE_OF_X = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"])]

NEVER_FIT: dict[str, tuple[list[Any], dict[str, list[Any]], dict[str, Any]]] = {
    "matmul": ([node("MatMul", ["x", "w"], ["y"])], {"x": ["n", 4]}, {"w": f32(5, 2)}),
    "matmul_batch": ([node("MatMul", ["x", "w"], ["y"])], {"x": ["n", 2, "k", 4]}, {"w": f32(3, 4, 2)}),
    "gemm": ([node("Gemm", ["x", "w"], ["y"], transB=1)], {"x": ["n", 4]}, {"w": f32(2, 5)}),
    "add": ([node("Add", ["x", "w"], ["y"])], {"x": ["n", 3]}, {"w": f32(5)}),
    "channels": ([node("Conv", ["x", "w"], ["y"])], {"x": ["n", 3, "h", "h"]}, {"w": f32(8, 4, 3, 3)}),
    "concat": ([node("Concat", ["x", "w"], ["y"], axis=0)], {"x": ["n", 3]}, {"w": f32(2, 4)}),
    "after_others": (
        [
            node("Relu", ["x"], ["a"]),
            node("Transpose", ["a"], ["t"], perm=[0, 2, 1]),
            node("Softmax", ["t"], ["p"]),
            node("MatMul", ["p", "w"], ["y"]),
        ],
        {"x": ["n", 4, 6]},
        {"w": f32(6, 2)},
    ),
    "after_a_computed_shape": (
        [
            *SHAPE_OF_X,
            node("Concat", ["n", "rest"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["r"]),
            node("MatMul", ["r", "w"], ["y"]),
        ],
        {"x": ["n", 2, 6]},
        {"zero": np.array([0]), "rest": np.array([12]), "w": f32(6, 2)},
    ),
    "two_unknown": ([node("Add", ["x", "z"], ["y"])], {"x": ["n", 3], "z": ["m", 4]}, {}),
}
MAY_FIT: dict[str, tuple[list[Any], dict[str, list[Any]], dict[str, Any], dict[str, Any]]] = {
    "matmul": ([node("MatMul", ["x", "w"], ["y"])], {"x": ["n", "k"]}, {"w": f32(5, 2)}, {"x": f32(3, 5)}),
    "two_names": ([node("Add", ["x", "z"], ["y"])], {"x": ["n"], "z": ["m"]}, {}, {"x": f32(4), "z": f32(4)}),
    "broadcast": ([node("Add", ["x", "w"], ["y"])], {"x": ["n", "k"]}, {"w": f32(7, 5)}, {"x": f32(7, 1)}),
    "two_different": ([node("MatMul", ["x", "w"], ["y"])], {"x": ["n", 2, "k"]}, {"w": f32(3, 5, 2)}, {"x": f32(3, 2, 5)}),
    "groups": (
        [node("Conv", ["x", "w"], ["y"], group=2)], {"x": [1, "c", 8, 8]}, {"w": f32(4, 3, 3, 3)}, {"x": f32(1, 6, 8, 8)},
    ),
    "large_enough": ([node("Conv", ["x", "w"], ["y"])], {"x": [1, 1, "n"]}, {"w": f32(1, 1, 500)}, {"x": f32(1, 1, 600)}),
    "computed_shape": (
        [*SHAPE_OF_X, node("Concat", ["n", "rest"], ["t"], axis=0), node("Reshape", ["x", "t"], ["y"])],
        {"x": ["n", 2]},
        {"zero": np.array([0]), "rest": np.array([1, 2])},
        {"x": f32(5, 2)},
    ),
    "divisible": (
        [node("Reshape", ["x", "t"], ["r"]), node("MatMul", ["r", "w"], ["y"])],
        {"x": ["n", 3]},
        {"t": np.array([-1, 4]), "w": f32(4, 2)},
        {"x": f32(8, 3)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NEVER_FIT)
def test_refused_when_the_session_is_made(name: str) -> None:
    nodes, inputs, weights = NEVER_FIT[name]
    with pytest.raises(UserError) as caught:
        session_of(nodes, inputs, weights)
    assert caught.value.code == "E303"
    assert "known before anything ran" in caught.value.why
    assert "y = " in caught.value.node


@pytest.mark.parametrize("name", MAY_FIT)
def test_left_to_the_run(name: str) -> None:
    nodes, inputs, weights, feeds = MAY_FIT[name]
    session_of(nodes, inputs, weights).run(None, feeds)


def test_an_override_makes_a_size_known() -> None:
    nodes, inputs, weights, _ = MAY_FIT["matmul"]
    with pytest.raises(UserError, match="inner dims differ"):
        session_of(nodes, inputs, weights, k=4)


def test_the_error_names_the_line_of_source() -> None:
    product = node("MatMul", ["x", "w"], ["y"])
    product.metadata_props.add(key="source", value="model.py:12")
    with pytest.raises(UserError) as caught:
        session_of([product], {"x": ["n", 4]}, {"w": f32(5, 2)})
    assert "model.py:12" in caught.value.node
    gather = node("Gather", ["x", "i"], ["y"])
    gather.metadata_props.add(key="source", value="model.py:14")
    session = session_of([gather], {"x": [3]}, {"i": np.array([7])})
    with pytest.raises(UserError, match=r"model\.py:14"):
        session.run(None, {"x": f32(3)})


def test_a_dtype_that_onnx_does_not_allow_is_refused() -> None:
    """NumPy would drop the imaginary part in silence."""
    info = helper.make_tensor_value_info
    for dims in ([2], None):
        graph = helper.make_graph(
            [node("Erf", ["x"], ["y"])],
            "g",
            [info("x", TensorProto.COMPLEX64, dims)],
            [info("y", TensorProto.FLOAT, None)],
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        with pytest.raises(UserError, match="Erf cannot have values of these types") as caught:
            ort.InferenceSession(proto)
        assert caught.value.code == "E303"
