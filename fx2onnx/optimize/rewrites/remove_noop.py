"""A node that gives its input back -> its input."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.values import known_ints
from fx2onnx.optimize.rewrite import (
    Kept,
    Removal,
    Why,
    attribute,
    dims_or_none,
    operand,
    perm_of,
    produced_by,
    same_dims,
    scalar_of,
)


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
