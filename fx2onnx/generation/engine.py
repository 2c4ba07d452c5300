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
from fx2onnx.base.ort_values import from_ort_value, to_ort_value

PAST, PRESENT, LENGTH = "past_key_values.", "present.", "past_length"
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
Opened: TypeAlias = tuple[Any, Callable[[Array, str], Any]]
"""A session, and what makes its own value of an array and the input's type."""


def _open_runner(path: str) -> Opened:
    from fx2onnx.runner import InferenceSession, OrtValue

    def to_value(array: Array, _: str) -> Any:
        return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).reshape(array.shape))

    return InferenceSession(path), to_value


def _open_onnxruntime(path: str) -> Opened:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as cause:  # onnxruntime has its own classes for each status
        raise UserError("E303", f"onnxruntime cannot open {path}", why=str(cause).splitlines()[0][:600]) from cause
    return session, to_ort_value


ENGINES: dict[str, Callable[[str], Opened]] = {"onnxruntime": _open_onnxruntime, "runner": _open_runner}


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

    def __init__(self, path: Path, engine: str, file: Path | None = None) -> None:
        """``file`` is what is opened, where that is not (yet) called ``path``."""
        self.path = path
        self._session, self._to_value = ENGINES[engine](str(file or path))
        self.inputs: dict[str, Any] = {arg.name: arg for arg in self._session.get_inputs()}
        self.outputs: dict[str, Any] = {arg.name: arg for arg in self._session.get_outputs()}

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Every output by name, as the engine's values. ``feeds`` are arrays or such values."""
        values = {name: self.value(name, feed) for name, feed in feeds.items()}
        if self.is_static and hasattr(self._session, "io_binding"):
            return self._run_in_place(values)
        return dict(zip(self.outputs, self._session.run_with_ort_values(list(self.outputs), values), strict=True))

    @property
    def is_static(self) -> bool:
        """Whether caches have a fixed size, so that each new one may take the memory of the old."""
        return LENGTH in self.inputs

    @property
    def takes_all_tokens(self) -> bool:
        """Whether the graph takes the tokens that its cache has seen, too: their number follows from the cache's length."""
        shape = self.inputs["input_ids"].shape if "input_ids" in self.inputs else [None]
        return isinstance(shape[-1], str) and "past_sequence_length" in shape[-1]

    def _run_in_place(self, values: Mapping[str, Any]) -> dict[str, Any]:
        binding = self._session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name in self.outputs:
            past = values.get(PAST + name.removeprefix(PRESENT)) if name.startswith(PRESENT) else None
            if past is None:
                binding.bind_output(name)
            else:
                binding.bind_ortvalue_output(name, past)
        self._session.run_with_iobinding(binding)
        return dict(zip(self.outputs, binding.get_outputs(), strict=True))

    def value(self, name: str, feed: Any) -> Any:
        """``feed`` as the engine's value for the input ``name``."""
        if not isinstance(feed, np.ndarray):
            return feed
        return self._to_value(feed, self.inputs[name].type)

    def empty(self, name: str, batch: int, limit: int = 0) -> Any:
        """What the input ``name`` is before the first token: no tokens where it grows, zeros elsewhere.

        A cache of fixed size has room for ``limit`` tokens.
        """
        arg = self.inputs[name]
        sizes = {"batch_size": batch, "max_length": limit}
        shape = [size if isinstance(size, int) else sizes.get(size, 0) for size in arg.shape]
        return np.zeros(shape, dtype=dtype_of(arg.type))


def dtype_of(onnx_type: str) -> Any:
    """The NumPy dtype of ``tensor(float)`` and the like. Raises UserError E401 for a type that no tensor has."""
    if onnx_type not in _DTYPES:
        raise UserError("E401", f"values of type {onnx_type} cannot be handed over")
    return _DTYPES[onnx_type]


def as_array(value: Any) -> Array:
    """An engine's value as an array."""
    from fx2onnx.runner import OrtValue

    array: Array = value.numpy() if isinstance(value, OrtValue) else from_ort_value(value)
    return array
