"""Searching: membership, sorted positions, distinct elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.comparison import compare
from fx2onnx.aten_map.reductions import reduce
from fx2onnx.aten_map.scans import neighbours
from fx2onnx.aten_map.table.axes import axis_of, is_empty, whole
from fx2onnx.aten_map.table.dtype_support import opmath, takes
from fx2onnx.aten_map.table.dtypes import FLOATS, Operand
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import product

aten = torch.ops.aten
D = ir.DataType


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
