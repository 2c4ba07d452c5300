"""Tensors by name in one file, as ``safetensors`` lays them out: a length, a JSON header, the bytes. Without torch.

Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import plain

ALIGNMENT_BYTES = 64
"""The alignment of each tensor: the bytes that a processor's vector instruction reads at once."""
MOST_HEADER_BYTES = 1 << 26
METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: its dtype in the format's words (``F32``), its sizes, and its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: memoryview


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The place of a tensor in a file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def write(
    path: str | os.PathLike[str], entries: Iterable[TensorEntry], metadata: Mapping[str, str]
) -> dict[str, TensorPlace]:
    """Write ``entries`` in their order; the places depend on names, dtypes and sizes alone. Raises OSError."""
    entries, header, offset = list(entries), dict[str, Any]({METADATA: dict(metadata)}), 0
    for entry in entries:
        length = len(entry.content)
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [offset, offset + length],
        }
        offset += length
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (_padded(8 + len(text)) - 8 - len(text))
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in entries:
            file.write(entry.content)
    return _places(header, 8 + len(text))


def places(path: str | os.PathLike[str]) -> tuple[dict[str, TensorPlace], dict[str, str]]:
    """The place of each tensor of a file, and the file's metadata. Raises UserError E302 for a damaged file."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(MOST_HEADER_BYTES, size - 8):
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        metadata = {str(key): str(value) for key, value in header.pop(METADATA, {}).items()}
        found = _places(header, 8 + length)
        if any(place.offset + place.length > size or place.length < 0 for place in found.values()):
            raise ValueError("a tensor lies beyond its end")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise UserError(
            "E302",
            f"'{Path(path)}' is no safetensors file that can be read",
            why="there is no such file" if isinstance(cause, FileNotFoundError) else plain(str(cause)),
            next="check the path; copy or write the file again where it is damaged",
        ) from cause
    return found, metadata


def _places(header: Mapping[str, Any], start: int) -> dict[str, TensorPlace]:
    return {
        name: TensorPlace(
            str(entry["dtype"]),
            tuple(int(size) for size in entry["shape"]),
            start + int(entry["data_offsets"][0]),
            int(entry["data_offsets"][1]) - int(entry["data_offsets"][0]),
        )
        for name, entry in header.items()
        if name != METADATA
    }


@dataclass(frozen=True)
class WeightFile:
    """A file whose bytes are mapped at ``address``; a tensor that lies inside is read from the file by its offset."""

    path: str
    address: int
    size_bytes: int

    def offset_of(self, address: int, length_bytes: int) -> int | None:
        """The offset in the file of the bytes at ``address``; None for memory that is not (all) the file's."""
        offset = address - self.address
        return offset if offset >= 0 and offset + length_bytes <= self.size_bytes else None
