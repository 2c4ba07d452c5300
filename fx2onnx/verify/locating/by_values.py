"""Causes of a wrong value: in the captured graph, in the file by its values, on other arguments."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.fx

from fx2onnx.base.source import PACKAGE_FOLDER
from fx2onnx.capture.captured import where_of
from fx2onnx.capture.python.inputs import Arguments
from fx2onnx.judge.constants import SKETCH_ALIKE
from fx2onnx.judge.engines import Array
from fx2onnx.judge.verdict import NO_KERNELS, Verdict
from fx2onnx.torchcompat.eager_modes import EagerMode
from fx2onnx.torchcompat.graphs import RecordedGraph
from fx2onnx.verify.compare import SAMPLE
from fx2onnx.verify.eager import Eager, placed
from fx2onnx.verify.interface import assign, vanished
from fx2onnx.verify.locating.aten_values import AtenGraph, operands_of
from fx2onnx.verify.locating.first_wrong import FirstWrong, NodeDifference
from fx2onnx.verify.locating.program import Mapped, OnnxFile, reads_of
from fx2onnx.verify.locating.side_by_side import Sketches, run_cut
from fx2onnx.verify.noise import Recording
from fx2onnx.verify.values import InputValues

NODES_AT_ONCE = 200
"""The number of nodes whose values are in memory together."""


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
    """The sketch of every value of PyTorch's, by the node and which of its results it is."""
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
        NodeDifference(float("inf"), 0.0, 0, 0, problem=problem),
        producer(file),
        "the nodes read values that PyTorch has, too, and give none that it has",
        op_types=tuple(file.nodes[index].op_type for index in nodes),
        engines={engine: problem},
    )


def producer(file: OnnxFile) -> str:
    """The program that wrote the file."""
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


class Seen(EagerMode):
    """Remembers every tensor that operators take and give."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sketches = Sketches()

    def seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        self._add(args)
        result = func(*args, **kwargs)
        self._add(result)
        return result

    def __contains__(self, value: object) -> bool:
        if isinstance(value, torch.Tensor):
            return self._sketches.find(value) is not None
        return isinstance(value, tuple | list) and all(part is None or part in self for part in value)

    def _add(self, value: object) -> None:
        if isinstance(value, torch.Tensor):
            self._sketches.add(value, None)
        elif isinstance(value, tuple | list):
            for part in value:
                self._add(part)


def first_unseen(
    graph: AtenGraph,
    inputs: Mapping[torch.fx.Node, torch.Tensor],
    seen: Seen,
    wrong: Sequence[torch.fx.Node],
) -> tuple[torch.fx.Node, Any] | None:
    """The first node on the way to ``wrong`` outputs of which eager PyTorch has no such value, and this value.

    Nodes that a decomposition or a patch computes otherwise do not count where what follows from them is seen again.
    """
    unseen: dict[torch.fx.Node, Any] = {}
    for node, value in graph.run(inputs):
        if node.op == "call_function" and value not in seen:
            unseen[node] = None
    on_the_way, pending = set[torch.fx.Node](), [node for node in wrong if node in unseen]
    while pending:
        node = pending.pop()
        if node not in on_the_way:
            on_the_way.add(node)
            pending += [operand for operand in operands_of(node) if operand in unseen]
    first = next((node for node in unseen if node in on_the_way), None)
    if first is None:
        return (wrong[0], None) if wrong else None
    value = next(value for node, value in graph.run(inputs) if node is first)
    return first, value


@contextlib.contextmanager
def places_noted() -> Iterator[dict[str, str]]:
    """The lines of capture's code that make each node, by the node's name, while graphs are recorded in here."""
    places: dict[str, str] = {}
    create_node = RecordedGraph.create_node

    def noted(graph: RecordedGraph, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = create_node(graph, *args, **kwargs)
        places.setdefault(node.name, _place())
        return node

    RecordedGraph.create_node = noted  # type: ignore[assignment, method-assign]
    try:
        yield places
    finally:
        RecordedGraph.create_node = create_node  # type: ignore[method-assign]


_CORE = tuple(
    os.path.join(PACKAGE_FOLDER, *parts)
    for parts in (
        ("capture", "recording", "tracer.py"),
        ("capture", "recording", "values.py"),
        ("torchcompat", "dispatch.py"),
    )
)
"""Through these every node comes."""

MOST_PLACES = 4


def _place() -> str:
    """The innermost lines of capture, except for those through which every node comes."""
    found: list[str] = []
    frame = sys._getframe(2)
    folders = tuple(os.path.join(PACKAGE_FOLDER, room) + os.sep for room in ("capture", "torchcompat"))
    while frame is not None and len(found) < MOST_PLACES:
        file = frame.f_code.co_filename
        if file.startswith(folders) and file not in _CORE:
            found.append(
                f"{os.path.relpath(file, os.path.dirname(PACKAGE_FOLDER))}:{frame.f_lineno}, in {frame.f_code.co_name}"
            )
        elif found and not file.startswith(folders):
            break
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(found)


KINDS = ("seed", "large", "zeros")
"""The kinds of values that are tried for arguments without an input of the file."""


@dataclass(frozen=True, slots=True)
class OtherCall:
    """A call of the module. ``name`` says what is different in it; empty of the given one."""

    args: Any
    kwargs: Mapping[str, Any] | None
    name: str = ""


def where_failed(verdict: Verdict) -> OtherCall | None:
    """The first inputs on which the verdict has a wrong row, where these are not the given ones.

    Raises: VerificationError E502 where no engine runs the file.
    """
    if verdict.unverified.startswith(NO_KERNELS):
        raise verdict.not_verified("the file cannot be searched for a wrong node")
    if verdict.wrong_on is None:
        return None
    names = {tried.name for tried in verdict.tried}
    name = next(row.inputs for row in verdict.rows if not row.ok and row.inputs in names)
    return None if name == SAMPLE.name else OtherCall(*verdict.wrong_on, name)


def without_inputs(
    root: torch.nn.Module, arguments: Arguments, inputs: Sequence[str], baked: Sequence[str]
) -> Iterator[OtherCall]:
    """The further values of arguments that the file has no input for: a verification keeps theirs."""
    names = [leaf.name for leaf in arguments.leaves]
    lost = vanished(names, assign(names, inputs, baked), baked)
    if not lost:
        return
    eager, originals = Eager(root, arguments), [leaf.tensor.detach().cpu() for leaf in arguments.leaves]
    with Recording() as recording:
        eager.run(originals)
    generator = torch.Generator().manual_seed(0)
    for kind in KINDS:
        tensors: list[torch.Tensor] = [
            InputValues.of(tensor, recording.rows(tensor)).draw(tensor, kind, generator) if name in lost else tensor
            for name, tensor in zip(names, originals, strict=True)
        ]
        try:
            eager.run(tensors)
        except Exception:  # forward is the user's code
            continue
        yield OtherCall(
            *placed(arguments, tensors), f"other values of {', '.join(lost)} ({kind}), which the file has no input for"
        )
