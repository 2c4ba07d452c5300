"""``Slice(Expand(c))`` -> ``Expand(c)`` of the smaller dims, for one number c."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.optimize.rewrite import Match, Rewrite, Why, attribute, produced_by, static_dims


@dataclass(frozen=True, eq=False)
class Splat(Match):
    dims: tuple[int, ...]
    scalar: ir.Value | None
    value: Any


class SliceSplat(Rewrite[Splat]):
    """``Slice``, ``Gather``, ``Reshape``, ``Transpose``, ... of ``ConstantOfShape(v)`` or of ``Expand(scalar)`` -> a
    splat of the resulting dims.

    Refuses:   dims that are not known; a Gather of dims beyond the source is none of ours: indices are taken as valid.
    """

    roots: ClassVar = ("Slice", "Gather", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Tile")

    def match(self, node: ir.Node) -> Splat | Why:
        splat = produced_by(node.inputs[0], "ConstantOfShape", "Expand")
        if splat is None:
            return Why("the operand is no splat")
        dims = static_dims(node.outputs[0])
        if dims is None:
            return Why("the dims are unknown")
        if splat.op_type == "ConstantOfShape":
            return Splat(dims, None, attribute(splat, "value"))
        scalar = splat.inputs[0]
        if static_dims(scalar) is None or np.prod(static_dims(scalar) or (), dtype=np.int64) != 1:
            return Why("what is expanded is not one number")
        if len(static_dims(scalar) or ()) > len(dims):
            return Why("the number has more axes than the result")
        return Splat(dims, scalar, None)

    def build(self, op: Emit, m: Splat) -> ir.Value:
        shape = np.array(m.dims, dtype=np.int64)
        if m.scalar is not None:
            return op.Expand(m.scalar, shape, outputs=(op.result[0],))
        return op.ConstantOfShape(shape, value=m.value, outputs=(op.result[0],))
