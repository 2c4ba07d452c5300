"""The engines that run a model: the bundled runner and onnxruntime, where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import ml_dtypes
import numpy.typing as npt
import torch

from fx2onnx.base.ort_values import run_session

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
    return partial(run_session, session)


ENGINES: dict[str, Callable[[str | bytes], Run]] = {"runner": open_runner, "onnxruntime": open_onnxruntime}


def available_engines() -> list[str]:
    """Names of the engines that can be used here."""
    return [name for name in ENGINES if name == "runner" or importlib.util.find_spec(name) is not None]
