"""Writing elements by index: scatter, scatter_add, scatter_reduce, and reductions over segments of an axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.gathering import at_least_vector
from fx2onnx.aten_map.linalg.linear_solve import loop
from fx2onnx.aten_map.table.axes import INT64, axis_of, fixed, sliced, squeeze, steps, unsqueeze
from fx2onnx.aten_map.table.dtypes import FLOATS, as_dtype, opmath
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
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


aten = torch.ops.aten
REDUCTIONS = {
    "add": "add", "sum": "add", "mean": "add", "multiply": "mul", "prod": "mul", "amax": "max", "amin": "min",
}  # fmt: skip
"""PyTorch's names -> ONNX's; a mean is a sum divided afterwards."""


def identity_of(name: str, dtype: ir.DataType) -> Any:
    """The number that changes nothing under a reduction."""
    reduction = REDUCTIONS[name]
    if reduction == "add":
        return 0
    if reduction == "mul":
        return 1
    if dtype in FLOATS:
        return -math.inf if reduction == "max" else math.inf
    if dtype == ir.DataType.BOOL:
        return reduction == "min"
    info = np.iinfo(dtype.numpy())
    return info.min if reduction == "max" else info.max


def reducing_dtype(dtype: ir.DataType) -> ir.DataType:
    """The dtype in which values are reduced: onnxruntime reduces neither half precision nor bools into a tensor."""
    return ir.DataType.INT32 if dtype == ir.DataType.BOOL else opmath(dtype)


def elements_like(op: Emit, index: ir.Value, source: ir.Value) -> ir.Value:
    """The part of ``source`` that ``index`` covers; it may be larger."""
    wanted, dims = op.dims(index), op.dims(source)
    axes = [axis for axis in range(len(dims)) if dims[axis] != wanted[axis]]
    if not axes:
        return source
    return op.Slice(
        source,
        starts=[0] * len(axes),
        ends=op.sizes([wanted[axis] for axis in axes]),
        axes=axes,
        outputs=[(op.dtype(source), wanted)],
    )


def scattered(
    op: Emit, value: ir.Value, dim: int, index: ir.Value, source: ir.Value, reduce: str | None = None
) -> ir.Value:
    """``ScatterElements``, with 0-d tensors as vectors."""
    scalar, axis = op.rank(value) == 0, axis_of(dim, op.rank(value))
    if 0 in op.dims(index):
        return value
    value, index = at_least_vector(op, value), op.cast(at_least_vector(op, index), INT64)
    source = elements_like(op, index, op.cast(at_least_vector(op, source), op.dtype(value)))
    if reduce is None:
        found = op.ScatterElements(value, index, source, axis=axis)
    else:
        dtype, inner = op.dtype(value), reducing_dtype(op.dtype(value))
        reduced = scatter_elements(op, op.cast(value, inner), index, op.cast(source, inner), axis, REDUCTIONS[reduce])
        found = op.cast(reduced, dtype)
    return squeeze(op, found, 0) if scalar else found


def written_nd(op: Emit, value: ir.Value, places: ir.Value, source: ir.Value, reduce: str | None) -> ir.Value:
    """``ScatterND``, reducing in a dtype that can."""
    dtype = op.dtype(value)
    if reduce is None:
        return op.ScatterND(value, places, op.cast(source, dtype))
    inner = reducing_dtype(dtype)
    return op.cast(scatter_nd(op, op.cast(value, inner), places, op.cast(source, inner), REDUCTIONS[reduce]), dtype)


def spread_number(op: Emit, number: Any, index: ir.Value, dtype: ir.DataType) -> ir.Value:
    """A number for every element of ``index``."""
    return op.expand(as_dtype(op, number, dtype), op.dims(index))


def _scatter_number(
    op: Emit, self: ir.Value, dim: int, index: ir.Value, value: Any, reduce: str | None = None
) -> ir.Value:
    return scattered(op, self, dim, index, spread_number(op, value, index, op.dtype(self)), reduce)


register_shared(scattered, "ScatterElements", *overloads_of("scatter.src scatter.reduce"))
register_shared(_scatter_number, "ScatterElements", *overloads_of("scatter.value scatter.value_reduce"))


@translates(aten.scatter_add.default)
def scatter_add(op: Emit, self: ir.Value, dim: int, index: ir.Value, src: ir.Value) -> ir.Value:
    """scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor"""
    return scattered(op, self, dim, index, src, "add")


def reduced_into(
    op: Emit, value: ir.Value, dim: int, index: ir.Value, source: ir.Value, reduce: str, include_self: bool
) -> ir.Value:
    """``scatter_reduce``: without ``include_self`` the places written to start from the reduction's identity.

    A mean divides the sum by how many numbers went into each place; integers are divided rounding down.
    """
    dtype = op.dtype(value)
    if 0 in op.dims(index):
        return value
    start = value
    if not include_self:
        start = scattered(op, value, dim, index, spread_number(op, identity_of(reduce, dtype), index, dtype))
    total = scattered(op, start, dim, index, source, reduce)
    if reduce != "mean":
        return total
    count_dtype = dtype if dtype in FLOATS else INT64
    ones = spread_number(op, 1, value, count_dtype)
    if not include_self:
        ones = scattered(op, ones, dim, index, spread_number(op, 0, index, count_dtype))
    counts = scattered(op, ones, dim, index, spread_number(op, 1, index, count_dtype), "add")
    if dtype in FLOATS:
        return op.Div(total, counts)
    wide = op.cast(total, INT64)
    return op.cast(op.Div(op.Sub(wide, op.Mod(wide, counts)), counts), dtype)


register_shared(reduced_into, "ScatterElements with a reduction", aten.scatter_reduce.two)


SEGMENT_REDUCTIONS = {
    "sum": ("ReduceSum", 0.0), "mean": ("ReduceSum", 0.0), "prod": ("ReduceProd", 1.0),
    "max": ("ReduceMax", -math.inf), "min": ("ReduceMin", math.inf),
}  # fmt: skip
"""PyTorch's name -> ONNX's operator and the number that changes nothing."""
RENAMED = {"amax": "max", "amin": "min"}
COMBINE = {"ReduceSum": "Add", "ReduceProd": "Mul", "ReduceMax": "Max", "ReduceMin": "Min"}


@translates(aten.segment_reduce.default)
def segment_reduce(
    op: Emit,
    data: ir.Value,
    reduce: str,
    lengths: ir.Value | None,
    indices: ir.Value | None,
    offsets: ir.Value | None,
    axis: int,
    unsafe: bool,
    initial: Any,
) -> ir.Value:
    """segment_reduce(Tensor data, str reduce, *, Tensor? lengths=None, Tensor? indices=None, Tensor? offsets=None, int axis=0, bool unsafe=False, Scalar? initial=None) -> Tensor

    Shapes:  data [*B, N, *rest], axis = len(B); lengths [*B, S] or offsets [*B, S + 1] -> [*B, S, *rest].
    ONNX:    the elements outside of each segment replaced by what changes nothing, then reduced. Memory: S times the data.
    Source:  ATen/native/SegmentReduce.cpp: a mean over no element is NaN without ``initial``.
    """
    segments = lengths if lengths is not None else offsets
    if segments is not None and op.is_float(segments):
        raise UserError("E203", "segment_reduce with segments that are no integers", next="pass int64")
    reduce = RENAMED.get(reduce, reduce)
    axis, dtype = axis_of(axis, op.rank(data)), opmath(op.dtype(data))
    if indices is not None or (lengths is None) == (offsets is None):
        raise UserError("E203", "segment_reduce by indices", next="give either lengths or offsets")
    if offsets is not None:
        last = op.dims(offsets)[-1]
        starts = sliced(op, offsets, axis, 0, last - 1, last - 1)  # type: ignore[arg-type]
        ends = sliced(op, offsets, axis, 1, last, last - 1)  # type: ignore[arg-type]
    else:
        assert lengths is not None
        ends = op.CumSum(lengths, op.const(np.int64(axis)))
        starts = op.Sub(ends, lengths)
    places = op.cast(steps(op, op.dims(data)[axis]), op.dtype(ends))
    before, after = unsqueeze(op, starts, axis + 1), unsqueeze(op, ends, axis + 1)
    inside = op.And(op.Not(op.Less(places, before)), op.Less(places, after))
    rest = op.rank(data) - axis - 1
    if rest:
        inside = unsqueeze(op, inside, *range(axis + 2, axis + 2 + rest))
    op_type, idle = SEGMENT_REDUCTIONS[reduce]
    chosen = op.Where(inside, unsqueeze(op, op.cast(data, dtype), axis), op.const(idle, dtype))
    found = op.node(op_type, chosen, axes=[axis + 1], keepdims=0)
    if initial is not None:
        found = op.node(COMBINE[op_type], found, op.const(float(initial), dtype))
    if reduce == "mean":
        count = op.cast(op.Sub(ends, starts), dtype)
        count = unsqueeze(op, count, *range(axis + 1, axis + 1 + rest)) if rest else count
        found = op.Div(found, count if initial is None else op.Max(count, 1.0))
    return op.cast(found, op.result_dtype())
