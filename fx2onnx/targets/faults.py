"""The bugs of runtimes with files that ONNX's specification admits: which nodes, in which releases, and what avoids it.

Each entry was seen: a test runs its smallest case in the runtime that is installed. Files that are given to
``add_table`` hold more, as data (``fault_entries.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike

import onnx
import onnx_ir as ir

from fx2onnx.irx.edit import graphs_with_rows
from fx2onnx.irx.private_names import use_count
from fx2onnx.irx.values import copied_type, known_array, known_ints
from fx2onnx.targets.fault_entries import FaultEntry, read_entries
from fx2onnx.targets.float64.images import keep_apart, scaled
from fx2onnx.targets.float64.node import Form
from fx2onnx.targets.form import Target, numbers
from fx2onnx.targets.wide_integers import FORMS, compares_wide


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
    """The change that avoids the fault; with ``mend``, the change that it makes."""
    has: Callable[[ir.Node], bool]
    """Returns True for a node that meets the fault."""
    op_types: frozenset[str]
    """The operators that such a node may have."""
    mend: Callable[[ir.Node], None] | None = None
    in_float32: bool = False
    """True if the node is to be computed in float32, between casts (``fit``), before others are changed."""
    ends_process: bool = False
    forms: Mapping[str, Form] = field(default_factory=dict)
    """The nodes that take the place of such a node, by its operator (``fit``)."""


def of(target: Target) -> list[Fault]:
    """The faults of a target: those of its release, and those that were still there in the newest one tried.

    Added ones were tried in the release that was installed: where no release is asked for, all of them count.
    """
    added = [fault for fault in ADDED if target.name == target.runtime or _is_in(fault, target.release)]
    return [*_of_table(target.runtime, target.release), *(fault for fault in added if fault.runtime == target.runtime)]


@functools.cache
def _of_table(runtime: str, release: str) -> list[Fault]:
    return [fault for fault in FAULTS if fault.runtime == runtime and _is_in(fault, release)]


def _is_in(fault: Fault, release: str) -> bool:
    return not release or numbers(fault.since) <= numbers(release) <= numbers(fault.until)


def runtimes() -> set[str]:
    """The runtimes of which faults are known."""
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
    """Return whether a file has any of the operators at all, wherever they stand: cheaper than ``met``."""
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
    op_types = frozenset[str]().union(*(fault.op_types for fault in found))
    for _, rows in graphs_with_rows(model) if found else ():
        for node, _, op_type, _, _ in rows:
            for fault in found if op_type in op_types else ():
                if op_type in fault.op_types and fault.has(node):
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


def _multiplies_turned_half(node: ir.Node) -> bool:
    """Return whether a MatMul reads a Transpose of float16 that makes the first axis one of the last two. Without a kernel for float16
    the runtime puts a Cast between them itself.
    """
    if node.op_type != "MatMul" or node.domain:
        return False
    for value in node.inputs:
        transpose = _made_by(value, "Transpose")
        perm = [] if transpose is None else _ints(transpose, "perm")
        if transpose is not None and len(perm) > 2 and perm[:-2] == list(range(1, len(perm) - 1)):
            dtypes = {each.dtype for each in (*node.inputs, *node.outputs, *transpose.inputs) if each is not None}
            if ir.DataType.FLOAT16 in dtypes:
                return True
    return False


_SPREAD: dict[str, Callable[[Callable[[str, float], float]], bool]] = {
    **dict.fromkeys(("RandomNormal", "RandomNormalLike"), lambda given: given("scale", 1.0) > 0),
    **dict.fromkeys(("RandomUniform", "RandomUniformLike"), lambda given: given("low", 0.0) <= given("high", 1.0)),
}
"""Tests of an operator's attributes that are true if the distribution has a width."""


def _has_no_spread(node: ir.Node) -> bool:
    def given(name: str, usual: float) -> float:
        attribute = node.attributes.get(name)
        return usual if attribute is None else attribute.as_float()

    return node.op_type in _SPREAD and not node.domain and not _SPREAD[node.op_type](given)


def _text(node: ir.Node, name: str) -> str:
    attribute = node.attributes.get(name)
    return "" if attribute is None else attribute.as_string()


def _int(node: ir.Node, name: str) -> int:
    attribute = node.attributes.get(name)
    return 0 if attribute is None else attribute.as_int()


def _ints(node: ir.Node, name: str) -> list[int]:
    attribute = node.attributes.get(name)
    return [] if attribute is None else list(attribute.as_ints())


def _input(node: ir.Node, place: int) -> ir.Value | None:
    return node.inputs[place] if place < len(node.inputs) else None


def _is_read(node: ir.Node, place: int) -> bool:
    return place < len(node.outputs) and bool(node.outputs[place].name)


def _zeros_beside(pool: ir.Node) -> list[int] | None:
    """The number of zeros that a Pad puts before and behind each axis of the pool; None where no such Pad is read."""
    pad = _made_by(_input(pool, 0), "Pad")
    if pad is None or _text(pad, "mode") not in ("", "constant") or use_count(pad.outputs[0]) != 1:
        return None
    value, pads = known_array(_input(pad, 2)), known_ints(_input(pad, 1))
    if pads is None or len(pad.inputs) > 3 or (_input(pad, 2) is not None and (value is None or value.any())):
        return None
    half, axes = len(pads) // 2, len(_ints(pool, "kernel_shape"))
    return [*pads[half - axes : half], *pads[2 * half - axes :]]


