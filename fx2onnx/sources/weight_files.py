"""Checkpoint files mapped into memory (their tensors without reading them, and where in the file each lies), and ``--weights`` and
``--dtype`` of a module.

A tensor of a mapped file costs address space only; what a module makes of it without copying (a view, a renamed or tied
parameter) still lies in the file, which is how ``fx2onnx.irx.reference`` finds it again.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fx2onnx.base.errors import UserError, no_such_file, unknown_word
from fx2onnx.files.folder_files import inside, read_object
from fx2onnx.files.safetensors import WeightFile
from fx2onnx.sources.foreign_errors import summary
from fx2onnx.sources.source import Source

SAFETENSORS, TORCH_SAVE = "model.safetensors", "pytorch_model.bin"
OF_DIFFUSERS = ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin")
INDEX = ".index.json"
_READ = ("*.safetensors", "*.index.json", "*.bin", "*.pt")
"""Patterns of the files that a loader may open."""
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_HEADER_BYTES, _INDEX_BYTES = 64 << 20, 64 << 20
"""Limits of JSON; a tensor takes about 100 bytes of it."""
_WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts put the state dict beside other things."""


@dataclass
class Checkpoint:
    """The tensors of one or several mapped files by name, and the files."""

    state: dict[str, torch.Tensor] = field(default_factory=dict)
    files: list[WeightFile] = field(default_factory=list)


def map_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint folder (``model.safetensors``, ``pytorch_model.bin``, or shards with their index) or a single file.

    Raises:   UserError E302: nothing to read, a missing or corrupt shard, an index that names what a shard lacks.
    """
    if not os.path.isdir(path):
        return map_file(path)
    for name in (SAFETENSORS, TORCH_SAVE, *OF_DIFFUSERS):
        if (path / name).is_file():
            return map_file(inside(path, name))
        if (path / (name + INDEX)).is_file():
            return _map_shards(inside(path, name + INDEX))
    others = sorted(path.glob("*.safetensors"))
    if len(others) == 1:
        return map_file(inside(path, others[0].name))
    raise UserError(
        "E302",
        f"the folder '{path}' has no weights",
        why=f"there is neither {SAFETENSORS} nor {TORCH_SAVE}, nor an index of shards",
        next="--weights random exports the model without them",
    )


def check_files(folder: Path) -> None:
    """Check the safetensors files of a folder as ``map_checkpoint`` would, for a loader whose errors say less; and that no file of
    weights and no index leads out of the folder.

    Raises:   UserError E302.
    """
    for path in sorted(one for pattern in _READ for one in folder.glob(pattern)):
        inside(folder, path.name)
        if path.name.endswith(INDEX):
            _shards_of(path)
    if any(folder.glob("*.safetensors")) or any(folder.glob("*.safetensors" + INDEX)):
        map_checkpoint(folder)


def map_file(path: Path) -> Checkpoint:
    """One ``.safetensors`` file, or one that ``torch.save`` wrote (unpickled with ``weights_only=True``).

    Raises:   UserError E302.
    """
    if not os.path.isfile(path):
        raise no_such_file(path, "the weights")
    try:
        return _map_safetensors(path) if path.suffix == ".safetensors" else _map_torch_save(path)
    except UserError:
        raise
    except Exception as error:  # safetensors, zipfile and pickle have a class for each kind of damage
        raise UserError(
            "E302",
            f"cannot read the weights '{path}'",
            why=summary(error),
            next="the file is damaged or was not wholly written: copy or save it again",
        ) from error


def _shards_of(index: Path) -> dict[str, list[str]]:
    """The weights that each file in the index's folder has, by file name. Raises UserError E302."""
    weight_map = read_object(index, limit_bytes=_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict):
        raise UserError("E302", f"cannot read the index '{index}'", why=f"weight_map is {weight_map!r:.60}, no object")
    shards: dict[str, list[str]] = {}
    for key, shard in weight_map.items():
        if not isinstance(shard, str):
            raise UserError(
                "E302", f"cannot read the index '{index}'", why=f"{key} lies in {shard!r:.60}, no file name"
            )
        shards.setdefault(shard, []).append(key)
    for name in shards:
        inside(index.parent, name, said_by=index.name)
    return shards


