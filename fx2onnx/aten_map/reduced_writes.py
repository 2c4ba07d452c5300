"""ScatterElements and ScatterND that reduce, in opsets whose operators only overwrite: a Loop reduces row by row."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from fx2onnx.aten_map.linalg.linear_solve import loop
from fx2onnx.aten_map.table.axes import INT64, fixed
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import product

SINCE = {"add": 16, "mul": 16, "max": 18, "min": 18}
"""The opset whose scatter operators have each value of the attribute ``reduction``."""
COMBINED: dict[str, Callable[[Emit, ir.Value, ir.Value], ir.Value]] = {
    "add": lambda op, old, new: op.Add(old, new),
    "mul": lambda op, old, new: op.Mul(old, new),
    "max": lambda op, old, new: op.Where(op.Greater(new, old), new, old),
    "min": lambda op, old, new: op.Where(op.Less(new, old), new, old),
}


def scatter_elements(
    op: Emit, value: ir.Value, index: ir.Value, source: ir.Value, axis: int, reduction: str
) -> ir.Value:
    """``ScatterElements`` with a reduction.

    Below its opset: round i reads, combines and writes the places that row i of ``index`` names. Those differ, since
    they stand in different columns; what several rows name is reduced in their order, as PyTorch does.
    """
    if op.opset >= SINCE[reduction]:
        return op.ScatterElements(value, index, source, axis=axis, reduction=reduction)
    row_dims = tuple(1 if place == axis else size for place, size in enumerate(op.dims(index)))

    def row(op: Emit, rows: ir.Value, number: ir.Value) -> ir.Value:
        return op.Gather(rows, op.Reshape(number, [1]), axis=axis, outputs=[(op.dtype(rows), row_dims)])

    def reduced(op: Emit, number: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        places, new = row(op, index, number), row(op, source, number)
        old = op.GatherElements(states[0], places, axis=axis)
        return [op.ScatterElements(states[0], places, COMBINED[reduction](op, old, new), axis=axis)]

    return loop(op, op.dims(index)[axis], [value], reduced)[0]


def scatter_nd(op: Emit, value: ir.Value, places: ir.Value, source: ir.Value, reduction: str) -> ir.Value:
    """``ScatterND`` with a reduction; below its opset one slice a round."""
    if op.opset >= SINCE[reduction]:
        return op.ScatterND(value, places, source, reduction=reduction)
    *lead, depth = op.dims(places)
    count = product(lead)
    inner = op.dims(value)[fixed(depth, "the number of axes that an index names") :]
    flat_places = op.reshape(op.cast(places, INT64), (count, depth))
    flat_source = op.reshape(source, (count, *inner))

    def reduced(op: Emit, number: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        chosen = op.Reshape(number, [1])
        place = op.Gather(flat_places, chosen, axis=0)
        new = op.Gather(flat_source, chosen, axis=0)
        old = op.GatherND(states[0], place, outputs=[(op.dtype(value), (1, *inner))])
        return [op.ScatterND(states[0], place, COMBINED[reduction](op, old, new))]

    return loop(op, count, [value], reduced)[0]
