"""Attention heads: a product split into the parts that are read, or joined, biases and scales in the fused operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes.linear import MICROSOFT
from fx2onnx.irx.values import dims_of, dtype_of
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    attributes,
    dims_or_none,
    is_constant,
    operand,
    perm_of,
    produced_by,
    required,
    scalar_of,
    sole_reader,
    sole_use,
    static_dims,
)
from fx2onnx.optimize.rewrites.matmuls import bias_of, has_own_weight, joined
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


@dataclass(frozen=True, eq=False)
class HeadsMatch(Match):
    x: ir.Value
    weights: list[ir.Value]
    biases: list[ir.Value]
    node: ir.Node


class PackHeads(Rewrite[HeadsMatch]):
    """``GroupQueryAttention(MatMul(x, q), MatMul(x, k), MatMul(x, v), ...)`` -> ``GroupQueryAttention(MatMul(x, [q k v]), ...)``, with
    the biases where each product has one.

    Refuses:   products of several operands, weights that are not constant or read elsewhere, products that others read.
    Buffers:   the joined weights are made when the file is written and not kept.
    """

    roots: ClassVar = (f"{MICROSOFT}::GroupQueryAttention",)
    changes_weights = True
    moves_rounding = True

    def match(self, node: ir.Node) -> HeadsMatch | Why:
        products, biases = [], []
        for index in range(3):
            value = node.inputs[index]
            if value is None:
                return Why("the heads are packed")
            if not sole_use(value):
                return Why("a projection is read elsewhere")
            product = produced_by(value, "MatMul")
            if product is None:
                add = produced_by(value, "Add")
                operands = [] if add is None else [produced_by(each, "MatMul") for each in add.inputs]
                product = next((each for each in operands if each is not None and bias_of(each) is not None), None)
                found = None if product is None else bias_of(product)
                if product is None or found is None or found[0] is not add:
                    return Why("the heads are no plain projections")
                biases.append(found[1])
            products.append(product)
        x = required(products[0], 0)
        if any(product.inputs[0] is not x or not has_own_weight(product, x) for product in products):
            return Why("the projections have other operands, or weights that are read elsewhere")
        if len(biases) not in (0, 3):
            return Why("some projections have a bias")
        weights = [required(product, 1) for product in products]
        return HeadsMatch(replaces=list(node.outputs), x=x, weights=weights, biases=biases, node=node)

    def build(self, op: Emit, m: HeadsMatch) -> Sequence[ir.Value]:
        width = sum((static_dims(weight) or ())[-1] for weight in m.weights)
        dims = (*dims_of(m.x)[:-1], width)
        packed = op.MatMul(m.x, joined(op, m.weights), outputs=[(dtype_of(m.x), dims)])
        if m.biases:
            packed = op.Add(packed, joined(op, m.biases))
        inputs = [packed, None, None, *m.node.inputs[3:]]
        return op.custom(MICROSOFT, "GroupQueryAttention", inputs, op.result, **attributes(m.node))


@dataclass(frozen=True, eq=False)
class HeadBiasMatch(Match):
    node: ir.Node
    values: list[ir.Value]
    biases: list[ir.Value | None]


class FuseHeadBias(Rewrite[HeadBiasMatch]):
    """``MultiHeadAttention(q + bq, k + bk, v + bv, ...)`` -> ``MultiHeadAttention(q, k, v, [bq bk bv], ...)``, with zeros where there is
    no bias.

    Refuses:   a node that has a bias, heads apart, sums that others read, biases that are no constant rows.
    Buffers:   the joined bias is made when the file is written and not kept.
    """

    roots: ClassVar = (f"{MICROSOFT}::MultiHeadAttention",)
    changes_weights = True
    moves_rounding = True

    def match(self, node: ir.Node) -> HeadBiasMatch | Why:
        if operand(node, 1) is None or operand(node, 2) is None or operand(node, 3) is not None:
            return Why("the heads are packed, or there is a bias")
        values, biases = [], []
        for index in range(3):
            value = required(node, index)
            dims = dims_or_none(value)
            if dims is None or len(dims) != 3 or not isinstance(dims[2], int):
                return Why("the heads are apart, or their width is not known")
            found = _with_bias(value)
            values.append(value if found is None else found[0])
            biases.append(None if found is None else found[1])
        if not any(biases):
            return Why("nothing constant is added in front of it")
        return HeadBiasMatch(node=node, values=values, biases=biases)

    def build(self, op: Emit, m: HeadBiasMatch) -> ir.Value:
        rows = [
            np.zeros(_width(value), dtype_of(value).numpy()) if bias is None else bias
            for value, bias in zip(m.values, m.biases, strict=True)
        ]
        bias = joined(op, [op.const(row) if isinstance(row, np.ndarray) else row for row in rows])
        inputs = [*m.values, bias, *m.node.inputs[4:]]
        return op.custom(MICROSOFT, "MultiHeadAttention", inputs, op.result[:1], **attributes(m.node))[0]


@dataclass(frozen=True, eq=False)
class PackedMatch(Match):
    node: ir.Node
    split: ir.Node
    packed: ir.Value
    bias: ir.Value


class FusePackedBias(Rewrite[PackedMatch]):
    """``MultiHeadAttention(Split(p + b), ...)`` -> ``MultiHeadAttention(Split(p), b, ...)`` where query, key and value are the parts.

    Refuses:   a node that has a bias, parts in another order or that others read, a bias that is no constant row.
    """

    roots: ClassVar = (f"{MICROSOFT}::MultiHeadAttention",)
    moves_rounding = True

    def match(self, node: ir.Node) -> PackedMatch | Why:
        parts = [operand(node, index) for index in range(3)]
        split = produced_by(parts[0], "Split")
        if split is None or list(split.outputs) != parts or operand(node, 3) is not None:
            return Why("query, key and value are not the parts of one value, or there is a bias")
        whole = required(split, 0)
        if not all(sole_use(value) for value in (whole, *split.outputs)):
            return Why("the parts or what is split are read elsewhere")
        rank = len(dims_or_none(whole) or ())
        found = _with_bias(whole)
        if found is None or attribute(split, "axis", 0) not in (-1, rank - 1):
            return Why("nothing constant is added in front of it, or it is not the last axis that is split")
        return PackedMatch(node=node, split=split, packed=found[0], bias=found[1])

    def build(self, op: Emit, m: PackedMatch) -> ir.Value:
        typed = [(dtype_of(value), dims_of(value)) for value in m.split.outputs]
        parts = op.node("Split", m.packed, *m.split.inputs[1:], outputs=typed, **attributes(m.split))
        inputs = [*parts, m.bias, *m.node.inputs[4:]]
        return op.custom(MICROSOFT, "MultiHeadAttention", inputs, op.result[:1], **attributes(m.node))[0]


def _width(value: ir.Value) -> int:
    last = dims_of(value)[-1]
    assert isinstance(last, int), f"{value.name} has no known width"
    return last


def _with_bias(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    add = produced_by(value, "Add")
    if add is None or not sole_use(value):
        return None
    for index in (0, 1):
        row, other = required(add, index), required(add, 1 - index)
        if is_constant(row) and static_dims(row) == tuple(dims_of(value)[-1:]) and len(dims_or_none(other) or ()) == 3:
            return other, row
    return None


@dataclass(frozen=True, eq=False)
class HeadScaleMatch(Match):
    node: ir.Node
    query: ir.Value
    factor: float


class FuseHeadScale(Rewrite[HeadScaleMatch]):
    """``MultiHeadAttention(c * q, ...)`` -> ``MultiHeadAttention(q, ...)`` with ``c`` times the scale.

    Refuses:   a node with a bias, which would be scaled too; a factor that is no constant number, a product that others read.
    """

    roots: ClassVar = (f"{MICROSOFT}::MultiHeadAttention",)
    moves_rounding = True

    def match(self, node: ir.Node) -> HeadScaleMatch | Why:
        query = required(node, 0)
        product = produced_by(query, "Mul")
        if product is None or not sole_use(query) or operand(node, 3) is not None:
            return Why("the query is no product that it alone reads, or there is a bias")
        for index in (0, 1):
            factor, other = scalar_of(product.inputs[index]), required(product, 1 - index)
            if factor is not None and dims_or_none(other) == dims_or_none(query):
                return HeadScaleMatch(node=node, query=other, factor=factor)
        return Why("the query is multiplied by more than a number")

    def build(self, op: Emit, m: HeadScaleMatch) -> ir.Value:
        attrs = attributes(m.node)
        attrs["scale"] = float(attrs["scale"] * m.factor)
        inputs = [m.query, *m.node.inputs[1:]]
        return op.custom(MICROSOFT, "MultiHeadAttention", inputs, op.result[:1], **attrs)[0]
