"""The memory of a verification: of the weights no more than one copy beside the module's, and no more than is free."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fx2onnx.base.memory import free_bytes

if TYPE_CHECKING:
    import onnx

LARGE_BYTES = 64 << 20
"""Weights of which engines make no copies of their own."""
_MAPPED_BYTES = 1 << 16
_COPY = "beside.onnx"
_PAGE_BYTES = 4096
_EXHAUSTED = ("bad_alloc", "bad allocation", "allocate memory", "out of memory", "bytes; the limit is")
"""Words of engines that have classes of their own, the last of the bundled runner."""


def weights_bytes(model: onnx.ModelProto) -> int:
    """The bytes of the weights of the model's graph."""
    return sum(_nbytes(tensor) for tensor in model.graph.initializer)


def _nbytes(tensor: onnx.TensorProto) -> int:
    from onnx.helper import tensor_dtype_to_np_dtype

    if tensor.raw_data:
        return len(tensor.raw_data)
    length = next((entry.value for entry in tensor.external_data if entry.key == "length"), "")
    if length.isdigit():
        return int(length)
    return int(np.prod(tensor.dims, dtype=np.int64)) * tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def too_large(model: onnx.ModelProto) -> str:
    """The reason why the model cannot be verified here; empty where its weights fit once more."""
    needed, free = weights_bytes(model), free_bytes()
    if needed <= max(free, LARGE_BYTES):
        return ""
    return f"its weights take {needed >> 20} MB, and {free >> 20} MB of memory are free"


def is_exhausted(cause: BaseException) -> bool:
    """Return whether memory was not enough."""
    return isinstance(cause, MemoryError) or any(word in str(cause).lower() for word in _EXHAUSTED)


def weights_beside(path: str, folder: str) -> str:
    """The path of the same model in ``folder`` with its weights in a file beside it, which engines map: each would make a copy
    of what is in the model's own file. The path itself where that is small, or has weights beside it already.
    """
    if os.path.getsize(path) <= LARGE_BYTES:
        return path
    import onnx

    model = onnx.load(path, load_external_data=False)
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
        return path
    target = os.path.join(folder, _COPY)
    with open(f"{target}.data", "wb") as file:
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) < _MAPPED_BYTES:
                continue
            file.seek(-file.tell() % _PAGE_BYTES, os.SEEK_CUR)
            entries = {"location": f"{_COPY}.data", "offset": file.tell(), "length": file.write(tensor.raw_data)}
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
    Path(target).write_bytes(model.SerializeToString())
    return target
