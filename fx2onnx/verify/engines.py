"""The engines that run a model: the bundled runner and onnxruntime, where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

Array: TypeAlias = npt.NDArray[Any]
Run: TypeAlias = Callable[[dict[str, Array]], list[Any]]

_VIEWED = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
}


def to_numpy(tensor: torch.Tensor) -> Array:
    """The tensor as NumPy has it; complex numbers as a trailing pair of reals."""
    tensor = tensor.detach().cpu()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype in _VIEWED:
        carrier, dtype = _VIEWED[tensor.dtype]
        return tensor.contiguous().view(carrier).numpy().view(dtype)
    return tensor.numpy()


def open_runner(model: str | bytes) -> Run:
    """The bundled runner on ``model`` (a path or bytes)."""
    from fx2onnx.runner import InferenceSession

    session = InferenceSession(model)
    return lambda feeds: list(session.run(None, feeds))


def open_onnxruntime(model: str | bytes) -> Run:
    """onnxruntime on the CPU, two threads at most, so that it leaves the machine usable."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]

    def run(feeds: dict[str, Array]) -> list[Any]:
        if all(array.dtype.kind != "V" and array.dtype.name in np.sctypeDict for array in feeds.values()):
            return list(session.run(names, feeds))
        return _run_with_values(session, names, feeds)

    return run


def _run_with_values(session: Any, names: Sequence[str], feeds: dict[str, Array]) -> list[Any]:
    """dtypes that NumPy lacks (bfloat16, float8) go through OrtValue."""
    import onnxruntime

    types = {value.name: value.type for value in session.get_inputs()}
    binding = session.io_binding()
    kept = []
    for name, array in feeds.items():
        element = {"tensor(bfloat16)": 16, "tensor(float8e4m3fn)": 17, "tensor(float8e5m2)": 19}.get(types[name])
        if element is None:
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        else:
            carrier = np.int16 if element == 16 else np.uint8
            value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(carrier), element)
        kept.append(value)
        binding.bind_ortvalue_input(name, value)
    for name in names:
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    return [value.numpy() for value in binding.get_outputs()]


ENGINES: dict[str, Callable[[str | bytes], Run]] = {"runner": open_runner, "onnxruntime": open_onnxruntime}


def available_engines() -> list[str]:
    """Names of the engines that can be used here."""
    return [name for name in ENGINES if name == "runner" or importlib.util.find_spec(name) is not None]
