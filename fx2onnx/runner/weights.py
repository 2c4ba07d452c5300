"""From ``onnx_ir`` tensors to read-only arrays; external files are mapped, never copied, and stay inside their folder."""

from __future__ import annotations

import math
import mmap
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.runner.limits import check_shape
from fx2onnx.runner.types import Array, numpy_dtype, string_array

_PACKED_BITS = {2: 2, 4: 4}
"""Elements of these widths are packed several to a byte, the low bits first."""


class WeightStore:
    """Reads tensors of one model. Maps of external files are shared and live as long as an array that uses them."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self.folders = folders
        self._maps: dict[str, memoryview] = {}

    def array(self, tensor: Any, what: str) -> Array:
        """The tensor's elements.

        Raises: UserError E302 for external data that is missing or out of bounds, E303 for a tensor that contradicts
        itself, E404 for a claimed size above the memory limit.
        """
        if tensor.dtype is ir.DataType.UNDEFINED:
            raise UserError("E303", f"{what} has no element type")
        shape = tuple(dim if isinstance(dim, int) else -1 for dim in tensor.shape)
        if any(dim < 0 for dim in shape):
            raise UserError("E303", f"{what} has the invalid shape {list(tensor.shape)}")
        if isinstance(tensor, ir.ExternalTensor):
            array = self._external(tensor, shape, what)
        else:
            array = _internal(tensor, shape, what)
        if array.dtype.kind != "O" and not array.flags.aligned:
            array = array.copy()
        if array.flags.writeable:
            array = array.view()
            array.flags.writeable = False
        return array

    def _external(self, tensor: ir.ExternalTensor, shape: tuple[int, ...], what: str) -> Array:
        dtype = numpy_dtype(tensor.dtype)
        if dtype.kind == "O":
            raise UserError("E303", f"{what} is a string tensor in an external file, which ONNX does not allow")
        bits = _PACKED_BITS.get(round(tensor.dtype.itemsize * 8), 0)
        count = math.prod(shape)
        size_bytes = -(-count * bits // 8) if bits else count * dtype.itemsize
        offset_bytes = tensor.offset or 0
        if tensor.length is not None and tensor.length != size_bytes:
            raise UserError(
                "E302", f"{what} claims {tensor.length} external bytes; its shape and dtype make {size_bytes}"
            )
        check_shape(shape, dtype, what)
        if count == 0:
            return np.zeros(shape, dtype)
        data = self._map(str(tensor.location), tuple(filter(None, (str(tensor.base_dir or ""),))) or self.folders, what)
        if offset_bytes < 0 or offset_bytes + size_bytes > len(data):
            raise UserError(
                "E302",
                f"{what} lies at bytes {offset_bytes}..{offset_bytes + size_bytes} of {tensor.location}, "
                f"which has {len(data)}",
            )
        raw = np.frombuffer(data, np.uint8, size_bytes, offset_bytes)
        return unpack(raw, dtype, bits, shape) if bits else raw.view(dtype).reshape(shape)

    def _map(self, location: str, folders: tuple[str, ...], what: str) -> memoryview:
        path = confined_path(location, folders, what)
        if path not in self._maps:
            try:
                with open(path, "rb") as file:
                    self._maps[path] = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except (OSError, ValueError) as error:
                raise UserError("E302", f"{what}: {location} cannot be read", why=str(error)) from error
        return self._maps[path]


def confined_path(location: str, folders: tuple[str, ...], what: str) -> str:
    """The real path of external data, which must be a regular file inside one of ``folders``.

    Raises: UserError E302 where it is absolute, has ``..``, leads out by a link, or does not exist.
    """
    if not folders:
        raise UserError(
            "E302",
            f"{what} is in the external file {location!r}, but the model was not given as a file",
            next='name its folder: SessionOptions().add_session_config_entry("session.model_external_initializers_file_folder_path", "...")',
        )
    parts = Path(location.replace("\\", "/")).parts
    if not location or "\0" in location or os.path.isabs(location) or ".." in parts:
        raise UserError("E302", f"{what}: external data must be inside the model's folder, not at {location!r}")
    for folder in folders:
        real = os.path.realpath(os.path.join(folder, location))
        if not os.path.exists(real):
            continue
        if not any(os.path.commonpath([real, root]) == root for root in map(os.path.realpath, folders)):
            raise UserError("E302", f"{what}: {location!r} is a link out of the model's folder")
        if not stat.S_ISREG(os.stat(real).st_mode):
            raise UserError("E302", f"{what}: {location!r} is not a regular file")
        return real
    raise UserError("E302", f"{what}: the external file {location!r} does not exist in {folders[0]!r}")


def unpack(raw: Array, dtype: Any, bits: int, shape: tuple[int, ...]) -> Array:
    """Elements of 2 or 4 bits out of bytes, low bits first."""
    per_byte = 8 // bits
    mask = (1 << bits) - 1
    spread = np.empty((raw.size, per_byte), np.uint8)
    for position in range(per_byte):
        np.bitwise_and(raw >> (bits * position), mask, out=spread[:, position])
    codes: Array = spread.reshape(-1)[: math.prod(shape)]
    if dtype.name.startswith("int"):
        codes = ((codes.astype(np.int8) << (8 - bits)) >> (8 - bits)).astype(np.int8)
        return codes.astype(dtype).reshape(shape)
    if dtype.name.startswith("uint"):
        return codes.astype(dtype).reshape(shape)
    return np.asarray(codes.view(dtype).reshape(shape))


def _internal(tensor: Any, shape: tuple[int, ...], what: str) -> Array:
    if tensor.dtype is ir.DataType.STRING:
        items = tensor.string_data() if hasattr(tensor, "string_data") else tensor.numpy().ravel().tolist()
        if len(items) != math.prod(shape):
            raise UserError("E303", f"{what} has {len(items)} strings for shape {list(shape)}")
        return string_array(items, shape)
    check_shape(shape, numpy_dtype(tensor.dtype), what)
    try:
        array = np.asarray(tensor.numpy())
    except (ValueError, TypeError, OverflowError, RuntimeError, AttributeError, KeyError, AssertionError) as error:
        raise UserError("E303", f"{what} does not hold what its shape and dtype say", why=str(error)[:300]) from error
    if array.shape != shape:
        raise UserError("E303", f"{what} has data of shape {list(array.shape)}, not {list(shape)}")
    return array
