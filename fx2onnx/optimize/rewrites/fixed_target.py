"""``Reshape(x, computed sizes)`` -> ``Reshape(x, constant)`` where all but one size are fixed or copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims, known_sizes
from fx2onnx.optimize.rewrite import Match, Rewrite, Why, dims_or_none, is_constant, operand
from fx2onnx.optimize.rewrites.merge_reshapes import is_cheap
from fx2onnx.sizes.expr import Dim


@dataclass(frozen=True, eq=False)
class FixedTargetMatch(Match):
    source: ir.Value
    dims: Dims


class FixedTarget(Rewrite[FixedTargetMatch]):
    """``Reshape(x, Concat(Gather(Shape(x), 0), 12, 64))`` -> ``Reshape(x, [0, 12, 64])``.

    Refuses:   a constant target, two sizes that are known only while running, a size that may be 0 where 0 copies.
    Numerics:  exact.
    """

    roots: ClassVar = ("Reshape",)
    since = 5

    def match(self, node: ir.Node) -> FixedTargetMatch | Why:
        source, shape = node.inputs[0], operand(node, 1)
        if source is None or shape is None or is_constant(shape):
            return Why("the target is a constant")
        held, before = known_sizes(shape), dims_or_none(source)
        if held is None or before is None or source.dtype is None:
            return Why("the target is not known")
        after = dims_or_none(node.outputs[0])
        if after is None or len(after) != len(held) or 0 in held:
            return Why("the dims of the result are not known")
        if not is_cheap(before, after):
            return Why("several sizes would have to be computed")
        if not any(isinstance(dim, Dim) for dim in after) and -1 in after:
            return Why("the dims of the result are not known")
        return FixedTargetMatch(source, after)

    def build(self, op: Emit, m: FixedTargetMatch) -> ir.Value:
        return op.reshape(m.source, m.dims)
