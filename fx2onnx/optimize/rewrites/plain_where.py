"""``Where(Not(c), a, b)`` -> ``Where(c, b, a)``; ``CastLike(x, y)`` -> ``Cast(x)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.optimize.rewrite import Match, Rewrite, Why, produced_by, required


@dataclass(frozen=True, eq=False)
class WhereMatch(Match):
    condition: ir.Value
    yes: ir.Value
    no: ir.Value


class SwapWhere(Rewrite[WhereMatch]):
    """``Where(Not(c), a, b)`` -> ``Where(c, b, a)``.

    Numerics:  exact.
    """

    roots: ClassVar = ("Where",)
    since = 9

    def match(self, node: ir.Node) -> WhereMatch | Why:
        inverted = produced_by(node.inputs[0], "Not")
        if inverted is None:
            return Why("the condition is no Not")
        return WhereMatch(required(inverted, 0), required(node, 2), required(node, 1))

    def build(self, op: Emit, m: WhereMatch) -> ir.Value:
        result: ir.Value = op.node("Where", m.condition, m.yes, m.no, outputs=op.result)
        return result


@dataclass(frozen=True, eq=False)
class Like(Match):
    source: ir.Value
    dtype: ir.DataType


class PlainCast(Rewrite[Like]):
    """``CastLike(x, y)`` -> ``Cast(x)`` to the dtype of y, which y need not be made for.

    Numerics:  exact.
    """

    roots: ClassVar = ("CastLike",)
    since = 15

    def match(self, node: ir.Node) -> Like | Why:
        dtype, source = node.outputs[0].dtype, required(node, 0)
        return Why("the dtype is not known") if dtype is None or source.dtype is None else Like(source, dtype)

    def build(self, op: Emit, m: Like) -> ir.Value:
        result: ir.Value = op.node("Cast", m.source, to=m.dtype, outputs=op.result)
        return result
