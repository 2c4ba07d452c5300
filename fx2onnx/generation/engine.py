"""One graph in one of the engines, with values that stay the engine's own from step to step."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fx2onnx.base.errors import UserError

Array: TypeAlias = npt.NDArray[Any]
_DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(bfloat16)": ml_dtypes.bfloat16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
}
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16


def _open_runner(path: str) -> tuple[Any, Any]:
    from fx2onnx.runner import InferenceSession, OrtValue

    return InferenceSession(path), OrtValue


def _open_onnxruntime(path: str) -> tuple[Any, Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as cause:  # onnxruntime has its own classes for each status
        raise UserError("E303", f"onnxruntime cannot open {path}", why=str(cause).splitlines()[0][:300]) from cause
    return session, onnxruntime.OrtValue


ENGINES: dict[str, Callable[[str], tuple[Any, Any]]] = {"onnxruntime": _open_onnxruntime, "runner": _open_runner}


def chosen_engine(name: str | None) -> str:
    """``name``, or onnxruntime where it is installed and else the runner. Raises UserError E001, E602."""
    if name is None:
        return next(engine for engine in ENGINES if engine == "runner" or importlib.util.find_spec(engine))
    if name not in ENGINES:
        raise UserError("E001", f"unknown engine {name!r}", next=f"one of {', '.join(ENGINES)}")
    if name != "runner" and importlib.util.find_spec(name) is None:
        raise UserError("E602", f"the engine {name} is not installed", next=[f"pip install {name}", "engine='runner'"])
    return name


class Graph:
    """One ONNX file, opened. Values are arrays or the engine's ``OrtValue``; the latter are handed on without a copy."""

    def __init__(self, path: Path, engine: str) -> None:
        self.path = path
        self._session, self._value_class = ENGINES[engine](str(path))
        self.inputs: dict[str, Any] = {arg.name: arg for arg in self._session.get_inputs()}
        self.outputs: dict[str, Any] = {arg.name: arg for arg in self._session.get_outputs()}

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Every output by name, as the engine's values. ``feeds`` are arrays or such values."""
        values = {name: self.value(name, feed) for name, feed in feeds.items()}
        return dict(zip(self.outputs, self._session.run_with_ort_values(list(self.outputs), values), strict=True))

    def value(self, name: str, feed: Any) -> Any:
        """``feed`` as the engine's value for the input ``name``."""
        if not isinstance(feed, np.ndarray):
            return feed
        if feed.dtype == ml_dtypes.bfloat16 and hasattr(self._value_class, "ortvalue_from_numpy_with_onnx_type"):
            return self._value_class.ortvalue_from_numpy_with_onnx_type(feed.view(np.int16), _BFLOAT16)
        return self._value_class.ortvalue_from_numpy(np.ascontiguousarray(feed).reshape(feed.shape))

    def empty(self, name: str, batch: int) -> Array:
        """What the input ``name`` is before the first token: no tokens where it grows, zeros elsewhere."""
        arg = self.inputs[name]
        shape = [size if isinstance(size, int) else batch if size == "batch_size" else 0 for size in arg.shape]
        return np.zeros(shape, dtype=dtype_of(arg.type))


def dtype_of(onnx_type: str) -> Any:
    """The NumPy dtype of ``tensor(float)`` and the like. Raises UserError E401 for a type that no tensor has."""
    if onnx_type not in _DTYPES:
        raise UserError("E401", f"values of type {onnx_type} cannot be handed over")
    return _DTYPES[onnx_type]


def as_array(value: Any) -> Array:
    """An engine's value as an array."""
    array: Array = value.numpy()
    return array.view(ml_dtypes.bfloat16) if value.data_type() == "tensor(bfloat16)" and array.itemsize == 2 else array
