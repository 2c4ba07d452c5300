"""``Gelu`` of a sum with a constant row -> onnxruntime's ``BiasGelu``, ``FastGelu``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes.contrib import MICROSOFT
from fx2onnx.irx.values import dims_of, dtype_of
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    dims_or_none,
    is_constant,
    produced_by,
    required,
    sole_use,
    static_dims,
)


@dataclass(frozen=True, eq=False)
class BiasGeluMatch(Match):
    x: ir.Value
    bias: ir.Value | None
    is_tanh: bool


class FuseBiasGelu(Rewrite[BiasGeluMatch]):
    """``Gelu(Add(x, bias))`` -> ``com.microsoft::BiasGelu(x, bias)``; its tanh form, with a bias or not -> ``FastGelu``.

    Refuses:   dtypes other than float32, a bias that is no constant row; without one, the exact form, which ONNX has itself.
    """

    roots: ClassVar = ("Gelu",)
    since = 20
    moves_rounding = True

    def match(self, node: ir.Node) -> BiasGeluMatch | Why:
        x = required(node, 0)
        is_tanh = attribute(node, "approximate", "none") == "tanh"
        if x.dtype != ir.DataType.FLOAT or not dims_or_none(x):
            return Why("it is not of float32")
        add = produced_by(x, "Add")
        if add is not None and sole_use(x):
            for index in (0, 1):
                bias, other = required(add, index), required(add, 1 - index)
                sizes = static_dims(bias)
                is_row = sizes is not None and len(sizes) == 1 and sizes == tuple((dims_or_none(other) or ())[-1:])
                if is_constant(bias) and is_row:
                    return BiasGeluMatch(other, bias, is_tanh)
        return BiasGeluMatch(x, None, True) if is_tanh else Why("nothing constant is added in front of it")

    def build(self, op: Emit, m: BiasGeluMatch) -> ir.Value:
        operands = [m.x] if m.bias is None else [m.x, m.bias]
        name = "FastGelu" if m.is_tanh else "BiasGelu"
        return op.custom(MICROSOFT, name, operands, [(dtype_of(m.x), dims_of(m.x))])[0]
