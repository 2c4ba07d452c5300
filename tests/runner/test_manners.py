"""onnxruntime's manners: options, profiling, values, metadata, dumps, threads, custom operators."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError
from fx2onnx.runner.dump import dump_dag, dump_graph, dump_ir
from fx2onnx.semantics.registry import unregister


def linear_model(ir_version: int = 10) -> onnx.ModelProto:
    """y = relu(x @ w + b), b overridable."""
    rng = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(rng.standard_normal((8, 4)).astype(np.float32), "w")
    bias = onnx.numpy_helper.from_array(np.ones(4, np.float32), "b")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Add", ["p", "b"], ["s"], name="sum"),
        helper.make_node("Relu", ["s"], ["y"], name="relu"),
    ]
    info = helper.make_tensor_value_info
    inputs = [info("x", TensorProto.FLOAT, ["batch", 8]), info("b", TensorProto.FLOAT, [4])]
    graph = helper.make_graph(nodes, "linear", inputs, [info("y", TensorProto.FLOAT, ["batch", 4])], [weight, bias])
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="test", ir_version=ir_version
    )
    helper.set_model_props(proto, {"key": "value"})
    return proto


X = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)


def wanted(bias: np.ndarray | float = 1.0) -> np.ndarray:
    weight = onnx.numpy_helper.to_array(linear_model().graph.initializer[0])
    return np.maximum(X @ weight + bias, 0)


def test_overridable_initializer() -> None:
    session = ort.InferenceSession(linear_model())
    assert [arg.name for arg in session.get_inputs()] == ["x"]
    assert [arg.name for arg in session.get_overridable_initializers()] == ["b"]
    bias = np.arange(4, dtype=np.float32)
    for _ in range(3):
        np.testing.assert_allclose(session.run(None, {"x": X})[0], wanted(), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(session.run(None, {"x": X, "b": bias})[0], wanted(bias), rtol=1e-6, atol=1e-6)


def test_old_models_keep_initializers_constant() -> None:
    session = ort.InferenceSession(linear_model(ir_version=3))
    assert session.get_overridable_initializers() == []
    np.testing.assert_allclose(session.run(None, {"x": X})[0], wanted(), rtol=1e-6, atol=1e-6)


def test_replaced_initializer() -> None:
    options = ort.SessionOptions()
    options.add_initializer("w", ort.OrtValue.ortvalue_from_numpy(np.zeros((8, 4), np.float32)))
    (y,) = ort.InferenceSession(linear_model(), options).run(None, {"x": X})
    np.testing.assert_array_equal(y, np.ones((3, 4)))


def test_metadata() -> None:
    meta = ort.InferenceSession(linear_model()).get_modelmeta()
    assert (meta.producer_name, meta.graph_name, meta.custom_metadata_map) == ("test", "linear", {"key": "value"})


def test_free_dimension_override() -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    session = ort.InferenceSession(linear_model(), options)
    assert session.get_inputs()[0].shape == [2, 8]
    with pytest.raises(UserError, match="needs 2"):
        session.run(None, {"x": X})


def onnxruntime_run(model: bytes, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    found: list[np.ndarray] = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    return found


def two_inputs(dims: tuple[Any, Any], producer: str = "") -> bytes:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        "g",
        [info("a", 1, [dims[0], dims[1]]), info("b", 1, [dims[0], dims[1]])],
        [info("y", 1, [None, None])],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name=producer).SerializeToString()


DIFFERING = {"a": np.ones((3, 2), np.float32), "b": np.ones((1, 2), np.float32)}


@pytest.mark.parametrize("dims", [("?", "?"), ("-1", "unk__1"), ("batch_size", "batch_size")])
def test_one_name_for_two_sizes_is_accepted_with_one_warning(dims: tuple[str, str], caplog: Any) -> None:
    model = two_inputs(dims)
    session = ort.InferenceSession(model)
    for _ in range(2):
        np.testing.assert_array_equal(session.run(None, DIFFERING)[0], onnxruntime_run(model, DIFFERING)[0])
    names = [record for record in caplog.records if "fx2onnx.refuse_two_sizes" in record.getMessage()]
    assert len(names) == 1
    options = ort.SessionOptions()
    options.add_session_config_entry("fx2onnx.refuse_two_sizes", "1")
    with pytest.raises(UserError, match=r"was bound by dim 0 of 'a'"):
        ort.InferenceSession(model, options).run(None, DIFFERING)


def test_one_name_is_one_size_where_the_file_or_the_caller_says_so() -> None:
    with pytest.raises(UserError, match="'n' was bound by dim 0 of 'a'"):
        ort.InferenceSession(two_inputs(("n", 2), "fx2onnx")).run(None, DIFFERING)
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("n", 3)
    with pytest.raises(UserError, match="the model needs 3"):
        ort.InferenceSession(two_inputs(("n", 2)), options).run(None, DIFFERING)


def test_constants_of_one_node_name() -> None:
    """spox writes such files."""
    nodes = [helper.make_node("Constant", [], [name], name="anon", value_float=1.0) for name in "pq"]
    nodes.append(helper.make_node("Add", ["p", "q"], ["y"], name="anon"))
    graph = helper.make_graph(nodes, "g", [], [helper.make_tensor_value_info("y", 1, [])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    assert ort.InferenceSession(model).run(None, {})[0] == onnxruntime_run(model, {})[0] == 2


@pytest.mark.parametrize("places", ["abx", "axb", "xab", "abcxa"])
def test_constants_of_one_value(places: str, caplog: pytest.LogCaptureFixture) -> None:
    """spox writes such files; the last one counts, wherever it stands. Other nodes of one value are refused."""

    def model(op: str) -> bytes:
        made = {
            name: helper.make_node("Constant", [], ["c"], name=name, value_floats=[float(number)])
            for number, name in enumerate("abc", 1)
        }
        made["x"] = helper.make_node("Add", ["x", "c"], ["y"])
        nodes = [made[name] for name in places] + ([helper.make_node(op, ["x"], ["c"])] if op else [])
        values = [helper.make_tensor_value_info(name, 1, [1]) for name in "xy"]
        graph = helper.make_graph(nodes, "g", values[:1], values[1:])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()

    feeds = {"x": np.array([5], np.float32)}
    assert ort.InferenceSession(model("")).run(None, feeds) == onnxruntime_run(model(""), feeds)
    assert "the last one counts" in caplog.text
    with pytest.raises(UserError, match="two definitions"):
        ort.InferenceSession(model("Neg"))


def test_profiling(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    session = ort.InferenceSession(linear_model(), options)
    session.run(None, {"x": X})
    events = json.loads(Path(session.end_profiling()).read_text())
    assert [event["name"] for event in events] == ["model_loading", "product", "sum", "relu", "model_run"]
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in events)


def test_optimized_model_is_written(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    ort.InferenceSession(linear_model(), options)
    np.testing.assert_allclose(ort.InferenceSession(tmp_path / "o.onnx").run(None, {"x": X})[0], wanted(), rtol=1e-6)


def test_unknown_option() -> None:
    options = ort.SessionOptions()
    with pytest.raises(UserError, match="no setting"):
        options.threads = 3


def test_run_with_ort_values_and_terminate() -> None:
    session = ort.InferenceSession(linear_model())
    (y,) = session.run_with_ort_values(["y"], {"x": ort.OrtValue.ortvalue_from_numpy(X)})
    assert (y.shape(), y.data_type()) == ([3, 4], "tensor(float)")
    options = ort.RunOptions()
    options.terminate = True
    with pytest.raises(UserError, match="terminate"):
        session.run(None, {"x": X}, options)


def test_unknown_output() -> None:
    with pytest.raises(UserError, match="no output 'z'"):
        ort.InferenceSession(linear_model()).run(["z"], {"x": X})


def test_outputs_are_the_callers_own() -> None:
    session = ort.InferenceSession(linear_model())
    for _ in range(4):
        (y,) = session.run(None, {"x": X})
        np.testing.assert_allclose(y, wanted(), rtol=1e-6, atol=1e-6)
        y[...] = 7


def test_outputs_of_kernels_that_allocate_share_memory_with_nothing() -> None:
    """Large ones, which the arena does not hold: with views of them beside them, and chosen by If."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        g (float[1, 9, 70, 50] x, int64[1, 9, 1, 50] i, float[1, 9, 1, 50] z, bool c)
            => (float[1, 9, 70, 50] y, float[9, 3500] line, float[1, 9, 140, 100] wide, float[1, 9, 70, 50] chosen)
            <float[4] s = {1, 1, 2, 2}, int64[2] dims = {9, 3500}> {
            y = ScatterElements <axis = 2> (x, i, z)
            line = Reshape (y, dims)
            wide = Resize (y, , s)
            chosen = If (c) <then_branch = a () => (float[1, 9, 70, 50] p) { p = Identity (y) },
                else_branch = b () => (float[1, 9, 70, 50] q) { q = Add (y, y) }>
        }""")
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {"x": rng.random((1, 9, 70, 50), np.float32), "z": rng.random((1, 9, 1, 50), np.float32)}
    feeds |= {"i": np.full((1, 9, 1, 50), 3), "c": np.array(True)}
    session = ort.InferenceSession(model)
    names = ["y", "line", "wide", "chosen"]
    wanted = [one.copy() for one in session.run(names, feeds)]
    kept: list[np.ndarray] = list(feeds.values())
    for _ in range(4):
        results = session.run(names, feeds)
        for number, (result, value) in enumerate(zip(results, wanted, strict=True)):
            np.testing.assert_array_equal(result, value)
            assert not any(np.may_share_memory(result, other) for other in (*kept, *results[:number]))
            result[...] = 7
        kept += results


def test_threads_share_a_session() -> None:
    session = ort.InferenceSession(linear_model())
    failures: list[Exception] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((3, 8)).astype(np.float32)
        first = session.run(None, {"x": x})[0]
        for _ in range(50):
            if not np.array_equal(session.run(None, {"x": x})[0], first):
                failures.append(AssertionError(seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_same_bits_at_any_thread_count(threads: int) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["y"])], "g",
        [info("a", 1, [200, 300]), info("b", 1, [300, 250])], [info("y", 1, [200, 250])],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    rng = np.random.default_rng(0)
    feeds = {"a": rng.standard_normal((200, 300), np.float32), "b": rng.standard_normal((300, 250), np.float32)}
    single = ort.SessionOptions()
    single.intra_op_num_threads = 1
    one = ort.InferenceSession(proto, single).run(None, feeds)[0]
    many = ort.InferenceSession(proto, options)
    for _ in range(3):
        assert many.run(None, feeds)[0].tobytes() == one.tobytes()


def test_dumps() -> None:
    session = ort.InferenceSession(linear_model())
    for _ in range(3):
        session.run(None, {"x": X})
    assert "y = Relu(s)" in dump_graph(session)
    text = dump_ir(session)
    assert "matmul @out" in text
    assert "arena" in text
    svg = ElementTree.fromstring(dump_dag(session))
    boxes = [element for element in svg.iter() if element.tag.endswith("rect")]
    assert len(boxes) == 3


def test_custom_operator() -> None:
    @ort.kernel("Twice", domain="my.ops")
    def twice(x: np.ndarray, *, times: int = 2) -> np.ndarray:
        """times * x."""
        return x * times

    node = helper.make_node("Twice", ["x"], ["y"], domain="my.ops", times=3)
    info = helper.make_tensor_value_info
    graph = helper.make_graph([node], "g", [info("x", 1, [2])], [info("y", 1, [2])])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("my.ops", 1)]
    try:
        (y,) = ort.InferenceSession(helper.make_model(graph, opset_imports=imports)).run(
            None, {"x": np.ones(2, np.float32)}
        )
        assert y.tolist() == [3, 3]
        with pytest.raises(ValueError, match="two kernels for Twice"):
            ort.kernel("Twice", domain="my.ops")(twice)
    finally:
        unregister("Twice", "my.ops")


def test_failing_node_is_named() -> None:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gather", ["x", "i"], ["y"], name="look_up")], "g",
        [info("x", 1, [3]), info("i", 7, ["n"])], [info("y", 1, ["n"])],
    )  # fmt: skip
    session = ort.InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    for _ in range(3):
        with pytest.raises(UserError, match="look_up") as caught:
            session.run(None, {"x": np.ones(3, np.float32), "i": np.array([5])})
        assert caught.value.code == "E403"


CONVOLUTIONS = {
    "pointwise": ([1, 8, 9, 9], [16, 8, 1, 1], {}),
    "pointwise_stride": ([2, 8, 9, 9], [4, 8, 1, 1], {"strides": [2, 2]}),
    "stem": ([1, 3, 32, 32], [8, 3, 7, 7], {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    "square": ([2, 8, 13, 11], [8, 8, 3, 3], {"pads": [1, 1, 1, 1]}),
    "dilated": ([1, 4, 16, 16], [6, 4, 3, 3], {"dilations": [2, 3], "pads": [2, 0, 1, 3]}),
    "depthwise": ([1, 8, 24, 24], [8, 1, 3, 3], {"group": 8, "pads": [1, 1, 1, 1]}),
    "depthwise_stride": ([2, 6, 15, 15], [6, 1, 5, 5], {"group": 6, "strides": [2, 2], "pads": [2, 2, 2, 2]}),
    "depthwise_dilated": ([1, 4, 30, 30], [4, 1, 3, 3], {"group": 4, "dilations": [2, 2]}),
    "grouped": ([1, 8, 9, 9], [12, 4, 3, 3], {"group": 2, "pads": [1, 1, 1, 1]}),
    "same_lower": ([1, 3, 10, 10], [5, 3, 4, 4], {"auto_pad": "SAME_LOWER", "strides": [3, 3]}),
}


@pytest.mark.parametrize("activation", ["", "Relu", "HardSwish", "Sigmoid", "Clip"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_fused_convolution(name: str, activation: str) -> None:
    """Conv + BatchNormalization + activation + MaxPool: the plan gives what single steps give, and what onnxruntime gives."""
    onnxruntime = pytest.importorskip("onnxruntime")
    shape, weight_shape, attrs = CONVOLUTIONS[name]
    rng = np.random.default_rng(0)
    outs = weight_shape[0]
    arrays = {
        "w": rng.standard_normal(weight_shape), "b": rng.standard_normal(outs), "scale": rng.standard_normal(outs),
        "beta": rng.standard_normal(outs), "mean": rng.standard_normal(outs), "var": rng.random(outs) + 0.5,
        "low": np.array(-0.5), "high": np.array(1.5),
    }  # fmt: skip
    constants = [onnx.numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in arrays.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], **attrs),
        helper.make_node("BatchNormalization", ["c", "scale", "beta", "mean", "var"], ["n"]),
    ]
    if activation:
        operands = ["n", "low", "high"] if activation == "Clip" else ["n"]
        nodes.append(helper.make_node(activation, operands, ["a"]))
    nodes.append(
        helper.make_node("MaxPool", ["a" if activation else "n"], ["y"], kernel_shape=[2, 2], pads=[1, 0, 0, 1])
    )
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info("x", 1, shape)], [info("y", 1, [None] * 4)], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x = rng.standard_normal(shape).astype(np.float32)
    reference = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (theirs,) = reference.run(None, {"x": x})
    session = ort.InferenceSession(proto)
    assert session.program.steps[0].op_type == "FusedConv"
    for _ in range(3):
        (ours,) = session.run(None, {"x": x})
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("place", ["constant", "initializer"])
def test_sparse_tensors(place: str) -> None:
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    sparse = helper.make_sparse_tensor(values, helper.make_tensor("i", TensorProto.INT64, [2], [0, 3]), [5])
    is_node = place == "constant"
    nodes = [helper.make_node("Constant", [], ["w"], sparse_value=sparse)] if is_node else []
    nodes.append(helper.make_node("Neg", ["w"], ["y"]))
    info = helper.make_tensor_value_info("y", TensorProto.FLOAT, [5])
    graph = helper.make_graph(nodes, "g", [], [info], sparse_initializer=[] if is_node else [sparse])
    (y,) = ort.InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])).run(None, {})
    assert y.tolist() == [-1, 0, 0, -2, 0]
