"""Weights reshaped, joined or put in another order -> the weights stored so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dtype_of
from fx2onnx.optimize.rewrite import Match, Rewrite, Why, attribute, is_constant, operand, sole_use, static_dims
from fx2onnx.optimize.weights import ArrangedTensor, Array, DerivedTensor, is_literal, tensors_of

MAX_ROWS = 1 << 16
"""So many indices are looked at."""


@dataclass(frozen=True, eq=False)
class Arrangement(Match):
    weights: list[ir.Value]
    sizes: tuple[int, ...]
    arranged: Callable[..., Array]
    keeps_rows: bool


class ArrangeWeights(Rewrite[Arrangement]):
    """``Reshape(weight)``, ``Concat(weights)``, ``Gather(weight, every row once)`` -> an initializer of those numbers.

    Recurrent layers put their gates in ONNX's order and both directions into one tensor so, group norms their scales.

    Refuses:   a weight read elsewhere, which would be stored twice; indices that leave rows out or repeat them.
    Buffers:   the bytes are made when the file is written and not kept.
    """

    roots: ClassVar = ("Reshape", "Unsqueeze", "Squeeze", "Flatten", "Concat", "Gather")
    changes_weights = True

    def match(self, node: ir.Node) -> Arrangement | Why:
        operands = list(node.inputs) if node.op_type == "Concat" else [node.inputs[0]]
        weights: list[ir.Value] = []
        for weight in operands:
            if (
                weight is None
                or not is_constant(weight)
                or weight.const_value is None
                or is_literal(weight.const_value)
                or weight.dtype == ir.DataType.STRING
            ):
                return Why("an operand is no weight of numbers")
            if not sole_use(weight):
                return Why("a weight is read elsewhere; it would be stored twice")
            weights.append(weight)
        sizes = static_dims(node.outputs[0])
        if sizes is None or node.outputs[0].is_graph_output():
            return Why("the sizes are not known, or the result is a graph output")
        arranged = _arrangement(node, sizes)
        if arranged is None:
            return Why("rows are left out or repeated")
        return Arrangement(weights, sizes, arranged, _keeps_rows(node, sizes))

    def build(self, op: Emit, m: Arrangement) -> ir.Value:
        first = m.weights[0]
        name = f"{first.name}.arranged"
        kind = ArrangedTensor if m.keeps_rows else DerivedTensor
        tensor = kind(m.arranged, tensors_of(m.weights), dtype_of(first), m.sizes, name)
        return op.builder.add_initializer(name, tensor, m.sizes)


def _keeps_rows(node: ir.Node, sizes: tuple[int, ...]) -> bool:
    """Return whether the numbers along the last axis stay beside each other."""
    before = static_dims(node.inputs[0])
    if not before or not sizes or before[-1] != sizes[-1]:
        return False
    return node.op_type not in ("Concat", "Gather") or int(attribute(node, "axis", 0)) % len(before) != len(before) - 1


def _arrangement(node: ir.Node, sizes: tuple[int, ...]) -> Callable[..., Array] | None:
    """What the node does to the arrays of its weights; None where numbers are lost or repeated."""
    if node.op_type == "Concat":
        axis = int(attribute(node, "axis", 0))
        return lambda *arrays: np.concatenate(arrays, axis)
    if node.op_type != "Gather":
        return lambda array: array.reshape(sizes)
    return _rows(node, operand(node, 1), int(attribute(node, "axis", 0)))


def _rows(node: ir.Node, indices: ir.Value | None, axis: int) -> Callable[..., Array] | None:
    weight: Any = node.inputs[0]
    dims = static_dims(weight)
    if indices is None or dims is None or not is_constant(indices) or indices.const_value is None:
        return None
    if not is_literal(indices.const_value) or indices.const_value.size > MAX_ROWS or not dims:
        return None
    given = np.asarray(indices.const_value.numpy())
    chosen = np.where(given < 0, given + dims[axis], given)
    if not np.array_equal(np.sort(chosen, axis=None), np.arange(dims[axis])):
        return None
    return lambda array: np.take(array, chosen, axis)
