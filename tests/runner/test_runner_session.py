"""The session: what it loads, what it tells, what it refuses."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError


def two_adds() -> onnx.ModelProto:
    """y = a + b with constant operands, and a second Add that nothing reads."""
    tensors = [
        helper.make_tensor("a", TensorProto.FLOAT, [3], [11.7, 10.4, 20.6]),
        helper.make_tensor("b", TensorProto.FLOAT, [3], [40.0, 4.0, 8.0]),
    ]
    nodes = [helper.make_node("Add", ["a", "b"], ["y"]), helper.make_node("Add", ["a", "a"], ["unread"])]
    graph = helper.make_graph(nodes, "g", [], [helper.make_tensor_value_info("y", 1, [3])], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def relu_model(dims: list[int | str]) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_two_adds() -> None:
    session = ort.InferenceSession(two_adds())
    (y,) = session.run(None, {})
    np.testing.assert_allclose(y, [51.7, 14.4, 28.6], rtol=1e-6)
    assert [step.op_type for step in session.program.steps] == ["Add"]


def test_strings_are_joined_in_every_run() -> None:
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["y"], axis=0),
        helper.make_node("Concat", ["y", "x"], ["z"], axis=0),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]) for name in "xz"]
    session = ort.InferenceSession(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:])))
    for words in (["a", "b"], ["c", "d"], ["e", "f"]):
        assert session.run(None, {"x": np.array(words, object)})[0].tolist() == words * 3


@pytest.mark.parametrize("form", ["path", "bytes", "proto", "ir"])
def test_every_source(form: str, tmp_path) -> None:
    proto = relu_model(["n", 2])
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    source = {"path": path, "bytes": proto.SerializeToString(), "proto": proto, "ir": ir.from_proto(proto)}[form]
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    x = np.array([[-1, 2]], np.float32)
    np.testing.assert_array_equal(session.run(["y"], {"x": x})[0], [[0, 2]])
    assert [(a.name, a.type, a.shape) for a in session.get_inputs()] == [("x", "tensor(float)", ["n", 2])]


@pytest.mark.parametrize(
    ("feeds", "code", "text"),
    [
        ({}, "E401", "no feed for the input 'x'"),
        ({"z": 1}, "E401", "no input 'z'"),
        ({"z": 1}, "E401", "fx2onnx inspect FILE prints the inputs"),
        ({"x": np.zeros((1, 2))}, "E401", 'astype("float32")'),
        ({"x": np.zeros(2, np.float32)}, "E401", "[None]"),
        ({"x": np.zeros((1, 3), np.float32)}, "E401", "is 3; the model needs 2"),
    ],
)
def test_feeds_are_checked(feeds: dict, code: str, text: str) -> None:
    session = ort.InferenceSession(relu_model(["n", 2]))
    with pytest.raises(UserError) as caught:
        session.run(None, feeds)
    assert caught.value.code == code
    assert text in str(caught.value)


@pytest.mark.long
def test_runs_without_torch_and_onnxruntime() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['onnxruntime'] = None\n"
        "import numpy as np, fx2onnx.runner as ort\n"
        f"s = ort.InferenceSession({relu_model([2]).SerializeToString()!r})\n"
        "print(s.run(None, {'x': np.array([-1, 1], np.float32)})[0].tolist())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[0.0, 1.0]", done.stderr


def _convolution(nodes: list[onnx.NodeProto], weights: np.ndarray) -> ort.InferenceSession:
    """y = Conv(x, w), where ``nodes`` make w of x and v."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", weights.shape[1], "h", "w"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    one = onnx.numpy_helper.from_array(np.array([1]), "one")
    zero = onnx.numpy_helper.from_array(np.array([0]), "zero")
    held = onnx.numpy_helper.from_array(weights, "v" if nodes else "w")
    conv = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph = helper.make_graph([*nodes, conv], "g", [x], [y], [held, zero, one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return ort.InferenceSession(model.SerializeToString())


def test_weights_in_another_order_are_there_once_for_all_shapes() -> None:
    weights = np.random.default_rng(0).standard_normal((64, 128, 3, 3), np.float32)
    session = _convolution([], weights)
    shapes = [(1, 128, 2, 2), (1, 128, 3, 2), (2, 128, 2, 3)]
    session.run(None, {"x": np.ones(shapes[0], np.float32)})
    tracemalloc.start()
    for shape in shapes[1:]:
        session.run(None, {"x": np.ones(shape, np.float32)})
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < weights.nbytes / 2


def test_weights_that_follow_from_the_shape_are_those_of_the_shape() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "zero", "one"], ["rows"]),
        helper.make_node("Cast", ["rows"], ["factor"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["v", "factor"], ["w"]),
    ]
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3), np.float32)
    session, plain = _convolution(nodes, weights), _convolution([], weights)
    for rows in (1, 3, 1, 2, 3):
        x = np.random.default_rng(rows).standard_normal((rows, 3, 5, 5), np.float32)
        want = plain.run(None, {"x": x})[0] * rows
        np.testing.assert_allclose(session.run(None, {"x": x})[0], want, rtol=1e-5, atol=1e-5)