def _drops_zeros(node: ir.Node) -> bool:
    zeros = None if node.domain or _is_read(node, 1) else _zeros_beside(node)
    return zeros is not None and any(zeros)


def _pads_too_much(node: ir.Node) -> bool:
    zeros = None if node.domain or not _int(node, "count_include_pad") else _zeros_beside(node)
    kernel = _ints(node, "kernel_shape")
    own = _ints(node, "pads") or [0] * 2 * len(kernel)
    return zeros is not None and any(
        number and number + there >= size for number, there, size in zip(zeros, own, kernel * 2, strict=True)
    )


def _resizes_by_fractions(node: ir.Node) -> bool:
    if node.domain or _text(node, "coordinate_transformation_mode") != "align_corners":
        return False
    scales, data = _input(node, 2), _input(node, 0)
    factors = known_array(scales)
    if (
        scales is None
        or scales.name == ""
        or (scales.shape is not None and scales.shape.is_static() and not scales.shape[0])
    ):
        return False
    if factors is None or data is None or data.shape is None or len(data.shape) != len(factors):
        return True
    return any(
        factor != 1 and (not isinstance(size, int) or not (size * float(factor)).is_integer())
        for size, factor in zip(data.shape, factors, strict=True)
    )


FAULTS = (
    Fault(
        "scaled-matmul-float64",
        "onnxruntime",
        "1.16",
        "1.32",
        "a constant factor beside a MatMul of float64 is rounded to float32 (it becomes an attribute of FusedMatMul)",
        "a Max of one tensor between them",
        lambda node: bool(scaled(node)),
        frozenset({"MatMul"}),
        keep_apart,
    ),
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
        "transpose-matmul-float16",
        "onnxruntime",
        "1.24",
        "1.32",
        "MatMul of float16 that a Transpose turned, its first axis among the last two, ends the process while the file is opened, "
        "as with a Cast between them, which onnxruntime puts there itself",
        "cast to float32 before the Transpose",
        _multiplies_turned_half,
        frozenset({"MatMul"}),
        in_float32=True,
        ends_process=True,
    ),
    Fault(
        "layer-norm-named-nothing",
        "onnxruntime",
        "1.17",
        "1.32",
        "LayerNormalization whose bias has the empty name ends the process while the file is opened",
        "no third input",
        lambda node: node.op_type == "LayerNormalization" and len(node.inputs) == 3 and node.inputs[2] is None,
        frozenset({"LayerNormalization"}),
        lambda node: node.resize_inputs(2),
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
    Fault(
        "pad-max-pool",
        "onnxruntime",
        "1.20",
        "1.31",
        "zeros that a Pad puts beside what MaxPool reads are taken for MaxPool's own padding, which is never the largest",
        "the Pad read by another node, too, or MaxPool's indices as a second output, which keep the two apart",
        _drops_zeros,
        frozenset({"MaxPool"}),
    ),
    Fault(
        "pad-average-pool",
        "onnxruntime",
        "1.20",
        "1.31",
        "a Pad becomes part of AveragePool's padding, which is then as large as its kernel, so that the file is not opened",
        "count_include_pad=0 where the pool has no padding of its own, or a Pad that another node reads, too",
        _pads_too_much,
        frozenset({"AveragePool"}),
    ),
    Fault(
        "resize-align-corners-scales",
        "onnxruntime",
        "1.16",
        "1.32",
        "Resize by scales with align_corners takes other places than ONNX says where a size times its scale is no whole number",
        "sizes in the place of scales",
        _resizes_by_fractions,
        frozenset({"Resize"}),
    ),
    Fault(
        "attention-scores-causal",
        "onnxruntime",
        "1.24",
        "1.32",
        "the scores that Attention gives behind the mask (qk_matmul_output_mode=2) are finite where is_causal masks them",
        "the causal mask as the input attn_mask",
        lambda node: (
            not node.domain
            and _is_read(node, 3)
            and bool(_int(node, "is_causal"))
            and _int(node, "qk_matmul_output_mode") == 2
        ),
        frozenset({"Attention"}),
    ),
    Fault(
        "max-unpool-output-shape",
        "onnxruntime",
        "1.16",
        "1.32",
        "MaxUnpool with an output shape counts the indices in that shape, where ONNX counts them in the pool's own and pads",
        "no output shape, and a Pad behind MaxUnpool",
        lambda node: not node.domain and _input(node, 2) is not None,
        frozenset({"MaxUnpool"}),
    ),
    Fault(
        "int64-extremes",
        "onnxruntime",
        "1.21",
        "1.31",
        "extremes and signs of int64 compare the low 32 bits as signed numbers: Max(3000000000, 0) is 0; sums and products are rounded to float64",
        "Greater, Less and Where, and ArgMax for reductions; sums of the high and the low 32 bits; a Scan of Mul",
        compares_wide,
        frozenset(FORMS),
        forms=FORMS,
    ),
)

ADDED: list[Fault] = []
"""The faults of the user's tables."""
