"""``Concat(Concat(a, b), c)`` -> ``Concat(a, b, c)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.optimize.rewrite import Match, Rewrite, Why, attribute, dims_or_none, produced_by, sole_reader, sole_use


@dataclass(frozen=True, eq=False)
class ConcatMatch(Match):
    operands: list[ir.Value | None]
    axis: int


class MergeConcats(Rewrite[ConcatMatch]):
    """``Concat(Concat(a, b), c)`` -> ``Concat(a, b, c)`` on one axis.

    Refuses:   an inner Concat on another axis, or read elsewhere (its parts would be copied twice).
    """

    roots: ClassVar = ("Concat",)

    def match(self, node: ir.Node) -> ConcatMatch | Why:
        dims = dims_or_none(node.outputs[0])
        if dims is None:
            return Why("the rank is unknown")
        axis = attribute(node, "axis") % len(dims)
        reader = sole_reader(node.outputs[0])
        if reader is not None and _inner(reader, node.outputs[0], axis) is node:
            return Why("the Concat that reads this one takes its operands")
        operands: list[ir.Value | None] = []
        pending = list(reversed(node.inputs))
        while pending:
            value = pending.pop()
            inner = _inner(node, value, axis)
            if inner is None:
                operands.append(value)
            else:
                pending += reversed(inner.inputs)
        if len(operands) == len(node.inputs):
            return Why("no operand is a Concat on the same axis that nobody else reads")
        return ConcatMatch(operands, axis)

    def build(self, op: Emit, m: ConcatMatch) -> ir.Value:
        return op.Concat(*m.operands, axis=m.axis)


def _inner(outer: ir.Node, value: ir.Value | None, axis: int) -> ir.Node | None:
    """The Concat that makes an operand of the Concat ``outer``, where both are one along ``axis``."""
    dims = dims_or_none(outer.outputs[0])
    inner = produced_by(value, "Concat")
    if outer.op_type != "Concat" or outer.domain or dims is None or attribute(outer, "axis") % len(dims) != axis:
        return None
    if inner is None or not sole_use(inner.outputs[0]) or attribute(inner, "axis") % len(dims) != axis:
        return None
    return inner