def _map_shards(index: Path) -> Checkpoint:
    shards = _shards_of(index)
    missing = [name for name in sorted(shards) if not (index.parent / name).is_file()]
    if missing:
        raise UserError(
            "E302",
            f"the checkpoint '{index.parent}' lacks {len(missing)} of {len(shards)} shards",
            why=f"{index.name} names {', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}",
            next="copy the missing files into the folder",
        )
    whole = Checkpoint()
    for name in sorted(shards):
        part = map_file(index.parent / name)
        absent = [key for key in shards[name] if key not in part.state]
        if absent:
            raise UserError(
                "E302",
                f"the shard '{index.parent / name}' lacks {len(absent)} weights that {index.name} says it has",
                why=f"the first is {absent[0]}",
                next="copy the shard again; it belongs to another checkpoint or was not wholly written",
            )
        whole.state |= part.state
        whole.files += part.files
    return whole


def _map_safetensors(path: Path) -> Checkpoint:
    from safetensors import safe_open

    starts = _starts(path)
    memory = torch.UntypedStorage.from_file(str(path), shared=False, nbytes=path.stat().st_size)
    with safe_open(path, framework="pt") as handle:  # checks each place against the others and the file's size
        state = {}
        for key in handle.keys():  # noqa: SIM118 (the handle is no mapping)
            entry, start = handle.get_slice(key), starts[key]
            dtype = _DTYPES.get(entry.get_dtype())
            if dtype is None or start % dtype.itemsize:
                state[key] = handle.get_tensor(key)
            else:  # without a look at its pages, as the package takes: a millisecond each for thousands of experts
                state[key] = torch.empty(0, dtype=dtype).set_(memory, start // dtype.itemsize, entry.get_shape())  # type: ignore[call-overload]
    mapped = {key: tensor for key, tensor in state.items() if tensor.untyped_storage().data_ptr() == memory.data_ptr()}
    return Checkpoint(state, _located(path, mapped or state, starts))


def _starts(path: Path) -> dict[str, int]:
    """The offset of each tensor in the file, by the header. Raises ValueError and whatever else damaged JSON leads
    to."""
    with path.open("rb") as stream:
        (header_bytes,) = struct.unpack("<Q", stream.read(8))
        if header_bytes > min(_HEADER_BYTES, path.stat().st_size - 8):
            raise ValueError(f"the header says that it is {header_bytes} bytes long")
        header: dict[str, Any] = json.loads(stream.read(header_bytes))
    header.pop("__metadata__", None)
    unprintable = [key for key in header if not key.isprintable()]
    if unprintable:
        raise ValueError(f"the header has the name {unprintable[0]!r:.60}")
    return {key: 8 + header_bytes + entry["data_offsets"][0] for key, entry in header.items()}


def _map_torch_save(path: Path) -> Checkpoint:
    if not zipfile.is_zipfile(path):
        raise UserError(
            "E302",
            f"cannot map the weights '{path}'",
            why="it is no zip archive: damaged, or written by a PyTorch before 1.6",
            next="save it again: torch.save(torch.load(FILE, weights_only=True), FILE)",
        )
    try:
        state = _state_of(path, torch.load(path, map_location="cpu", mmap=True, weights_only=True))
        outline = _state_of(path, torch.load(path, map_location="meta", weights_only=True))
    except pickle.UnpicklingError as error:
        raise UserError(
            "E302",
            f"the file '{path}' holds more than tensors",
            why="it is read with weights_only=True, so that no code in it can run",
            next="save model.state_dict() instead of the whole model",
        ) from error
    offsets = {key: _offset_in_file(tensor) for key, tensor in outline.items()}
    return Checkpoint(state, _located(path, state, offsets))


def _offset_in_file(tensor: torch.Tensor) -> int:
    """The place of a tensor in its file, where it was loaded onto the meta device: PyTorch keeps the place on the storages of such
    alone.
    """
    start: Any = tensor.untyped_storage()._checkpoint_offset
    return int(start + tensor.storage_offset() * tensor.element_size())


def _state_of(path: Path, loaded: object) -> dict[str, torch.Tensor]:
    for wrapper in _WRAPPERS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(wrapper), Mapping):
            loaded = loaded[wrapper]
    entries = loaded if isinstance(loaded, Mapping) else {}
    state = {key: value.detach() for key, value in entries.items() if isinstance(value, torch.Tensor)}
    if not state:
        raise UserError(
            "E302",
            f"the file '{path}' holds no state dict",
            why=f"it holds a {type(loaded).__name__}",
            next="save model.state_dict()",
        )
    return state


