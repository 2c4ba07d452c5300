"""``Slice(f(x))`` -> ``f(Slice(x))``, for all of a graph that works on each picked row by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.private_names import nodes_before
from fx2onnx.irx.schema import BROADCASTING, UNARY_ELEMENTWISE
from fx2onnx.irx.values import Dims, dims_of, dtype_of, known_array
from fx2onnx.optimize.rewrite import Match, Rewrite, Why, attribute, attributes, dims_or_none, perm_of, required

MAX_NODES = 256
"""The largest number of nodes of a region; larger regions are left as they are."""
Axes = Mapping[int, int]
"""The axis of an operand that is the axis of the result, by the number of the operand."""


@dataclass(frozen=True, eq=False)
class PickMatch(Match):
    pick: ir.Node
    axis: int
    count: int
    nodes: list[tuple[ir.Node, int]]
    """The nodes that compute on picked rows alone, in order, and the axis of each result."""


class PickEarly(Rewrite[PickMatch]):
    """``Slice(f(x))`` -> ``f(Slice(x))`` and ``Gather(f(x), 0)`` -> ``Gather(f(Gather(x, [0])), 0)``, where f works on each row
    by itself and holds a product: the head of a language model on the last position, of a classifier on the class token, and
    of the last layer what lies behind its attention. f may have several operands, and read one several times.

    may_grow:  whether it may leave more nodes: a slice for each operand of f.
    Refuses:   sizes that the constants do not tell, as many rows as there are, parts of f that others read, no product in f.
    Numerics:  a product of few rows may round in another order.
    """

    roots: ClassVar = ("Slice", "Gather")
    moves_rounding = True

    def __init__(self, *, may_grow: bool = True) -> None:
        self.may_grow = may_grow

    def match(self, node: ir.Node) -> PickMatch | Why:
        picked = picked_rows(node)
        if isinstance(picked, Why):
            return picked
        axis, count = picked
        nodes = _region(node, axis)
        if not any(part.op_type in PRODUCTS for part, _ in nodes):
            return Why("nothing before it that works on each row by itself holds a product")
        if not self.may_grow and (len(_operands(nodes)) > 1 or _drops_axis(node)):
            return Why("it would leave more nodes")
        return PickMatch(node, axis, count, nodes)

    def build(self, op: Emit, m: PickMatch) -> ir.Value:
        made: dict[tuple[ir.Value, int], ir.Value] = {}
        for part, axis in m.nodes:
            operands = list(part.inputs)
            for place, of in _axes(part, axis).items():
                source = required(part, place)
                if (source, of) not in made:
                    made[source, of] = _pick(op, m, source, of)
                operands[place] = made[source, of]
            if part.op_type == "Reshape":
                operands[1] = op.sizes([0] * (axis + 1) + list(dims_of(part.outputs[0])[axis + 1 :]))
            dims = dims_of(part.outputs[0])
            typed = (dtype_of(part.outputs[0]), (*dims[:axis], m.count, *dims[axis + 1 :]))
            made[part.outputs[0], axis] = op.node(part.op_type, *operands, outputs=(typed,), **attributes(part))
        last = made[required(m.pick, 0), m.axis]
        if _drops_axis(m.pick):
            return op.Gather(last, op.const(np.array(0)), axis=m.axis, outputs=op.result)
        return last


def _drops_axis(pick: ir.Node) -> bool:
    return len(dims_of(pick.outputs[0])) < len(dims_of(required(pick, 0)))


def _operands(nodes: list[tuple[ir.Node, int]]) -> set[tuple[ir.Value, int]]:
    """The values that are picked from, and along which axis."""
    read = {(required(node, place), of) for node, axis in nodes for place, of in _axes(node, axis).items()}
    return read - {(node.outputs[0], axis) for node, axis in nodes}


def _pick(op: Emit, m: PickMatch, source: ir.Value, axis: int) -> ir.Value:
    dims = dims_of(source)
    outputs = ((dtype_of(source), (*dims[:axis], m.count, *dims[axis + 1 :])),)
    if m.pick.op_type == "Gather":
        indices = known_array(m.pick.inputs[1])
        assert indices is not None
        result: ir.Value = op.Gather(source, op.const(indices.reshape(-1)), axis=axis, outputs=outputs)
        return result
    starts, ends = (m.pick.inputs[place] for place in (1, 2))
    steps = m.pick.inputs[4] if len(m.pick.inputs) > 4 else None
    result = op.Slice(source, starts, ends, op.sizes([axis]), steps, outputs=outputs)
    return result


def picked_rows(node: ir.Node) -> tuple[int, int] | Why:
    """The axis, and how many rows are picked."""
    before = dims_or_none(node.inputs[0])
    if before is None or dims_or_none(node.outputs[0]) is None:
        return Why("the rank is unknown")
    numbers = [known_array(value) for value in node.inputs[1:]]
    if not numbers or any(array is None or array.size != 1 for array in numbers):
        return Why("it does not pick one run of rows that constants tell")
    if node.op_type == "Gather":
        axis, count = attribute(node, "axis", 0), 1
    else:
        if len(node.inputs) < 4 or node.inputs[3] is None:
            return Why("it does not name its axis")
        axis = int(numbers[2].item())  # type: ignore[union-attr]
    axis %= len(before)
    if node.op_type == "Slice":
        size = dims_of(node.outputs[0])[axis]
        if not isinstance(size, int):
            return Why("it is not known how many rows it picks")
        count = size
    if isinstance(before[axis], int) and before[axis] <= count:
        return Why("it picks every row")
    return axis, count


def _region(pick: ir.Node, axis: int) -> list[tuple[ir.Node, int]]:
    """The nodes before ``pick`` that need only the picked rows of their operands, in order, with the axis of each result."""
    first = required(pick, 0).producer()
    if first is None or not _is_inside(first, axis, pick, {}):
        return []
    wanted, inside, pending = {required(pick, 0): axis}, dict[ir.Node, int](), {first}
    for node in nodes_before(pick):
        if node not in pending:
            continue
        pending.discard(node)
        axis = wanted[node.outputs[0]]
        if not _is_inside(node, axis, pick, inside):
            continue
        inside[node] = axis
        for place, of in _axes(node, axis).items():
            source = required(node, place)
            producer = source.producer()
            wanted[source] = of
            if producer is not None and source is producer.outputs[0]:
                pending.add(producer)
        if not pending or len(inside) >= MAX_NODES:
            break
    return list(reversed(inside.items()))


def _is_inside(node: ir.Node, axis: int, pick: ir.Node, inside: Mapping[ir.Node, int]) -> bool:
    """Return whether ``node`` computes its rows along ``axis`` one by one, and what reads it needs the picked ones alone."""
    value = node.outputs[0]
    if node.graph is not pick.graph or len(node.outputs) != 1 or value.is_graph_output() or not _axes(node, axis):
        return False
    return all(
        (place == 0 if user is pick else user in inside and _axes(user, inside[user]).get(place) == axis)
        for user, place in value.uses()
    )


def _axes(node: ir.Node, axis: int) -> Axes:
    """The axis of each operand whose rows make the rows of the result along ``axis``; empty if a row needs more."""
    known = ROWS.get(node.op_type) if not node.domain else None
    result = dims_or_none(node.outputs[0])
    if (
        known is None
        or result is None
        or any(dims_or_none(value) is None for value in node.inputs if value is not None)
    ):
        return {}
    return known(node, axis, result)


def _elementwise(node: ir.Node, axis: int, result: Dims) -> Axes:
    found = {}
    for place, value in enumerate(node.inputs):
        if value is None:
            continue
        dims = dims_of(value)
        own = axis - len(result) + len(dims)
        if own >= 0 and dims[own] != 1:
            if dims[own] != result[axis]:
                return {}
            found[place] = own
    return found


def _product(node: ir.Node, axis: int, result: Dims) -> Axes:
    """Rows of the left operand; the rows of the right one are columns."""
    lhs, rhs = (dims_of(required(node, place)) for place in (0, 1))
    is_row = axis == len(result) - 2 and len(lhs) > 1 and len(rhs) > 1
    return {0: len(lhs) - 2} if is_row and lhs[-2] == result[axis] else {}


def _gemm(node: ir.Node, axis: int, result: Dims) -> Axes:
    if axis != 0:
        return {}
    found = {0: 1 if attribute(node, "transA", 0) else 0}
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and len(dims_of(bias)) == 2 and dims_of(bias)[0] != 1:
        found[2] = 0
    return found


def _along(node: ir.Node, axis: int, result: Dims) -> Axes:
    """Operators along the axes from one on, or along that one."""
    is_softmax = node.op_type in ("Softmax", "LogSoftmax")  # which has had two defaults
    first = attribute(node, "axis", 0 if is_softmax else -1) % len(result)
    return {0: axis} if axis < first else {}


def _reduced(node: ir.Node, axis: int, result: Dims) -> Axes:
    axes = attribute(node, "axes")
    if axes is None and len(node.inputs) > 1:
        array = known_array(node.inputs[1])
        axes = None if array is None else array.tolist()
    if not axes or not attribute(node, "keepdims", 1) or axis in [each % len(result) for each in axes]:
        return {}
    return {0: axis}


def _transposed(node: ir.Node, axis: int, result: Dims) -> Axes:
    perm = perm_of(node)
    return {} if perm is None else {0: perm[axis]}


def _reshaped(node: ir.Node, axis: int, result: Dims) -> Axes:
    """The axis of the operand if only axes behind ``axis`` are split or joined."""
    dims = dims_of(required(node, 0))
    is_prefix = dims[: axis + 1] == result[: axis + 1] and not attribute(node, "allowzero", 0)
    return {0: axis} if is_prefix and all(isinstance(dim, int) for dim in result[axis + 1 :]) else {}


ROWS: dict[str, Callable[[ir.Node, int, Dims], Axes]] = {
    **dict.fromkeys(UNARY_ELEMENTWISE | BROADCASTING, _elementwise),
    **dict.fromkeys(("Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization"), _along),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2"), _reduced),
    "MatMul": _product,
    "Gemm": _gemm,
    "Transpose": _transposed,
    "Reshape": _reshaped,
}
"""The functions, by operator, that give the axes of operands whose rows make the rows of the result."""
PRODUCTS = frozenset({"MatMul", "Gemm"})
"""Operators for which the edit is worth it."""
