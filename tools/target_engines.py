"""Runs cases of ``target_cases`` in one runtime and says of each what was wrong: ``python target_engines.py ENGINE FILE FIRST``.

A process of its own, which may die of a case. It imports nothing of fx2onnx, so that the runtime's packages may stand alone.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

TRACT_NAMES = {
    "float32": "f32",
    "float16": "f16",
    "float64": "f64",
    "bool": "bool",
    **{f"{sign}int{bits}": f"{sign or 'i'}{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)},
}
TOLERANCE = 2e-2
"""Runtimes for phones and browsers compute in half precision."""
SNAPDRAGON = {"htp_arch": "75", "soc_model": "69"}
"""A processor that computes in half precision; without one the emulation has no memory for recurrent layers and norms."""

Feeds = dict[str, np.ndarray]


def openvino(model: bytes, inputs: Feeds, path: str) -> list[np.ndarray]:
    """On its CPU plugin."""
    import openvino as ov

    core = ov.Core()
    config = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": 1}
    compiled = core.compile_model(core.read_model(model), "CPU", config)
    results = compiled(dict(inputs), share_inputs=False, share_outputs=False)
    return [np.array(results[index]) for index in range(len(compiled.outputs))]


def tract(model: bytes, inputs: Feeds, path: str) -> list[np.ndarray]:
    """With the shapes of the inputs, which it optimizes for; dynamic sizes keep their names."""
    import onnx
    import tract

    with open(path + ".onnx", "wb") as file:
        file.write(model)
    graph = tract.onnx().load(path + ".onnx")
    values = onnx.load_from_string(model).graph.input
    names = [size.dim_param for value in values for size in value.type.tensor_type.shape.dim if size.dim_param]
    for index, array in enumerate(() if names else inputs.values()):
        sizes = "".join(f"{size}," for size in array.shape)
        graph.set_input_fact(index, sizes + TRACT_NAMES[array.dtype.name])
    graph.analyse()
    try:
        return [each.to_numpy() for each in graph.into_model().into_runnable().run(list(inputs.values()))]
    except Exception as cause:  # tract has no class of its own for what Python does not get; all else is raised on
        if "public API TDim" in str(cause):  # it has run, with integers of a kind that Python does not get
            raise HasRun from cause
        raise


def qnn(model: bytes, inputs: Feeds, path: str) -> list[np.ndarray]:
    """onnxruntime's provider for Qualcomm's processors, on their emulation, without a fallback to onnxruntime's own kernels."""
    import onnxruntime
    import onnxruntime_qnn

    name = onnxruntime_qnn.get_ep_name()
    if all(device.ep_name != name for device in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library(name, onnxruntime_qnn.get_library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_provider_for_devices(devices[:1], {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), **SNAPDRAGON})
    results: list[np.ndarray] = onnxruntime.InferenceSession(model, options).run(None, dict(inputs))
    return results


def wonnx(model: bytes, inputs: Feeds, path: str) -> list[np.ndarray]:
    """On whatever Vulkan device there is, a software one too. It gives flat lists."""
    import onnx
    import wonnx

    session = wonnx.Session.from_bytes(model)
    results = session.run({name: array.ravel().tolist() for name, array in inputs.items()})
    return [np.array(results[value.name]) for value in onnx.load_from_string(model).graph.output]


def rten(model: bytes, inputs: Feeds, path: str) -> list[np.ndarray]:
    """Convert the model for rten: the runtime is a Rust library that no package for Python or Node.js brings."""
    import onnx
    from rten_convert.converter import Metadata, graph_from_onnx_graph, serialize_model
    from rten_convert.tensor_data import TensorDataBuilder

    graph = graph_from_onnx_graph(onnx.shape_inference.infer_shapes(onnx.load_from_string(model), data_prop=True).graph)
    serialize_model(graph, Metadata(), TensorDataBuilder())
    raise HasRun


class HasRun(Exception):
    """The case has run, and its numbers cannot be seen."""


ENGINES: dict[str, Callable[[bytes, Feeds, str], list[np.ndarray]]] = {
    engine.__name__: engine for engine in (openvino, tract, qnn, wonnx, rten)
}
FLAT = frozenset({"wonnx"})
"""Engines that do not give the shapes of results."""


def is_close(got: np.ndarray, want: np.ndarray, *, is_flat: bool) -> bool:
    """True if the numbers are close to the wanted ones."""
    if is_flat:
        got, want = got.ravel(), want.ravel()
    if got.shape != want.shape:
        return False
    if want.dtype.kind in "biu":
        return bool(np.array_equal(got, want))
    return bool(np.allclose(got.astype(np.float64), want.astype(np.float64), TOLERANCE, TOLERANCE, equal_nan=True))


def said(engine: str, model: bytes, inputs: Feeds, outputs: list[np.ndarray] | None, path: str) -> str:
    """The problem of a model in an engine; empty if there is none. Without ``outputs`` it need only run."""
    try:
        got = ENGINES[engine](model, inputs, path)
    except HasRun:
        return ""
    except BaseException as cause:  # panics of Rust, too
        return f"{type(cause).__name__}: {str(cause)[:900]}"
    if outputs is None:
        return ""
    flat = engine in FLAT
    right = len(got) == len(outputs) and all(
        is_close(each, want, is_flat=flat) for each, want in zip(got, outputs, strict=True)
    )
    return "" if right else "other numbers"


def main(engine: str, path: str, first: int) -> None:
    with open(path, "rb") as file:
        every: list[Any] = pickle.load(file)
    for model, inputs, outputs in every[first:]:
        print("@" + repr(said(engine, model, inputs, outputs, path)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
