"""Several models over one file of weights: what two of them share is written once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Mapping
from typing import Any

import onnx_ir as ir

from fx2onnx.base.events import record
from fx2onnx.files.digest import BlockDigests
from fx2onnx.files.renaming import replace
from fx2onnx.files.staging import cannot_write
from fx2onnx.irx.data_file import Place, write_data
from fx2onnx.irx.io import EXTERNAL_MIN_BYTES, message_of, placed, require_data, write_bytes
from fx2onnx.irx.model_files import data_name


def save_together(models: Mapping[str, ir.Model], folder: str | os.PathLike[str], data_stem: str) -> int:
    """Write each model under its file name into ``folder``, their large weights into ``DATA_STEM.<digest>.data`` beside them.

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
        data_file, places = _write_weights(first, folder, data_stem)
        for file, model in models.items():
            values = [value for value, _ in keys[file]]
            with record("serialise"), placed(values, data_file, [places[key] for _, key in keys[file]]):
                content = message_of(model).SerializeToString(deterministic=True)
            with record("write model", bytes=len(content)):
                write_bytes(os.path.join(folder, file), content)
        return sum(os.path.getsize(os.path.join(folder, name)) for name in (*models, *filter(None, [data_file])))
    except OSError as cause:
        raise cannot_write(folder, cause) from cause


def _write_weights(
    first: Mapping[Hashable, ir.Value], folder: str | os.PathLike[str], stem: str
) -> tuple[str, dict[Hashable, Place]]:
    """The name of the file, empty where there is no weight, and each one's place in it."""
    if not first:
        return "", {}
    tensors = [value.const_value for value in first.values() if value.const_value is not None]
    digests = BlockDigests()
    unnamed = os.path.join(folder, stem)
    with record("write weights", bytes=sum(tensor.nbytes for tensor in tensors)):
        places = write_data(unnamed, tensors, digests)
    name = data_name(stem, digests.hexdigest())
    replace(unnamed, os.path.join(folder, name))
    return name, dict(zip(first, places, strict=True))


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
