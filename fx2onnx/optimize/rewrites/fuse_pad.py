"""``Conv(Pad(x))`` -> ``Conv(x)`` with pads; likewise MaxPool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import known_ints
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    attributes,
    dims_or_none,
    operand,
    produced_by,
    required,
    scalar_of,
    sole_use,
)


@dataclass(frozen=True, eq=False)
class PadMatch(Match):
    node: ir.Node
    source: ir.Value
    pads: list[int]


class FusePad(Rewrite[PadMatch]):
    """``Conv(Pad(x))`` -> ``Conv(x)`` with larger ``pads``; likewise ``MaxPool`` of a padding with -inf.

    Refuses:   padding by another number or mode, negative pads, padded batch or channels, ``auto_pad``,
               a MaxPool with windows in the padding only, or whose indices are read.
    """

    roots: ClassVar = ("Conv", "MaxPool")
    moves_rounding = True

    def match(self, node: ir.Node) -> PadMatch | Why:
        pad = produced_by(node.inputs[0], "Pad")
        if pad is None or not sole_use(pad.outputs[0]):
            return Why("the operand is no Pad that nobody else reads")
        if attribute(pad, "mode", "constant") != "constant" or operand(pad, 3) is not None:
            return Why("the Pad copies elements or names axes")
        dims = dims_or_none(pad.outputs[0])
        pads = attribute(pad, "pads") or known_ints(operand(pad, 1))
        if dims is None or pads is None or min(pads) < 0:
            return Why("the pads are unknown or negative")
        rank = len(dims)
        if any(pads[axis] or pads[axis + rank] for axis in (0, 1)):
            return Why("batch or channels are padded")
        filler = operand(pad, 2)
        number = attribute(pad, "value", 0.0) if filler is None else scalar_of(filler)
        own = attribute(node, "pads") or [0] * (2 * (rank - 2))
        if attribute(node, "auto_pad", "NOTSET") != "NOTSET" or attribute(node, "ceil_mode", 0):
            return Why("auto_pad or ceil_mode decide the pads")
        if node.op_type == "Conv":
            if number != 0:
                return Why("the padding is not zero")
        else:
            refusal = _max_pool_refusal(node, number, [*pads[2:rank], *pads[rank + 2 :]], own)
            if refusal:
                return Why(refusal)
        total = [a + b for a, b in zip(own, [*pads[2:rank], *pads[rank + 2 :]], strict=True)]
        return PadMatch(node, required(pad, 0), total)

    def build(self, op: Emit, m: PadMatch) -> ir.Value:
        attrs = {**attributes(m.node), "pads": m.pads}
        result: ir.Value = op.node(m.node.op_type, m.source, *m.node.inputs[1:], outputs=op.result, **attrs)
        return result


def _max_pool_refusal(node: ir.Node, number: float | None, pads: list[int], own: list[int]) -> str:
    if len(node.outputs) > 1:
        return "the indices are read"
    if number is None or not np.isneginf(number):
        return "the padding is not -inf"
    kernel = attribute(node, "kernel_shape")
    dilations = attribute(node, "dilations") or [1] * len(kernel)
    rank = len(kernel)
    for axis in range(rank):
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        if max(pads[axis] + own[axis], pads[axis + rank] + own[axis + rank]) >= kernel[axis] or reach != kernel[axis]:
            return "a window may lie in the padding alone"
    return ""
