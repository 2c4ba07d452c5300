"""``MaxPool(Relu(x))`` -> ``Relu(MaxPool(x))``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    attributes,
    produced_by,
    required,
    sole_use,
    static_dims,
)

FUSING = ("Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "Add")
"""Runtimes compute a Relu within these for nothing."""


@dataclass(frozen=True, eq=False)
class PoolMatch(Match):
    pool: ir.Node
    source: ir.Value


class SwapReluMaxPool(Rewrite[PoolMatch]):
    """``MaxPool(Relu(x))`` -> ``Relu(MaxPool(x))``: the Relu sees fewer elements.

    Refuses:   a pool that does not shrink, indices that are read, a Relu that its producer takes in.
    Numerics:  exact: both are monotone, and padding never wins over an element.
    """

    roots: ClassVar = ("MaxPool",)

    def match(self, node: ir.Node) -> PoolMatch | Why:
        relu = produced_by(node.inputs[0], "Relu")
        if relu is None or not sole_use(relu.outputs[0]):
            return Why("the operand is no Relu that nobody else reads")
        if len(node.outputs) > 1:
            return Why("the indices are read")
        if produced_by(relu.inputs[0], *FUSING) is not None:
            return Why("the Relu costs nothing in its producer")
        before, after = static_dims(node.inputs[0]), static_dims(node.outputs[0])
        shrinks = (
            math.prod(after) < math.prod(before)
            if before is not None and after is not None
            else math.prod(attribute(node, "strides") or [1]) > 1
        )
        return PoolMatch(node, required(relu, 0)) if shrinks else Why("the pool does not shrink")

    def build(self, op: Emit, m: PoolMatch) -> ir.Value:
        return op.Relu(op.MaxPool(m.source, outputs=(op.result[0],), **attributes(m.pool)))
