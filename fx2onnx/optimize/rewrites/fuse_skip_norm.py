"""A norm of a sum -> onnxruntime's ``SkipLayerNormalization``, ``SkipSimplifiedLayerNormalization``."""

from __future__ import annotations

from collections.abc import Sequence
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
    operand,
    produced_by,
    required,
    same_dims,
    sole_use,
    static_dims,
)

DTYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})


@dataclass(frozen=True, eq=False)
class SkipMatch(Match):
    x: ir.Value
    skip: ir.Value
    weights: tuple[ir.Value | None, ...]
    bias: ir.Value | None
    epsilon: float
    is_simplified: bool


class FuseSkipNorm(Rewrite[SkipMatch]):
    """``LayerNormalization(Add(x, skip), weight, bias)`` -> ``com.microsoft::SkipLayerNormalization(x, skip, weight, bias)``, whose last
    output is the sum; ``RMSNormalization`` -> ``SkipSimplifiedLayerNormalization``. ``x`` may be a sum with a constant row.

    Shapes:    x, skip [B, S, D], weight [D].
    Refuses:   other ranks, a sum that broadcasts, statistics that are read, computed weights, dtypes without a kernel.
    """

    roots: ClassVar = ("LayerNormalization", "RMSNormalization")
    since = 17
    moves_rounding = True

    def match(self, node: ir.Node) -> SkipMatch | Why:
        total = node.inputs[0]
        add = produced_by(total, "Add")
        if add is None or total is None or total.dtype not in DTYPES:
            return Why("it is not the norm of a sum of float32 or float16")
        dims = dims_or_none(total)
        if dims is None or len(dims) != 3 or attribute(node, "axis", -1) not in (-1, 2):
            return Why("it is not over the last of three axes")
        if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
            return Why("its statistics are read")
        weights = [operand(node, index) for index in range(1, len(node.inputs))]
        if not all(weight is None or (is_constant(weight) and weight.dtype == total.dtype) for weight in weights):
            return Why("its weights are no constants of the same dtype")
        x, skip = required(add, 0), required(add, 1)
        if not same_dims(dims_or_none(x), dims) or not same_dims(dims_or_none(skip), dims):
            return Why("the sum broadcasts")
        bias = None
        for first, second in ((x, skip), (skip, x)):
            found = _with_row(first)
            if found is not None:
                x, skip, bias = found[0], second, found[1]
                break
        is_read = total.is_graph_output() or len(total.uses()) > 1
        return SkipMatch(
            replaces=[node.outputs[0], total] if is_read else [node.outputs[0]],
            before=add,
            x=x,
            skip=skip,
            weights=tuple(weights),
            bias=bias,
            epsilon=attribute(node, "epsilon", 1e-5),
            is_simplified=node.op_type == "RMSNormalization",
        )

    def build(self, op: Emit, m: SkipMatch) -> Sequence[ir.Value]:
        typed = (dtype_of(m.x), dims_of(m.x))
        weights = list(m.weights) if m.is_simplified else [m.weights[0], m.weights[1] if len(m.weights) > 1 else None]
        inputs = [m.x, m.skip, *weights, m.bias]
        while inputs[-1] is None:
            inputs.pop()
        name = "SkipSimplifiedLayerNormalization" if m.is_simplified else "SkipLayerNormalization"
        count = 4 if len(op.result) > 1 else 1
        made = op.custom(MICROSOFT, name, inputs, [typed] * count, epsilon=float(m.epsilon))
        for unread in made[1:3]:
            unread.name = ""
        return [made[0], made[3]] if count > 1 else [made[0]]


def _with_row(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """The other operand and the row, where the value is the sum with a constant row that nobody else reads."""
    add = produced_by(value, "Add")
    if add is None or not sole_use(value):
        return None
    for index in (0, 1):
        row, other = required(add, index), required(add, 1 - index)
        width = (static_dims(row) or ())[-1:]
        if (
            (
                is_constant(row)
                and len(static_dims(row) or ()) == 1
                and same_dims(dims_or_none(other), dims_or_none(value))
            )
            and width == tuple(dims_of(value)[-1:])
            and row.dtype == value.dtype
        ):
            return other, row
    return None
