"""Every public name of onnxruntime is in the runner: it works, or says in one sentence why not."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxruntime.capi import onnxruntime_inference_collection, onnxruntime_pybind11_state
from test_ort_scripts import path  # noqa: F401  (a fixture)

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError
from fx2onnx.runner.options import REFUSED, REFUSED_METHODS

LEFT_OUT = {
    "contextlib": "a module that onnxruntime imports",
    "import_capi_exception": "the error of its own import",
    "onnxruntime_validation": "in capi",
}
"""Names that the module has and the runner has not, each with the reason."""

OWN_OF_THE_COMPILED_MODULE = {
    *("ArenaExtendStrategy", "DeviceReset", "OrtCompiledModelCompatibility", "OrtDeviceEpIncompatibilityReason"),
    *("SessionObjectInitializer", "SparseBlockSparseView", "SparseCooView", "SparseCsrView", "get_all_operator_schema"),
    *("get_all_opkernel_def", "get_compatibility_info_from_model", "get_compatibility_info_from_model_bytes"),
    *("get_default_session_options", "get_hardware_device_ep_incompatibility_details", "get_hardware_devices"),
    *("get_model_compatibility_for_ep_devices", "get_registered_ep_kernel_defs", "get_session_initializer"),
    *("is_dlpack_uint8_tensor", "kNextPowerOfTwo", "kSameAsRequested", "opkernel", "schemadef"),
    *("pack_fp4_weights_for_cuda_moe_gemm", "quantize_matmul_2bits", "quantize_matmul_4bits", "quantize_matmul_8bits"),
    *("quantize_matmul_bnb4", "quantize_qdq_matmul_2bits", "quantize_qdq_matmul_4bits"),
}
"""What only the compiled module has, for onnxruntime's own tools."""

OF_ENUMS = {"name", "value"}


def public(thing: Any) -> set[str]:
    """The names, but those of submodules, which are there once somebody has imported them."""
    parts = {name for name in dir(thing) if f"{getattr(thing, '__name__', '')}.{name}" in sys.modules}
    return {name for name in dir(thing) if not name.startswith("_")} - parts


def test_names_of_the_module() -> None:
    assert {name for name in public(onnxruntime) if not hasattr(ort, name)} == set(LEFT_OUT)
    assert {name for name in public(onnxruntime) - set(LEFT_OUT) if name not in dir(ort)} == set()


def test_names_of_the_compiled_module() -> None:
    for name in ("_pybind_state", "onnxruntime_pybind11_state"):
        module = importlib.import_module(f"fx2onnx.runner.capi.{name}")
        missing = {name for name in public(onnxruntime_pybind11_state) if not hasattr(module, name)}
        assert missing <= OWN_OF_THE_COMPILED_MODULE


CLASSES = [
    "IOBinding", "InferenceSession", "NodeArg", "ModelMetadata", "OrtArenaCfg", "OrtDevice", "OrtEpDevice", "OrtMemoryInfo",
    "OrtValue", "RunOptions", "SessionIOBinding", "SessionOptions", "OrtMemType", "OrtAllocatorType", "ExecutionMode",
    "OrtHardwareDeviceType", "OrtExecutionProviderDevicePolicy", "OrtSparseFormat", "OrtDeviceMemoryType", "AdapterFormat",
    "LoraAdapter",
]  # fmt: skip
MADE = {"RunOptions": (), "SessionOptions": (), "OrtArenaCfg": ({},)}
"""Classes whose objects have what the class has not, and what they are made of."""


@pytest.mark.parametrize("name", CLASSES)
def test_names_of_classes(name: str) -> None:
    theirs = getattr(onnxruntime, name)
    own: Any = getattr(ort, name)
    mine = own(*MADE[name]) if name in MADE else own
    assert {each for each in public(theirs) if not hasattr(mine, each)} <= OF_ENUMS


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_are_refused(name: str) -> None:
    thing: Any = getattr(ort, name)
    for use in (lambda: thing(), lambda: thing.anything):
        with pytest.raises(UserError, match=f"{name} is not supported") as caught:
            use()
        assert caught.value.code == "E001"


def test_methods_that_are_refused() -> None:
    refusing: dict[str, Any] = {
        **dict.fromkeys(("as_sparse_tensor", "ort_value_from_sparse_tensor"), ort.OrtValue),
        "get_provider_graph_assignment_info": ort.InferenceSession,
    }
    for name in REFUSED_METHODS:
        with pytest.raises(UserError, match=f"{name} is not supported"):
            getattr(refusing.get(name, ort.SessionOptions()), name)("x")


MODULES: list[Any] = [ort, onnxruntime]


