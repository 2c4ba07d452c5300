"""A file of another exporter: which of its values are PyTorch's is known by their numbers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.fx

from fx2onnx.verify.engines import Array
from fx2onnx.verify.locating.onnx_file import OnnxFile, reads_of
from fx2onnx.verify.locating.side_by_side import run_cut
from fx2onnx.verify.locating.sketches import Sketches

NODES_AT_ONCE = 200
"""Whose values are in memory together."""


@dataclass
class Matched:
    """Values of the file that are, up to rounding, values of the ATen graph; and the values that each node reads."""

    calls: dict[str, list[torch.fx.Node]]
    unmatched: set[str] = field(default_factory=set)
    """Computed, and like nothing in PyTorch."""


def matched(file: OnnxFile, engine: str, feeds: Mapping[str, Array], sketches: Sketches) -> Matched:
    """Run the file, some nodes at a time, and look up each value; ``sketches`` are PyTorch's, by ATen node.

    Where the engine fails, what follows is not computed.
    """
    found = Matched({})
    values: dict[str, Array] = dict(feeds)
    needed = file.segment(file.outputs, ())
    last = {name: index for index in needed for name in reads_of(file.nodes[index])}
    for start in range(0, len(needed), NODES_AT_ONCE):
        part = needed[start : start + NODES_AT_ONCE]
        outputs = [name for index in part for name in file.nodes[index].output if name]
        try:
            results = run_cut(file, file.cut(part, values, outputs), values, engine)
        except Exception:  # each engine has classes of its own
            found.unmatched.update(outputs)
            break
        for name, array in results.items():
            calls = sketches.find(_tensor(array))
            if calls is None:
                found.unmatched.add(name)
            else:
                found.calls[name] = calls
        values |= results
        values = {name: array for name, array in values.items() if last.get(name, -1) > part[-1]}
    return found


def _tensor(array: Any) -> torch.Tensor:
    array = np.asarray(array)
    if array.dtype.kind not in "biuf":
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))


def first_unmatched(file: OnnxFile, found: Matched, wrong: str) -> list[int]:
    """The nodes between the last values that are PyTorch's and a ``wrong`` output; first those that read only such."""
    between = file.segment([wrong], found.calls)
    made = {name for index in between for name in file.nodes[index].output}
    first = [index for index in between if made.isdisjoint(reads_of(file.nodes[index]))]
    first = [index for index in first if any(name in found.calls for name in reads_of(file.nodes[index]))] or first
    return [*first, *(index for index in between if index not in first)]


def likely_call(file: OnnxFile, index: int, found: Matched, graph: torch.fx.Graph) -> torch.fx.Node | None:
    """The first ATen call that reads what the node reads and of which the file has no value."""
    read = {call for name in reads_of(file.nodes[index]) for call in found.calls.get(name, ())}
    have = {call for calls in found.calls.values() for call in calls}
    return next(
        (
            node
            for node in graph.nodes
            if node.op == "call_function" and node not in have and read & set(node.all_input_nodes)
        ),
        None,
    )
