"""Fractional max pooling: windows whose places come from random numbers, which are an operand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.reductions import max_with_place
from fx2onnx.aten_map.table.axes import steps, unsqueeze, whole
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike, apply, product

aten = torch.ops.aten
INT64 = ir.DataType.INT64


def _starts(op: Emit, sample: ir.Value, size: DimLike, kernel: int, count: DimLike) -> ir.Value:
    """[.., count]: where the windows of one axis begin. ``sample`` is [.., 1].

    Source: generate_intervals in ATen/native/FractionalMaxPool2d.cpp: int((i + u) a) - int(u a), a = (size - kernel) /
    (count - 1), in the sample's dtype; the last window ends at the end.
    """
    dtype = op.dtype(sample)
    last, between = size - kernel, apply("max", count - 1, 1)
    if isinstance(last, Dim) or isinstance(between, Dim):
        alpha = op.Div(op.size(last, dtype), op.size(between, dtype))
    else:
        alpha = op.const(np.asarray(last, dtype.numpy()) / np.asarray(between, dtype.numpy()), dtype)
    first = op.Cast(op.Mul(sample, alpha), to=INT64)
    places = op.Sub(op.Cast(op.Mul(op.Add(steps(op, count, dtype), sample), alpha), to=INT64), first)
    if isinstance(count, Dim):
        is_last = op.Equal(steps(op, count), op.size(count - 1))
    else:
        is_last = op.const(np.arange(count) == count - 1)
    return op.Where(is_last, op.size(last), places)


def _of_planes(op: Emit, samples: ir.Value, lead: Sequence[DimLike]) -> ir.Value:
    """The samples of the planes of ``lead`` [N, C], which the kernel reads one after another, also where there are more."""
    if op.dims(samples)[:2] == tuple(lead) or not all(isinstance(size, int) for size in (*lead, *op.dims(samples))):
        return samples
    flat = op.reshape(samples, (-1, op.dims(samples)[2]))
    planes = op.const(np.arange(np.prod([size for size in lead if isinstance(size, int)], dtype=np.int64)))
    return op.reshape(op.Gather(flat, planes, axis=0), (*lead, op.dims(samples)[2]))


def fractional_max_pool(
    op: Emit, self: ir.Value, kernel_size: Sequence[int], output_size: Sequence[DimLike], random_samples: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Shapes:  self [N, C, *sizes] or [C, *sizes], random_samples [N, C, axes], for 2-D with the last axis first."""
    spatial = len(kernel_size)
    value = self if op.rank(self) == spatial + 2 else unsqueeze(op, self, 0)
    lead, sizes = op.dims(value)[:2], op.dims(value)[2:]
    columns = range(spatial) if spatial == 3 else reversed(range(spatial))
    samples = _of_planes(op, random_samples, lead)
    places: ir.Value | None = None
    for axis, column in enumerate(columns):
        sample = op.Gather(samples, op.const(np.array([column])), axis=2)
        starts = _starts(op, sample, sizes[axis], kernel_size[axis], output_size[axis])
        spread = [index for index in range(2 * spatial) if index not in (axis, spatial + axis)]
        inside = op.Add(unsqueeze(op, starts, 3), op.const(np.arange(kernel_size[axis])))
        inside = unsqueeze(op, inside, *(2 + index for index in spread))
        step = product(list(sizes[axis + 1 :]))
        term = op.Mul(inside, op.size(step)) if step != 1 else inside
        places = term if places is None else op.Add(places, term)
    assert places is not None
    count, window = whole(product(list(output_size))), int(np.prod(kernel_size))
    flat = op.reshape(value, (*lead, product(list(sizes))))
    picked = op.GatherElements(flat, op.reshape(places, (*lead, whole(count * window))), axis=2)
    picked = op.reshape(picked, (*lead, count, window))
    values, where = max_with_place(op, picked, 3)
    chosen = op.GatherElements(op.reshape(places, (*lead, count, window)), unsqueeze(op, where, 3), axis=3)
    dims = [tuple(dims) for _, dims in op.result]
    return op.reshape(values, dims[0]), op.reshape(chosen, dims[1])


register_shared(
    fractional_max_pool,
    "the windows' places by arithmetic, GatherElements, ReduceMax and ArgMax",
    *overloads_of("fractional_max_pool2d fractional_max_pool3d"),
)
