"""int64 beyond what onnxruntime's kernels take. Extremes and signs by comparisons: they compare the low halves of numbers as signed ones,
so that ``Max(3000000000, 0)`` is 0. Sums by halves, and products by a Scan: they compute as float64, so that
``ReduceSum([2**60, 1])`` is ``2**60``.
"""

from __future__ import annotations

import os

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import known_ints, lacks_data
from fx2onnx.targets.float64.node import Form, attribute, given, operand, size_of

D = ir.DataType

_COUNTS = frozenset({"Shape", "Size", "NonZero", "ArgMax", "ArgMin"})
"""Operators that give sizes and places."""
_KEEPING = {
    **dict.fromkeys(
        ("Identity", "Gather", "GatherElements", "GatherND", "Slice", "Squeeze", "Unsqueeze", "Reshape"), 1
    ),
    **dict.fromkeys(("Expand", "Transpose", "Flatten", "Split", "Tile", "ReduceMax", "ReduceMin", "Clip"), 1),
    **dict.fromkeys(("Concat", "Max", "Min", "Where", "Range", "Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs"), None),
}
"""Operators whose results are sizes where their operands are: how many operands count (None: all)."""
_NARROW = frozenset({D.BOOL, D.INT8, D.INT16, D.INT32, D.UINT8, D.UINT16})
_MOST_STEPS = 200
_LIMIT = 1 << 31


def compares_wide(node: ir.Node) -> bool:
    """Return whether a node compares, adds or multiplies int64 numbers that are not known to be within 32 bits, and has another form."""
    value = node.inputs[0] if node.inputs else None
    if node.domain or value is None or value.dtype != D.INT64 or node.op_type not in FORMS:
        return False
    if node.op_type in ("Max", "Min") and len(node.inputs) < 2:
        return False
    if node.op_type.startswith("Reduce") and _axes(node) is None:
        return False
    if node.op_type == "ReduceProd" and _has_wide_products(value):
        return True
    operands = [each for each in node.inputs[: 1 if node.op_type.startswith("Reduce") else None] if each is not None]
    return not all(_is_narrow(each) for each in operands)


def _has_wide_products(value: ir.Value) -> bool:
    """Return whether the product of numbers that were made of 32 bits may be far larger; that of sizes and places is taken not to be."""
    producer = value.producer()
    source = producer.inputs[0] if producer is not None and producer.op_type == "Cast" else None
    return source is not None and source.dtype in _NARROW - {D.BOOL}


def _is_narrow(value: ir.Value) -> bool:
    """Return whether the numbers follow from sizes, places and small constants alone, or were made of 32 bits."""
    producer = value.producer()
    if producer is not None and producer.op_type == "Cast" and producer.inputs[0] is not None:
        source = producer.inputs[0].dtype
        if source != D.INT64:
            return source in _NARROW
    waiting, seen = [value], {id(value)}
    while waiting:
        value = waiting.pop()
        producer = value.producer()
        filled = producer.attributes.get("value") if producer and producer.op_type == "ConstantOfShape" else None
        constant = filled.value if filled is not None else None if lacks_data(value) else value.const_value
        if isinstance(constant, ir.ExternalTensor) and not os.path.isfile(constant.path):
            continue  # opened without the folder of its data: such numbers are seldom beyond 32 bits
        if constant is not None:
            numbers = constant.numpy()
            if numbers.size and (numbers.min() < -_LIMIT or numbers.max() >= _LIMIT):
                return False
        elif producer is None or len(seen) > _MOST_STEPS or producer.domain:
            return False
        elif producer.op_type not in _COUNTS and not (producer.op_type == "TopK" and value is producer.outputs[1]):
            if producer.op_type not in _KEEPING:
                return False
            operands = producer.inputs[: _KEEPING[producer.op_type]]
            if producer.op_type == "Where":
                operands = producer.inputs[1:]
            for each in operands:
                if each is not None and id(each) not in seen:
                    seen.add(id(each))
                    waiting.append(each)
    return True


def _axes(node: ir.Node) -> list[int] | None:
    """The axes that a reduction takes; None where they are not known."""
    value = node.inputs[0]
    if value is None or value.shape is None:
        return None
    rank, asked = len(value.shape), operand(node, 1)
    axes = attribute(node, "axes", None) if asked is None else known_ints(asked)
    if asked is not None and axes is None:
        return None
    if not axes:
        return [] if attribute(node, "noop_with_empty_axes", 0) else list(range(rank))
    return sorted({axis % rank for axis in axes})


