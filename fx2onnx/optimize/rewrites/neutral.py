"""Operators that change nothing, or that the next operator does by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.schema import BROADCASTING, ELEMENTWISE, MOVES
from fx2onnx.irx.shapes import broadcast_dims
from fx2onnx.irx.values import known_ints
from fx2onnx.optimize.rewrite import (
    Kept,
    Match,
    Removal,
    Rewrite,
    Why,
    attribute,
    attributes,
    dims_or_none,
    is_constant,
    is_float,
    operand,
    perm_of,
    produced_by,
    required,
    same_dims,
    scalar_of,
    sole_use,
)

NEUTRAL: dict[str, tuple[tuple[int, float], ...]] = {
    "Add": ((0, 0.0), (1, 0.0)),
    "Sub": ((1, 0.0),),
    "Mul": ((0, 1.0), (1, 1.0)),
    "Div": ((1, 1.0),),
    "Pow": ((1, 1.0),),
    "And": ((0, 1.0), (1, 1.0)),
    "Or": ((0, 0.0), (1, 0.0)),
    "Xor": ((0, 0.0), (1, 0.0)),
    "BitwiseOr": ((0, 0.0), (1, 0.0)),
    "BitwiseXor": ((0, 0.0), (1, 0.0)),
}
"""The places of operands, and the numbers with which they leave the other operand as it is. ``-0.0 + 0.0`` is ``0.0``:
of floats, only ``-0.0`` is neutral to Add, and only ``+0.0`` to Sub."""


class DropNeutralOperand(Removal):
    """``x + 0``, ``x - 0``, ``x * 1``, ``x / 1``, ``x ** 1``, ``x and True``, ``x or False``, ``x xor False`` -> ``x``.

    Refuses:   where the constant widens x or another dtype results; ``x + 0.0`` of floats, which turns -0.0 into 0.0.
    """

    roots: ClassVar = tuple(NEUTRAL)

    def match(self, node: ir.Node) -> Kept | Why:
        for index, number in NEUTRAL[node.op_type]:
            value, kept = node.inputs[index], node.inputs[1 - index]
            if kept is None or scalar_of(value) != number:
                continue
            if is_float(kept) and number == 0 and _is_negative(value) != (node.op_type == "Add"):
                return Why("a float zero of this sign changes the sign of zeros")
            if kept.dtype != node.outputs[0].dtype:
                return Why("the dtype changes")
            if not same_dims(dims_or_none(kept), dims_or_none(node.outputs[0])):
                return Why("the constant widens the operand")
            return Kept(kept)
        return Why("no operand is the neutral number")


def _is_negative(value: ir.Value | None) -> bool:
    """Return whether the value is a negative number or a zero with a sign."""
    number = scalar_of(value)
    return number is not None and math.copysign(1.0, number) < 0


INVOLUTIONS = ("Neg", "Not", "BitwiseNot")


class CancelInvolution(Removal):
    """``Neg(Neg(x))``, ``Not(Not(x))``, ``BitwiseNot(BitwiseNot(x))`` -> ``x``."""

    roots: ClassVar = INVOLUTIONS

    def match(self, node: ir.Node) -> Kept | Why:
        inner = produced_by(node.inputs[0], node.op_type)
        return Why(f"the operand is no {node.op_type}") if inner is None else Kept(required(inner, 0))


@dataclass(frozen=True, eq=False)
class Quotient(Match):
    top: ir.Value
    bottom: ir.Value


class DivideByRoot(Rewrite[Quotient]):
    """``Mul(x, Reciprocal(y))`` -> ``Div(x, y)``.

    Refuses:   a Reciprocal that is read elsewhere, integers.
    Numerics:  one rounding instead of two.
    """

    roots: ClassVar = ("Mul",)
    moves_rounding = True

    def match(self, node: ir.Node) -> Quotient | Why:
        for index in (0, 1):
            inner = produced_by(node.inputs[index], "Reciprocal")
            if inner is not None and node.inputs[0] is not node.inputs[1]:
                if not sole_use(inner.outputs[0]):
                    return Why("the Reciprocal is read elsewhere")
                return Quotient(required(node, 1 - index), required(inner, 0))
        return Why("no operand is a Reciprocal")

    def build(self, op: Emit, m: Quotient) -> ir.Value:
        return op.Div(m.top, m.bottom, outputs=(op.result[0],))


MOST_BYTES = 1 << 20
SIGNED = frozenset({"Atan", "BitCast", "Div", "Log", "Pow", "Reciprocal", "Sign"})
"""Operators for which -0.0 is another number than 0.0, which the addition gives."""


class DropZeroTerm(Removal):
    """``Add(x, 0)``, ``Sub(x, 0)`` of floats -> ``x``.

    Refuses:   where the constant gives the result more dims; a reader that tells -0.0 from 0.0.
    Numerics:  exact, except for the sign of zeros.
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


