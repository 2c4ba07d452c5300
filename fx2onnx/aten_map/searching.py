"""Searching: membership, sorted positions, histograms."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.comparison import compare
from fx2onnx.aten_map.creation import filled
from fx2onnx.aten_map.reductions import reduce
from fx2onnx.aten_map.scans import neighbours
from fx2onnx.aten_map.table.axes import axis_of, whole
from fx2onnx.aten_map.table.dtype_support import opmath, takes
from fx2onnx.aten_map.table.dtypes import FLOATS, Operand
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.dims import DimLike, product
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten
D = ir.DataType


@translates(aten.isin.Tensor_Tensor)
def isin_tensor_tensor(
    op: Emit, elements: ir.Value, test_elements: ir.Value, assume_unique: bool, invert: bool
) -> ir.Value:
    """isin(Tensor elements, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor

    ONNX:    every element beside every test element: Equal and a reduction by Max. Memory: elements x tests.
    """
    tests = op.Reshape(test_elements, [-1]) if op.rank(test_elements) != 1 else test_elements
    if op.dims(tests)[0] == 0:
        return op.expand(op.const(np.array(invert)), op.dims(elements))
    same = compare(op, "Equal", op.Unsqueeze(elements, axes=[op.rank(elements)]), tests)
    found = op.cast(op.ReduceMax(op.cast(same, D.INT32), axes=[-1], keepdims=0), D.BOOL)
    return op.Not(found) if invert else found


@translates(aten.isin.Tensor_Scalar)
def isin_tensor_scalar(op: Emit, elements: ir.Value, test_element: Any, assume_unique: bool, invert: bool) -> ir.Value:
    """isin(Tensor elements, Scalar test_element, *, bool assume_unique=False, bool invert=False) -> Tensor

    ONNX:    Equal.
    """
    return compare(op, "NotEqual" if invert else "Equal", elements, test_element)


@translates(aten.isin.Scalar_Tensor)
def isin_scalar_tensor(op: Emit, element: Any, test_elements: ir.Value, assume_unique: bool, invert: bool) -> ir.Value:
    """isin(Scalar element, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor

    ONNX:    Equal and a reduction by Max.
    """
    same = op.cast(compare(op, "Equal", test_elements, element), D.INT32)
    found = op.cast(op.ReduceMax(same, keepdims=0), D.BOOL)
    return op.Not(found) if invert else found


# -- positions in sorted sequences ------------------------------------------------------------------------------------
def positions(op: Emit, boundaries: ir.Value, values: Operand, right: bool, dtype: ir.DataType) -> ir.Value:
    """How many boundaries lie before each value: not >= it, or not > it (``right``). NaN lies behind all.

    Shapes:  boundaries [*, M] or [M], values [*, N] -> as values. Memory: values x M.
    """
    if isinstance(values, ir.Value):
        values = op.Unsqueeze(values, axes=[op.rank(values)])
    if op.rank(boundaries) > 1:
        boundaries = op.Unsqueeze(boundaries, axes=[op.rank(boundaries) - 1])
    behind = compare(op, "Greater" if right else "GreaterOrEqual", boundaries, values)
    return reduce(op, "ReduceSum", op.cast(op.Not(behind), dtype), -1)


def _searchsorted(
    op: Emit,
    sorted_sequence: ir.Value,
    self: Operand,
    right: bool,
    side: str | None,
    sorter: ir.Value | None,
) -> ir.Value:
    if sorter is not None:
        sorted_sequence = op.GatherElements(sorted_sequence, sorter, axis=-1)
    return positions(op, sorted_sequence, self, right or side == "right", op.result_dtype())


def _bucketize(op: Emit, self: Operand, boundaries: ir.Value, right: bool) -> ir.Value:
    return positions(op, boundaries, self, right, op.result_dtype())


register_shared(
    _searchsorted, "Not(GreaterOrEqual), ReduceSum", *overloads_of("searchsorted.Tensor searchsorted.Scalar")
)
register_shared(_bucketize, "Not(GreaterOrEqual), ReduceSum", *overloads_of("bucketize.Tensor bucketize.Scalar"))


# -- distinct elements ------------------------------------------------------------------------------------------------
def _empty(op: Emit) -> ir.Value:
    return op.const(np.zeros(0, dtype=np.int64))


def _unique(
    op: Emit, self: ir.Value, return_inverse: bool, return_counts: bool, dim: int | None = None
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The distinct elements (slices along ``dim``) in ascending order."""
    dtype = op.dtype(self)
    wide = dtype
    if not takes("Unique", op.opset, dtype):
        wide = opmath(dtype) if dtype in FLOATS else D.INT64
    axis = None if dim is None else axis_of(dim, op.rank(self))
    (kept, dims), length = op.result[0], op.result_dims()[axis or 0]
    count = op.dims(self)[axis] if axis is not None else product(op.dims(self))
    value = op.cast(self, wide)
    keywords: dict[str, Any] = {} if axis is None else {"axis": axis}
    found, _, inverse, counts = op.Unique(
        value,
        sorted=1,
        outputs=[(wide, dims), (D.INT64, (length,)), (D.INT64, (count,)), (D.INT64, (length,))],
        **keywords,
    )
    if axis is None:
        inverse = op.reshape(inverse, op.dims(self))
    return (
        op.cast(found, kept),
        _empty(op) if op.result_dims(1) == (0,) and not return_inverse else inverse,
        _empty(op) if op.result_dims(2) == (0,) and not return_counts else counts,
    )


register_shared(_unique, "Unique", *overloads_of("_unique2 unique_dim"))


def _unique_consecutive(
    op: Emit, self: ir.Value, return_inverse: bool, return_counts: bool, dim: int | None = None
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Runs of equal elements (slices along ``dim``), one of each."""
    value = op.reshape(self, (product(op.dims(self)),)) if dim is None else self
    axis = 0 if dim is None else axis_of(dim, op.rank(self))
    size = op.dims(value)[axis]
    if size == 0:
        return value, op.reshape(_empty(op), op.result_dims(1)), _empty(op)
    before, after = neighbours(op, value, axis)
    differs = compare(op, "NotEqual", after, before)
    others = [index for index in range(op.rank(value)) if index != axis]
    if others:
        differs = op.cast(op.ReduceMax(op.cast(differs, D.INT32), axes=others, keepdims=0), D.BOOL)
    starts = op.Concat(op.const(np.array([True])), differs, axis=0)
    dtype, dims = op.result[0]
    runs = op.Compress(value, starts, axis=axis, outputs=[(dtype, dims)])
    inverse = counts = _empty(op)
    if return_inverse or op.result_dims(1) != (0,):
        numbers = op.Sub(op.CumSum(op.cast(starts, D.INT64), op.const(np.int64(0))), 1)
        inverse = op.reshape(numbers, op.dims(self)) if dim is None else numbers
    if return_counts or op.result_dims(2) != (0,):
        length = dims[axis]
        places = op.NonZero(starts, outputs=[(D.INT64, (1, length))])
        places = op.Squeeze(places, axes=[0], outputs=[(D.INT64, (length,))])
        following = op.Slice(places, starts=[1], ends=[2**63 - 1], axes=[0], outputs=[(D.INT64, (whole(length - 1),))])
        counts = op.Sub(op.Concat(following, op.sizes([size]), axis=0), places)
    return runs, inverse, counts


register_shared(
    _unique_consecutive,
    "NotEqual of neighbours, Compress, CumSum, NonZero",
    *overloads_of("unique_consecutive unique_dim_consecutive"),
)


# -- counting into bins -----------------------------------------------------------------------------------------------
def _bincount(op: Emit, self: ir.Value, weights: ir.Value | None, minlength: DimLike) -> ir.Value:
    """How often each of 0, 1, .. occurs, or the sum of its weights."""
    dtype, dims = op.result[0]
    if op.dims(self)[0] == 0:
        return filled(op, dims, 0, dtype)
    numbers = op.cast(self, D.INT64)
    length = (
        op.Max(op.Add(op.ReduceMax(numbers, keepdims=0), 1), op.size(minlength))
        if op.opset >= 12
        else op.cast(
            op.Max(op.cast(op.Add(op.ReduceMax(numbers, keepdims=0), 1), D.DOUBLE), op.size(minlength, D.DOUBLE)),
            D.INT64,
        )
    )
    ones = op.cast(weights, dtype) if weights is not None else filled(op, op.dims(self), 1, dtype, self)
    if op.opset >= 16:
        shape = op.Reshape(length, [1])
        zeros = op.ConstantOfShape(shape, value=ir.Tensor(np.zeros(1, dtype.numpy())), outputs=[(dtype, dims)])
        return op.ScatterElements(zeros, numbers, ones, axis=0, reduction="add")
    bins = op.Range(op.const(np.int64(0)), length, op.const(np.int64(1)), outputs=[(D.INT64, dims)])
    hits = op.cast(op.Equal(bins, op.Unsqueeze(numbers, axes=[1])), dtype)
    return op.ReduceSum(op.Mul(hits, op.Unsqueeze(ones, axes=[1])), axes=[0], keepdims=0)


register_shared(_bincount, "ScatterElements(add); Equal, ReduceSum before 16", *overloads_of("bincount"))


def counts_between(op: Emit, values: ir.Value, edges: ir.Value, weight: ir.Value | None) -> ir.Value:
    """How many values lie in each bin [edge, next edge), the last one closed. Memory: values x edges."""
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


def _edges(op: Emit, values: ir.Value, bins: int, low: float, high: float, margin: float) -> ir.Value:
    """bins + 1 edges from ``low`` to ``high``, or over the values' range where those are equal."""
    dtype = op.dtype(values)
    if low == high and product(op.dims(values)) != 0:
        first, last = op.ReduceMin(values, keepdims=0), op.ReduceMax(values, keepdims=0)
        flat = op.Equal(first, last)
        first = op.Where(flat, op.Sub(first, margin), first)
        last = op.Where(flat, op.Add(last, margin), last)
        step = op.Div(op.Sub(last, first), float(bins))
        index = np.arange(bins + 1)
        upper = op.Sub(last, op.Mul(step, op.const(bins - index, dtype)))
        lower = op.Add(first, op.Mul(step, op.const(index, dtype)))
        return op.Where(op.const(index < (bins + 1) // 2), lower, upper)
    if low == high:
        low, high = (0.0, 1.0) if product(op.dims(values)) == 0 else (low - margin, high + margin)
    return op.const(np.linspace(low, high, bins + 1), dtype)


def _histc(op: Emit, self: ir.Value, bins: int, min: float, max: float) -> ir.Value:
    own = op.dtype(self) if op.is_float(self) else D.DOUBLE
    worked = opmath(own)
    values = op.cast(self, worked)
    edges = op.cast(_edges(op, op.cast(values, own), bins, float(min), float(max), 1.0), worked)
    return op.cast(counts_between(op, values, edges, None), op.result_dtype())


register_shared(_histc, "GreaterOrEqual to every edge, ReduceSum, Sub", *overloads_of("histc"))


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
        low, high = (0.0, 0.0) if range is None else range
        edges = _edges(op, self, bins, low, high, 0.5)
    hist = counts_between(op, self, edges, weight)
    if density:
        before, after = neighbours(op, edges, 0)
        hist = op.Div(op.Div(hist, op.ReduceSum(hist, keepdims=0)), op.Sub(after, before))
    return hist, edges


register_shared(
    _histogram, "GreaterOrEqual to every edge, ReduceSum, Sub", *overloads_of("histogram.bins_tensor histogram.bin_ct")
)
