"""What ``fx2onnx run`` shows: outputs, the model's facts, the time of each operator."""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from fx2onnx.cli.progress import console
from fx2onnx.report.console import headed_table

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


def print_results(model_name: str, feeds: Mapping[str, Any], described: Sequence[Mapping[str, Any]]) -> None:
    """The model's name, its inputs, and a row for each output."""
    out = console()
    out.print(Text(f"model  {model_name}"))
    for item in describe_inputs(feeds):
        out.print(Text(f"input  {item['name']}  {_shape(item['shape'])}  {item['dtype']}", style="dim"))
    table = headed_table("output", "shape", "dtype", ">min", ">max", "values")
    for row in described:
        cells = [row["name"], _shape(row["shape"]), row["dtype"], _short(row["min"]), _short(row["max"])]
        table.add_row(*(Text(cell) for cell in (*cells, _values(row))))
    out.print(table)


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
    table = headed_table("operator", ">nodes", ">ms", ">share", ">slowest ms", "slowest node")
    for row in rows[:SLOWEST]:
        cells = (row["op_type"], str(row["count"]), f"{row['time_us'] / 1e3:.3f}", f"{row['time_us'] / total_us:.0%}")
        slowest = (f"{row['slowest_us'] / 1e3:.3f}", row["slowest_node"])
        table.add_row(*(Text(cell) for cell in (*cells, *slowest)))
    console().print(table)
