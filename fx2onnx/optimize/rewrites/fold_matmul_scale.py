"""``Mul(MatMul(x, w), c)`` -> ``MatMul(x, w * c)`` for a power of two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dtype_of
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attributes,
    dims_or_none,
    is_constant,
    is_float,
    operand,
    produced_by,
    same_dims,
    scalar_of,
    sole_use,
    static_dims,
)
from fx2onnx.optimize.weights import Array, DerivedTensor, tensors_of

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
