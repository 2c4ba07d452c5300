"""Weights in files of their own: those of the checkpoint, by reference, or one that several models share.

ONNX external data is a file beside the model, an offset and a length, which is just what a tensor in a ``.safetensors``
file (or a ``torch.save`` archive, whose entries are stored as they are) has. So the model file holds the graph alone, and
nothing of the weights is read or copied.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import human_size
from fx2onnx.base.events import record
from fx2onnx.base.source import relative_path
from fx2onnx.base.targets import check_target
from fx2onnx.files.digest import BlockDigests
from fx2onnx.files.safetensors import WeightFile
from fx2onnx.files.staging import cannot_write, replace, staged_files
from fx2onnx.irx import io
from fx2onnx.irx.data_file import Place, write_data
from fx2onnx.irx.io import EXTERNAL_MIN_BYTES, message_of, placed, require_data, write_bytes
from fx2onnx.irx.model_files import Staged, commit, data_name

LARGEST_COPY_BYTES = 256 * 1024 * 1024
"""Weights that no file holds as the graph needs them (converted, cast or missing in the checkpoint) are put into the
model file up to this many bytes in all; beyond, the model would not be one by reference."""

SMALLEST_NOTED_BYTES = 64 * 1024
"""Rotary tables and the like, which are in no checkpoint, stay below."""

NAMES_SHOWN = 3


class ReferencedTensor(ir.ExternalTensor):
    """A weight in a checkpoint file. ``path`` is absolute; the model file gets it relative to its own folder."""

    def __init__(self, file: WeightFile, offset: int, tensor: ir.TensorProtocol) -> None:
        path = os.path.abspath(file.path)
        super().__init__(
            os.path.basename(path),
            offset,
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or "",
            base_dir=os.path.dirname(path),
        )


@dataclass(frozen=True)
class Attached:
    """The result of ``attach``: bytes that stay where they are, and the weights that are copied into the model file."""

    referenced_bytes: int
    copied: dict[str, int]

    def notes(self) -> list[str]:
        """A sentence on what was copied, if it is more than the tables that modules compute for themselves."""
        if sum(self.copied.values()) < SMALLEST_NOTED_BYTES:
            return []
        names = sorted(self.copied, key=lambda name: -self.copied[name])[:NAMES_SHOWN]
        more = ", ..." if len(self.copied) > NAMES_SHOWN else ""
        return [
            f"{len(self.copied)} weights ({human_size(sum(self.copied.values()))}) are no part of the checkpoint's files "
            f"as the graph needs them and were copied: {', '.join(names)}{more}"
        ]


def attach(model: ir.Model, files: Sequence[WeightFile]) -> Attached:
    """Let every initializer whose memory is that of one of ``files`` refer to the file, in place.

    A tensor is recognized by its address, so that renamed, tied and sliced weights are found, however the module came
    by them. Raises UserError E301 where more than ``LARGEST_COPY_BYTES`` would have to be copied.
    """
    referenced_bytes, copied = 0, {}
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None:
            continue
        place = _place_of(tensor, files)
        if place is not None:
            value.const_value = ReferencedTensor(*place, tensor)
            referenced_bytes += tensor.nbytes
        elif type(tensor) is not ir.Tensor:  # those were written down while the graph was built
            copied[value.name or ""] = tensor.nbytes
    total_bytes = sum(copied.values())
    if total_bytes > LARGEST_COPY_BYTES:
        largest = sorted(copied, key=lambda name: -copied[name])[:NAMES_SHOWN]
        raise UserError(
            "E301",
            f"{total_bytes / 1e9:.1f} GB of weights cannot be referred to",
            why=f"{len(copied)} weights are not in the checkpoint as the graph needs them: {', '.join(largest)}, ...",
            next="export with the weights copied: leave out --weights reference",
        )
    return Attached(referenced_bytes, copied)


def _place_of(tensor: ir.TensorProtocol, files: Sequence[WeightFile]) -> tuple[WeightFile, int] | None:
    raw: Any = getattr(tensor, "raw", None)
    if not hasattr(raw, "data_ptr") or not raw.is_contiguous() or tensor.nbytes == 0:
        return None
    address = raw.data_ptr()
    for file in files:
        offset = file.offset_of(address, tensor.nbytes)
        if offset is not None:
            return file, offset
    return None


def is_referenced(model: ir.Model) -> bool:
    """Return whether a weight of the model refers to a checkpoint file."""
    return any(isinstance(value.const_value, ReferencedTensor) for value in model.graph.initializers.values())


def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    durable: bool = False,
    home: str | os.PathLike[str] | None = None,
) -> io.Written:
    """Write the graph, with what is not referred to inside, beside the checkpoint's files; all or nothing.

    ``home`` is the folder that the file will be moved to, where it is not its own.

    Raises:   UserError E301: the files lie outside the model's folder, or are symbolic links (ONNX engines open external
              data only inside the model's own folder), or the file cannot be written.
    """
    io.require_fitting(model)
    values = [v for v in model.graph.initializers.values() if isinstance(v.const_value, ReferencedTensor)]
    tensors = [tensor for value in values if isinstance(tensor := value.const_value, ReferencedTensor)]
    files = sorted({str(tensor.path) for tensor in tensors})
    target = check_target(path, inputs=files, is_trying=False)
    folder = os.path.dirname(os.path.abspath(target))
    place = os.path.abspath(home) if home is not None else folder
    for file in files:
        _check_place(file, place, os.path.basename(target))
    with record("serialize"), io.holding(values, [_relative(tensor, place) for tensor in tensors]):
        content = ir.to_proto(model).SerializeToString(deterministic=True)
    try:
        with record("write model", bytes=len(content)), staged_files(folder, 1) as (stage,):
            io.write_bytes(stage, content)
            commit(Staged(stage), target, durable=durable)
    except OSError as cause:
        raise cannot_write(target, cause) from cause
    return io.Written(target, None, len(content), 0)


def _relative(tensor: ReferencedTensor, folder: str) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        relative_path(str(tensor.path), folder).replace(os.sep, "/"),
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name or "",
    )


def _check_place(file: str, folder: str, name: str) -> None:
    home = os.path.dirname(file)
    place = relative_path(file, folder)
    if place.startswith("..") or os.path.isabs(place):
        raise UserError(
            "E301",
            f"a model in {folder} cannot refer to {file}",
            why="ONNX engines open external data only inside the model's own folder",
            next=[f"write the model beside the weights: {os.path.join(home, name)}",
                  f"or link the weights first (same disk): ln {file} {folder}/"],
        )  # fmt: skip
    if os.path.islink(file):
        raise UserError(
            "E301",
            f"the weights {file} are a symbolic link",
            why="ONNX engines refuse external data behind a link, which could lead anywhere",
            next=f"put a hard link or the file itself there: ln -f {os.path.realpath(file)} {file}",
        )


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
            with record("serialize"), placed(values, data_file, [places[key] for _, key in keys[file]]):
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
