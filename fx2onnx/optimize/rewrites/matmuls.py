"""Products of matrices: transposes and scales around them, a factor folded into the weight, products of one input joined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes.linear import MICROSOFT
from fx2onnx.irx.values import Dims, dims_of, dtype_of
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    attributes,
    dims_or_none,
    first_reader,
    is_constant,
    is_float,
    operand,
    perm_of,
    produced_by,
    required,
    same_dims,
    scalar_of,
    sole_reader,
    sole_use,
    speaks_for_readers,
    static_dims,
)
from fx2onnx.optimize.weights import Array, DerivedTensor, JoinedTensor, tensors_of

PRODUCTS = ("MatMul", f"{MICROSOFT}::FusedMatMul")


@dataclass(frozen=True, eq=False)
class FuseMatMulMatch(Match):
    operands: list[ir.Value]
    attrs: dict[str, Any]


class FuseMatMulTranspose(Rewrite[FuseMatMulMatch]):
    """``MatMul(Transpose(a), b)`` -> ``FusedMatMul(a, b, transA=1)``, likewise b.

    Shapes:    a [..., K, M], b [..., K, N], of two axes at least, the last two exchanged.
    Refuses:   dtypes other than float32, a weight, whose transpose is folded or quantized as it stands.
    """

    roots: ClassVar = PRODUCTS
    moves_rounding = True

    def match(self, node: ir.Node) -> FuseMatMulMatch | Why:
        if not _is_computed(node):
            return Why("it is no product of two computed values of float32")
        operands, attrs = [required(node, 0), required(node, 1)], attributes(node)
        for place, name in enumerate(("transA", "transB")):
            turned = _turned(operands[place])
            if turned is not None:
                operands[place] = turned
                attrs[name] = 1 - attrs.get(name, 0)
        if operands == list(node.inputs):
            return Why("no operand has its last two axes exchanged")
        return FuseMatMulMatch(operands, attrs)

    def build(self, op: Emit, m: FuseMatMulMatch) -> ir.Value:
        return op.custom(MICROSOFT, "FusedMatMul", m.operands, op.result, **m.attrs)[0]


class FuseMatMulScale(Rewrite[FuseMatMulMatch]):
    """``Mul(MatMul(a, b), c)``, ``Div(MatMul(a, b), c)`` -> ``FusedMatMul(a, b, alpha=c or 1 / c)``.

    Refuses:   dtypes other than float32, a weight, more than one number, a product that others read.
    """

    roots: ClassVar = ("Mul", "Div")
    moves_rounding = True

    def match(self, node: ir.Node) -> FuseMatMulMatch | Why:
        for place in (0, 1) if node.op_type == "Mul" else (0,):
            value, factor = required(node, place), scalar_of(node.inputs[1 - place])
            product = value.producer()
            if factor is None or product is None or not _is_product(product):
                continue
            if not _is_computed(product) or not sole_use(value):
                return Why("the product has a weight, is not of float32 or is read elsewhere")
            if not same_dims(dims_or_none(value), dims_or_none(node.outputs[0])):
                return Why("the number has more axes")
            if node.op_type == "Div" and not factor:
                return Why("it is divided by zero")
            attrs = attributes(product)
            attrs["alpha"] = attrs.get("alpha", 1.0) * (factor if node.op_type == "Mul" else 1 / factor)
            return FuseMatMulMatch([required(product, 0), required(product, 1)], attrs)
        return Why("no product is multiplied by one number")

    def build(self, op: Emit, m: FuseMatMulMatch) -> ir.Value:
        return op.custom(MICROSOFT, "FusedMatMul", m.operands, op.result, **m.attrs)[0]


def _is_product(node: ir.Node) -> bool:
    return (f"{node.domain}::{node.op_type}" if node.domain else node.op_type) in PRODUCTS


def _is_computed(node: ir.Node) -> bool:
    has_batches = any(attribute(node, f"transBatch{name}", 0) for name in "AB")
    return not has_batches and all(
        value is not None
        and value.dtype == ir.DataType.FLOAT
        and not is_constant(value)
        and len(dims_or_none(value) or ()) >= 2
        and not _is_of_weight(value)
        for value in node.inputs[:2]
    )


def _is_of_weight(value: ir.Value) -> bool:
    before = produced_by(value, "Transpose")
    return before is not None and is_constant(before.inputs[0])


def _turned(value: ir.Value) -> ir.Value | None:
    """The value whose last two axes are exchanged to give ``value``."""
    node = produced_by(value, "Transpose")
    perm = None if node is None else perm_of(node)
    if node is None or perm is None:
        return None
    count = len(perm)
    return node.inputs[0] if perm == (*range(count - 2), count - 1, count - 2) else None


VIEWS = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten")
EXPONENT_LIMIT = 16
"""Scaling by 2**-16 to 2**16 leaves weights of trained models far from float32's ends, where a power of two is inexact."""