def _extreme(comparison: str) -> Form:
    def form(op: Emit, node: ir.Node) -> ir.Value:
        found, *others = given(node, len(node.inputs))
        for other in others:
            found = op.Where(op.node(comparison, found, other), found, other)
        return found

    return form


def _clip(op: Emit, node: ir.Node) -> ir.Value:
    (found,) = given(node, 1)
    for index, comparison in ((1, "Less"), (2, "Greater")):
        limit = operand(node, index)
        if limit is not None:
            found = op.Where(op.node(comparison, found, limit), limit, found)
    return op.Identity(found) if found is node.inputs[0] else found


def _relu(op: Emit, node: ir.Node) -> ir.Value:
    (value,), zero = given(node, 1), op.const(np.int64(0))
    return op.Where(op.Greater(value, zero), value, zero)


def _sign(op: Emit, node: ir.Node) -> ir.Value:
    (value,), zero = given(node, 1), op.const(np.int64(0))
    return op.Sub(op.cast(op.Greater(value, zero), D.INT64), op.cast(op.Less(value, zero), D.INT64))


def _not_empty(op: Emit, value: ir.Value, axis: int, filler: int) -> ir.Value:
    """The value with ``filler`` behind its elements along an axis that may have none."""
    size = op.dims(value)[axis]
    if isinstance(size, int) and size:
        return value
    pads = np.zeros(2 * op.rank(value), np.int64)
    pads[op.rank(value) + axis] = 1
    return op.Pad(value, op.const(pads), op.const(filler, D.INT64))


def _reduced(place: str, over_nothing: int) -> Form:
    """The element that ArgMax or ArgMin names, along one axis after the other; ``over_nothing`` where an axis may be empty."""

    def form(op: Emit, node: ir.Node) -> ir.Value | None:
        (found,), axes = given(node, 1), _axes(node)
        if axes is None or not axes:
            return None
        keeps = bool(attribute(node, "keepdims", 1))
        for axis in reversed(axes):
            found = _not_empty(op, found, axis, over_nothing)
            chosen = op.GatherElements(found, op.node(place, found, axis=axis, keepdims=1), axis=axis)
            found = chosen if keeps else op.Gather(chosen, op.const(np.int64(0)), axis=axis)
        return found

    return form


def _sum(op: Emit, node: ir.Node) -> ir.Value:
    """Each half is exact for fewer than 2**21 numbers. Neither is cut: beyond 64 bits, both wrap around as PyTorch's sum does."""
    (value,), half = given(node, 1), op.const(np.int64(_LIMIT * 2))
    high = op.Div(value, half)
    attributes = {name: each.value for name, each in node.attributes.items()}
    sums = [
        op.node(node.op_type, each, *node.inputs[1:], **attributes)
        for each in (high, op.Sub(value, op.Mul(high, half)))
    ]
    return op.Add(op.Mul(sums[0], half), sums[1])


def _product(op: Emit, node: ir.Node) -> ir.Value | None:
    """A Scan of products along the axis, which wrap around as PyTorch's do; all elements are one axis."""
    (value,), axes = given(node, 1), _axes(node)
    if not axes or (len(axes) > 1 and len(axes) < op.rank(value)):
        return None
    keeps = bool(attribute(node, "keepdims", 1))
    shape = [1] * op.rank(value) if keeps else []
    if len(axes) > 1:
        value = op.Reshape(value, op.const(np.array([-1])))
    axis = axes[0] if len(axes) == 1 else 0
    dims = tuple(size_of(op, value, at) for at in range(op.rank(value)) if at != axis)
    state, row = op.subgraph_input("product", D.INT64, dims), op.subgraph_input("row", D.INT64, dims)
    found = op.node(
        "Scan",
        op.expand(op.const(np.int64(1)), dims),
        _not_empty(op, value, axis, 1),
        body=op.subgraph("multiply", [state, row], lambda op: [op.Mul(state, row)]),
        num_scan_inputs=1,
        scan_input_axes=[axis],
        outputs=[(D.INT64, dims)],
    )
    if len(axes) > 1:
        return op.Reshape(found, op.const(np.array(shape, np.int64))) if keeps else found
    return op.Unsqueeze(found, axes=[axis]) if keeps else found


FORMS: dict[str, Form] = {
    "Max": _extreme("Greater"), "Min": _extreme("Less"), "Clip": _clip, "Relu": _relu, "Sign": _sign,
    "ReduceMax": _reduced("ArgMax", -(1 << 63)), "ReduceMin": _reduced("ArgMin", (1 << 63) - 1),
    "ReduceSum": _sum, "ReduceProd": _product,
}  # fmt: skip
