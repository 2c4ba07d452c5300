"""``OrtValue``: onnxruntime's wrapper of a run-time value, here around a NumPy array or a list."""

from __future__ import annotations

from typing import Any

import numpy as np

from fx2onnx.runner.types import TENSOR_NAMES, Array, Value, onnx_dtype


class OrtValue:
    """A value with its type, as ``run_with_ort_values`` takes and gives it."""

    def __init__(self, value: Value) -> None:
        self._value = value

    @staticmethod
    def ortvalue_from_numpy(array: Array, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        return OrtValue(np.asarray(array))

    def numpy(self) -> Array:
        """The array. Raises: TypeError for a sequence."""
        if not isinstance(self._value, np.ndarray):
            raise TypeError("the value is not a tensor")
        return self._value

    def value(self) -> Value:
        return self._value

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list)

    def has_value(self) -> bool:
        return self._value is not None

    def shape(self) -> list[int]:
        return list(self.numpy().shape)

    def data_type(self) -> str:
        dtype = onnx_dtype(self.numpy().dtype)
        return f"tensor({TENSOR_NAMES[dtype]})" if dtype is not None else str(self.numpy().dtype)

    def device_name(self) -> str:
        return "cpu"


def as_plain(value: Any) -> Any:
    """What an ``OrtValue`` holds; anything else as it is."""
    return value.value() if isinstance(value, OrtValue) else value
