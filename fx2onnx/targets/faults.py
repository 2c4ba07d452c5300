"""What runtimes do wrong with files that ONNX's specification admits: which nodes, in which releases, and what avoids it.

Each entry was seen: a test runs its smallest case in the runtime that is installed. Files that are given to
``add_table`` hold more, as data (``fault_entries.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike

import onnx
import onnx_ir as ir

from fx2onnx.irx.edit import graphs_of, use_count
from fx2onnx.irx.values import copied_type
from fx2onnx.targets.fault_entries import FaultEntry, read_entries
from fx2onnx.targets.form import Target, numbers


@dataclass(frozen=True, slots=True)
class Fault:
    """One of a runtime."""

    name: str
    runtime: str
    since: str
    until: str
    """The newest release that has it: the newest one tried where it is still there."""
    what: str
    instead: str
    """What has to be changed; of those with ``mend`` it is what that does."""
    has: Callable[[ir.Node], bool]
    """Whether a node is the one that meets the fault."""
    op_types: frozenset[str]
    """The operators that such a node may have."""
    mend: Callable[[ir.Node], None] | None = None
    ends_process: bool = False


def of(target: Target) -> list[Fault]:
    """The faults of a target: those of its release, and those that were still there in the newest one tried.

    Added ones were tried in the release that was installed: where no release is asked for, all of them count.
    """
    added = [fault for fault in ADDED if target.name == target.runtime or _is_of_release(fault, target)]
    known = [fault for fault in FAULTS if _is_of_release(fault, target)]
    return [fault for fault in (*known, *added) if fault.runtime == target.runtime]


def _is_of_release(fault: Fault, target: Target) -> bool:
    return not target.release or numbers(fault.since) <= numbers(target.release) <= numbers(fault.until)


def runtimes() -> set[str]:
    """Those of which faults are known."""
    return {fault.runtime for fault in (*FAULTS, *ADDED)}


def add_table(path: str | PathLike[str]) -> None:
    """Know the faults in a file of entries as well, from now on in this process. Raises UserError E001."""
    known = {(fault.runtime, fault.name) for fault in (*FAULTS, *ADDED)}
    ADDED.extend(_fault(entry) for entry in read_entries(path) if (entry.runtime, entry.name) not in known)


def _fault(entry: FaultEntry) -> Fault:
    return Fault(
        entry.name,
        entry.runtime,
        entry.since,
        entry.until,
        entry.what,
        entry.instead,
        entry.node.fits,
        frozenset({entry.node.op_type}),
        ends_process=entry.ends_process,
    )


def may_meet(proto: onnx.ModelProto, target: Target) -> bool:
    """Whether a file has any of the operators at all, wherever they stand: cheaper than ``met``."""
    wanted = {op_type for fault in of(target) for op_type in fault.op_types}
    pending = [proto.graph.node, *(function.node for function in proto.functions)]
    while pending:
        for node in pending.pop():
            if node.op_type in wanted:
                return True
            pending += [each.g.node for each in node.attribute if each.type == onnx.AttributeProto.GRAPH]
    return False


def met(model: ir.Model, target: Target) -> Iterator[tuple[Fault, ir.Node]]:
    """Each node that meets a fault of the target."""
    found = of(target)
    for graph in graphs_of(model) if found else ():
        for node in list(graph):
            for fault in found:
                if fault.has(node):
                    yield fault, node


def avoid(model: ir.Model, target: Target) -> dict[str, int]:
    """Change the nodes that meet a fault where something avoids it, in place; how many of each fault."""
    counts: dict[str, int] = {}
    for fault, node in met(model, target):
        if fault.mend is not None:
            fault.mend(node)
            counts[fault.name] = counts.get(fault.name, 0) + 1
    return counts


def _made_by(value: ir.Value | None, op_type: str) -> ir.Node | None:
    producer = None if value is None else value.producer()
    return producer if producer is not None and producer.op_type == op_type and not producer.domain else None


def _transposes(node: ir.Node) -> Iterator[tuple[int, ir.Node, ir.Node]]:
    """Index of the input, Cast and Transpose, where a MatMul reads a Cast of a Transpose."""
    if node.op_type == "MatMul" and not node.domain:
        for index, value in enumerate(node.inputs):
            cast = _made_by(value, "Cast")
            transpose = _made_by(cast.inputs[0], "Transpose") if cast is not None else None
            if cast is not None and transpose is not None:
                yield index, cast, transpose


def _cast_first(node: ir.Node) -> None:
    for index, cast, transpose in list(_transposes(node)):
        source, old = transpose.inputs[0], cast.outputs[0]
        assert source is not None
        assert isinstance(cast.graph, ir.Graph)
        own = f"{old.name}/for_{node.outputs[0].name}_{index}"
        early = copied_type(source, f"{own}/early")
        early.type = ir.TensorType(ir.DataType(cast.attributes["to"].as_int()))
        late = copied_type(old, f"{own}/late")
        nodes = [
            ir.Node("", "Cast", [source], list(cast.attributes.values()), outputs=[early], name=f"{own}/Cast"),
            ir.Node(
                "", "Transpose", [early], list(transpose.attributes.values()), outputs=[late], name=f"{own}/Transpose"
            ),
        ]
        for new in nodes:
            new.metadata_props.update(cast.metadata_props)
        cast.graph.insert_after(cast, nodes)
        node.replace_input_with(index, late)
        for left in (cast, transpose):
            if not use_count(left.outputs[0]) and not left.outputs[0].is_graph_output():
                assert left.graph is not None
                left.graph.remove(left, safe=True)


_SPREAD: dict[str, Callable[[Callable[[str, float], float]], bool]] = {
    **dict.fromkeys(("RandomNormal", "RandomNormalLike"), lambda given: given("scale", 1.0) > 0),
    **dict.fromkeys(("RandomUniform", "RandomUniformLike"), lambda given: given("low", 0.0) <= given("high", 1.0)),
}
"""Whether a distribution has a width, by its attributes."""


def _has_no_spread(node: ir.Node) -> bool:
    def given(name: str, usual: float) -> float:
        attribute = node.attributes.get(name)
        return usual if attribute is None else attribute.as_float()

    return node.op_type in _SPREAD and not node.domain and not _SPREAD[node.op_type](given)


FAULTS = (
    Fault(
        "transpose-cast-matmul",
        "onnxruntime",
        "1.19",
        "1.32",
        "MatMul of a Cast of a Transpose ends the process while the file is opened (a fusion at the highest level)",
        "cast before the Transpose",
        lambda node: any(True for _ in _transposes(node)),
        frozenset({"MatMul"}),
        _cast_first,
        ends_process=True,
    ),
    Fault(
        "random-without-spread",
        "onnxruntime",
        "1.16",
        "1.32",
        "random numbers of a distribution without a width (scale of 0, low above high) end the process in a run",
        "a constant in their place",
        _has_no_spread,
        frozenset(_SPREAD),
        ends_process=True,
    ),
    Fault(
        "inexact-stft",
        "onnxruntime",
        "1.17",
        "1.32",
        "STFT is off by up to 32 units in the last place of a frame's largest number",
        "MatMul with the sines and cosines (opset_version=16)",
        lambda node: node.op_type == "STFT" and not node.domain,
        frozenset({"STFT"}),
    ),
)

ADDED: list[Fault] = []
"""Those of the user's tables."""
