"""``MatMul(x, w1), MatMul(x, w2)`` -> ``Split(MatMul(x, [w1 w2]))``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims, dims_of, dtype_of
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    dims_or_none,
    first_reader,
    is_constant,
    required,
    sole_reader,
    sole_use,
    speaks_for_readers,
    static_dims,
)
from fx2onnx.optimize.weights import JoinedTensor, tensors_of


@dataclass(frozen=True, eq=False)
class ProductsMatch(Match):
    x: ir.Value
    weights: list[ir.Value]
    biases: list[ir.Value]
    dims: Dims


class MergeMatMuls(Rewrite[ProductsMatch]):
    """``MatMul(x, w1), MatMul(x, w2), ...`` -> ``Split(MatMul(x, Concat(w1, w2, ...)))``, with the biases where each
    product has one.

    Shapes:    x [*, K], wi [K, Ni]  ->  [*, Ni] each.
    Refuses:   weights that are not constant or read elsewhere (they would be stored twice).
    Buffers:   the joined weights are made when the file is written and not kept.
    """

    roots: ClassVar = ("MatMul",)
    changes_weights = True
    moves_rounding = True

    def match(self, node: ir.Node) -> ProductsMatch | Why:
        x = node.inputs[0]
        if x is None or x.is_initializer():
            return Why("the left operand is a weight")
        if not speaks_for_readers(node, x):
            return Why("the first of the many MatMuls that read the operand looks at the others")
        products = [
            user
            for user, index in x.uses()
            if index == 0 and user.op_type == "MatMul" and user.graph is node.graph and has_own_weight(user, x)
        ]
        if len(products) < 2 or node not in products:
            return Why("no other MatMul with a weight of its own reads the operand")
        if any(value.is_graph_output() for product in products for value in product.outputs):
            return Why("a product is a graph output")
        biases = [found for product in products if (found := bias_of(product)) is not None]
        has_biases = len(biases) == len(products)
        replaced = [add for add, _ in biases] if has_biases else products
        return ProductsMatch(
            before=first_reader(products, x),
            replaces=[node.outputs[0] for node in replaced],
            x=x,
            weights=[required(product, 1) for product in products],
            biases=[bias for _, bias in biases] if has_biases else [],
            dims=dims_of(products[0].outputs[0]),
        )

    def build(self, op: Emit, m: ProductsMatch) -> Sequence[ir.Value]:
        counts = [(static_dims(weight) or ())[-1] for weight in m.weights]
        dims = (*m.dims[:-1], sum(counts))
        product = op.MatMul(m.x, joined(op, m.weights), outputs=[(dtype_of(m.x), dims)])
        if m.biases:
            product = op.Add(product, joined(op, m.biases))
        return op.Split(product, split=counts, axis=len(dims) - 1, outputs=op.result)  # type: ignore[no-any-return]


def has_own_weight(node: ir.Node, x: ir.Value) -> bool:
    """Return whether the right operand is a constant matrix that nobody else reads."""
    weight = node.inputs[1]
    sizes = static_dims(weight)
    return (
        weight is not None
        and is_constant(weight)
        and sizes is not None
        and len(sizes) == 2
        and sole_use(weight)
        and weight.dtype == x.dtype
        and dims_or_none(node.outputs[0]) is not None
    )


def bias_of(product: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """The Add that alone reads the product, and its bias of one number a column."""
    reader = sole_reader(product.outputs[0])
    if reader is None or reader.op_type != "Add":
        return None
    bias = next((value for value in reader.inputs if value is not product.outputs[0]), None)
    columns = (static_dims(product.inputs[1]) or (0,))[-1]
    if bias is None or not is_constant(bias) or static_dims(bias) != (columns,) or not sole_use(bias):
        return None
    return (reader, bias) if not reader.outputs[0].is_graph_output() else None


def joined(op: Emit, values: Sequence[ir.Value]) -> ir.Value:
    """Weights beside each other along the last axis."""
    sizes = [static_dims(value) or () for value in values]
    total = (*sizes[0][:-1], sum(size[-1] for size in sizes))
    name = "+".join(value.name or "" for value in values)
    return op.builder.add_initializer(name, JoinedTensor(tensors_of(values), total, name), total)
