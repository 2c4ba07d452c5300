"""The data of ``fx2onnx run`` beside the model: test data, outputs, the time of each operator."""

from __future__ import annotations

import collections
import json
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from fx2onnx.base.errors import UserError, VerificationError
from fx2onnx.cli.outcome import print_text
from fx2onnx.cli.progress import print_rows
from fx2onnx.judge.arrays import close_problem, first_problem
from fx2onnx.judge.constants import ATOL
from fx2onnx.manifest.names import MODEL_FILE
from fx2onnx.precision.options import EPSILONS, word_in

_UNREADABLE = (DecodeError, OSError, ValueError, TypeError, KeyError, EOFError)
"""The exceptions of protobuf, onnx and NumPy for a damaged file."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """One ``test_data_set_N`` folder: feeds and wanted outputs by name. Outputs without a file are not compared."""

    folder: Path
    feeds: dict[str, Any]
    wanted: dict[str, Any]
    random: Collection[str] = ()
    """Names of the feeds that are random."""


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


def assert_outputs(
    given: Mapping[str, Any],
    wanted: Mapping[str, Any],
    rtol: float,
    atol: float | None,
    source: str,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Raise VerificationError E501 unless every wanted output is there, equal in dtype, shape and, within tolerance, value.

    Without ``atol`` numbers may differ by some rounding errors of the output's largest one: sums that end near 0 do. ``metadata`` of
    the model may say that it computes in 16 bits, whose rounding these are then.
    A wanted name that the model does not have is UserError E401: the file belongs to another model.
    """
    unknown = [name for name in wanted if name not in given]
    if unknown or not wanted:
        what = f"the model has no output '{unknown[0]}'" if unknown else "there is nothing to compare with"
        raise UserError("E401", f"{what} ({source})", next=f"outputs: {', '.join(given)}")
    epsilon = EPSILONS.get(word_in(metadata or {}), 0.0)
    same = partial(_problem, rtol=rtol, atol=atol, epsilon=epsilon)
    faults = {name: fault for name in wanted if (fault := first_problem(given[name], wanted[name], same))}
    if faults:
        raise VerificationError(
            "E501",
            f"{len(faults)} of {len(wanted)} outputs differ from {source} ({tolerances(rtol, atol)})",
            why="; ".join(f"{name}: {fault}" for name, fault in list(faults.items())[:4]),
            next="--rtol N --atol N allow more; fx2onnx locate FILE SOURCE finds the first wrong node",
        )


def tolerances(rtol: float, atol: float | None) -> str:
    """The tolerances of a comparison, as text."""
    return f"rtol {rtol:g}, atol {'by the largest value' if atol is None else f'{atol:g}'}"


def _problem(
    one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], rtol: float, atol: float | None, epsilon: float
) -> str:
    """The difference of two arrays in words; empty if they agree. ``epsilon``: of the dtype that computes, where it is a narrower one."""
    if atol is None:
        is_real = other.dtype.kind == "f" or other.dtype.name == "bfloat16"
        finite = np.abs(other[np.isfinite(other)]) if is_real else np.zeros(0)
        scale = float(finite.max()) if finite.size else 0.0
        atol = max(ATOL, ROUNDINGS * max(float(ml_dtypes.finfo(other.dtype).eps), epsilon) * scale) if is_real else ATOL
    return close_problem(one, other, rtol, atol)


ROUNDINGS = 16
"""Rounding errors of an output's largest value that a number may be off: a network adds some hundred terms of that size."""


FIRST_VALUES = 8
"""Values shown of each output: a row of them fits beside name, shape, least and greatest."""

SLOWEST = 15
"""Rows of the profile table."""


