"""The operators of any ONNX file that a target cannot run, and what would fix it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import onnx
import onnx_ir as ir
from onnx.inliner import inline_local_functions

from fx2onnx.base.stack_frames import public_methods
from fx2onnx.irx.edit import graphs_of
from fx2onnx.irx.inference import without_maps
from fx2onnx.irx.names import scope_of, source_of
from fx2onnx.targets import faults
from fx2onnx.targets.fit import WIDER
from fx2onnx.targets.form import Target
from fx2onnx.targets.match import (
    STANDARD,
    Signature,
    has_kernel_for,
    is_asked,
    lacked,
    signature_of,
    with_dtype,
    word_of,
)

RULES = ("opset", "ir_version", "domain", "operator", "version", "dtype", "attribute", "size", "fault")
"""The subjects of findings."""


@public_methods
@dataclass(frozen=True, slots=True)
class Finding:
    """Something that the target cannot run as it is."""

    rule: str
    """One of ``RULES``."""
    problem: str
    instead: str
    """The change that would fix it."""
    op_type: str = ""
    node: str = ""
    module: str = ""
    """The module whose forward makes the node."""
    where: str = ""
    """The line of source code."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)


def lint(proto: onnx.ModelProto, target: Target) -> list[Finding]:
    """All that stands in the way of the file in that target, in the order of its nodes. Reads no data of weights.

    Model-local functions are checked by their nodes, as runtimes do. A dtype that the file does not say, and that cannot be
    inferred, is taken for one that runs.
    """
    model = ir.from_proto(without_maps(_with_types(_inlined(proto))))
    findings = [*_of_the_file(model, target), *_of_sizes(model, target)]
    if target.rows is not None:
        for graph in graphs_of(model):
            for node in graph:
                found = _of_node(node, target, model)
                findings += [found] if found is not None else []
    findings += [
        _about(node, "fault", f"{fault.what} ({fault.runtime} {fault.since} to {fault.until})", fault.instead)
        for fault, node in faults.met(model, target)
    ]
    return findings


def _inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    if not proto.functions:
        return proto
    return inline_local_functions(proto)


def _with_types(proto: onnx.ModelProto) -> onnx.ModelProto:
    """With the dtypes that follow from those of the inputs."""
    try:
        return onnx.shape_inference.infer_shapes(proto)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):  # what is known stays
        return proto


def _of_the_file(model: ir.Model, target: Target) -> Iterator[Finding]:
    opset = model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx"))
    if opset is not None and target.opset is not None and opset > target.opset:
        yield Finding(
            "opset",
            f"opset {opset}; the newest of {target.name} is {target.opset}",
            f"export with opset_version={target.opset}, or target={target.name!r}",
        )
    if target.ir_version is not None and model.ir_version > target.ir_version:
        yield Finding(
            "ir_version",
            f"IR version {model.ir_version}; the newest of {target.name} is {target.ir_version}",
            "write the file with an older opset, whose IR version is older too",
        )


def _of_sizes(model: ir.Model, target: Target) -> Iterator[Finding]:
    if not target.needs_static:
        return
    for value in model.graph.inputs:
        names = [str(dim) for dim in value.shape or () if not isinstance(dim, int)]
        if names or value.shape is None:
            said = f"the sizes {', '.join(names)}" if names else "the shape"
            yield Finding(
                "size",
                f"{said} of the input {value.name} are not fixed",
                f"{target.name} wants every size fixed: export without dynamic_shapes",
            )


def _of_node(node: ir.Node, target: Target, model: ir.Model) -> Finding | None:
    if not is_asked(node):
        return None
    opset = model.graph.opset_imports.get(node.domain)
    signature = signature_of(node)
    if opset is None:
        return None
    if has_kernel_for(target, node, opset, signature):
        missing = lacked(target, node, opset)
        if not missing:
            return None
        problem = f"{target.name} has no {node.op_type} with {', '.join(missing)}"
        return _about(node, "attribute", problem, "another form of it: other arguments of the module's call")
    kernels = (target.kernels(node.domain, node.op_type) or ()) + target.functions(node.domain, node.op_type)
    if not kernels:
        if node.domain not in STANDARD:
            problem = f"{target.name} does not know {node.domain}::{node.op_type}"
            return _about(
                node, "domain", problem, "export the module without that operator, or register it in the runtime"
            )
        return _about(
            node, "operator", f"{target.name} has no {node.op_type}", "another form of it: another opset or module"
        )
    runs = _dtypes_that_run(node, target, opset, signature)
    given = _text(signature)
    if runs:
        instead = f"compute it in {runs[0]} between casts: fx2onnx export --target {target.name} does"
        return _about(node, "dtype", f"{target.name} has no {node.op_type} of {given} in opset {opset}", instead)
    others = [other for other in range(7, 29) if has_kernel_for(target, node, other, signature, surely=True)]
    if others and not node.domain:
        instead = f"export with opset_version={min(others, key=lambda other: abs(other - opset))}"
        return _about(node, "version", f"{target.name} has no {node.op_type} of {given} in opset {opset}", instead)
    instead = "other dtypes, or another form of the operator"
    return _about(node, "dtype", f"{target.name} has no {node.op_type} of {given} in opset {opset}", instead)


def _dtypes_that_run(node: ir.Node, target: Target, opset: int, signature: Signature) -> list[str]:
    """Wider dtypes in which the target runs the node."""
    found: list[str] = []
    for old, wider in WIDER.items():
        for new in wider:
            changed = with_dtype(signature, word_of(old), word_of(new))
            if changed != signature and has_kernel_for(target, node, opset, changed, surely=True):
                found.append(word_of(new))
    return found


def _text(signature: Signature) -> str:
    return f"({', '.join(dtype or '?' for dtype in signature[0])})"


def _about(node: ir.Node, rule: str, problem: str, instead: str) -> Finding:
    name = node.name or next((value.name for value in node.outputs if value.name), "") or ""
    metadata = node.metadata_props
    return Finding(rule, problem, instead, node.op_type, name, scope_of(name, metadata), source_of(metadata))
