"""``Add(MatMul(a, b), c)`` -> ``Gemm(a, b, c)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attributes,
    dims_or_none,
    is_float,
    operand,
    operand_produced_by,
    same_dims,
)


@dataclass(frozen=True, eq=False)
class MatMulAddMatch(Match):
    product: ir.Node
    bias: ir.Value


class FuseMatMulAdd(Rewrite[MatMulAddMatch]):
    """``Add(MatMul(a, b), c)`` -> ``Gemm(a, b, c)``; also of a Gemm that has no bias yet.

    Shapes:    a [M, K], b [K, N], c broadcastable to [M, N]  ->  [M, N].
    Refuses:   rank other than 2, integers, a product read elsewhere, c wider than the product.
    """

    roots: ClassVar = ("Add",)
    since = 11
    moves_rounding = True

    def match(self, node: ir.Node) -> MatMulAddMatch | Why:
        found = operand_produced_by(node, "MatMul", "Gemm")
        if found is None:
            return Why("no operand is a MatMul or Gemm that nobody else reads")
        product, bias = found
        if product.op_type == "Gemm" and operand(product, 2) is not None:
            return Why("the Gemm has a bias")
        dims = dims_or_none(product.outputs[0])
        ranks = [len(dims_or_none(value) or ()) for value in product.inputs[:2]]
        if dims is None or ranks != [2, 2]:
            return Why("MatMul is not 2-D")
        bias_dims = dims_or_none(bias)
        if bias_dims is None or not same_dims(dims_or_none(node.outputs[0]), dims):
            return Why("the other operand is wider than the product")
        if len(bias_dims) > 2 or any(a != 1 and a != b for a, b in zip(bias_dims[::-1], dims[::-1], strict=False)):
            return Why("the other operand does not broadcast to the product")
        if not is_float(bias):
            return Why(f"runtimes have no Gemm of {bias.dtype}")
        return MatMulAddMatch(product, bias)

    def build(self, op: Emit, m: MatMulAddMatch) -> ir.Value:
        lhs, rhs = m.product.inputs
        return op.Gemm(lhs, rhs, m.bias, **attributes(m.product))
