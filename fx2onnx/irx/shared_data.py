"""Several models over one file of weights: what two of them share is written once."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Hashable, Mapping
from typing import Any

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.irx.data_file import write_data
from fx2onnx.irx.io import EXTERNAL_MIN_BYTES, placed, require_data


def save_together(models: Mapping[str, ir.Model], folder: str | os.PathLike[str], data_name: str) -> int:
    """Write each model under its file name into ``folder``, their large weights into ``data_name`` beside them.

    Returns: bytes written. ``folder`` is expected to be a temporary one: nothing is cleaned up.
    Raises: UserError E301 where a weight has no data or the system refuses to write.
    """
    first: dict[Hashable, ir.Value] = {}
    keys: dict[str, list[tuple[ir.Value, Hashable]]] = {}
    for file, model in models.items():
        require_data(model)
        keys[file] = [(value, _identity(value.const_value)) for value in _large(model)]
        for value, key in keys[file]:
            first.setdefault(key, value)
    try:
        tensors = [value.const_value for value in first.values() if value.const_value is not None]
        with record("write weights", bytes=sum(tensor.nbytes for tensor in tensors)):
            places = (
                dict(zip(first, write_data(os.path.join(folder, data_name), tensors), strict=True)) if first else {}
            )
        for file, model in models.items():
            values = [value for value, _ in keys[file]]
            with record("serialise"), placed(values, data_name, [places[key] for _, key in keys[file]]):
                content = ir.to_proto(model).SerializeToString(deterministic=True)
            model_file = os.path.join(folder, file)
            with record("write model", bytes=len(content)), open(model_file, "wb") as stream:
                stream.write(content)
        return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name in {*models, data_name})
    except OSError as cause:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, data_name))
        raise UserError("E301", f"the models cannot be written into {folder}", why=str(cause)) from cause


def _large(model: ir.Model) -> list[ir.Value]:
    values = model.graph.initializers.values()
    return [v for v in values if v.const_value is not None and v.const_value.nbytes >= EXTERNAL_MIN_BYTES]


def _identity(tensor: Any) -> Hashable:
    """Equal for tensors that hold the same numbers: one memory read in one way, or equal bytes."""
    raw: Any = getattr(tensor, "raw", None)
    if hasattr(raw, "data_ptr"):
        return raw.data_ptr(), tuple(raw.stride()), tuple(raw.shape), str(raw.dtype)
    digest = hashlib.blake2b(tensor.tobytes(), digest_size=16).digest()
    return digest, tensor.dtype, tuple(tensor.shape.numpy())
