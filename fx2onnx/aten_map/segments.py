"""Reductions over segments of an axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import axis_of, sliced, steps, unsqueeze
from fx2onnx.aten_map.table.dtype_support import opmath
from fx2onnx.aten_map.table.registry import translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten
REDUCTIONS = {
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
    op_type, idle = REDUCTIONS[reduce]
    chosen = op.Where(inside, unsqueeze(op, op.cast(data, dtype), axis), op.const(idle, dtype))
    found = op.node(op_type, chosen, axes=[axis + 1], keepdims=0)
    if initial is not None:
        found = op.node(COMBINE[op_type], found, op.const(float(initial), dtype))
    if reduce == "mean":
        count = op.cast(op.Sub(ends, starts), dtype)
        count = unsqueeze(op, count, *range(axis + 1, axis + 1 + rest)) if rest else count
        found = op.Div(found, count if initial is None else op.Max(count, 1.0))
    return op.cast(found, op.result_dtype())
