"""``Concat(Concat(a, b), c)`` -> ``Concat(a, b, c)``."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.optimize.rewrite import Match, Rewrite, Why, attribute, dims_or_none, produced_by, sole_use


class MergeConcats(Rewrite):
    """``Concat(Concat(a, b), c)`` -> ``Concat(a, b, c)`` on one axis.

    Refuses:   an inner Concat on another axis, or read elsewhere (its parts would be copied twice).
    """

    roots: ClassVar = ("Concat",)

    def match(self, node: ir.Node) -> Match | Why:
        dims = dims_or_none(node.outputs[0])
        if dims is None:
            return Why("the rank is unknown")
        axis = attribute(node, "axis") % len(dims)
        operands: list[ir.Value | None] = []
        for value in node.inputs:
            inner = produced_by(value, "Concat")
            if inner is not None and sole_use(inner.outputs[0]) and attribute(inner, "axis") % len(dims) == axis:
                operands += inner.inputs
            else:
                operands.append(value)
        if len(operands) == len(node.inputs):
            return Why("no operand is a Concat on the same axis that nobody else reads")
        return Match(operands=operands, axis=axis)

    def build(self, op: Emit, m: Match) -> ir.Value:
        result: ir.Value = op.Concat(*m.operands, axis=m.axis)
        return result
