"""Nodes whose dtype the target has no kernel for: a float64 one with a form in ``float64.py`` becomes that form, others
(``bfloat16`` MatMul) compute in another dtype between casts, and their results are rounded back to theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.irx.edit import graphs_of, remove_unread, replace, replace_inputs
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.names import FreeNames, emitter_of, source_of
from fx2onnx.irx.private_names import dtypes_of, rows_of
from fx2onnx.irx.values import copied_type, dims_of, set_type
from fx2onnx.targets import faults
from fx2onnx.targets.float64.node import Form
from fx2onnx.targets.form import Target
from fx2onnx.targets.match import (
    STANDARD,
    UNASKED,
    Signature,
    has_kernel_for,
    has_limits,
    is_asked,
    lacked,
    signature,
    signature_of,
    with_dtype,
    word_of,
)

D = ir.DataType

WIDER: dict[ir.DataType, tuple[ir.DataType, ...]] = {
    D.BFLOAT16: (D.FLOAT,), D.FLOAT16: (D.FLOAT,), D.DOUBLE: (D.FLOAT,), D.INT8: (D.INT32, D.INT64),
    D.UINT8: (D.INT32, D.INT64), D.INT16: (D.INT32, D.INT64), D.UINT16: (D.INT32, D.INT64),
    D.BOOL: (D.UINT8, D.INT32, D.INT64), D.UINT32: (D.INT64,), D.INT32: (D.INT64,),
}  # fmt: skip
"""The dtypes in which a node may compute instead, first choice first. float64 would lose digits: such nodes are
refused."""

EXACT_THERE_AND_BACK = {D.FLOAT: frozenset({D.DOUBLE})}
"""Casts from the first to one of the second and back again change nothing."""


@dataclass
class TargetFit:
    """The result of fitting a model to its target."""

    casts: Counter[str] = field(default_factory=Counter)
    """``bfloat16 MatMul in float`` -> number of nodes."""
    forms: Counter[str] = field(default_factory=Counter)
    """``double Conv as other nodes`` -> number of nodes that became a float64 form."""
    only_narrower: dict[ir.Node, list[str]] = field(default_factory=dict)
    """Nodes in float64 that the target could run in float32 alone, which loses digits: they stay as they are."""
    left: dict[ir.Node, list[str]] = field(default_factory=dict)
    """Nodes that the target cannot run in any dtype, or not with these attributes and optional inputs."""


def fit(model: ir.Model, target: Target) -> TargetFit:
    """Put casts and float64 forms where the target needs them, in place."""
    fitted = TargetFit()
    opsets = {domain or "": version for domain, version in model.graph.opset_imports.items()}
    known = faults.of(target)
    faulty = [fault for fault in known if fault.in_float32]
    of_faulty = frozenset().union(*(fault.op_types for fault in faulty))
    formed = {op_type: fault for fault in known for op_type in fault.forms}
    functions = {identifier[:2] for identifier in model.functions}
    widened: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
    names = FreeNames(model)
    op: Emit | None = None
    plain: set[tuple[str, str, Signature]] = set()
    """Operators and dtypes with a kernel for all attributes."""
    for graph in graphs_of(model):
        for node, domain, op_type, _, outputs in rows_of(graph):
            if op_type in UNASKED or domain not in STANDARD or (domain, op_type) in functions:
                continue  # of other domains the user brings the kernels
            if op_type in of_faulty and any(fault.has(node) for fault in faulty):
                _compute_in(node, D.FLOAT16, D.FLOAT, widened, names)  # as the runtime does itself
                continue
            around = signature(dtypes_of(node.inputs), dtypes_of(outputs))
            other = formed.get(op_type)
            if other is None and (domain, op_type, around) in plain:
                continue
            opset = opsets.get(domain, 1)
            runs = has_kernel_for(target, node, opset, around)
            if runs and not has_limits(target, domain, op_type) and word_of(D.DOUBLE) not in around[0] + around[1]:
                plain.add((domain, op_type, around))
            if runs and other is not None and other.has(node):
                op = op or emitter_of(model)
                if _as_form(model, node, other.forms[op_type], op, target, opset):
                    fitted.forms[f"{other.name}: {op_type} as other nodes"] += 1
                continue
            if (not runs or _is_rounded(node)) and _has_form(node):
                op = op or emitter_of(model)
                if _as_form(model, node, _float64_form(node), op, target, opset):
                    fitted.forms[f"double {op_type} as other nodes"] += 1
                    continue
            if runs:
                missing = lacked(target, node, opset)
                if missing:
                    fitted.left[node] = missing
                continue
            pair = _dtype_for(target, node, opset)
            if pair is None or pair[0] == D.DOUBLE:
                (fitted.left if pair is None else fitted.only_narrower)[node] = []
                continue
            old, new = pair
            _compute_in(node, old, new, widened, names)
            fitted.casts[f"{word_of(old)} {op_type} in {word_of(new)}"] += 1
    return fitted


def _is_rounded(node: ir.Node) -> bool:
    """Return whether a float64 operator has an attribute, which is a float32 in a file, that float32 does not hold."""
    return node.outputs[0].dtype == D.DOUBLE and any(
        attribute.type == ir.AttributeType.FLOAT and attribute.value != float(np.float32(attribute.value))
        for attribute in node.attributes.values()
    )


def _has_form(node: ir.Node) -> bool:
    """Return whether the node is in float64, of known types, and its operator has a form in operators that compute in float64."""
    values = [value for value in (*node.inputs, *node.outputs) if value is not None and value.name != ""]
    if node.domain or not any(value.dtype == D.DOUBLE for value in values):
        return False
    from fx2onnx.targets.float64.table import FORMS

    return node.op_type in FORMS and all(value.dtype is not None and value.shape is not None for value in values)


def _float64_form(node: ir.Node) -> Form:
    from fx2onnx.targets.float64.table import FORMS

    return FORMS[node.op_type]


def _as_form(model: ir.Model, node: ir.Node, form: Form, op: Emit, target: Target, opset: int) -> bool:
    """Put the operator's form in its place, if this node has one that the target has kernels for."""
    graph, builder = node.graph, op.builder
    assert isinstance(graph, ir.Graph)
    builder.nodes, op.origin = [], dict(node.metadata_props)
    builder.emitted.clear()
    op.scope = (node.name or "").rpartition("/")[0]
    read = [(old, index) for index, old in enumerate(node.outputs) if old.dtype is not None]
    types = [(old.dtype, dims_of(old)) for old, _ in read if old.dtype is not None]
    op.result = tuple(types)
    try:
        made = form(op, node)
    except UserError:  # an operator of the form is newer than the opset
        made = None
    fresh = builder.nodes
    if made is None or not all(
        has_kernel_for(target, each, opset, signature_of(each)) for each in fresh if is_asked(each)
    ):
        for each in fresh:
            each.resize_inputs(0)
        return False
    for value in builder.initializers.values():
        if value.graph is None and value.uses() and value.name is not None:
            model.graph.initializers[value.name] = value
    graph.insert_before(node, fresh)
    results = made if isinstance(made, tuple) else (made,)
    for (old, index), (dtype, dims) in zip(read, types, strict=True):
        new = results[index]
        assert new.dtype == dtype
        set_type(new, dtype, dims)
        if not old.is_graph_output():
            new.name, old.name = old.name, None
        replace(old, new)
    remove_unread([node])
    return True


