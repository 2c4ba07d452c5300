"""Three MatMuls in front of ``GroupQueryAttention`` -> one, whose columns are query, key and value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes.contrib import MICROSOFT
from fx2onnx.irx.values import dims_of, dtype_of
from fx2onnx.optimize.rewrite import Match, Rewrite, Why, attributes, produced_by, required, sole_use, static_dims
from fx2onnx.optimize.rewrites.merge_matmuls import bias_of, has_own_weight, joined


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
