"""dtypes as people write them: NumPy's names, where it has one."""

from __future__ import annotations

import onnx

_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}
"""Of ONNX's names those that NumPy does not use, in lower case, for the same."""


def dtype_name(number: int) -> str:
    """The name of a member of ``onnx.TensorProto.DataType``: ``float32``, ``bfloat16``."""
    try:
        name: str = onnx.TensorProto.DataType.Name(number)  # type: ignore[arg-type, unused-ignore]
    except ValueError:  # of a later version
        return f"dtype {number}"
    return _NAMES.get(name, name.lower())
