"""Calibration data for graphs that generate: row by row, with what the caller of a prompt would have to add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.manifest.names import BATCH, MASK, PAST, POSITIONS, TOTAL
from fx2onnx.quantize.calibration import Data, Feeds, data_of


def data_for(given: Any, model: ir.Model) -> Data:
    """``Quantize.calibration`` as runs of ``model``; of one that takes a past, prompts alone will do.

    There rows of a batch are runs of their own, the past is empty, every token is seen, and positions count from 0.
    """
    data = data_of(given, model)
    if not any((value.name or "").startswith(PAST) for value in model.graph.inputs):
        return data
    inputs = {value.name or "": value for value in model.graph.inputs}
    return replace(data, runs=[_completed(row, inputs) for feeds in data.runs for row in _rows(feeds, inputs)])


def _rows(feeds: Feeds, inputs: Mapping[str, ir.Value]) -> Iterator[Feeds]:
    counts = {len(array) for name, array in feeds.items() if array.ndim and _first_dim(inputs.get(name)) == BATCH}
    if len(counts) != 1 or not all(_first_dim(inputs.get(name)) == BATCH for name in feeds):
        yield feeds
        return
    for index in range(counts.pop()):
        yield {name: array[index : index + 1] for name, array in feeds.items()}


def _first_dim(value: ir.Value | None) -> str:
    return _dims(value)[0] if value is not None and value.shape is not None and len(value.shape) else ""


def _dims(value: ir.Value) -> list[str]:
    return [str(dim if isinstance(dim, int) else dim.value) for dim in value.shape or ()]


def _completed(feeds: Feeds, inputs: Mapping[str, ir.Value]) -> Feeds:
    """The feeds with an empty past, a mask that hides nothing and positions from 0, where these are inputs and not given."""
    sizes: dict[str, int] = {}
    for name, array in feeds.items():
        if name in inputs:
            sizes |= dict(zip(_dims(inputs[name]), array.shape, strict=False))
    length = next((array.shape[1] for name, array in feeds.items() if array.ndim > 1), 0)
    found = dict(feeds)
    for name, value in inputs.items():
        if name in feeds or value.dtype is None or not (name.startswith(PAST) or name in (MASK, POSITIONS)):
            continue
        unknown = 0 if name.startswith(PAST) else length
        known = {**sizes, TOTAL: length} if name == MASK else sizes
        shape = [int(dim) if dim.isdecimal() else known.get(dim, unknown) for dim in _dims(value)]
        found[name] = np.full(shape, name == MASK, value.dtype.numpy())
        if name == POSITIONS:
            found[name] = np.broadcast_to(np.arange(shape[-1], dtype=value.dtype.numpy()), shape).copy()
    return found
