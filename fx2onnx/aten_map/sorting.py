"""Sorting, order statistics and searching: sort, topk, median, quantile, isin, searchsorted, unique."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.comparison import compare
from fx2onnx.aten_map.creation import counted
from fx2onnx.aten_map.gathering import where
from fx2onnx.aten_map.reductions import reduce
from fx2onnx.aten_map.scans import neighbours
from fx2onnx.aten_map.table.axes import axis_of, flat, is_empty, moved, swap, transpose, whole
from fx2onnx.aten_map.table.dtypes import FLOATS, Operand, as_dtype, compute_dtype, opmath, takes, through
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike, apply, product

aten = torch.ops.aten
D = ir.DataType


def top(
    op: Emit, value: ir.Value, count: DimLike, axis: int, largest: bool, sorted_: bool = True
) -> tuple[ir.Value, ir.Value]:
    """TopK along ``axis``; equal elements in their order. NaN counts as the greatest only where the runtime does so."""
    if op.rank(value) == 0:
        values, indices = top(op, op.reshape(value, (1,)), count, 0, largest)
        return op.reshape(values, ()), op.reshape(indices, ())
    dtype = op.dtype(value)
    dims = list(op.dims(value))
    dims[axis] = count
    wide = compute_dtype(op, "TopK", dtype)
    typed = [(wide, tuple(dims)), (D.INT64, tuple(dims))]
    values, indices = op.TopK(
        op.cast(value, wide),
        op.sizes([count]),
        axis=axis,
        largest=int(largest),
        sorted=int(sorted_),
        outputs=typed,
    )
    return op.cast(values, dtype), indices


def sort(op: Emit, value: ir.Value, dim: int = -1, descending: bool = False) -> tuple[ir.Value, ir.Value]:
    """All elements in order: TopK of the whole axis."""
    axis = axis_of(dim, op.rank(value))
    return top(op, value, op.dims(value)[axis] if op.rank(value) else 1, axis, descending)


def _argsort(op: Emit, self: ir.Value, dim: int = -1, descending: bool = False) -> ir.Value:
    return sort(op, self, dim, descending)[1]


def _topk(op: Emit, self: ir.Value, k: DimLike, dim: int, largest: bool, sorted: bool) -> tuple[ir.Value, ir.Value]:
    return top(op, self, k if op.rank(self) else 1, axis_of(dim, op.rank(self)), largest, sorted)


register_shared(sort, "TopK of the whole axis, which is stable", *overloads_of("sort.default sort.stable"))
register_shared(_argsort, "TopK of the whole axis", *overloads_of("argsort.default argsort.stable"))
register_shared(lambda op, self: sort(op, self, 0)[0], "TopK of axis 0", *overloads_of("msort"))
register_shared(_topk, "TopK", *overloads_of("topk.default"))


def nan_in(op: Emit, value: ir.Value, axis: int, keepdim: bool) -> ir.Value:
    """Return whether any element along ``axis`` is NaN."""
    found = op.cast(through(op, "IsNaN", value), D.INT32)
    return op.cast(op.ReduceMax(found, axes=[axis], keepdims=int(keepdim)), D.BOOL)


def kth_smallest(op: Emit, value: ir.Value, place: DimLike, axis: int, keepdim: bool) -> tuple[ir.Value, ir.Value]:
    """The element of rank ``place`` (from 0) along ``axis`` and its index."""
    values, indices = top(op, value, place + 1, axis, False)  # type: ignore[arg-type]
    if isinstance(place, Dim):
        start = op.sizes([place])
        picked = [op.Gather(item, start, axis=axis) for item in (values, indices)]
    else:
        picked = [op.Gather(item, np.array([place]), axis=axis) for item in (values, indices)]
    if keepdim:
        return picked[0], picked[1]
    return op.Squeeze(picked[0], axes=[axis]), op.Squeeze(picked[1], axes=[axis])


def _kthvalue(op: Emit, self: ir.Value, k: DimLike, dim: int, keepdim: bool) -> tuple[ir.Value, ir.Value]:
    if op.rank(self) == 0:
        return self, op.const(np.int64(0))
    return kth_smallest(op, self, k - 1, axis_of(dim, op.rank(self)), keepdim)  # type: ignore[arg-type]


register_shared(_kthvalue, "TopK of the k smallest, Gather", *overloads_of("kthvalue.default"))


def _median(op: Emit, self: ir.Value, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median; NaN, and its place, where there is one."""
    whole = dim is None
    if whole:
        value, axis = flat(op, self), 0
    elif op.rank(self) == 0:
        return self, op.const(np.int64(0))
    else:
        assert dim is not None
        value, axis = self, axis_of(dim, op.rank(self))
    size = op.dims(value)[axis]
    if size == 0:
        dtype = op.dtype(self)
        return op.const(math.nan if op.is_float(self) else dtype == D.BOOL or np.iinfo(dtype.numpy()).min, dtype)
    picked, index = kth_smallest(op, value, (size - 1) // 2, axis, keepdim)  # type: ignore[arg-type]
    if op.is_float(value):
        has_nan = nan_in(op, value, axis, keepdim)
        picked = where(op, has_nan, op.const(math.nan, op.dtype(value)), picked)
        if not whole:
            first = op.ArgMax(op.cast(through(op, "IsNaN", value), D.INT32), axis=axis, keepdims=int(keepdim))
            index = op.Where(has_nan, first, index)
    return picked if whole else (picked, index)


def _nanmedian(op: Emit, self: ir.Value, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of the numbers: NaN sorts last, as infinity; of none NaN."""
    if not op.is_float(self):
        return _median(op, self, dim, keepdim)
    whole = dim is None
    if op.rank(self) == 0:
        return self if whole else (self, op.const(np.int64(0)))
    value = flat(op, self) if whole else self
    axis = 0 if dim is None else axis_of(dim, op.rank(self))
    if op.dims(value)[axis] == 0:
        return op.const(math.nan, op.dtype(self))
    dtype = op.dtype(value)
    missing = through(op, "IsNaN", value)
    values, indices = sort(op, where(op, missing, op.const(math.inf, dtype), value), axis)
    count = op.ReduceSum(op.cast(op.Not(missing), D.INT64), axes=[axis], keepdims=1)
    place = op.Div(op.Sub(count, op.cast(op.Greater(count, 0), D.INT64)), 2)
    picked, index = op.GatherElements(values, place, axis=axis), op.GatherElements(indices, place, axis=axis)
    picked = where(op, op.Equal(count, 0), op.const(math.nan, dtype), picked)
    if not keepdim:
        picked, index = op.Squeeze(picked, axes=[axis]), op.Squeeze(index, axes=[axis])
    return picked if whole else (picked, index)


register_shared(_median, "TopK of the lower half, Gather; NaN by Where", *overloads_of("median.default median.dim"))
register_shared(_nanmedian, "TopK, GatherElements at half the count", *overloads_of("nanmedian.default nanmedian.dim"))


def _mode(op: Emit, self: ir.Value, dim: int, keepdim: bool) -> tuple[ir.Value, ir.Value]:
    """The smallest of the most frequent elements, and its last place. Memory: the axis squared."""
    if op.rank(self) == 0:
        return self, op.const(np.int64(0))
    dtype, axis, last = op.dtype(self), axis_of(dim, op.rank(self)), op.rank(self) - 1
    value = swap(op, op.cast(self, D.INT32) if dtype == D.BOOL else self, axis, last)
    worked = op.dtype(value)
    same = through(op, "Equal", op.Unsqueeze(value, axes=[last]), op.Unsqueeze(value, axes=[last + 1]))
    counts = op.ReduceSum(op.cast(same, D.INT32), axes=[last + 1], keepdims=0)
    best = op.ReduceMax(counts, axes=[last], keepdims=1)
    highest = math.inf if op.is_float(value) else np.iinfo(worked.numpy()).max
    frequent = where(op, op.Equal(counts, best), value, op.const(highest, worked))
    chosen = reduce(op, "ReduceMin", frequent, last, True)
    places = counted(op, op.dims(value)[last], D.INT64)
    index = op.Where(through(op, "Equal", value, chosen), places, op.const(np.int64(-1)))
    index = op.ReduceMax(index, axes=[last], keepdims=1)
    values, indices = (swap(op, item, axis, last) for item in (op.cast(chosen, dtype), index))
    return (values, indices) if keepdim else (op.Squeeze(values, axes=[axis]), op.Squeeze(indices, axes=[axis]))


register_shared(_mode, "counts by Equal of all pairs, ReduceMax, ReduceMin", *overloads_of("mode.default"))

_ROUND_PLACE = {"lower": "Floor", "higher": "Ceil", "nearest": "Round"}


def _quantile(nan: bool) -> Any:
    def entry(op: Emit, self: ir.Value, q: Any, dim: int | None, keepdim: bool, interpolation: str) -> ir.Value:
        """Order the axis, read at q (n - 1), interpolate; NaN wins (quantile) or is left out (nanquantile)."""
        dtype = op.dtype(self)
        rank = op.rank(self)
        value = flat(op, self) if dim is None or rank == 0 else self
        axis = 0 if dim is None else axis_of(dim, op.rank(value))
        last = op.rank(value) - 1
        value = op.cast(moved(op, value, [axis], [last]), opmath(dtype))
        worked = op.dtype(value)
        missing = op.IsNaN(value)
        ordered = sort(op, op.Where(missing, op.const(math.inf, worked), value), last)[0]
        share = op.cast(as_dtype(op, q, dtype), worked)
        share = op.reshape(share, (1,)) if op.rank(share) == 0 else share
        if nan:
            count = op.ReduceSum(op.cast(op.Not(missing), worked), axes=[last], keepdims=1)
            place = op.Mul(share, op.Max(op.Sub(count, 1), 0))
        else:
            place = op.Mul(share, as_dtype(op, op.dims(value)[last] - 1, worked))
            place = op.expand(place, (*op.dims(value)[:last], op.dims(share)[0]))
        picked = _interpolated(op, ordered, place, last, interpolation)
        invalid = (
            op.Equal(count, 0)
            if nan
            else op.cast(op.ReduceMax(op.cast(missing, D.INT32), axes=[last], keepdims=1), D.BOOL)
        )
        picked = op.cast(op.Where(invalid, op.const(math.nan, worked), picked), op.result_dtype())
        scalar = not isinstance(q, ir.Value) or op.rank(q) == 0
        placed = _placed(op, picked, axis, scalar, keepdim and dim is not None and rank > 0)
        return op.reshape(placed, op.result_dims()) if keepdim and dim is None else placed

    return entry


def _interpolated(op: Emit, ordered: ir.Value, place: ir.Value, axis: int, interpolation: str) -> ir.Value:
    def at(position: ir.Value) -> ir.Value:
        return op.GatherElements(ordered, op.cast(position, D.INT64), axis=axis)

    if interpolation in _ROUND_PLACE:
        return at(op.node(_ROUND_PLACE[interpolation], place))
    low = op.Floor(place)
    below, above = at(low), at(op.Ceil(place))
    weight = op.const(0.5, op.dtype(place)) if interpolation == "midpoint" else op.Sub(place, low)
    gap = op.Sub(above, below)
    one, half = op.const(1, op.dtype(place)), op.const(0.5, op.dtype(place))
    from_below, from_above = op.Add(below, op.Mul(gap, weight)), op.Sub(above, op.Mul(gap, op.Sub(one, weight)))
    return op.Where(op.Less(weight, half), from_below, from_above)


def _placed(op: Emit, picked: ir.Value, axis: int, scalar: bool, keepdim: bool) -> ir.Value:
    """[*, Q] -> PyTorch's layout: Q first or (for one q) gone, the reduced axis 1 or gone."""
    last = op.rank(picked) - 1
    value = op.Squeeze(picked, axes=[last]) if scalar else transpose(op, picked, [last, *range(last)])
    if keepdim:
        value = op.Unsqueeze(value, axes=[axis if scalar else axis + 1])
    return value


register_shared(
    _quantile(False), "TopK, GatherElements, interpolation", *overloads_of("quantile.default quantile.scalar")
)
register_shared(
    _quantile(True), "TopK, GatherElements, interpolation", *overloads_of("nanquantile.default nanquantile.scalar")
)


@translates(aten.isin.Tensor_Tensor)
def isin_tensor_tensor(
    op: Emit, elements: ir.Value, test_elements: ir.Value, assume_unique: bool, invert: bool
) -> ir.Value:
    """isin(Tensor elements, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor

    ONNX:    every element beside every test element: Equal and a reduction by Sum, which onnxruntime has of no elements, too. Memory: elements x tests.
    """
    tests = op.Reshape(test_elements, [-1]) if op.rank(test_elements) != 1 else test_elements
    if op.dims(tests)[0] == 0:
        return op.expand(op.const(np.array(invert)), op.dims(elements))
    same = compare(op, "Equal", op.Unsqueeze(elements, axes=[op.rank(elements)]), tests)
    found = op.cast(reduce(op, "ReduceSum", op.cast(same, D.INT32), op.rank(elements)), D.BOOL)
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

    ONNX:    Equal and a reduction by Sum.
    """
    if is_empty(op.dims(test_elements)):
        return op.const(np.array(invert))
    same = op.cast(compare(op, "Equal", test_elements, element), D.INT32)
    found = op.cast(op.ReduceSum(same, keepdims=0), D.BOOL)
    return op.Not(found) if invert else found


def positions(op: Emit, boundaries: ir.Value, values: Operand, right: bool, dtype: ir.DataType) -> ir.Value:
    """Count the boundaries before each value: not >= it, or not > it (``right``). NaN lies behind all.

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
    first = op.const(np.array([True]))
    if isinstance(size, Dim):  # nothing has no run
        first = op.expand(first, (whole(apply("min", size, 1)),))
    starts = op.Concat(first, differs, axis=0, outputs=[(D.BOOL, (size,))])
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
