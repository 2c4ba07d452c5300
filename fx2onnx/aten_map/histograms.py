"""Counting into bins: bincount, histc, histogram, histogramdd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.comparison import compare
from fx2onnx.aten_map.creation import filled_with, made_by_torch
from fx2onnx.aten_map.scans import neighbours
from fx2onnx.aten_map.table.axes import fixed, whole
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import DimLike, product

aten = torch.ops.aten
D = ir.DataType


def _bincount(op: Emit, self: ir.Value, weights: ir.Value | None, minlength: DimLike) -> ir.Value:
    """The number of times that each of 0, 1, .. occurs, or the sum of its weights."""
    dtype, dims = op.result[0]
    if op.dims(self)[0] == 0:
        return filled_with(op, dims, 0, dtype)
    numbers = op.cast(self, D.INT64)
    length = (
        op.Max(op.Add(op.ReduceMax(numbers, keepdims=0), 1), op.size(minlength))
        if op.opset >= 12
        else op.cast(
            op.Max(op.cast(op.Add(op.ReduceMax(numbers, keepdims=0), 1), D.DOUBLE), op.size(minlength, D.DOUBLE)),
            D.INT64,
        )
    )
    ones = op.cast(weights, dtype) if weights is not None else filled_with(op, op.dims(self), 1, dtype, self)
    return _sums_at(op, numbers, length, ones, dims)


def _sums_at(op: Emit, places: ir.Value, length: ir.Value, amounts: ir.Value, dims: Sequence[DimLike]) -> ir.Value:
    """The sum of the amounts at each place 0, 1, .. ``length`` - 1."""
    dtype = op.dtype(amounts)
    if op.opset >= 16:
        shape = op.Reshape(length, [1])
        zeros = op.ConstantOfShape(shape, value=ir.Tensor(np.zeros(1, dtype.numpy())), outputs=[(dtype, dims)])
        return op.ScatterElements(zeros, places, amounts, axis=0, reduction="add")
    bins = op.Range(op.const(np.int64(0)), length, op.const(np.int64(1)), outputs=[(D.INT64, dims)])
    hits = op.cast(op.Equal(bins, op.Unsqueeze(places, axes=[1])), dtype)
    return op.ReduceSum(op.Mul(hits, op.Unsqueeze(amounts, axes=[1])), axes=[0], keepdims=0)


register_shared(_bincount, "ScatterElements(add); Equal, ReduceSum before 16", *overloads_of("bincount"))


def counts_between(op: Emit, values: ir.Value, edges: ir.Value, weight: ir.Value | None) -> ir.Value:
    """The number of values in each bin [edge, next edge), the last one closed. Memory: values x edges."""
    column = op.Unsqueeze(op.reshape(values, (product(op.dims(values)),)), axes=[1])
    inner = op.Slice(
        edges, starts=[0], ends=[-1], axes=[0], outputs=[(op.dtype(edges), (whole(op.dims(edges)[0] - 1),))]
    )
    outer = op.Slice(edges, starts=[-1], ends=[2**63 - 1], axes=[0], outputs=[(op.dtype(edges), (1,))])
    reached = op.Concat(compare(op, "GreaterOrEqual", column, inner), op.Greater(column, outer), axis=1)
    worked = op.dtype(values)
    amounts = op.cast(reached, worked)
    if weight is not None:
        amounts = op.Mul(amounts, op.Unsqueeze(op.reshape(weight, (product(op.dims(weight)),)), axes=[1]))
    before, after = neighbours(op, op.ReduceSum(amounts, axes=[0], keepdims=0), 0)
    return op.Sub(before, after)


def _range_of(op: Emit, values: ir.Value, margin: float) -> tuple[ir.Value, ir.Value]:
    """The least and the largest value, moved apart by a margin each where they are equal."""
    first, last = op.ReduceMin(values, keepdims=0), op.ReduceMax(values, keepdims=0)
    flat = op.Equal(first, last)
    return op.Where(flat, op.Sub(first, margin), first), op.Where(flat, op.Add(last, margin), last)


def _edges(op: Emit, values: ir.Value, bins: int, low: float, high: float, margin: float) -> ir.Value:
    """bins + 1 edges from ``low`` to ``high``, or over the values' range where those are equal."""
    dtype, is_empty = op.dtype(values), product(op.dims(values)) == 0
    if low == high and not is_empty:
        first, last = _range_of(op, values, margin)
        if bins == 0:  # one edge, the lower end
            return op.reshape(first, (1,))
        step = op.Div(op.Sub(last, first), float(bins))
        index = np.arange(bins + 1)
        upper = op.Sub(last, op.Mul(step, op.const(bins - index, dtype)))
        lower = op.Add(first, op.Mul(step, op.const(index, dtype)))
        return op.Where(op.const(index < (bins + 1) // 2), lower, upper)
    if low == high and bins:
        low, high = 0.0, 1.0
    return made_by_torch(op, dtype, aten.linspace.default, low, high, bins + 1)


def _ends(given: Sequence[float] | None, variable: int) -> tuple[float, float]:
    """The range of a variable, one bin wide where it is a point; (0, 0), the range of the values, where none is given."""
    if given is None:
        return 0.0, 0.0
    low, high = given[2 * variable], given[2 * variable + 1]
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def _histc(op: Emit, self: ir.Value, bins: int, min: float, max: float) -> ir.Value:
    """Values are counted at floor((value - first) * bins / (last - first)), each step rounded in the tensor's dtype.

    Source: ATen/native/cpu/HistogramKernel.cpp, LINEAR_INTERPOLATION.
    """
    count = product(op.dims(self))
    dtype = op.dtype(self) if op.is_float(self) else D.DOUBLE
    values = op.cast(op.reshape(self, (count,)), dtype)
    if min == max and count != 0:
        first, last = _range_of(op, values, 1.0)
    else:
        first, last = op.const(float(min), dtype), op.const(float(max), dtype)
    place = op.Div(op.Mul(op.Sub(values, first), float(bins)), op.Sub(last, first))
    place = op.Min(place, op.const(bins - 1, dtype))  # the last bin holds its end
    inside = op.And(compare(op, "GreaterOrEqual", values, first), compare(op, "LessOrEqual", values, last))
    place = op.cast(op.Where(inside, place, op.const(bins, dtype)), D.INT64)
    ones = filled_with(op, (count,), 1, D.INT64, values)
    sums = _sums_at(op, place, op.const(np.int64(bins + 1)), ones, (bins + 1,))
    return op.cast(op.Slice(sums, starts=[0], ends=[bins], axes=[0]), op.result_dtype())


register_shared(_histc, "the bin of each value by Div, ScatterElements(add)", *overloads_of("histc"))


def _histogram(
    op: Emit,
    self: ir.Value,
    bins: Any,
    weight: ir.Value | None,
    density: bool,
    range: list[float] | None = None,
) -> tuple[ir.Value, ir.Value]:
    if isinstance(bins, ir.Value):
        edges = bins
    else:
        edges = _edges(op, self, bins, *_ends(range, 0), 0.5)
    hist = counts_between(op, self, edges, weight)
    if density:
        before, after = neighbours(op, edges, 0)
        hist = op.Div(op.Div(hist, op.ReduceSum(hist, keepdims=0)), op.Sub(after, before))
    return hist, edges


register_shared(
    _histogram, "GreaterOrEqual to every edge, ReduceSum, Sub", *overloads_of("histogram.bins_tensor histogram.bin_ct")
)


def _edges_of_several(
    op: Emit, self: ir.Value, bins: Sequence[Any], range: Sequence[float] | None, weight: Any, density: bool
) -> tuple[ir.Value, ...]:
    """The edges of every variable's bins: those given, or even steps over the range (the samples' own, if none)."""
    variables = len(bins)
    samples = op.reshape(self, (product(op.dims(self)[:-1]), variables))
    edges = []
    for index, given in enumerate(bins):
        column = op.Gather(samples, op.const(np.array([index])), axis=1)
        edges.append(given if isinstance(given, ir.Value) else _edges(op, column, given, *_ends(range, index), 0.5))
    return tuple(edges)


def _counts_in_bins(
    op: Emit, self: ir.Value, edges: Sequence[ir.Value], weight: ir.Value | None, density: bool
) -> ir.Value:
    """Each variable one-hot in its bins, the outer products of all summed over the samples by Einsum."""
    dtype, variables = op.dtype(self), len(edges)
    if not variables:
        raise UserError("E203", "a histogram of no variables", next="give samples of one variable at least")
    samples = op.reshape(self, (product(op.dims(self)[:-1]), variables))
    hits = []
    for index, edge in enumerate(edges):
        column = op.Gather(samples, op.const(np.array([index])), axis=1)
        starts = op.Slice(edge, starts=[0], ends=[-1], axes=[0])
        ends = op.Slice(edge, starts=[1], ends=[2**63 - 1], axes=[0])
        last = op.Slice(edge, starts=[-1], ends=[2**63 - 1], axes=[0])
        inside = op.And(compare(op, "GreaterOrEqual", column, starts), op.Less(column, ends))
        final = op.And(op.Equal(column, last), op.Equal(ends, last))
        hits.append(op.cast(op.Or(inside, final), dtype))
    letters = "abcdefghijklmnop"[:variables]
    terms = [f"z{letter}" for letter in letters]
    if weight is not None:
        hits.append(op.reshape(weight, (product(op.dims(weight)),)))
        terms.append("z")
    hist = op.Einsum(*hits, equation=f"{','.join(terms)}->{letters}", outputs=[op.result[0]])
    if density:
        hist = op.Div(hist, op.ReduceSum(hist, keepdims=0))
        for axis, edge in enumerate(edges):
            width = op.Sub(
                op.Slice(edge, starts=[1], ends=[2**63 - 1], axes=[0]), op.Slice(edge, starts=[0], ends=[-1], axes=[0])
            )
            shape = [-1 if index == axis else 1 for index in range(variables)]
            hist = op.Div(hist, op.Reshape(width, np.array(shape)))
    return hist


def _histogramdd(
    op: Emit, self: ir.Value, bins: Any, range: Sequence[float] | None, weight: ir.Value | None, density: bool
) -> tuple[ir.Value, ...]:
    each = (
        [bins] * fixed(op.dims(self)[-1], "the number of variables of histogramdd") if isinstance(bins, int) else bins
    )
    edges = _edges_of_several(op, self, each, range, weight, density)
    return (_counts_in_bins(op, self, edges, weight, density), *edges)


def _histogramdd_in(
    op: Emit, self: ir.Value, bins: Sequence[Any], weight: ir.Value | None, density: bool, range: Any = None
) -> ir.Value:
    return _counts_in_bins(op, self, _edges_of_several(op, self, bins, range, weight, density), weight, density)


_DD = "histogramdd histogramdd.int_bins histogramdd.TensorList_bins"
register_shared(_histogramdd, "one-hot bins, Einsum", *overloads_of(_DD))
_DD_COUNTS = "_histogramdd_from_bin_cts _histogramdd_from_bin_tensors"
register_shared(_histogramdd_in, "one-hot bins, Einsum", *overloads_of(_DD_COUNTS))
register_shared(_edges_of_several, "even steps over each variable's range", *overloads_of("_histogramdd_bin_edges"))
