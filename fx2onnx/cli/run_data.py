"""Data that ``fx2onnx run`` feeds and compares: ONNX's test case directories and .npz files of outputs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from fx2onnx.base.errors import UserError, VerificationError
from fx2onnx.judge.arrays import close_problem, first_problem
from fx2onnx.manifest.names import MODEL_FILE

_UNREADABLE = (DecodeError, OSError, ValueError, TypeError, KeyError, EOFError)
"""What protobuf, onnx and NumPy raise on a file that is not what it should be."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """One ``test_data_set_N`` folder: feeds and wanted outputs by name. Outputs without a file are not compared."""

    folder: Path
    feeds: dict[str, Any]
    wanted: dict[str, Any]


def model_in(path: Path) -> Path:
    """The model file that ``path`` names: itself, or ``model.onnx`` (or the only .onnx file) of a folder.

    Raises:   UserError E302 where the folder does not have exactly one.
    """
    if not os.path.isdir(path):
        return path
    if (path / MODEL_FILE).is_file():
        return path / MODEL_FILE
    found = sorted(path.glob("*.onnx"))
    if len(found) != 1:
        why = f"it holds {', '.join(file.name for file in found)}" if found else "it holds no .onnx file"
        raise UserError("E302", f"the folder '{path}' does not say which model is meant", why=why, next="name the file")
    return found[0]


def data_folders(path: Path) -> list[Path]:
    """``path`` itself where it holds inputs or outputs, else its ``test_data_set_*`` folders in the order of numbers."""
    if any(path.glob("*put_[0-9]*.pb")):
        return [path]
    return sorted((folder for folder in path.glob("test_data_set_*") if folder.is_dir()), key=_number)


def _number(path: Path) -> int:
    found = re.search(r"(\d+)$", path.stem)
    return int(found[1]) if found else -1


def read_data_set(folder: Path, inputs: Sequence[Any], outputs: Sequence[Any]) -> DataSet:
    """The files ``input_0.pb``, ``output_0.pb`` and so on, each the model's input or output of that number.

    Raises:   UserError E302 for a file that cannot be read, E401 for more files than the model has inputs or outputs.
    """
    sides = []
    for side, items in (("input", inputs), ("output", outputs)):
        values: dict[str, Any] = {}
        for path in sorted(folder.glob(f"{side}_[0-9]*.pb"), key=_number):
            number = _number(path)
            if number >= len(items):
                raise UserError("E401", f"'{path}' is one file too many", why=f"the model has {len(items)} {side}s")
            values[items[number].name] = _read_value(path, items[number].type)
        sides.append(values)
    return DataSet(folder, *sides)


def _read_value(path: Path, type_text: str) -> Any:
    from onnx import numpy_helper

    try:
        data = path.read_bytes()
        if type_text.startswith("seq("):
            return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        if type_text.startswith("optional("):
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
        if type_text.startswith("map("):
            return numpy_helper.to_dict(onnx.MapProto.FromString(data))
        tensor = onnx.TensorProto.FromString(data)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ValueError("it points to another file")
        return numpy_helper.to_array(tensor)
    except _UNREADABLE as error:
        why = (str(error).splitlines() or ["no message"])[0][:200]
        raise UserError("E302", f"cannot read '{path}' as {type_text}", why=why) from error


def read_npz(path: Path) -> dict[str, Any]:
    """The arrays of a .npz file by name. Raises: UserError E302."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise UserError("E302", f"cannot read '{path}'", why="there is no such file") from error
    except (*_UNREADABLE, AttributeError) as error:
        raise UserError("E302", f"cannot read '{path}' as a .npz file", why=str(error).splitlines()[0]) from error


def assert_outputs(given: Mapping[str, Any], wanted: Mapping[str, Any], rtol: float, atol: float, source: str) -> None:
    """Raise VerificationError E501 unless every wanted output is there, equal in dtype, shape and, within tolerance, value.

    A wanted name that the model does not have is UserError E401: the file belongs to another model.
    """
    unknown = [name for name in wanted if name not in given]
    if unknown or not wanted:
        what = f"the model has no output '{unknown[0]}'" if unknown else "there is nothing to compare with"
        raise UserError("E401", f"{what} ({source})", next=f"outputs: {', '.join(given)}")
    faults = {
        name: fault
        for name in wanted
        if (fault := first_problem(given[name], wanted[name], partial(close_problem, rtol=rtol, atol=atol)))
    }
    if faults:
        raise VerificationError(
            "E501",
            f"{len(faults)} of {len(wanted)} outputs differ from {source} (rtol {rtol:g}, atol {atol:g})",
            why="; ".join(f"{name}: {fault}" for name, fault in list(faults.items())[:4]),
        )