@pytest.mark.parametrize("module", MODULES, ids=["fx2onnx", "onnxruntime"])
def test_scripts_about_devices(module: Any, path: str) -> None:  # noqa: F811
    options = module.SessionOptions()
    assert not options.has_providers()
    session = module.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    (wanted,) = session.run(None, {"x": x})
    value = module.OrtValue.ortvalue_from_numpy(x)
    assert session.get_input_memory_infos()[0].name == "Cpu"
    assert session.get_tuning_results() == []
    assert module.OrtDevice.make("cpu", 0).device_id() == 0
    assert module.OrtMemoryInfo("Cpu", module.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, module.OrtMemType.DEFAULT)
    assert module.get_ep_devices()[0].ep_name == "CPUExecutionProvider"
    assert module.get_build_info().startswith("ORT Build Info")
    ort.set_global_thread_pool_sizes(1, 1)  # onnxruntime's would bind all later sessions of the process
    module.preload_dlls(cuda=False, cudnn=False, msvc=False)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert len(binding.get_outputs_as_ortvaluevector()) == 1
    tensor = torch.from_numpy(x)
    shared = module.OrtValue.from_dlpack(tensor)
    np.testing.assert_array_equal(session.run_with_ort_values(None, {"x": shared})[0].numpy(), wanted)
    tensor[0, 0] = 5
    assert shared.numpy()[0, 0] == 5


def test_values_in_a_row(path: str) -> None:  # noqa: F811
    session = ort.InferenceSession(path)
    x = np.ones((2, 8), np.float32)
    fetched = ort.OrtValueVector()
    session.run_with_ortvaluevector(None, ["x"], [ort.OrtValue(x)], ["y"], fetched, [ort.OrtDevice.make("cpu")])
    np.testing.assert_array_equal(fetched[0].numpy(), session.run(None, {"x": x})[0])
    assert (fetched.element_type_at(0), fetched.bool_tensor_indices(), len(fetched.to_dlpacks())) == (1, [], 1)
    target = ort.OrtValue(np.zeros((2, 4), np.float32))
    ort.copy_tensors([fetched[0]], [target])
    np.testing.assert_array_equal(target.numpy(), fetched[0].numpy())


def test_another_device_is_an_error() -> None:
    with pytest.raises(UserError, match="no device 'cuda'"):
        ort.OrtDevice.make("cuda", 0)


def test_modules_that_packages_import() -> None:
    for name in ("onnxruntime_inference_collection", "onnxruntime_validation", "_pybind_state"):
        importlib.import_module(f"fx2onnx.runner.capi.{name}")
    from fx2onnx.runner.capi import _pybind_state as state
    from fx2onnx.runner.capi.onnxruntime_inference_collection import InferenceSession

    assert InferenceSession is ort.InferenceSession
    assert state.SessionOptions is ort.SessionOptions
    assert public(onnxruntime_inference_collection) & {"InferenceSession", "OrtValue", "IOBinding"}


def test_version_of_a_model_that_has_none(path: str) -> None:  # noqa: F811
    for proto in (onnx.load(path), onnx.load(path)):
        model = proto.SerializeToString()
        found = ort.InferenceSession(model).get_modelmeta().version
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        assert found == session.get_modelmeta().version


HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
SHAPES: list[str] = [
    "(float[n,4] x) => (float[a,b] y) <float[4,3] w = {1,2,3,4,5,6,7,8,9,1,2,3}> { y = MatMul(x, w) }",
    "(float[n,4] x) => (float[a,b] y) { s = Constant<value_ints=[0]>() e = Constant<value_ints=[50]>() y = Slice(x, s, e) }",
    "(float[2,4] x) => (float[a,b] y) { y = Transpose(x) }",
    "(float[n,4] x) => (float[m,4] y) { y = Neg(x) }",
    "(float[n,4] x) => (int64[k] y) { y = Shape(x) }",
]


@pytest.mark.parametrize("text", SHAPES)
def test_sizes_of_outputs_that_follow_from_the_graph(text: str) -> None:
    model = onnx.parser.parse_model(HEAD + text).SerializeToString()
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).get_outputs()
    session = ort.InferenceSession(model)
    for _ in range(2):
        assert [each.shape for each in session.get_outputs()] == [each.shape for each in theirs]


def test_a_provider_that_is_not_there_is_a_warning(path: str, caplog: Any) -> None:  # noqa: F811
    options = ort.SessionOptions()
    options.add_provider("CUDAExecutionProvider", {})
    assert options.has_providers()
    assert ort.InferenceSession(path, options).get_providers() == ["CPUExecutionProvider"]
    assert "CUDAExecutionProvider" in caplog.text
