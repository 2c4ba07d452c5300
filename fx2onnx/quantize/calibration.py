"""The inputs that a calibration is made on: read, made into runs, and checked against the model before anything is fitted."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError, first_line
from fx2onnx.quantize.schemes import Array

Feeds = Mapping[str, Array]


def unfit(label: str, problem: str, why: str = "", next: Sequence[str] | str = ()) -> UserError:
    """An error of the data that ``label`` names."""
    return UserError("E401", f"{label} does not fit: {problem}", why=why, next=next)


@dataclass(frozen=True, eq=False)
class Data:
    """Inputs by name, run after run; ``label`` says where they are from."""

    label: str
    runs: Sequence[Feeds]

    def check(self, session: Any) -> None:
        """Raises UserError E401 for inputs that the model does not take, and for NaN."""
        for run, feeds in enumerate(self.runs):
            for name, array in feeds.items():
                if array.dtype.kind in "fV" and np.isnan(array.astype(np.float32)).any():
                    raise self.unfit(run, f"{name} has NaN", "it would be in every layer", "leave out samples with NaN")
            try:
                session.check_feeds(feeds)
            except UserError as error:
                raise self.unfit(run, error.what, error.why, error.next) from error

    def unfit(self, run: int, problem: str, why: str = "", next: Sequence[str] | str = ()) -> UserError:
        """An error of one run."""
        which = f" (run {run + 1} of {len(self.runs)})" if len(self.runs) > 1 else ""
        usual = "arrays under the names, dtypes and shapes of the model's inputs"
        return unfit(f"{self.label}{which}", problem, why, next or usual)


def data_of(given: Any, model: ir.Model) -> Data:
    """``Quantize.calibration`` as runs of the model.

    An array has the shape of its input, or one axis more in front, along which there are samples; where the input's first size is
    fixed, it may also have some times as many rows. Arrays of one sample are in every run.

    Raises: UserError E302 for a file that is none, E401 for arrays that are no samples, E001 for another thing.
    """
    label = "the calibration data"
    if isinstance(given, str | os.PathLike):
        path = os.fspath(given)
        given, label = loaded(path), f"{label} {path}"
    if isinstance(given, Mapping):
        return Data(label, list(_runs(_arrays(given, label), model, label)))
    if isinstance(given, Sequence) and given and all(isinstance(each, Mapping) for each in given):
        return Data(label, [_arrays(each, label) for each in given])
    raise UserError(
        "E001",
        f"calibration is {type(given).__name__}",
        next="give the path of an .npz file, a dict of arrays by input, or a list of such dicts",
    )


def loaded(path: str) -> dict[str, Array]:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise ValueError("one array without a name")
        with loaded as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zipfile.LargeZipFile) as cause:
        raise UserError(
            "E302",
            f"cannot read the calibration data {path}",
            why=first_line(cause),
            next="np.savez(FILE, input=array) writes arrays under the names of the model's inputs",
        ) from cause


def _arrays(given: Mapping[Any, Any], label: str) -> dict[str, Array]:
    found = {str(name): np.asarray(value) for name, value in given.items()}
    for name, array in found.items():
        if array.dtype.kind == "O":
            raise unfit(label, f"{name} is no array of numbers")
    return found


def _runs(arrays: Feeds, model: ir.Model, label: str) -> Iterator[Feeds]:
    inputs = {value.name or "": value for value in model.graph.inputs}
    counts = {name: _count(array, inputs.get(name)) for name, array in arrays.items()}
    several = {name: count for name, count in counts.items() if count is not None}
    if len(set(several.values())) > 1:
        said = ", ".join(f"{name} {count}" for name, count in several.items())
        raise unfit(
            label,
            "its arrays have different numbers of samples",
            said,
            "as many samples of each input, or one for all",
        )
    count = next(iter(several.values()), 1)
    if not count or not arrays:
        raise unfit(label, "it has no sample")
    for index in range(count):
        yield {
            name: array if counts[name] is None else _sample(array, inputs[name], index, count)
            for name, array in arrays.items()
        }


def _count(array: Array, value: ir.Value | None) -> int | None:
    """The samples of an array; None where it is one, and as its input is."""
    if value is None or value.shape is None or not array.ndim:
        return None
    if array.ndim == len(value.shape) + 1:
        return len(array)
    first = value.shape[0] if len(value.shape) == array.ndim else None
    if isinstance(first, int) and first and len(array) != first and len(array) % first == 0:
        return len(array) // first
    return None


def _sample(array: Array, value: ir.Value, index: int, count: int) -> Array:
    if value.shape is not None and array.ndim == len(value.shape) + 1:
        return np.asarray(array[index])
    size = len(array) // count
    return array[index * size : (index + 1) * size]
