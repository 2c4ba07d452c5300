"""``Gemm(Transpose(a), b)`` -> ``Gemm(a, b, transA=1)``."""

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
    perm_of,
    produced_by,
)


@dataclass(frozen=True, eq=False)
class TransposesMatch(Match):
    node: ir.Node
    sources: list[ir.Value | None]
    """Of each operand, what is transposed; None where nothing is."""


class FuseTransposeGemm(Rewrite[TransposesMatch]):
    """``Gemm(Transpose(a), b)`` -> ``Gemm(a, b, transA=1)``, likewise b; also of a ``MatMul`` of rank 2.

    Refuses:   rank other than 2, no transposed operand, integers.
    Numerics:  the same products; a runtime may sum them in another order.
    """

    roots: ClassVar = ("Gemm", "MatMul")
    since = 11
    moves_rounding = True

    def match(self, node: ir.Node) -> TransposesMatch | Why:
        lhs, rhs = node.inputs[0], node.inputs[1]
        sources = [_before_transpose(lhs), _before_transpose(rhs)]
        if sources == [None, None]:
            return Why("no operand is transposed")
        dims = [dims_or_none(value) for value in (lhs, rhs)]
        if any(item is None or len(item) != 2 for item in dims):
            return Why("MatMul is not 2-D")
        if not is_float(node.outputs[0]):
            return Why(f"runtimes have no Gemm of {node.outputs[0].dtype}")
        return TransposesMatch(node, sources)

    def build(self, op: Emit, m: TransposesMatch) -> ir.Value:
        attrs = attributes(m.node)
        operands = list(m.node.inputs[:2])
        for place, (source, name) in enumerate(zip(m.sources, ("transA", "transB"), strict=True)):
            if source is not None:
                operands[place] = source
                attrs[name] = 1 - attrs.get(name, 0)
        lhs, rhs = operands
        return op.Gemm(lhs, rhs, operand(m.node, 2), **attrs)


def _before_transpose(value: ir.Value | None) -> ir.Value | None:
    node = produced_by(value, "Transpose")
    return node.inputs[0] if node is not None and perm_of(node) == (1, 0) else None
