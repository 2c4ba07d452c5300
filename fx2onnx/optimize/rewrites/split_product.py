"""``Split(MatMul(x, w))`` -> ``MatMul(x, part of w)``, where of one part only some rows are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dims_of, dtype_of
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    dims_or_none,
    is_constant,
    operand,
    perm_of,
    required,
    sole_reader,
    sole_use,
    static_dims,
)
from fx2onnx.optimize.rewrites.pick_early import picked_rows


@dataclass(frozen=True, eq=False)
class SplitProductMatch(Match):
    split: ir.Node
    axis: int
    product: ir.Node
    behind: list[ir.Node]
    """Transposes and Adds between the product and the Split, in order."""
    sizes: list[int]
    is_picked: list[bool]


class SplitProduct(Rewrite[SplitProductMatch]):
    """``Split(MatMul(x, w))`` -> ``MatMul(x, Slice(w))`` for parts of which rows are picked, and for those between them.

    ``PickEarly`` then takes these rows of x: of the last layer's gates and queries the last position. An Add of one bias and
    Transposes may stand behind the product. Runtimes take the parts of the weight once, when they open the file.

    Refuses:   parts that are no columns of the product, weights that are not constant, products read elsewhere, parts that
               are all picked, or none.
    Numerics:  a product of fewer columns may round in another order.
    """

    roots: ClassVar = ("Split",)
    moves_rounding = True

    def match(self, node: ir.Node) -> SplitProductMatch | Why:
        dims = dims_or_none(node.inputs[0])
        parts = [static_or_none(value, attribute(node, "axis", 0)) for value in node.outputs]
        if dims is None or any(size is None for size in parts):
            return Why("the sizes of the parts are unknown")
        axis = attribute(node, "axis", 0) % len(dims)
        found = _product_before(node, axis)
        if isinstance(found, Why):
            return found
        product, behind = found
        is_picked = [_is_picked(value, axis) for value in node.outputs]
        if all(is_picked) or not any(is_picked):
            return Why("all parts are wanted alike")
        sizes = [size for size in parts if size is not None]
        return SplitProductMatch(node, axis, product, behind, sizes, is_picked, replaces=list(node.outputs))

    def build(self, op: Emit, m: SplitProductMatch) -> Sequence[ir.Value]:
        places = [0]
        for size in m.sizes:
            places.append(places[-1] + size)
        results: list[ir.Value] = []
        for is_picked, run in groupby(enumerate(pairwise(places)), key=lambda each: m.is_picked[each[0]]):
            bounds = [pair for _, pair in run]
            groups = [[pair] for pair in bounds] if is_picked else [bounds]
            for group in groups:
                columns = _columns(op, m, group[0][0], group[-1][1])
                results += _apart(op, m, columns, [end - start for start, end in group])
        return results


def static_or_none(value: ir.Value, axis: int) -> int | None:
    """The size of the axis, where it is a number."""
    dims = dims_or_none(value)
    size = None if dims is None else dims[axis]
    return size if isinstance(size, int) else None


def _product_before(split: ir.Node, axis: int) -> tuple[ir.Node, list[ir.Node]] | Why:
    """The product, of which ``axis`` of the operand of ``split`` has the columns, and what stands between."""
    value, behind = required(split, 0), list[ir.Node]()
    while sole_use(value):
        node = value.producer()
        if node is None or node.domain or node.graph is not split.graph:
            break
        if node.op_type == "MatMul":
            weight = static_dims(node.inputs[1])
            if weight is None or len(weight) != 2 or not is_constant(node.inputs[1]):
                return Why("the weight is no constant matrix")
            if axis != len(dims_of(value)) - 1:
                return Why("the parts are no columns of the product")
            return node, list(reversed(behind))
        if node.op_type == "Transpose":
            perm = perm_of(node)
            if perm is None:
                break
            axis = perm[axis]
        elif node.op_type != "Add" or _bias_of(node) is None or axis != len(dims_of(value)) - 1:
            break
        behind.append(node)
        value = required(node, 0 if node.op_type == "Transpose" else 1 - node.inputs.index(_bias_of(node)))
    return Why("no product that the Split alone reads stands before it")


def _bias_of(add: ir.Node) -> ir.Value | None:
    """The operand that is a constant of one axis, as long as the sum's last one."""
    width = (dims_or_none(add.outputs[0]) or (None,))[-1]
    return next((value for value in add.inputs if is_constant(value) and static_dims(value) == (width,)), None)


def _is_picked(part: ir.Value, axis: int) -> bool:
    """Return whether one node alone reads the part, and picks rows of another axis."""
    reader = sole_reader(part)
    if reader is None or reader.op_type not in ("Slice", "Gather") or operand(reader, 0) is not part:
        return False
    found = picked_rows(reader)
    return not isinstance(found, Why) and found[0] != axis


def _columns(op: Emit, m: SplitProductMatch, start: int, end: int) -> ir.Value:
    """The product's columns from ``start`` to ``end``, and what stands behind it."""

    def part(value: ir.Value, axis: int) -> ir.Value:
        dims: list[Any] = list(dims_of(value))
        dims[axis] = end - start
        result: ir.Value = op.Slice(value, [start], [end], [axis], outputs=[(dtype_of(value), tuple(dims))])
        return result

    value: ir.Value = op.MatMul(m.product.inputs[0], part(required(m.product, 1), 1))
    for node in m.behind:
        bias = None if node.op_type == "Transpose" else _bias_of(node)
        value = op.Transpose(value, perm=perm_of(node)) if bias is None else op.Add(value, part(bias, 0))
    return value


def _apart(op: Emit, m: SplitProductMatch, columns: ir.Value, sizes: list[int]) -> list[ir.Value]:
    if len(sizes) == 1:
        return [columns]
    dims = dims_of(columns)
    types = [(dtype_of(columns), (*dims[: m.axis], size, *dims[m.axis + 1 :])) for size in sizes]
    return list(op.Split(columns, split=sizes, axis=m.axis, outputs=types))