@dataclass(frozen=True, eq=False)
class MatMulScaleMatch(Match):
    chain: list[ir.Node]
    """The product, the Add if there is one, the views: in the order of computation."""
    constants: list[ir.Value]
    factor: float


class FoldMatMulScale(Rewrite[MatMulScaleMatch]):
    """``Mul(views(Add(MatMul(x, w), b)), 2**k)`` -> ``views(Add(MatMul(x, w * 2**k), b * 2**k))``.

    Refuses:   a factor that is no power of two (another would round every weight), half precision, weights or steps
               read elsewhere.
    Numerics:  exact: a power of two only moves exponents.
    Buffers:   the scaled weights are made when the file is written and not kept.
    """

    roots: ClassVar = ("Mul",)
    changes_weights = True

    def match(self, node: ir.Node) -> MatMulScaleMatch | Why:
        scaled = next(
            ((value, factor) for value, other in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0]))
             if value is not None and (factor := scalar_of(other)) is not None), None
        )  # fmt: skip
        if scaled is None:
            return Why("no operand is a constant number")
        start, factor = scaled
        if math.frexp(abs(factor))[0] != 0.5 or abs(math.frexp(factor)[1]) > EXPONENT_LIMIT:
            return Why("the factor is no power of two of moderate size")
        if start.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE) or not is_float(start):
            return Why("not float32 or float64")
        if not same_dims(dims_or_none(node.outputs[0]), dims_or_none(start)):
            return Why("the factor has more axes")
        value, views = start, []
        while (view := produced_by(value, *VIEWS)) is not None and sole_use(value):
            views.append(view)
            value = view.inputs[0]  # type: ignore[assignment]
        return self._product(value, views, factor)

    def _product(self, value: ir.Value, views: list[ir.Node], factor: float) -> MatMulScaleMatch | Why:
        add, bias = produced_by(value, "Add"), None
        if add is not None and sole_use(value):
            pair = [(v, w) for v, w in (add.inputs, add.inputs[::-1]) if is_constant(w)]
            if not pair:
                return Why("what is added is not constant")
            value, bias = pair[0]  # type: ignore[assignment]
        product = produced_by(value, "MatMul", "Gemm")
        if product is None or not sole_use(value):
            return Why("the operand is no MatMul that nobody else reads")
        weight = product.inputs[1]
        if product.op_type == "Gemm":
            bias = bias if bias is not None else operand(product, 2)
            if set(product.attributes) - {"transA", "transB"}:
                return Why("the Gemm scales its operands")
        for constant in (weight, bias):
            if constant is not None and (not is_constant(constant) or not sole_use(constant)):
                return Why("a weight is not constant or read elsewhere")
        if weight is None or static_dims(weight) is None:
            return Why("the sizes of the weight are unknown")
        chain = [product, *([] if add is None else [add]), *reversed(views)]
        return MatMulScaleMatch(chain, [weight] if bias is None else [weight, bias], factor)

    def build(self, op: Emit, m: MatMulScaleMatch) -> ir.Value:
        new: dict[ir.Value | None, ir.Value] = {value: _scaled(op, value, m.factor) for value in m.constants}
        for node in m.chain:
            inputs = [new.get(value, value) for value in node.inputs]
            old = node.outputs[0]
            typed = (dtype_of(old), dims_or_none(old) or ())
            new[old] = op.node(node.op_type, *inputs, outputs=(typed,), **attributes(node))
        return new[m.chain[-1].outputs[0]]


def _scaled(op: Emit, value: ir.Value, factor: float) -> ir.Value:
    sizes = static_dims(value) or ()
    name = f"{value.name}.scaled"

    def scale(array: Array) -> Array:
        return np.asarray(array * array.dtype.type(factor))

    tensor = DerivedTensor(scale, tensors_of([value]), dtype_of(value), sizes, name)
    return op.builder.add_initializer(name, tensor, sizes)


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
