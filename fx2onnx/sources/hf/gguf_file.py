"""GGUF files: their metadata, and their tensors mapped into memory. The ``gguf`` package reads the container."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.files.safetensors import WeightFile
from fx2onnx.sources.foreign_errors import summary
from fx2onnx.sources.hf.gguf_layers import LAYOUTS, BlockRows
from fx2onnx.sources.registry import require

SUFFIX = ".gguf"
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
_PART = re.compile(r"(.*)-00001-of-(\d{5})\.gguf")


@dataclass(frozen=True)
class StoredWeight:
    """A tensor of the file: its layout by name, its sizes as torch has them, and its bytes."""

    layout: str
    sizes: tuple[int, ...]
    content: torch.Tensor

    def plain(self) -> torch.Tensor | None:
        """The tensor, on the memory of the file; None for one in blocks."""
        dtype = PLAIN.get(self.layout)
        return None if dtype is None else self.content.view(dtype).reshape(self.sizes)

    def blocks(self, order: torch.Tensor | None) -> BlockRows | None:
        """A matrix in blocks, its rows in ``order``; None for others, and for layouts that are not read here."""
        layout = LAYOUTS.get(self.layout)
        if layout is None or len(self.sizes) != 2:
            return None
        return BlockRows(layout, self.content.reshape(self.sizes[0], -1), order)

    def numbers(self) -> torch.Tensor:
        """The numbers of a tensor, made anew where it is in blocks."""
        import gguf

        found = self.plain()
        if found is not None:
            return found
        rows = self.content.numpy().reshape(math.prod(self.sizes[:-1]), -1)
        made: Any = gguf.dequantize(rows, gguf.GGMLQuantizationType[self.layout])
        return torch.from_numpy(made).reshape(self.sizes)


@dataclass
class GgufFile:
    """A GGUF file: its metadata and tensors. ``files`` are the parts of a model that is cut into several."""

    path: Path
    metadata: dict[str, Any]
    weights: dict[str, StoredWeight] = field(default_factory=dict)
    files: list[WeightFile] = field(default_factory=list)

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])


def file_of(place: Path) -> Path | None:
    """The GGUF file that ``place`` is, or holds where it has no config.json: of one cut into parts, the first."""
    if place.suffix == SUFFIX and place.is_file():
        return place
    if not place.is_dir() or (place / "config.json").exists():
        return None
    found = sorted(path for path in place.glob(f"*{SUFFIX}") if path.is_file())
    firsts = [
        path for path in found if not re.search(r"-\d{5}-of-\d{5}\.gguf$", path.name) or _PART.fullmatch(path.name)
    ]
    if len(firsts) > 1:
        others = [f"gguf:{path}" for path in firsts[:4]]
        raise UserError(
            "E601", f"the folder '{place}' has {len(firsts)} GGUF files", next=f"name one: {', '.join(others)}"
        )
    return firsts[0] if firsts else None


def opened(path: Path) -> GgufFile:
    """The file, mapped, with its other parts.

    Raises:   UserError E302 (damaged, a part is missing), E601 (a layout that the ``gguf`` package does not know), E602.
    """
    require("gguf", f"gguf:{path}")
    part = _PART.fullmatch(path.name)
    count = int(part[2]) if part else 1
    whole = _opened_part(path)
    for number in range(2, count + 1):
        assert part is not None
        other = _opened_part(path.with_name(f"{part[1]}-{number:05d}-of-{part[2]}{SUFFIX}"))
        whole.weights |= other.weights
        whole.files += other.files
    if "general.architecture" not in whole.metadata:
        raise damaged(path, "it has no general.architecture")
    return whole


def _opened_part(path: Path) -> GgufFile:
    import gguf
    from transformers.integrations.gguf import read_gguf_metadata

    try:
        metadata, _ = read_gguf_metadata(str(path))  # which finds out cheaply where a header does not end
        reader = gguf.GGUFReader(path)
    except FileNotFoundError as error:
        raise UserError("E302", f"there is no file '{path}'", next="copy all parts into one folder") from error
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, OSError, MemoryError, struct.error) as error:
        unknown = re.search(r"(\d+)\)? is not a valid GGMLQuantizationType", str(error))
        if unknown:
            raise unknown_layout(path, f"type {unknown[1]}") from error
        raise damaged(path, summary(error)) from error
    size = path.stat().st_size
    content = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    found = GgufFile(path, metadata, files=[WeightFile(str(path), content.data_ptr(), size)])
    for tensor in reader.tensors:
        start, length = int(tensor.data_offset), int(tensor.n_bytes)
        sizes = tuple(int(size) for size in reversed(tensor.shape.tolist()))
        if start + length > size:
            raise damaged(path, f"the tensor {tensor.name} ends at {start + length} of {size} bytes")
        if start % 8:
            raise damaged(path, f"the tensor {tensor.name} begins at {start}, which is no multiple of 8")
        found.weights[tensor.name] = StoredWeight(tensor.tensor_type.name, sizes, content[start : start + length])
    return found


def damaged(path: Path, why: str) -> UserError:
    step = "the file is damaged or was not wholly copied: copy it again"
    return UserError("E302", f"cannot read the GGUF file '{path}'", why=why, next=step)


def unknown_layout(where: object, layout: str) -> UserError:
    return UserError(
        "E601",
        f"the weights of '{where}' have the unknown layout {layout}",
        next=f"known layouts: {', '.join([*PLAIN, *LAYOUTS])}, and what the installed gguf package can dequantize",
    )
