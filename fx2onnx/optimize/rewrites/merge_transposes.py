"""``Transpose(Transpose(x))`` -> ``Transpose(x)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.optimize.rewrite import Match, Rewrite, Why, perm_of, produced_by, required, sole_use


@dataclass(frozen=True, eq=False)
class MergeTransposesMatch(Match):
    source: ir.Value
    perm: tuple[int, ...]
    cancels: bool


class MergeTransposes(Rewrite[MergeTransposesMatch]):
    """``Transpose(Transpose(x, p), q)`` -> ``Transpose(x, p[q])``, or x where that moves nothing.

    Refuses:   an inner Transpose that is read elsewhere, unless both cancel (its result is at hand already).
    """

    roots: ClassVar = ("Transpose",)

    def match(self, node: ir.Node) -> MergeTransposesMatch | Why:
        inner = produced_by(node.inputs[0], "Transpose")
        if inner is None:
            return Why("the operand is not transposed")
        first, second = perm_of(inner), perm_of(node)
        if first is None or second is None:
            return Why("the rank is unknown")
        perm = tuple(first[axis] for axis in second)
        cancels = perm == tuple(range(len(perm)))
        if not cancels and not sole_use(inner.outputs[0]):
            return Why("the inner Transpose is read elsewhere")
        return MergeTransposesMatch(required(inner, 0), perm, cancels)

    def build(self, op: Emit, m: MergeTransposesMatch) -> ir.Value:
        return m.source if m.cancels else op.Transpose(m.source, perm=m.perm)
