"""Gradients of sampled functions by differences (``torch.gradient``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.aten_map.table.axes import axes_of, fixed, moved
from fx2onnx.aten_map.table.dtype_support import floating
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit


def _gradient_along(op: Emit, value: ir.Value, axis: int, spacing: Any, edge_order: int) -> ir.Value:
    """Differences of second order inside, of ``edge_order`` at the ends; ``spacing`` a step or a tensor of places.

    As a matrix product along the axis for steps; for places its coefficients are computed in the graph.
    """
    count = fixed(op.dims(value)[axis], "the size along a gradient")
    dtype, last = op.dtype(value), op.rank(value) - 1
    rows = moved(op, value, [axis], [last])
    if isinstance(spacing, ir.Value):
        places = op.cast(spacing, dtype)
        steps = op.Sub(
            op.Slice(places, starts=[1], ends=[2**63 - 1], axes=[0]), op.Slice(places, starts=[0], ends=[-1], axes=[0])
        )
    else:
        steps = op.const(np.full(count - 1, float(spacing)), dtype)
    weights = _weights(op, steps, count, edge_order)
    found = op.MatMul(rows, weights)
    return moved(op, found, [last], [axis])


def _weights(op: Emit, steps: ir.Value, count: int, edge_order: int) -> ir.Value:
    """[count, count]: column i holds the coefficients of the derivative at i, from the steps h[0 .. count - 2]."""
    dtype = op.dtype(steps)

    def step(index: int) -> ir.Value:
        return op.Gather(steps, op.const(np.array([index])), axis=0)

    def three(near: ir.Value, far: ir.Value) -> list[ir.Value]:
        """Coefficients at the first of three points, steps ``near`` then ``far``."""
        both = op.Add(near, far)
        first = op.Neg(op.Div(op.Add(op.Add(near, near), far), op.Mul(near, both)))
        return [first, op.Div(both, op.Mul(near, far)), op.Neg(op.Div(near, op.Mul(far, both)))]

    columns: list[ir.Value] = []
    inner_left = op.Slice(steps, starts=[0], ends=[-1], axes=[0]) if count > 2 else None
    inner_right = op.Slice(steps, starts=[1], ends=[2**63 - 1], axes=[0]) if count > 2 else None
    matrix: ir.Value | None = None
    if inner_left is not None:
        both = op.Add(inner_left, inner_right)
        parts = {
            0: op.Neg(op.Div(inner_right, op.Mul(inner_left, both))),
            1: op.Div(op.Sub(inner_right, inner_left), op.Mul(inner_left, inner_right)),
            2: op.Div(inner_left, op.Mul(inner_right, both)),
        }
        for offset, part in parts.items():
            mask = np.zeros((count, count - 2))
            mask[np.arange(count - 2) + offset, np.arange(count - 2)] = 1
            spread = op.Mul(op.const(mask, dtype), part)
            matrix = spread if matrix is None else op.Add(matrix, spread)
    if edge_order == 1 or count < 3:
        left_parts = [op.Neg(op.Reciprocal(step(0))), op.Reciprocal(step(0))]
        right_parts = [op.Neg(op.Reciprocal(step(count - 2))), op.Reciprocal(step(count - 2))]
    else:
        left_parts = three(step(0), step(1))
        right_parts = [op.Neg(part) for part in three(step(count - 2), step(count - 3))[::-1]]
    pad = op.const(np.zeros(count - len(left_parts)), dtype)
    filler = [pad] if count > len(left_parts) else []
    columns = [op.Unsqueeze(op.Concat(*left_parts, *filler, axis=0), axes=[1])]
    columns += [matrix] if matrix is not None else []
    columns.append(op.Unsqueeze(op.Concat(*filler, *right_parts, axis=0), axes=[1]))
    return op.Concat(*columns, axis=1)


def _gradient(
    op: Emit, self: ir.Value, dim: Any = None, spacing: Any = None, edge_order: int = 1
) -> tuple[ir.Value, ...]:
    axes = list(range(op.rank(self))) if dim is None else axes_of(dim, op.rank(self))
    steps = list(spacing) if isinstance(spacing, list | tuple) else [1 if spacing is None else spacing] * len(axes)
    value = op.cast(self, floating(op.dtype(self)))
    return tuple(
        op.cast(_gradient_along(op, value, axis, step, edge_order), op.result_dtype())
        for axis, step in zip(axes, steps, strict=True)
    )


_GRADIENTS = ("scalarint", "scalararray", "array", "scalarrayint", "scalarrayarray", "tensorarrayint", "tensorarray")
register_shared(
    _gradient, "MatMul with difference coefficients", *overloads_of(" ".join(f"gradient.{name}" for name in _GRADIENTS))
)