def _dtype_for(target: Target, node: ir.Node, opset: int) -> tuple[ir.DataType, ir.DataType] | None:
    """A dtype of the node, and the one that it can compute in instead."""
    signature = signature_of(node)
    around = {value.dtype for value in (*node.inputs, *node.outputs) if value is not None and value.dtype is not None}
    for old in sorted(around & WIDER.keys(), key=list(WIDER).index):
        for new in WIDER[old]:
            changed = with_dtype(signature, word_of(old), word_of(new))
            if has_kernel_for(target, node, opset, changed, surely=True):
                return old, new
    return None


def _compute_in(
    node: ir.Node,
    old: ir.DataType,
    new: ir.DataType,
    widened: dict[tuple[ir.Value, ir.DataType], ir.Value],
    names: FreeNames,
) -> None:
    """Casts before the inputs of dtype ``old``, and behind such outputs."""
    for index, value in enumerate(node.inputs):
        if value is not None and value.dtype == old:
            node.replace_input_with(index, _cast_of(value, new, widened, names, node))
    for output in node.outputs:
        if output.dtype == old:
            _cast_back(node, output, old, new, widened, names)


def _cast_of(
    value: ir.Value,
    dtype: ir.DataType,
    widened: dict[tuple[ir.Value, ir.DataType], ir.Value],
    names: FreeNames,
    reader: ir.Node,
) -> ir.Value:
    """The value in another dtype: one Cast for all readers, where the value is made."""
    found = widened.get((value, dtype))
    if found is not None:
        return found
    producer = value.producer()
    result = copied_type(value, names.free(f"{value.name}/as_{word_of(dtype)}"))
    result.type = ir.TensorType(dtype)
    origin = (producer or reader).metadata_props
    cast = ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype)], outputs=[result], name=f"{result.name}/Cast")
    cast.metadata_props.update(origin)
    if producer is not None and producer.graph is not None:
        producer.graph.insert_after(producer, cast)
    else:
        home = value.graph if value.graph is not None else reader.graph
        assert isinstance(home, ir.Graph)
        first = next(iter(home))
        home.insert_before(first, cast)
    widened[value, dtype] = result
    return result


