"""``Slice(Slice(x))`` -> ``Slice(x)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.optimize.rewrite import Match, Rewrite, Why, dims_or_none, operand, produced_by, required, sole_use

Cut = tuple[int, int, int]
"""Start, end and step along one axis."""


@dataclass(frozen=True, eq=False)
class SlicesMatch(Match):
    source: ir.Value
    cuts: dict[int, Cut]


class MergeSlices(Rewrite[SlicesMatch]):
    """``Slice(Slice(x, a), b)`` -> ``Slice(x, a and b)`` where both cut constant parts of different axes.

    Refuses:   computed bounds, an unknown rank, an axis that both cut, an inner Slice that is read elsewhere.
    """

    roots: ClassVar = ("Slice",)
    since = 10

    def match(self, node: ir.Node) -> SlicesMatch | Why:
        inner = produced_by(node.inputs[0], "Slice")
        if inner is None:
            return Why("the operand is no Slice")
        if not sole_use(inner.outputs[0]):
            return Why("the inner Slice is read elsewhere")
        dims = dims_or_none(required(node, 0))
        if dims is None:
            return Why("the rank is unknown")
        first, second = _cuts(inner, len(dims)), _cuts(node, len(dims))
        if first is None or second is None:
            return Why("a bound is computed")
        if first.keys() & second.keys():
            return Why("both cut one axis")
        return SlicesMatch(required(inner, 0), first | second)

    def build(self, op: Emit, m: SlicesMatch) -> ir.Value:
        starts, ends, steps = (list(column) for column in zip(*m.cuts.values(), strict=True))
        return op.Slice(m.source, *(op.const(np.array(each, np.int64)) for each in (starts, ends, list(m.cuts), steps)))


def _cuts(node: ir.Node, rank: int) -> dict[int, Cut] | None:
    """What a Slice cuts of each axis; None where a bound is computed."""
    given = [operand(node, index) for index in range(1, 5)]
    arrays = [None if each is None or each.const_value is None else each.const_value.numpy() for each in given]
    if any(each is not None and array is None for each, array in zip(given, arrays, strict=True)):
        return None
    starts, ends, axes, steps = (None if each is None else [int(number) for number in each] for each in arrays)
    if starts is None or ends is None:
        return None
    axes = list(range(len(starts))) if axes is None else [axis % rank for axis in axes]
    return dict(zip(axes, zip(starts, ends, steps or [1] * len(starts), strict=True), strict=True))
