"""Gemm: of a product and a sum, and back where it stands between two Reshapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims, dtype_of
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    attributes,
    dims_or_none,
    is_float,
    operand,
    operand_produced_by,
    produced_by,
    required,
    same_dims,
    sole_use,
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


@dataclass(frozen=True, eq=False)
class GemmMatch(Match):
    source: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    dims: Dims


class UnflattenGemm(Rewrite[GemmMatch]):
    """``Reshape(Gemm(Reshape(x, [M, K]), w, b), [*, N])`` -> ``Add(MatMul(x, w), b)``.

    Shapes:    x [*, K], w [K, N], b broadcastable to [N]  ->  [*, N].
    Refuses:   a transposed operand, alpha or beta, a bias with rows, steps read elsewhere.
    Cost:      one node less; runtimes fuse the two again, and fuse an activation after them, too.
    """

    roots: ClassVar = ("Reshape",)
    moves_rounding = True

    def match(self, node: ir.Node) -> GemmMatch | Why:
        gemm = produced_by(node.inputs[0], "Gemm")
        if gemm is None or not sole_use(gemm.outputs[0]):
            return Why("the operand is no Gemm that nobody else reads")
        flat = produced_by(gemm.inputs[0], "Reshape", "Flatten")
        if flat is None or flat.inputs[0] is None:
            return Why("the Gemm's rows are not flattened")
        if any(attribute(gemm, name, default) != default for name, default in _PLAIN):
            return Why("the Gemm transposes or scales")
        source, bias = flat.inputs[0], operand(gemm, 2)
        dims, result, weight = (dims_or_none(v) for v in (source, node.outputs[0], gemm.inputs[1]))
        if dims is None or result is None or weight is None or len(dims) < 2:
            return Why("the rank is unknown")
        if dims[-1] != weight[0] or not same_dims(result, (*dims[:-1], weight[1])):
            return Why("the result is not laid out as the operand")
        bias_dims = dims_or_none(bias) if bias is not None else ()
        if bias_dims is None or len(bias_dims) > 1:
            return Why("the bias has rows")
        return GemmMatch(source, required(gemm, 1), bias, result)

    def build(self, op: Emit, m: GemmMatch) -> ir.Value:
        product = op.MatMul(m.source, m.weight, outputs=[(dtype_of(m.source), m.dims)])
        return product if m.bias is None else op.Add(product, m.bias)


_PLAIN = (("transA", 0), ("transB", 0), ("alpha", 1.0), ("beta", 1.0))