def _cast_back(
    node: ir.Node,
    output: ir.Value,
    old: ir.DataType,
    new: ir.DataType,
    widened: dict[tuple[ir.Value, ir.DataType], ir.Value],
    names: FreeNames,
) -> None:
    """The output becomes one of dtype ``new``, and a Cast behind it makes what it was, for all who read it."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    name = output.name
    result = copied_type(output, str(name))
    cast = ir.Node("", "Cast", [output], [ir.AttrInt64("to", old)], outputs=[result], name=f"{name}/Cast")
    cast.metadata_props.update(node.metadata_props)
    graph.insert_after(node, cast)
    _read_instead(output, result, cast)
    for index, each in enumerate(graph.outputs):
        if each is output:
            graph.outputs[index] = result
    output.name = names.free(f"{name}/in_{word_of(new)}")
    result.name = name
    output.type = ir.TensorType(new)
    if old in EXACT_THERE_AND_BACK.get(new, ()):
        widened[result, new] = output


def _read_instead(old: ir.Value, new: ir.Value, cast: ir.Node) -> None:
    """All readers of ``old`` but the cast read ``new``."""
    replace_inputs([(old, new)])
    cast.replace_input_with(0, old)


MOST_NAMED = 8


def named(nodes: Mapping[ir.Node, Sequence[str]]) -> str:
    """The nodes with their dtypes, what of them the target lacks, and lines; of many, the first."""
    texts = dict.fromkeys(_text(node, missing) for node, missing in nodes.items())
    more = len(texts) - MOST_NAMED
    return "; ".join([*texts][:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _text(node: ir.Node, missing: Sequence[str]) -> str:
    dtypes = ", ".join(
        value.dtype.name.lower() for value in node.inputs if value is not None and value.dtype is not None
    )
    where = source_of(node.metadata_props)
    asked = f" with {', '.join(missing)}" if missing else ""
    return f"{node.op_type}({dtypes}){asked}" + (f" at {where}" if where else "")


def refusal(nodes: Mapping[ir.Node, Sequence[str]], target: str) -> UserError:
    """The error of a target that was asked for."""
    return UserError(
        "E204",
        f"{target} cannot run {len(nodes)} of the nodes",
        why=f"it has no kernel for {named(nodes)}",
        next="choose another target, an opset_version in which they have other forms, or other dtypes",
    )


def float64_refusal(nodes: Mapping[ir.Node, Sequence[str]], target: str) -> UserError:
    """The error of nodes in float64 that a target has in float32 alone."""
    return UserError(
        "E204",
        f"{target} cannot compute {len(nodes)} of the nodes in float64",
        why=f"it has no float64 kernel for {named(nodes)}, and float32 has half the digits",
        next=[
            "export module.float() with float32 inputs",
            'export with target="onnx", which leaves the nodes as they are for another runtime',
        ],
    )
