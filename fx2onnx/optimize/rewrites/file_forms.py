"""Forms that files of other tools have: zeros as the state of a recurrent layer, Where of a Not, CastLike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dims_of, dtype_of
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    attributes,
    is_constant,
    operand,
    produced_by,
    required,
)

MOVES = frozenset(
    {
        "Cast",
        "Concat",
        "Expand",
        "Gather",
        "Identity",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that give zeros of zeros, whatever their other operands are."""
STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
"""The places of the inputs that are initial states, by operator."""
DEPTH = 12


@dataclass(frozen=True, eq=False)
class Zeros(Match):
    node: ir.Node
    operands: list[ir.Value | None]


class DropZeroState(Rewrite[Zeros]):
    """``LSTM(x, w, r, b, lengths, zeros, zeros)`` -> ``LSTM(x, w, r, b, lengths)``; also GRU and RNN.

    Other exporters compute the shape of the zeros from that of the input, in a chain of nodes that then goes.

    Refuses:   a state that is not surely zero.
    Numerics:  exact.
    """

    roots: ClassVar = tuple(STATES)
    since = 7

    def match(self, node: ir.Node) -> Zeros | Why:
        operands = list(node.inputs)
        for index in STATES[node.op_type]:
            if index < len(operands) and _is_zero(operands[index], DEPTH):
                operands[index] = None
        while operands and operands[-1] is None:
            operands.pop()
        if len([value for value in operands if value]) == len([value for value in node.inputs if value]):
            return Why("no initial state is zero")
        if any(value.uses() and (value.dtype is None or value.shape is None) for value in node.outputs):
            return Why("the types of the outputs are not known")
        return Zeros(node, operands, replaces=[value for value in node.outputs if value.name])

    def build(self, op: Emit, m: Zeros) -> list[ir.Value]:
        types = [
            (value.dtype or dtype_of(m.operands[0]), dims_of(value) if value.shape is not None else ())  # type: ignore[arg-type]
            for value in m.node.outputs
        ]
        made = op.node(m.node.op_type, *m.operands, outputs=types, **attributes(m.node))
        results = [made] if isinstance(made, ir.Value) else list(made)
        for value, old in zip(results, m.node.outputs, strict=True):
            if not old.name:
                value.name = ""
        return [value for value, old in zip(results, m.node.outputs, strict=True) if old.name]


def _is_zero(value: ir.Value | None, depth: int) -> bool:
    if value is None or not depth:
        return False
    if is_constant(value) and value.const_value is not None:
        tensor = value.const_value
        return tensor.dtype != ir.DataType.STRING and tensor.nbytes <= 1 << 20 and not np.asarray(tensor.numpy()).any()
    node = value.producer()
    if node is None or node.domain:
        return False
    if node.op_type == "ConstantOfShape":
        fill = attribute(node, "value")
        return fill is None or not np.asarray(fill.numpy()).any()
    if node.op_type not in MOVES:
        return False
    sources = list(node.inputs) if node.op_type == "Concat" else [operand(node, 0)]
    return all(_is_zero(source, depth - 1) for source in sources)


@dataclass(frozen=True, eq=False)
class WhereMatch(Match):
    condition: ir.Value
    yes: ir.Value
    no: ir.Value


class SwapWhere(Rewrite[WhereMatch]):
    """``Where(Not(c), a, b)`` -> ``Where(c, b, a)``.

    Numerics:  exact.
    """

    roots: ClassVar = ("Where",)
    since = 9

    def match(self, node: ir.Node) -> WhereMatch | Why:
        inverted = produced_by(node.inputs[0], "Not")
        if inverted is None:
            return Why("the condition is no Not")
        return WhereMatch(required(inverted, 0), required(node, 2), required(node, 1))

    def build(self, op: Emit, m: WhereMatch) -> ir.Value:
        result: ir.Value = op.node("Where", m.condition, m.yes, m.no, outputs=op.result)
        return result


@dataclass(frozen=True, eq=False)
class Like(Match):
    source: ir.Value
    dtype: ir.DataType


class PlainCast(Rewrite[Like]):
    """``CastLike(x, y)`` -> ``Cast(x)`` to the dtype of y, which y need not be made for.

    Numerics:  exact.
    """

    roots: ClassVar = ("CastLike",)
    since = 15

    def match(self, node: ir.Node) -> Like | Why:
        dtype, source = node.outputs[0].dtype, required(node, 0)
        return Why("the dtype is not known") if dtype is None or source.dtype is None else Like(source, dtype)

    def build(self, op: Emit, m: Like) -> ir.Value:
        result: ir.Value = op.node("Cast", m.source, to=m.dtype, outputs=op.result)
        return result
