"""A file of another exporter: which of its values are PyTorch's is known by their shapes and numbers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.fx

from fx2onnx.capture.captured import where_of
from fx2onnx.judge.constants import SKETCH_ALIKE
from fx2onnx.judge.engines import Array
from fx2onnx.verify.locating.aten_graph import AtenGraph
from fx2onnx.verify.locating.difference import Difference
from fx2onnx.verify.locating.first_wrong import FirstWrong
from fx2onnx.verify.locating.onnx_file import OnnxFile, reads_of
from fx2onnx.verify.locating.program import Mapped
from fx2onnx.verify.locating.side_by_side import run_cut
from fx2onnx.verify.locating.sketches import Sketches

NODES_AT_ONCE = 200
"""Whose values are in memory together."""


@dataclass
class Matched:
    """Values of the file that are like values of the ATen graph: which results of which nodes."""

    calls: dict[str, list[tuple[torch.fx.Node, int]]]
    unmatched: set[str] = field(default_factory=set)
    """Computed, and like nothing in PyTorch."""

    def mapped(self) -> Mapped:
        """The first value of the file for each of PyTorch's."""
        taken: Mapped = {}
        have = set[tuple[torch.fx.Node, int]]()
        for name, results in self.calls.items():
            result = next((each for each in results if each[0].op == "call_function"), None)
            if result is not None and result not in have:
                have.add(result)
                taken[name] = result
        return taken


def sketched(graph: AtenGraph, inputs: Mapping[torch.fx.Node, torch.Tensor]) -> Sketches:
    """Of every value of PyTorch's, by the node and which of its results it is."""
    sketches = Sketches(SKETCH_ALIKE)
    for node, value in graph.run(inputs):
        for index, part in enumerate(value if isinstance(value, tuple | list) else (value,)):
            if isinstance(part, torch.Tensor) and node.op != "get_attr":
                sketches.add(part, (node, index))
    return sketches


def matched(file: OnnxFile, engine: str, feeds: Mapping[str, Array], sketches: Sketches) -> Matched:
    """Run the file, some nodes at a time, and look up each value. Where the engine fails, what follows is not computed."""
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


def unmatched_fault(file: OnnxFile, found: Matched, graph: torch.fx.Graph, problem: str, engine: str) -> FirstWrong:
    """The first nodes of the file that read values that PyTorch has, and give none that it has."""
    wrong = next((name for name in file.outputs if name not in found.calls), file.outputs[0])
    nodes = first_unmatched(file, found, wrong)
    call = likely_call(file, nodes[0], found, graph) if nodes else None
    return FirstWrong(
        "translation",
        tuple(file.nodes[index].name or file.nodes[index].output[0] for index in nodes),
        file.nodes[nodes[0]].output[0] if nodes else wrong,
        None if call is None else where_of(call),
        "" if call is None else str(call.meta.get("module") or ""),
        () if call is None else (f"{call.target} (%{call.name})",),
        Difference(float("inf"), 0.0, 0, 0, problem=problem),
        producer(file),
        "the nodes read values that PyTorch has, too, and give none that it has",
        op_types=tuple(file.nodes[index].op_type for index in nodes),
        engines={engine: problem},
    )


def producer(file: OnnxFile) -> str:
    """Who wrote the file."""
    return f"{file.proto.producer_name} {file.proto.producer_version}".strip() or "another exporter"


def likely_call(file: OnnxFile, index: int, found: Matched, graph: torch.fx.Graph) -> torch.fx.Node | None:
    """The first ATen call that reads what the node reads and of which the file has no value."""
    read = {call for name in reads_of(file.nodes[index]) for call, _ in found.calls.get(name, ())}
    have = {call for calls in found.calls.values() for call, _ in calls}
    return next(
        (
            node
            for node in graph.nodes
            if node.op == "call_function" and node not in have and read & set(node.all_input_nodes)
        ),
        None,
    )
