"""``x * 1`` -> ``x`` and its like, where every bit stays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.optimize.rewrite import (
    Kept,
    Match,
    Removal,
    Rewrite,
    Why,
    dims_or_none,
    is_float,
    produced_by,
    required,
    same_dims,
    scalar_of,
    sole_use,
)

NEUTRAL: dict[str, tuple[tuple[int, float], ...]] = {
    "Add": ((0, 0.0), (1, 0.0)),
    "Sub": ((1, 0.0),),
    "Mul": ((0, 1.0), (1, 1.0)),
    "Div": ((1, 1.0),),
    "Pow": ((1, 1.0),),
    "And": ((0, 1.0), (1, 1.0)),
    "Or": ((0, 0.0), (1, 0.0)),
    "Xor": ((0, 0.0), (1, 0.0)),
    "BitwiseOr": ((0, 0.0), (1, 0.0)),
    "BitwiseXor": ((0, 0.0), (1, 0.0)),
}
"""Where an operand of this number leaves the other as it is. ``-0.0 + 0.0`` is ``0.0``: of floats, only ``-0.0`` is
neutral to Add, and only ``+0.0`` to Sub."""


class DropNeutralOperand(Removal):
    """``x + 0``, ``x - 0``, ``x * 1``, ``x / 1``, ``x ** 1``, ``x and True``, ``x or False``, ``x xor False`` -> ``x``.

    Refuses:   where the constant widens x or another dtype results; ``x + 0.0`` of floats, which turns -0.0 into 0.0.
    """

    roots: ClassVar = tuple(NEUTRAL)

    def match(self, node: ir.Node) -> Kept | Why:
        for index, number in NEUTRAL[node.op_type]:
            value, kept = node.inputs[index], node.inputs[1 - index]
            if kept is None or scalar_of(value) != number:
                continue
            if is_float(kept) and number == 0 and _is_negative(value) != (node.op_type == "Add"):
                return Why("a float zero of this sign changes the sign of zeros")
            if kept.dtype != node.outputs[0].dtype:
                return Why("the dtype changes")
            if not same_dims(dims_or_none(kept), dims_or_none(node.outputs[0])):
                return Why("the constant widens the operand")
            return Kept(kept)
        return Why("no operand is the neutral number")


def _is_negative(value: ir.Value | None) -> bool:
    """Also of zeros, which have a sign."""
    number = scalar_of(value)
    return number is not None and math.copysign(1.0, number) < 0


INVOLUTIONS = ("Neg", "Not", "BitwiseNot")


class CancelInvolution(Removal):
    """``Neg(Neg(x))``, ``Not(Not(x))``, ``BitwiseNot(BitwiseNot(x))`` -> ``x``."""

    roots: ClassVar = INVOLUTIONS

    def match(self, node: ir.Node) -> Kept | Why:
        inner = produced_by(node.inputs[0], node.op_type)
        return Why(f"the operand is no {node.op_type}") if inner is None else Kept(required(inner, 0))


@dataclass(frozen=True, eq=False)
class Quotient(Match):
    top: ir.Value
    bottom: ir.Value


class DivideByRoot(Rewrite[Quotient]):
    """``Mul(x, Reciprocal(y))`` -> ``Div(x, y)``.

    Refuses:   a Reciprocal that is read elsewhere, integers.
    Numerics:  one rounding instead of two.
    """

    roots: ClassVar = ("Mul",)
    moves_rounding = True

    def match(self, node: ir.Node) -> Quotient | Why:
        for index in (0, 1):
            inner = produced_by(node.inputs[index], "Reciprocal")
            if inner is not None and node.inputs[0] is not node.inputs[1]:
                if not sole_use(inner.outputs[0]):
                    return Why("the Reciprocal is read elsewhere")
                return Quotient(required(node, 1 - index), required(inner, 0))
        return Why("no operand is a Reciprocal")

    def build(self, op: Emit, m: Quotient) -> ir.Value:
        return op.Div(m.top, m.bottom, outputs=(op.result[0],))
