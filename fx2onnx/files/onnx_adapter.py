"""Adapters as onnxruntime lays them out (``.onnx_adapter``): arrays by the name of the input that they are for. Without onnxruntime.

The file is a FlatBuffer: ``Adapter {format_version, adapter_version, model_version: int32; parameters: [Parameter]}`` and
``Parameter {name: string; dims: [int64]; data_type: int32; raw_data: [uint8]}``, with the data types of ONNX.

Source: onnxruntime 1.31, ``onnxruntime/lora/adapter_format/adapter_schema.fbs``; https://flatbuffers.dev/internals
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fx2onnx.base.errors import UserError

Array: TypeAlias = npt.NDArray[Any]
SUFFIX = ".onnx_adapter"
_IDENTIFIER = b"TORT"
_FORMAT_VERSION = 1
_DTYPES: dict[int, Any] = {
    1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64, 10: np.float16,
    11: np.float64, 12: np.uint32, 13: np.uint64, 16: ml_dtypes.bfloat16, 17: ml_dtypes.float8_e4m3fn, 19: ml_dtypes.float8_e5m2,
}  # fmt: skip
"""NumPy's dtypes by ONNX's numbers."""
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
_MOST_BYTES = 1 << 31
"""The offsets of a FlatBuffer have 32 bits."""


@dataclass(frozen=True)
class Adapter:
    """The arrays of an adapter, and the two versions that its maker gives."""

    parameters: Mapping[str, Array] = field(default_factory=dict)
    adapter_version: int = 0
    model_version: int = 0
    format_version: int = _FORMAT_VERSION


def write(path: str | os.PathLike[str], adapter: Adapter) -> None:
    """Raises: OSError, UserError E601 for an array that the format cannot hold."""
    size = sum(array.nbytes + len(name) * 4 + 128 for name, array in adapter.parameters.items())
    other = next((name for name, array in adapter.parameters.items() if array.dtype not in _CODES), None)
    if other is not None or size >= _MOST_BYTES:
        why = f"it has {size >> 20} MB, at most 2047 fit" if other is None else f"{other} has another dtype"
        raise UserError("E601", "the adapter does not fit into an .onnx_adapter file", why=why)
    Path(path).write_bytes(_Writer().written(adapter))


def read(path: str | os.PathLike[str]) -> Adapter:
    """The adapter; its arrays are views of the file's bytes. Raises: UserError E302."""
    try:
        data = Path(path).read_bytes()
        if data[4:8] != _IDENTIFIER:
            raise ValueError("it does not begin as one")
        return _adapter(_Reader(data))
    except (OSError, ValueError, struct.error) as cause:
        raise UserError(
            "E302",
            f"cannot read the adapter '{path}'",
            why="there is no such file" if isinstance(cause, FileNotFoundError) else str(cause),
            next="copy or write the file again: it is damaged, or no .onnx_adapter file",
        ) from cause


def _adapter(reader: _Reader) -> Adapter:
    table = reader.at("I", 0)
    versions = [reader.number(table, place) for place in range(3)]
    if versions[0] > _FORMAT_VERSION:
        raise ValueError(f"its format is of version {versions[0]}, this fx2onnx reads {_FORMAT_VERSION}")
    start, count = reader.vector(table, 3, 4)
    found = {}
    for place in range(start, start + 4 * count, 4):
        one = place + reader.at("I", place)
        name = bytes(reader.content(one, 0, 1)).decode()
        dims = np.frombuffer(reader.content(one, 1, 8), "<i8").tolist()
        code, raw = reader.number(one, 2), reader.content(one, 3, 1)
        if code not in _DTYPES:
            raise ValueError(f"{name} has the data type {code}")
        dtype = np.dtype(_DTYPES[code])
        if any(size < 0 for size in dims) or math.prod(dims) * dtype.itemsize != len(raw):
            raise ValueError(f"{name} {dims} of {dtype} has {len(raw)} bytes")
        found[name] = np.frombuffer(raw, np.uint8).view(dtype).reshape(dims)
    return Adapter(found, versions[1], versions[2], versions[0])


class _Reader:
    """Tables and vectors of a FlatBuffer. Raises ValueError or struct.error for a place outside of the file."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def at(self, kind: str, place: int) -> int:
        """The number at a place."""
        if place < 0:
            raise ValueError("it points outside of itself")
        found: int = struct.unpack_from(f"<{kind}", self._data, place)[0]
        return found

    def _field(self, table: int, place: int) -> int:
        """The place of the table's field of that number, 0 where it has its default."""
        vtable = table - self.at("i", table)
        offset = self.at("H", vtable + 4 + 2 * place) if self.at("H", vtable) >= 6 + 2 * place else 0
        return table + offset if offset else 0

    def number(self, table: int, place: int) -> int:
        """An int32, 0 by default."""
        found = self._field(table, place)
        return self.at("i", found) if found else 0

    def vector(self, table: int, place: int, width: int) -> tuple[int, int]:
        """The start of a vector and the number of its items."""
        found = self._field(table, place)
        if not found:
            return 0, 0
        start = found + self.at("I", found)
        count = self.at("I", start)
        if start + 4 + count * width > len(self._data):
            raise ValueError("a part lies beyond its end")
        return start + 4, count

    def content(self, table: int, place: int, width: int) -> memoryview:
        start, count = self.vector(table, place, width)
        return self._data[start : start + count * width]


class _Writer:
    """A FlatBuffer from front to back: what a table points to follows it."""

    def __init__(self) -> None:
        self._data = bytearray()

    def written(self, adapter: Adapter) -> bytearray:
        self._put("I", 0)
        self._data += _IDENTIFIER
        vtable = self._vtable()
        self._point(0)
        table = self._table(vtable)
        self._set(table + 4, "i", adapter.format_version)
        self._set(table + 8, "i", adapter.adapter_version)
        self._set(table + 12, "i", adapter.model_version)
        self._point(table + 16)
        self._put("I", len(adapter.parameters))
        first = len(self._data)
        self._data += bytes(4 * len(adapter.parameters))
        for place, (name, array) in enumerate(adapter.parameters.items()):
            self._point(first + 4 * place)
            one = self._table(vtable)
            text = name.encode()
            self._point(one + 4)
            self._put("I", len(text))
            self._data += text + b"\0"
            self._vector(one + 8, array.ndim, struct.pack(f"<{array.ndim}q", *array.shape))
            self._set(one + 12, "i", _CODES[array.dtype])
            self._vector(one + 16, array.nbytes, array.tobytes())
        self._align(4)
        return self._data

    def _vtable(self) -> int:
        """Both tables have four fields of four bytes."""
        place = len(self._data)
        self._data += struct.pack("<6H", 12, 20, 4, 8, 12, 16)
        return place

    def _table(self, vtable: int) -> int:
        place = len(self._data)
        self._put("i", place - vtable)
        self._data += bytes(16)
        return place

    def _vector(self, pointer: int, count: int, content: bytes) -> None:
        """A vector whose first item lies at a multiple of eight."""
        self._align(8, rest=4)
        self._point(pointer)
        self._put("I", count)
        self._data += content

    def _point(self, pointer: int) -> None:
        """Let ``pointer`` point to what is written next."""
        self._align(4)
        self._set(pointer, "I", len(self._data) - pointer)

    def _put(self, kind: str, number: int) -> None:
        self._data += struct.pack(f"<{kind}", number)

    def _set(self, place: int, kind: str, number: int) -> None:
        struct.pack_into(f"<{kind}", self._data, place, number)

    def _align(self, width: int, rest: int = 0) -> None:
        self._data += bytes((rest - len(self._data)) % width)
