"""The state of a training in a file: parameters, buffers and the optimizer's tensors by name, as safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fx2onnx.base.errors import UserError
from fx2onnx.files import safetensors
from fx2onnx.files.renaming import replace
from fx2onnx.files.safetensors import TensorEntry
from fx2onnx.files.staging import cannot_write, staged_files
from fx2onnx.manifest.training import TrainingManifest

Array = npt.NDArray[np.generic]
DTYPES: dict[str, np.dtype[np.generic]] = {
    "F64": np.dtype(np.float64), "F32": np.dtype(np.float32), "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16), "I64": np.dtype(np.int64), "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16), "I8": np.dtype(np.int8), "U8": np.dtype(np.uint8), "BOOL": np.dtype(np.bool_),
}  # fmt: skip
"""The words of the safetensors format as NumPy's dtypes."""
WORDS = {dtype: word for word, dtype in DTYPES.items()}


def read_tensors(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Every tensor of a file. Raises UserError E302."""
    found, _ = safetensors.places(path)
    tensors: dict[str, Array] = {}
    with open(path, "rb") as file:
        for name, place in found.items():
            file.seek(place.offset)
            dtype = DTYPES.get(place.dtype)
            content = file.read(place.length)
            if dtype is None or len(content) != dtype.itemsize * int(np.prod(place.shape, dtype=np.int64)):
                raise UserError("E302", f"'{Path(path)}' has a tensor {name} of {place.dtype} that cannot be read")
            tensors[name] = np.frombuffer(bytearray(content), dtype).reshape(place.shape)
    return tensors


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """The file appears whole or not at all. Raises UserError E301."""
    target = Path(path)
    arrays = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in tensors.items()}
    entries = [
        TensorEntry(name, WORDS[array.dtype], array.shape, array.reshape(-1).view(np.uint8).data)
        for name, array in arrays.items()
    ]
    try:
        with staged_files(target.parent, 1) as (stage,):
            safetensors.write(stage, entries, metadata)
            replace(stage, target)
    except OSError as cause:
        raise cannot_write(target, cause) from cause


def first_state(manifest: TrainingManifest, weights: Mapping[str, Array]) -> dict[str, Array]:
    """The first value of every input of a step that is carried. Raises UserError E302 where the weights lack one."""
    state: dict[str, Array] = {}
    named = [item.name for item in manifest.parameters] + [item.name for item in manifest.buffers]
    for name in (*named, *manifest.held):
        if name not in weights:
            raise UserError("E302", f"the file of weights lacks {name}", next="export the folder again")
        state[name] = weights[name]
    for slot in (slot for parameter in manifest.parameters for slot in parameter.state):
        state[slot.name] = weights.get(slot.name, np.full(slot.shape, slot.initial, DTYPES[slot.dtype]))
    if manifest.step is not None:
        state[manifest.step.name] = np.array(manifest.first_step, DTYPES[manifest.step.dtype])
    return state


def check_state(path: str | os.PathLike[str], found: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
    """Raises UserError E302 where ``found`` is the state of another model or optimizer."""
    missing, beyond = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    other = [
        f"{name} is {found[name].dtype}{list(found[name].shape)}, not {array.dtype}{list(array.shape)}"
        for name, array in wanted.items()
        if name in found and (found[name].shape, found[name].dtype) != (array.shape, array.dtype)
    ]
    why = [f"it lacks {', '.join(missing[:3])}"] if missing else []
    why += [f"it has {', '.join(beyond[:3])}"] if beyond else []
    why += other[:1]
    if why:
        raise UserError(
            "E302",
            f"'{Path(path)}' is the state of another model or optimizer",
            why="; ".join(why),
            next="load what Trainer.save wrote for this folder",
        )
