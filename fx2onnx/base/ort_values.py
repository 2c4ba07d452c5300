"""onnxruntime on numbers that NumPy has no dtype for: bfloat16 and the 8-bit floats, as ``ml_dtypes`` has them.

Its ``run`` neither takes nor gives such arrays; its ``OrtValue`` takes their bits, and its memory can be read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

TEXTS = "tensor(string)"
# onnxruntime's name of the type -> the number of onnx.TensorProto.DataType, the dtype, one of its size that NumPy knows.
_FOREIGN: dict[str, tuple[int, Any, Any]] = {
    "tensor(bfloat16)": (16, ml_dtypes.bfloat16, np.int16),
    "tensor(float8e4m3fn)": (17, ml_dtypes.float8_e4m3fn, np.uint8),
    "tensor(float8e4m3fnuz)": (18, ml_dtypes.float8_e4m3fnuz, np.uint8),
    "tensor(float8e5m2)": (19, ml_dtypes.float8_e5m2, np.uint8),
    "tensor(float8e5m2fnuz)": (20, ml_dtypes.float8_e5m2fnuz, np.uint8),
}


def run_session(
    session: Any, feeds: Mapping[str, Any], text_value: Callable[[Array], Any] | None = None, run_options: Any = None
) -> list[Any]:
    """``session.run(None, feeds)`` of an onnxruntime session, with arrays of any dtype in and out.

    text_value: makes an ``onnxruntime.OrtValue`` of an array of texts, which has to stand beside other ones.
    """
    types = {value.name: value.type for value in session.get_inputs()}
    if not any(value.type in _FOREIGN for value in (*session.get_inputs(), *session.get_outputs())):
        return list(session.run(None, dict(feeds), run_options))
    values = {
        name: text_value(feed)
        if text_value is not None and types.get(name) == TEXTS
        else to_ort_value(feed, types.get(name, ""))
        for name, feed in feeds.items()
    }
    return [from_ort_value(value) for value in session.run_with_ort_values(None, values, run_options)]


def to_ort_value(array: Array, type_text: str) -> Any:
    """The array as an ``onnxruntime.OrtValue`` of the type ``tensor(...)``."""
    import onnxruntime

    kept = np.ascontiguousarray(array).reshape(array.shape)
    if type_text not in _FOREIGN or kept.dtype != _FOREIGN[type_text][1]:
        return onnxruntime.OrtValue.ortvalue_from_numpy(kept)
    element, _, carrier = _FOREIGN[type_text]
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(kept.view(carrier), element)


def from_ort_value(value: Any) -> Array:
    """An ``onnxruntime.OrtValue`` in the memory of the CPU as an array of its own."""
    foreign = _FOREIGN.get(value.data_type())
    if foreign is None:
        array: Array = value.numpy()
        return array
    shape: Sequence[int] = value.shape()
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(data, dtype=foreign[1]).reshape(shape).copy()
