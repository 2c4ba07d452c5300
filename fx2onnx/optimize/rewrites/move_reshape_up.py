"""``Reshape(Transpose(Reshape(x)))`` -> ``Transpose(Reshape(x))``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims
from fx2onnx.optimize.rewrite import Match, Rewrite, Why, dims_or_none, perm_of, produced_by, required, sole_use
from fx2onnx.optimize.rewrites.merge_reshapes import VIEWS, is_cheap
from fx2onnx.sizes.expr import DimLike


@dataclass(frozen=True, eq=False)
class MoveReshapeMatch(Match):
    source: ir.Value
    dims: Dims
    perm: list[int]


class MoveReshapeUp(Rewrite[MoveReshapeMatch]):
    """``Reshape(Transpose(Reshape(x)))`` -> ``Transpose(Reshape(x))`` where the last Reshape only splits axes, or adds
    and removes axes of size 1: it then does so before the Transpose, in the first Reshape.

    PyTorch's multi-head attention splits batch * heads so.

    Refuses:   a Reshape that joins axes, steps read elsewhere, several sizes that are known only while running.
    """

    roots: ClassVar = VIEWS

    def match(self, node: ir.Node) -> MoveReshapeMatch | Why:
        transpose = produced_by(node.inputs[0], "Transpose")
        first = produced_by(transpose.inputs[0], *VIEWS) if transpose is not None else None
        if transpose is None or first is None:
            return Why("the operand is no Transpose of a view")
        if not sole_use(transpose.outputs[0]) or not sole_use(first.outputs[0]):
            return Why("a step is read elsewhere")
        before, after = dims_or_none(transpose.outputs[0]), dims_or_none(node.outputs[0])
        source, perm = dims_or_none(first.inputs[0]), perm_of(transpose)
        if before is None or after is None or source is None or perm is None:
            return Why("the rank is unknown")
        groups = split_axes(before, after)
        if groups is None:
            return Why("it joins axes")
        order = sorted(range(len(perm)), key=lambda place: perm[place])
        dims = tuple(dim for place in order for dim in groups[place])
        if not is_cheap(source, dims):
            return Why("several sizes would have to be computed")
        lengths = [len(groups[place]) for place in order]
        starts = [sum(lengths[:place]) for place in range(len(lengths))]
        new_perm = [starts[perm[place]] + k for place in range(len(perm)) for k in range(len(groups[place]))]
        return MoveReshapeMatch(required(first, 0), dims, new_perm)

    def build(self, op: Emit, m: MoveReshapeMatch) -> ir.Value:
        return op.Transpose(op.reshape(m.source, m.dims), perm=m.perm)


def split_axes(before: Dims, after: Dims) -> list[list[DimLike]] | None:
    """For each axis of ``before`` the run of axes of ``after`` that it becomes; None where axes are joined."""
    groups: list[list[DimLike]] = []
    rest = list(after)
    for dim in before:
        group: list[DimLike] = []
        total: DimLike = 1
        while total != dim:
            if not rest:
                return None
            taken = rest.pop(0)
            total = total * taken  # type: ignore[assignment]
            group.append(taken)
            if isinstance(total, int) and isinstance(dim, int) and (total > dim or total == 0):
                return None
        groups.append(group)
    if any(dim != 1 for dim in rest) or not groups:
        return None
    groups[-1] += rest
    return groups
