"""Ordinary onnxruntime scripts: each runs with ``import onnxruntime as ort`` and with ``import fx2onnx.runner as ort``."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fx2onnx.runner
from fx2onnx.base.errors import UserError

onnxruntime = pytest.importorskip("onnxruntime")

CPU = ["CPUExecutionProvider"]
X = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)


@pytest.fixture(params=[fx2onnx.runner, onnxruntime], ids=["fx2onnx", "onnxruntime"])
def ort(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """y = relu(x @ w + b), with a constant expression that an optimiser folds and a dead node."""
    rng = np.random.default_rng(0)
    array = onnx.numpy_helper.from_array
    constants = [
        array(rng.standard_normal((8, 4)).astype(np.float32), "w"),
        array(np.ones(4, np.float32), "half"),
    ]
    nodes = [
        helper.make_node("Add", ["half", "half"], ["b"], name="fold_me"),
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Add", ["p", "b"], ["s"], name="sum"),
        helper.make_node("Relu", ["s"], ["y"], name="relu"),
        helper.make_node("Neg", ["s"], ["unread"], name="dead"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])
    x.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    graph = helper.make_graph(nodes, "linear", [x], [y], constants, doc_string="a layer")
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="test", ir_version=9)
    helper.set_model_props(proto, {"key": "value"})
    place = tmp_path_factory.mktemp("scripts") / "linear.onnx"
    onnx.save(proto, place)
    return str(place)


def wanted(path: str) -> np.ndarray:
    weight = onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0])
    return np.maximum(X @ weight + 2, 0)


def test_the_usual_script(ort: ModuleType, path: str) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    options.logid = "mine"
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    session = ort.InferenceSession(path, sess_options=options, providers=CPU)
    inputs, outputs = session.get_inputs(), session.get_outputs()
    assert [(arg.name, arg.type, arg.shape) for arg in inputs] == [("x", "tensor(float)", ["batch", 8])]
    assert [(arg.name, arg.type, arg.shape) for arg in outputs] == [("y", "tensor(float)", ["batch", 4])]
    assert session.get_providers() == CPU
    assert session.get_overridable_initializers() == []
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.graph_name, meta.graph_description) == ("test", "linear", "a layer")
    assert meta.custom_metadata_map == {"key": "value"}
    run_options = ort.RunOptions()
    run_options.log_severity_level = 3
    run_options.logid = "first"
    for names in (None, [], ["y"], [outputs[0].name]):
        (y,) = session.run(names, {inputs[0].name: X}, run_options)
        np.testing.assert_allclose(y, wanted(path), rtol=1e-5, atol=1e-6)


def test_sources(ort: ModuleType, path: str) -> None:
    data = Path(path).read_bytes()
    for source in (path, Path(path), data):
        (y,) = ort.InferenceSession(source, providers=CPU).run(None, {"x": X})
        np.testing.assert_allclose(y, wanted(path), rtol=1e-5, atol=1e-6)


def test_module_level(ort: ModuleType) -> None:
    assert ort.get_device() == "CPU"
    assert "CPUExecutionProvider" in ort.get_available_providers()
    assert "CPUExecutionProvider" in ort.get_all_providers()
    assert ort.__version__
    assert ort.get_version_string()
    ort.set_default_logger_severity(3)
    ort.set_default_logger_verbosity(0)
    ort.disable_telemetry_events()
    ort.set_seed(3)


@pytest.mark.parametrize("how", ["name", "denotation"])
def test_free_dimension_override(ort: ModuleType, path: str, how: str) -> None:
    options = ort.SessionOptions()
    if how == "name":
        options.add_free_dimension_override_by_name("batch", 3)
    else:
        options.add_free_dimension_override_by_denotation("DATA_BATCH", 3)
    session = ort.InferenceSession(path, options, providers=CPU)
    assert session.get_inputs()[0].shape == [3, 8]
    assert session.get_outputs()[0].shape == [3, 4]
    assert session.run(None, {"x": X})[0].shape == (3, 4)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument):
        session.run(None, {"x": X[:2]})


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"])
def test_optimized_model(ort: ModuleType, path: str, level: str, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    ort.InferenceSession(path, options, providers=CPU)
    written = onnx.load(tmp_path / "optimized.onnx")
    if level != "ORT_DISABLE_ALL":
        assert len(written.graph.node) < 5, "neither the constant sum nor the dead node is gone"
    (y,) = ort.InferenceSession(str(tmp_path / "optimized.onnx"), providers=CPU).run(None, {"x": X})
    np.testing.assert_allclose(y, wanted(path), rtol=1e-5, atol=1e-6)


def test_profile(ort: ModuleType, path: str, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = ort.InferenceSession(path, options, providers=CPU)
    session.run(None, {"x": X})
    assert session.get_profiling_start_time_ns() > 0
    written = session.end_profiling()
    assert session.end_profiling() == ""
    assert Path(written).parent == tmp_path
    events = json.loads(Path(written).read_text())
    nodes = [event for event in events if event.get("cat") == "Node"]
    assert {"MatMul", "FusedMatMul", "Gemm", "FusedGemm"} & {event["args"].get("op_name") for event in nodes}
    assert all({"ph", "ts", "dur", "pid", "tid", "name"} <= set(event) for event in nodes)
    assert any(event["name"] == "model_run" for event in events)


def test_ort_values(ort: ModuleType, path: str) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X)
    assert (value.shape(), value.data_type(), value.element_type()) == ([3, 8], "tensor(float)", TensorProto.FLOAT)
    assert value.is_tensor()
    assert value.has_value()
    assert not value.is_tensor_sequence()
    assert value.device_name() == "cpu"
    assert value.tensor_size_in_bytes() == X.nbytes
    session = ort.InferenceSession(path, providers=CPU)
    (y,) = session.run_with_ort_values(["y"], {"x": value})
    np.testing.assert_allclose(y.numpy(), wanted(path), rtol=1e-5, atol=1e-6)
    empty = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    empty.update_inplace(np.full((2, 3), 7, np.float32))
    assert empty.numpy().tolist() == [[7, 7, 7]] * 2


def test_io_binding(ort: ModuleType, path: str) -> None:
    session = ort.InferenceSession(path, providers=CPU)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], wanted(path), rtol=1e-5, atol=1e-6)
    place = ort.OrtValue.ortvalue_from_numpy(np.zeros((3, 4), np.float32))
    binding.clear_binding_outputs()
    binding.bind_ortvalue_output("y", place)
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(place.numpy(), wanted(path), rtol=1e-5, atol=1e-6)


def test_io_binding_by_address(ort: ModuleType, path: str) -> None:
    """As the documentation has it for PyTorch tensors: memory of the caller is read and written in place."""
    session = ort.InferenceSession(path, providers=CPU)
    x, y = X.copy(), np.empty((3, 4), np.float32)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    for scale in (1, 2):
        x[:] = X * scale
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(y, session.run(None, {"x": x})[0])


def test_run_async(ort: ModuleType, path: str) -> None:
    session = ort.InferenceSession(path, providers=CPU)
    done, seen = threading.Event(), []

    def callback(results: list[np.ndarray], user_data: object, error: str) -> None:
        seen.extend((results, user_data, error))
        done.set()

    session.run_async(None, {"x": X}, callback, "mine")
    assert done.wait(30)
    np.testing.assert_array_equal(seen[0][0], session.run(None, {"x": X})[0])
    assert seen[1:] == ["mine", ""]


def test_a_setting_of_another_type_is_refused(ort: ModuleType) -> None:
    options = ort.SessionOptions()
    for name, value in {"intra_op_num_threads": "two", "logid": 3, "enable_profiling": "no"}.items():
        with pytest.raises((TypeError, UserError)):
            setattr(options, name, value)
    options.intra_op_num_threads = np.int64(2)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC


def test_exceptions(ort: ModuleType, path: str, tmp_path: Path) -> None:
    states = ort.capi.onnxruntime_pybind11_state
    session = ort.InferenceSession(path, providers=CPU)
    with pytest.raises(states.InvalidArgument):
        session.run(None, {"x": X.astype(np.float64)})
    with pytest.raises(states.InvalidArgument):
        session.run(None, {"x": X[:, :5]})
    with pytest.raises(states.InvalidArgument):
        session.run(None, {"x": X, "z": X})
    with pytest.raises(Exception, match="x"):
        session.run(None, {})
    with pytest.raises((states.NoSuchFile, states.Fail)):
        ort.InferenceSession(str(tmp_path / "missing.onnx"), providers=CPU)
    with pytest.raises((states.InvalidProtobuf, states.Fail)):
        ort.InferenceSession(b"no model at all", providers=CPU)


def test_external_initializer_in_place_of_a_file(ort: ModuleType, path: str, tmp_path: Path) -> None:
    """``add_external_initializers`` serves weights whose file is not there."""
    proto = onnx.load(path)
    weight = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    options = ort.SessionOptions()
    named = {"w": weight, "half": np.ones(4, np.float32)}
    values = [ort.OrtValue.ortvalue_from_numpy(array) for array in named.values()]
    options.add_external_initializers(list(named), values)
    (y,) = ort.InferenceSession(str(tmp_path / "m.onnx"), options, providers=CPU).run(None, {"x": X})
    np.testing.assert_allclose(y, wanted(path), rtol=1e-5, atol=1e-6)


def test_log_severity(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """Messages go to the logger ``fx2onnx.runner`` from the session's severity on."""
    with caplog.at_level(logging.WARNING, "fx2onnx.runner"):
        fx2onnx.runner.InferenceSession(path, providers=["CUDAExecutionProvider"])
    assert "CUDAExecutionProvider" in caplog.text
