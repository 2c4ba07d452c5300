"""Formulas of weights (weight norm, pruning masks, ``1 + weight``) -> the weight that they give, computed when the file is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from fx2onnx.base.errors import InternalError
from fx2onnx.irx.edit import graphs_with_rows, remove_unread, replace_inputs
from fx2onnx.irx.values import dtype_of, set_type
from fx2onnx.optimize.fold_constants import DEFAULT_BUDGET, FOLDABLE_DTYPES, attributes_of
from fx2onnx.optimize.rewrite import is_float, static_dims
from fx2onnx.optimize.weights import Array, DerivedTensor, is_literal
from fx2onnx.semantics import folding

MOVES = frozenset({"Concat", "Expand", "Flatten", "Gather", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that compute nothing: part of a formula, but no end of one (``ArrangeWeights`` and ``FoldWeightTranspose`` copy less)."""

ARITHMETIC = frozenset(
    {
        *("Abs", "Add", "Cast", "Ceil", "Clip", "Div", "Einsum", "Erf", "Exp", "Floor", "Gemm", "Log", "LogSoftmax"),
        *("MatMul", "Max", "Min", "Mul", "Neg", "Pow", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceMax"),
        *("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Round", "Sigmoid", "Sign"),
        *("Softmax", "Softplus", "Sqrt", "Sub", "Tanh", "Trilu"),
    }
)


@dataclass(frozen=True, slots=True)
class _Step:
    op_type: str
    attrs: Mapping[str, Any]
    places: tuple[int | None, ...]
    """Places of the operands among the sources, followed by the results of earlier steps."""


@dataclass(frozen=True, slots=True)
class _Formula:
    """The steps from sources to a weight."""

    steps: tuple[_Step, ...]
    opset: int

    def __call__(self, *sources: Array) -> Array:
        found = list(sources)
        for step in self.steps:
            operands = [None if place is None else found[place] for place in step.places]
            array = folding.compute(step.op_type, self.opset, operands, step.attrs)
            if array is None:
                raise InternalError(
                    "E900", f"no kernel computes {step.op_type} of {[a.dtype for a in operands if a is not None]}"
                )
            found.append(array)
        return found[-1]


def fold_weight_formulas(model: ir.Model, *, keep_weights: bool = False) -> int:
    """Compute nodes that depend on floating-point weights alone when the file is written. Returns how many weights that makes.

    keep_weights: do nothing, as every weight is to stay as the module has it.
    Refuses:   weights of integers (the file would grow), graph outputs, results that take more than 1 MiB beyond the weights that
               nobody reads any more.
    """
    if keep_weights:
        return 0
    nodes = _constant_nodes(model)
    if not nodes:
        return 0
    constant, kept, released, left_bytes = set(nodes), set(nodes), set[ir.Value](), DEFAULT_BUDGET.total_bytes
    ends: list[ir.Node] = []
    for node in reversed(nodes):
        value = node.outputs[0]
        if not value.is_graph_output() and all(user in kept for user, _ in value.uses()):
            continue
        if value.is_graph_output() or node.op_type in MOVES:
            kept.discard(node)
            continue
        freed = _freed(_behind(node, constant), kept)
        added_bytes = _bytes_of(value) - sum(_bytes_of(weight) for weight in freed - released)
        if added_bytes > left_bytes:
            kept.discard(node)
            continue
        left_bytes -= max(0, added_bytes)
        released |= freed
        ends.append(node)
    replaced = [(node.outputs[0], _stored(model, node, _behind(node, constant))) for node in ends]
    replace_inputs(replaced)
    remove_unread(ends)
    return len(ends)


def _constant_nodes(model: ir.Model) -> list[ir.Node]:
    """The nodes that depend on weights and literals alone, in order."""
    nodes: list[ir.Node] = []
    found: set[ir.Value] = set()
    for _, rows in graphs_with_rows(model):
        for node, domain, op_type, inputs, outputs in rows:
            if (op_type in ARITHMETIC or op_type in MOVES) and not domain and _is_constant(inputs, outputs, found):
                nodes.append(node)
                found.add(outputs[0])
    return nodes


def _is_constant(inputs: Sequence[ir.Value | None], outputs: Sequence[ir.Value], found: set[ir.Value]) -> bool:
    has_weight = False
    for value in inputs:
        if value is None or value in found:
            has_weight = has_weight or value is not None
            continue
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or value.dtype not in FOLDABLE_DTYPES:
            return False
        if not is_literal(tensor):
            if not is_float(value):
                return False
            has_weight = True
    result = outputs[0]
    return has_weight and result.dtype in FOLDABLE_DTYPES and static_dims(result) is not None


def _bytes_of(value: ir.Value) -> int:
    tensor = value.const_value
    if tensor is not None:
        return tensor.nbytes
    count = 1
    for size in static_dims(value) or ():
        count *= size
    return int(count * dtype_of(value).itemsize)


def _freed(nodes: list[ir.Node], kept: set[ir.Node]) -> set[ir.Value]:
    """The weights that only ``kept`` nodes read, among those that ``nodes`` do."""
    freed: set[ir.Value] = set()
    for node in nodes:
        for value in node.inputs:
            is_leaf = value is not None and value.const_value is not None and not value.is_graph_output()
            if value is not None and is_leaf and all(user in kept for user, _ in value.uses()):
                freed.add(value)
    return freed


def _behind(end: ir.Node, constant: set[ir.Node]) -> list[ir.Node]:
    """``end`` and the nodes that it is computed from, operands first."""
    order: dict[ir.Node, None] = {}
    pending = [end]
    while pending:
        node = pending[-1]
        producers = [value.producer() for value in node.inputs if value is not None]
        missing = [each for each in producers if each in constant and each is not None and each not in order]
        if missing:
            pending += missing
        else:
            order[pending.pop()] = None
    return list(order)


def _stored(model: ir.Model, end: ir.Node, nodes: list[ir.Node]) -> ir.Value:
    """A weight with the numbers that ``nodes`` give, of which ``end`` is the last, under the name of the largest weight behind it."""
    inner = {node.outputs[0] for node in nodes}
    leaves = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None and v not in inner)
    places = {value: place for place, value in enumerate((*leaves, *(node.outputs[0] for node in nodes)))}
    steps = tuple(
        _Step(node.op_type, attributes_of(node), tuple(None if v is None else places[v] for v in node.inputs))
        for node in nodes
    )
    tensors = [leaf.const_value for leaf in leaves if leaf.const_value is not None]
    largest = max(tensors, key=lambda tensor: (not is_literal(tensor), tensor.nbytes))
    name = base = f"{largest.name}.computed"
    count = 1
    while name in model.graph.initializers:
        count += 1
        name = f"{base}{count}"
    result = end.outputs[0]
    sizes = static_dims(result) or ()
    tensor = DerivedTensor(
        _Formula(steps, model.graph.opset_imports.get("", 0)), tensors, dtype_of(result), sizes, name
    )
    value = ir.Value(name=name, const_value=tensor)
    set_type(value, tensor.dtype, list(sizes))
    model.graph.initializers[name] = value
    return value
