"""``Add(x, zeros)`` of floats -> ``x``: a bias or a mask of nothing."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.facts import ELEMENTWISE, MOVES
from fx2onnx.optimize.rewrite import Kept, Removal, Why, dims_or_none, is_constant, is_float, same_dims

MOST_BYTES = 1 << 20
SIGNED = frozenset({"Atan", "BitCast", "Div", "Log", "Pow", "Reciprocal", "Sign"})
"""Operators for which -0.0 is another number than 0.0, which the addition gives."""


class DropZeroTerm(Removal):
    """``Add(x, 0)``, ``Sub(x, 0)`` of floats -> ``x``.

    Refuses:   where the constant gives the result more dims; a reader that tells -0.0 from 0.0.
    Numerics:  exact, but for the sign of zeros.
    """

    roots: ClassVar = ("Add", "Sub")
    since = 7
    moves_rounding = True

    def match(self, node: ir.Node) -> Kept | Why:
        for index in (1, 0) if node.op_type == "Add" else (1,):
            zero, kept = node.inputs[index], node.inputs[1 - index]
            if zero is None or kept is None or not _is_zero(zero):
                continue
            if not is_float(kept) or not same_dims(dims_or_none(kept), dims_or_none(node.outputs[0])):
                return Why("no float, or the constant widens the operand")
            if _is_signed(node.outputs[0]):
                return Why("a reader tells -0.0 from 0.0")
            return Kept(kept)
        return Why("no operand is zero")


def _is_zero(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or not is_constant(value) or tensor.nbytes > MOST_BYTES or tensor.dtype == ir.DataType.STRING:
        return False
    return not getattr(tensor, "lacks_data", False) and not np.asarray(tensor.numpy()).any()


def _is_signed(value: ir.Value) -> bool:
    pending, seen = [value], {value}
    while pending:
        for node, index in pending.pop().uses():
            is_top = node.op_type == "Div" and index == 0
            if node.domain or (node.op_type in SIGNED and not is_top):
                return True
            if node.op_type in MOVES or node.op_type in ELEMENTWISE - {"Add", "Sub"}:
                pending += [result for result in node.outputs if result not in seen]
                seen.update(node.outputs)
    return False
