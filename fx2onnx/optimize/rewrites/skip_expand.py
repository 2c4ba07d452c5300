"""``Add(x, Expand(c))`` -> ``Add(x, c)``: the operator broadcasts by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.facts import BROADCASTING
from fx2onnx.irx.shapes import broadcast_dims
from fx2onnx.optimize.rewrite import Match, Rewrite, Why, attributes, dims_or_none, produced_by


@dataclass(frozen=True, eq=False)
class ExpandMatch(Match):
    node: ir.Node
    operands: list[ir.Value | None]


class SkipExpand(Rewrite[ExpandMatch]):
    """``Add(x, Expand(c, dims))`` -> ``Add(x, c)``, and every other operator that broadcasts.

    Refuses:   where the other operands do not give the result its dims.
    Numerics:  exact.
    """

    roots: ClassVar = tuple(sorted(BROADCASTING))
    since = 7

    def match(self, node: ir.Node) -> ExpandMatch | Why:
        operands = list(node.inputs)
        for index, value in enumerate(operands):
            expand = produced_by(value, "Expand")
            if expand is None:
                continue
            candidate = [*operands[:index], expand.inputs[0], *operands[index + 1 :]]
            dims = [dims_or_none(item) for item in candidate]
            wanted = dims_or_none(node.outputs[0])
            if wanted is not None and all(item is not None for item in dims):
                got = broadcast_dims(*(item for item in dims if item is not None))
                operands = candidate if got == wanted else operands
        if operands == list(node.inputs):
            return Why("no operand is an Expand that can be left out")
        return ExpandMatch(node, operands)

    def build(self, op: Emit, m: ExpandMatch) -> ir.Value:
        result: ir.Value = op.node(m.node.op_type, *m.operands, outputs=op.result, **attributes(m.node))
        return result
