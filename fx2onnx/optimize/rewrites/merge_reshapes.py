"""``Reshape(Reshape(x))`` -> ``Reshape(x)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims, known_ints
from fx2onnx.optimize.rewrite import Match, Rewrite, Why, attribute, dims_or_none, operand, produced_by
from fx2onnx.sizes.expr import Dim

VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


@dataclass(frozen=True, eq=False)
class MergeReshapesMatch(Match):
    source: ir.Value
    dims: Dims
    axes: list[int] | None
    """Of one Unsqueeze that does the same, if one does."""


class MergeReshapes(Rewrite[MergeReshapesMatch]):
    """Two consecutive of ``Reshape``, ``Flatten``, ``Squeeze``, ``Unsqueeze`` -> one ``Reshape``; two ``Unsqueeze`` ->
    one ``Unsqueeze``.

    Refuses:   more than one size that is known only while running (it would have to be computed), empty tensors, unknown ranks.
    """

    roots: ClassVar = VIEWS

    def match(self, node: ir.Node) -> MergeReshapesMatch | Why:
        inner = produced_by(node.inputs[0], *VIEWS)
        if inner is None or inner.inputs[0] is None:
            return Why("the operand is no view")
        source = inner.inputs[0]
        before, after = dims_or_none(source), dims_or_none(node.outputs[0])
        if before is None or after is None or source.dtype is None:
            return Why("the rank is unknown")
        axes = _unsqueezed_axes(inner, node, len(after))
        if axes is None and not is_cheap(before, after):
            return Why("several sizes would have to be computed")
        return MergeReshapesMatch(source, after, axes)

    def build(self, op: Emit, m: MergeReshapesMatch) -> ir.Value:
        if m.axes is not None and m.dims != dims_or_none(m.source):
            return op.Unsqueeze(m.source, axes=m.axes)
        return op.reshape(m.source, m.dims)


def is_cheap(before: Dims, after: Dims) -> bool:
    """Whether ``op.reshape`` needs no node beside the Reshape: at most one size neither fixed nor copied."""
    if 0 in before or 0 in after:
        return False
    moved = [
        axis
        for axis, dim in enumerate(after)
        if isinstance(dim, Dim) and not (axis < len(before) and before[axis] == dim)
    ]
    return len(moved) <= 1


def _unsqueezed_axes(inner: ir.Node, outer: ir.Node, rank: int) -> list[int] | None:
    """The axes that two Unsqueeze add together, else None."""
    if inner.op_type != "Unsqueeze" or outer.op_type != "Unsqueeze":
        return None
    inner_axes, outer_axes = (attribute(n, "axes") or known_ints(operand(n, 1)) for n in (inner, outer))
    if inner_axes is None or outer_axes is None:
        return None
    added = {axis % rank for axis in outer_axes}
    places = [axis for axis in range(rank) if axis not in added]
    return sorted(added | {places[axis % len(places)] for axis in inner_axes})
