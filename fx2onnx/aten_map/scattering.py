"""Writing elements by index: scatter, scatter_add, scatter_reduce."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.gathering import at_least_vector
from fx2onnx.aten_map.reduced_writes import scatter_elements, scatter_nd
from fx2onnx.aten_map.table.axes import INT64, axis_of, squeeze
from fx2onnx.aten_map.table.dtype_support import opmath
from fx2onnx.aten_map.table.dtypes import FLOATS, as_dtype
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten
REDUCTIONS = {
    "add": "add",
    "sum": "add",
    "mean": "add",
    "multiply": "mul",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}
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
    """In which dtype values are reduced: onnxruntime reduces neither half precision nor bools into a tensor."""
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
