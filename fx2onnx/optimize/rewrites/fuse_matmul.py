"""What is transposed or scaled around a product of two computed values -> onnxruntime's ``FusedMatMul``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes.contrib import MICROSOFT
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    attributes,
    dims_or_none,
    is_constant,
    perm_of,
    produced_by,
    required,
    same_dims,
    scalar_of,
    sole_use,
)

PRODUCTS = ("MatMul", f"{MICROSOFT}::FusedMatMul")


@dataclass(frozen=True, eq=False)
class FuseMatMulMatch(Match):
    operands: list[ir.Value]
    attrs: dict[str, Any]


class FuseMatMulTranspose(Rewrite[FuseMatMulMatch]):
    """``MatMul(Transpose(a), b)`` -> ``FusedMatMul(a, b, transA=1)``, likewise b.

    Shapes:    a [..., K, M], b [..., K, N], of two axes at least, the last two exchanged.
    Refuses:   dtypes other than float32, a weight, whose transpose is folded or quantised as it stands.
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
    """What has its last two axes exchanged to give the value."""
    node = produced_by(value, "Transpose")
    perm = None if node is None else perm_of(node)
    if node is None or perm is None:
        return None
    count = len(perm)
    return node.inputs[0] if perm == (*range(count - 2), count - 1, count - 2) else None