def _located(path: Path, state: Mapping[str, torch.Tensor], offsets: Mapping[str, int]) -> list[WeightFile]:
    """The file at the address that all its tensors agree on; none where they do not (the library copied them)."""
    bases = {tensor.data_ptr() - offsets[key] for key, tensor in state.items() if tensor.numel()}
    return [WeightFile(str(path), base, path.stat().st_size) for base in bases] if len(bases) == 1 else []


def main_dtype(state: Mapping[str, torch.Tensor]) -> torch.dtype:
    """The floating dtype that most bytes have; float32 where there is none."""
    totals: dict[torch.dtype, int] = {}
    for tensor in state.values():
        if tensor.is_floating_point():
            totals[tensor.dtype] = totals.get(tensor.dtype, 0) + tensor.nbytes
    return max(totals, key=lambda dtype: totals[dtype], default=torch.float32)


DTYPES = ("float16", "bfloat16", "float32", "float64")


def check_dtype(dtype: str | None) -> torch.dtype | None:
    """The torch dtype of that name. Raises UserError E001."""
    if dtype is None:
        return None
    if dtype not in DTYPES:
        raise unknown_word("--module-dtype", dtype, DTYPES)
    known: torch.dtype = getattr(torch, dtype)
    return known


def load_state(module: torch.nn.Module, path: Path) -> None:
    """Put the state dict of a ``.safetensors`` or ``torch.save`` file into ``module``, names and shapes as they must be.

    The tensors stay mapped, so nothing is read before it is used.

    Raises:   UserError E302 (unreadable), E601 (names or shapes that do not fit).
    """
    state = map_file(path).state
    own = module.state_dict()
    wrong = [
        f"{key} is {list(value.shape)}, the model has {list(own[key].shape)}"
        for key, value in state.items()
        if key in own and value.shape != own[key].shape
    ]
    missing = [key for key in own if key not in state]
    unknown = [key for key in state if key not in own]
    problems = [
        f"{len(names)} {what}, the first: {names[0]}"
        for what, names in (("of another shape", wrong), ("missing", missing), ("unknown", unknown))
        if names
    ]
    if problems:
        raise UserError(
            "E601",
            f"the weights '{path}' do not fit {type(module).__name__}",
            why="; ".join(problems),
            next="give the builder's arguments that the weights were trained with, such as ?num_classes=10",
        )
    cast = {key: value.to(own[key].dtype) for key, value in state.items()}
    module.load_state_dict(cast, assign=True)
    module.requires_grad_(False)


def apply_dtype(source: Source, dtype: torch.dtype) -> None:
    """Floating parameters, buffers and sample inputs in ``dtype``, in place."""
    source.module.to(dtype)
    source.args = tuple(cast_inputs(value, dtype) for value in source.args)
    source.kwargs = {name: cast_inputs(value, dtype) for name, value in source.kwargs.items()}


def cast_inputs(value: Any, dtype: torch.dtype) -> Any:
    """Tensors of a floating dtype in ``dtype``, also in lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(cast_inputs(item, dtype) for item in value)
    if isinstance(value, dict):
        return {key: cast_inputs(item, dtype) for key, item in value.items()}
    return value
