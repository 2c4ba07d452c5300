"""Gradients of sampled functions by differences (``torch.gradient``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from fx2onnx.aten_map.layout import joined
from fx2onnx.aten_map.scans import difference
from fx2onnx.aten_map.table.axes import axes_of, sliced, whole
from fx2onnx.aten_map.table.dtypes import as_dtype
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike


def _gradient_along(op: Emit, value: ir.Value, axis: int, spacing: Any, edge_order: int) -> ir.Value:
    """Differences of second order inside, of ``edge_order`` at the ends; ``spacing`` a step or a tensor of places.

    Source:  gradient_helper and gradient_helper_float in ATen/native/ReduceOps.cpp.
    """
    dtype, count = op.dtype(value), op.dims(value)[axis]
    trailing = list(range(1, op.rank(value) - axis))

    def part(first: int, size: DimLike) -> ir.Value:
        start = whole(count + first) if first < 0 else first
        return sliced(op, value, axis, start, whole(start + size), size)

    has_inside = isinstance(count, Dim) or count > 2
    inside = whole(count - 2)
    if not isinstance(spacing, ir.Value):
        first, last = op.Sub(part(1, 1), part(0, 1)), op.Sub(part(-1, 1), part(-2, 1))
        if edge_order == 2:
            first = _weighted(op, [-1.5, 2.0, -0.5], [part(0, 1), part(1, 1), part(2, 1)])
            last = _weighted(op, [0.5, -2.0, 1.5], [part(-3, 1), part(-2, 1), part(-1, 1)])
        middle = [op.Mul(op.Sub(part(2, inside), part(0, inside)), op.const(0.5, dtype))] if has_inside else []
        return op.Div(joined(op, [first, *middle, last], axis), op.const(float(spacing), dtype))
    if op.dims(spacing) != (count,):
        raise UserError(
            "E203",
            f"a gradient over {count} elements with places of the shape {list(op.dims(spacing))}",
            why="PyTorch broadcasts them against each other",
            next="give one place for each element of the axis",
        )
    steps = difference(op, op.cast(spacing, dtype), 0)

    def step(index: int, size: DimLike = 1) -> ir.Value:
        start = whole(count - 1 + index) if index < 0 else index
        found = sliced(op, steps, 0, start, whole(start + size), size)
        return op.Unsqueeze(found, axes=trailing) if trailing else found

    first, last = op.Div(op.Sub(part(1, 1), part(0, 1)), step(0)), op.Div(op.Sub(part(-1, 1), part(-2, 1)), step(-1))
    if edge_order == 2:
        first = _at_first(op, step(0), step(1), [part(0, 1), part(1, 1), part(2, 1)])
        last = op.Neg(_at_first(op, step(-1), step(-2), [part(-1, 1), part(-2, 1), part(-3, 1)]))
    middle = []
    if has_inside:
        near, far = step(0, inside), step(1, inside)
        both = op.Add(near, far)
        weights = [
            op.Neg(op.Div(far, op.Mul(near, both))),
            op.Div(op.Sub(far, near), op.Mul(near, far)),
            op.Div(near, op.Mul(far, both)),
        ]
        middle = [_weighted(op, weights, [part(0, inside), part(1, inside), part(2, inside)])]
    return joined(op, [first, *middle, last], axis)


def _weighted(op: Emit, weights: Sequence[ir.Value | float], values: Sequence[ir.Value]) -> ir.Value:
    dtype = op.dtype(values[0])
    terms = [op.Mul(as_dtype(op, weight, dtype), value) for weight, value in zip(weights, values, strict=True)]
    return op.Add(op.Add(terms[0], terms[1]), terms[2])


def _at_first(op: Emit, near: ir.Value, far: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
    """The derivative at the first of three points, steps ``near`` then ``far``."""
    both = op.Add(near, far)
    weights = [
        op.Neg(op.Div(op.Add(op.Add(near, near), far), op.Mul(near, both))),
        op.Div(both, op.Mul(near, far)),
        op.Neg(op.Div(near, op.Mul(far, both))),
    ]
    return _weighted(op, weights, values)


def _gradient(
    op: Emit, self: ir.Value, dim: Any = None, spacing: Any = None, edge_order: int = 1
) -> tuple[ir.Value, ...]:
    axes = list(range(op.rank(self))) if dim is None else axes_of(dim, op.rank(self))
    steps = list(spacing) if isinstance(spacing, list | tuple) else [1 if spacing is None else spacing] * len(axes)
    value = op.cast(self, op.result_dtype())
    return tuple(
        op.cast(_gradient_along(op, value, axis, step, edge_order), op.result_dtype())
        for axis, step in zip(axes, steps, strict=True)
    )


_GRADIENTS = ("scalarint", "scalararray", "array", "scalarrayint", "scalarrayarray", "tensorarrayint", "tensorarray")
register_shared(
    _gradient, "Slice, Sub, Div, Concat", *overloads_of(" ".join(f"gradient.{name}" for name in _GRADIENTS))
)