@dataclass(frozen=True, eq=False)
class ExpandMatch(Match):
    node: ir.Node
    operands: list[ir.Value | None]


class SkipExpand(Rewrite[ExpandMatch]):
    """``Add(x, Expand(c, dims))`` -> ``Add(x, c)``, and every other operator that broadcasts.

    Refuses:   where the other operands do not give the result its dims.
    Numerics:  exact.
    """

    roots: ClassVar = tuple(sorted(BROADCASTING))
    since = 7

    def match(self, node: ir.Node) -> ExpandMatch | Why:
        operands = list(node.inputs)
        for index, value in enumerate(operands):
            expand = produced_by(value, "Expand")
            if expand is None:
                continue
            candidate = [*operands[:index], expand.inputs[0], *operands[index + 1 :]]
            dims = [dims_or_none(item) for item in candidate]
            wanted = dims_or_none(node.outputs[0])
            if wanted is not None and all(item is not None for item in dims):
                got = broadcast_dims(*(item for item in dims if item is not None))
                operands = candidate if got == wanted else operands
        if operands == list(node.inputs):
            return Why("no operand is an Expand that can be left out")
        return ExpandMatch(node, operands)

    def build(self, op: Emit, m: ExpandMatch) -> ir.Value:
        result: ir.Value = op.node(m.node.op_type, *m.operands, outputs=op.result, **attributes(m.node))
        return result


def _same_type(node: ir.Node) -> str:
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    return "" if source.dtype is not None and source.dtype == result.dtype else "the dtype changes"


def _same_dims(node: ir.Node) -> str:
    return "" if same_dims(dims_or_none(node.inputs[0]), dims_or_none(node.outputs[0])) else "the dims change"


def _keeps_axes(node: ir.Node) -> str:
    perm = perm_of(node)
    return "" if perm is not None and perm == tuple(range(len(perm))) else "the axes change places"


def _not_training(node: ir.Node) -> str:
    if node.outputs[1:] and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        return "the mask is read"
    training = operand(node, 2)
    return "" if training is None or scalar_of(training) == 0 else "it drops in training mode"


def _forward_steps(node: ir.Node) -> str:
    start = produced_by(operand(node, 1), "Gather")
    if start is not None and known_ints(start.inputs[0]) == [0]:
        return "it checks sizes"
    steps = operand(node, 4)
    return _same_dims(node) or ("" if steps is None or set(known_ints(steps) or [-1]) == {1} else "it steps")


def _one_input(node: ir.Node) -> str:
    return "" if len(node.inputs) == 1 else "it has several inputs"


def _no_pads(node: ir.Node) -> str:
    pads = attribute(node, "pads") or known_ints(operand(node, 1))
    return "" if pads is not None and not any(pads) else "it pads"


def _of_one(node: ir.Node) -> str:
    return "" if same_dims(dims_or_none(node.inputs[0]), dims_or_none(node.outputs[0])) else "it reduces"


REFUSALS: dict[str, Callable[[ir.Node], str]] = {
    "Identity": lambda node: "",
    "Cast": _same_type,
    "Dropout": _not_training,
    "Expand": _same_dims,
    "Tile": _same_dims,
    "Reshape": _same_dims,
    "Flatten": _same_dims,
    "Squeeze": _same_dims,
    "Unsqueeze": _same_dims,
    "Slice": _forward_steps,
    "Transpose": _keeps_axes,
    "Concat": _one_input,
    "Sum": _one_input,
    "Mean": _one_input,
    "Max": _one_input,
    "Min": _one_input,
    "Pad": _no_pads,
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), _of_one),
    "CastLike": _same_type,
}
"""For each operator, why this node of it does something; empty where it does not."""


class RemoveNoop(Removal):
    """``Cast`` to the same dtype, ``Reshape``/``Expand``/``Slice`` to the same dims, ``Identity``, ``Dropout`` outside
    training, ``Transpose`` that moves no axis, ``Concat`` of one, ``Pad`` by nothing, a reduction over axes of
    one -> the operand.

    Refuses:   dims that are not known to be equal; an operand that is a graph input where the result is an output.
    """

    roots: ClassVar = tuple(REFUSALS)
    since = 7

    def match(self, node: ir.Node) -> Kept | Why:
        if not node.inputs or node.inputs[0] is None:
            return Why("there is no operand")
        refusal = REFUSALS[node.op_type](node)
        return Why(refusal) if refusal else Kept(node.inputs[0])
