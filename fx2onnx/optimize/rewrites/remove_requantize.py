"""``QuantizeLinear(DequantizeLinear(q))`` -> ``q``."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.values import known_array
from fx2onnx.optimize.rewrite import Kept, Removal, Why, attribute, operand, produced_by

EXACT_STEPS_BITS = 16
"""q - z of up to 17 bits times a float32 scale, divided by it again, is within half a step of q - z."""


class RemoveRequantize(Removal):
    """``QuantizeLinear(DequantizeLinear(q, s, z), s, z)`` -> ``q``; so a chain of fake quantisations becomes one.

    Refuses:   other scale or zero point, blocks or axes that differ, another integer dtype, more than 16 bits,
               scales so small that q * s underflows.
    """

    roots: ClassVar = ("QuantizeLinear",)

    def match(self, node: ir.Node) -> Kept | Why:
        inner = produced_by(node.inputs[0], "DequantizeLinear")
        if inner is None or inner.inputs[0] is None:
            return Why("the operand was not quantised")
        source = inner.inputs[0]
        if source.dtype is None or source.dtype != node.outputs[0].dtype:
            return Why("the integer dtype differs")
        if not source.dtype.is_integer() or source.dtype.bitwidth > EXACT_STEPS_BITS:
            return Why("the integers are wider than 16 bits")
        for index in (1, 2):
            if not _equal(operand(inner, index), operand(node, index)):
                return Why("scale or zero point differ")
        if any(attribute(inner, name, d) != attribute(node, name, d) for name, d in (("axis", 1), ("block_size", 0))):
            return Why("the axis differs")
        scale = known_array(inner.inputs[1])
        if scale is None or inner.inputs[1] is None or inner.inputs[1].dtype != ir.DataType.FLOAT:
            return Why("the scale is not a small float32 constant")
        if not bool(((scale > 1e-30) & (scale < 1e30)).all()):  # type: ignore[operator]
            return Why("the scale is near the ends of float32")
        return Kept(source)


def _equal(lhs: ir.Value | None, rhs: ir.Value | None) -> bool:
    if lhs is rhs:
        return True
    left, right = known_array(lhs), known_array(rhs)
    return left is not None and right is not None and left.dtype == right.dtype and bool((left == right).all())