def describe(name: str, value: Any) -> dict[str, Any]:
    """Name, shape, dtype, least and greatest value and the first values; NaN counts as neither."""
    described = {"name": name, **_type_of(value), "min": None, "max": None}
    if not isinstance(value, np.ndarray):
        return described | {"first": [str(value)[:80]]}
    first = value.reshape(-1)[:FIRST_VALUES]
    numeric = value.dtype.kind in "biuf" or value.dtype.name == "bfloat16"
    if numeric and value.size:
        wide = value.astype(np.float64) if value.dtype.kind not in "biu" else value
        usable = wide[~np.isnan(wide)] if wide.dtype.kind == "f" else wide
        if usable.size:
            described["min"], described["max"] = usable.min().item(), usable.max().item()
        if usable.size < wide.size:
            described["nan"] = int(wide.size - usable.size)
    described["first"] = [
        item.item() if value.dtype.kind in "biuf" else float(item) if numeric else str(item) for item in first
    ]
    return described


def describe_inputs(feeds: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Name, shape and dtype of each feed; shape None for what is no array."""
    return [{"name": name, **_type_of(value)} for name, value in feeds.items()]


def _type_of(value: Any) -> dict[str, Any]:
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "dtype": str(value.dtype)}
    return {"shape": None, "dtype": type(value).__name__}


def print_results(model_name: str, data: DataSet, described: Sequence[Mapping[str, Any]]) -> None:
    """The model's name, its inputs, and a row for each output."""
    print_text(f"model  {model_name}\n")
    for item in describe_inputs(data.feeds):
        note = "  random" if item["name"] in data.random else ""
        print_text(f"input  {item['name']}  {_shape(item['shape'])}  {item['dtype']}{note}\n")
    rows = [
        [row["name"], _shape(row["shape"]), row["dtype"], _short(row["min"]), _short(row["max"]), _values(row)]
        for row in described
    ]
    print_rows(("output", "shape", "dtype", ">min", ">max", "values"), rows)


def _values(item: Mapping[str, Any]) -> str:
    """All values of a small output, in brackets; the first ones of a large output."""
    if item["shape"] is None:
        return str(item["first"][0])
    more = ", ..." if math.prod(item["shape"]) > len(item["first"]) else ""
    note = f"   ({item['nan']} NaN)" if "nan" in item else ""
    return "[" + ", ".join(_short(value) for value in item["first"]) + more + "]" + note


def _shape(shape: Sequence[int] | None) -> str:
    return "" if shape is None else str(list(shape))


def _short(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read_profile(trace: Path) -> list[dict[str, Any]]:
    """Time by operator of the last run in a Chrome trace, slowest first: operator, count, microseconds, slowest node."""
    events = json.loads(trace.read_text(encoding="utf-8"))
    ends = [index for index, event in enumerate(events) if event["name"] == "model_run"]
    start = ends[-2] + 1 if len(ends) > 1 else 0
    spent: collections.Counter[str] = collections.Counter()
    counts: collections.Counter[str] = collections.Counter()
    slowest: dict[str, Mapping[str, Any]] = {}
    for event in events[start:]:
        if event["cat"] != "Node" or "op_name" not in event["args"]:
            continue
        operator = event["args"]["op_name"]
        spent[operator] += event["dur"]
        counts[operator] += 1
        if operator not in slowest or event["dur"] > slowest[operator]["dur"]:
            slowest[operator] = event
    return [
        {
            "op_type": operator,
            "count": counts[operator],
            "time_us": time_us,
            "slowest_node": slowest[operator]["args"].get("node") or slowest[operator]["name"],
            "slowest_us": slowest[operator]["dur"],
        }
        for operator, time_us in spent.most_common()
    ]


def print_profile(rows: Sequence[Mapping[str, Any]]) -> None:
    """The profile as a table with each operator's share."""
    total_us = max(sum(row["time_us"] for row in rows), 1)
    cells = [
        [
            *(row["op_type"], str(row["count"]), f"{row['time_us'] / 1e3:.3f}", f"{row['time_us'] / total_us:.0%}"),
            *(f"{row['slowest_us'] / 1e3:.3f}", row["slowest_node"]),
        ]
        for row in rows[:SLOWEST]
    ]
    print_rows(("operator", ">nodes", ">ms", ">share", ">slowest ms", "slowest node"), cells)
