"""What is added to or multiplied with query, key and value in front of ``MultiHeadAttention`` -> its bias and its scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes.contrib import MICROSOFT
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
    produced_by,
    required,
    scalar_of,
    sole_use,
    static_dims,
)
from fx2onnx.optimize.rewrites.merge_matmuls import joined


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
