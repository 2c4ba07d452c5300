"""Pools that ONNX has no operator for: adaptive and fractional ones, and unpooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.creation import filled_with
from fx2onnx.aten_map.pooling import max_pooled
from fx2onnx.aten_map.reductions import max_with_place
from fx2onnx.aten_map.table.axes import as_list, filled, is_empty, squeeze, steps, swap, unsqueeze, whole
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims
from fx2onnx.sizes.expr import Dim, DimLike, apply, product

aten = torch.ops.aten


def windows(size: int, count: int) -> list[tuple[int, int]]:
    """Start and end of every window. Source: ATen/native/AdaptivePooling.h."""
    return [(index * size // count, -(-(index + 1) * size // count)) for index in range(count)]


def averaging_matrix(op: Emit, size: DimLike, count: DimLike, dtype: ir.DataType, rows_first: bool = False) -> ir.Value:
    """[size, count] ([count, size] if ``rows_first``): 1 / length over window i for output i; built while running where a size is symbolic."""
    if not isinstance(size, Dim) and not isinstance(count, Dim):
        matrix = np.zeros((size, count))
        for place, (first, last) in enumerate(windows(size, count)):
            matrix[first:last, place] = 1 / (last - first)
        return op.const(matrix.T if rows_first else matrix, dtype)
    start, end = _bounds(op, size, count)
    row = op.Unsqueeze(steps(op, size), axes=[1])
    inside = op.And(op.Less(row, end), op.Not(op.Less(row, start)))
    weights = op.Div(op.cast(inside, dtype), op.cast(op.Sub(end, start), dtype))
    return swap(op, weights, 0, 1) if rows_first else weights


def _bounds(op: Emit, size: DimLike, count: DimLike) -> tuple[ir.Value, ir.Value]:
    """Start and end [count] of every window, computed while running."""
    index, total, number = steps(op, count), op.size(size), op.size(apply("max", count, 1))
    reach = op.Mul(op.Add(index, op.const(1)), total)
    end = op.Div(op.Add(reach, op.Sub(number, op.const(1))), number)
    return op.Div(op.Mul(index, total), number), end


def adaptive_average(op: Emit, value: ir.Value, spatial: int) -> ir.Value:
    """Global: one mean. Divisible: AveragePool. Else one product with a matrix of window weights an axis."""
    rank, dims, target = op.rank(value), op.dims(value), op.result_dims()
    axes = range(rank - spatial, rank)
    changed = [axis for axis in axes if dims[axis] != target[axis]]
    if not changed:
        return value
    if all(target[axis] == 1 for axis in changed):
        if len(changed) == spatial and rank == spatial + 2:
            return op.GlobalAveragePool(value)
        return op.ReduceMean(value, axes=changed, keepdims=1)
    sizes = _divisible(dims[-spatial:], target[-spatial:])
    if sizes is not None:
        batched = rank == spatial + 2
        pooled = op.AveragePool(value if batched else unsqueeze(op, value, 0), kernel_shape=sizes, strides=sizes)
        return pooled if batched else squeeze(op, pooled, 0)
    for axis in changed:
        matrix = averaging_matrix(op, dims[axis], target[axis], op.dtype(value), rows_first=axis == rank - 2)
        if axis == rank - 2:
            value = op.MatMul(matrix, value)
        else:
            value = swap(op, op.MatMul(swap(op, value, axis, rank - 1), matrix), axis, rank - 1)
    return value


def _divisible(source: Dims, target: Dims) -> list[int] | None:
    """The window sizes, where every one is the same along its axis."""
    sizes = [size // count if count != 0 else 0 for size, count in zip(source, target, strict=True)]
    if any(isinstance(size, Dim) for size in sizes):
        return None
    exact = all(size * count == whole for size, count, whole in zip(sizes, target, source, strict=True))
    return [int(size) for size in sizes] if exact and all(sizes) else None  # type: ignore[arg-type]


def adaptive_avg_pool(op: Emit, self: ir.Value, output_size: Sequence[DimLike]) -> ir.Value:
    if is_empty(op.dims(self)):  # the mean of nothing, where PyTorch takes it
        return filled_with(op, op.result_dims(), float("nan"), op.result_dtype())
    return adaptive_average(op, self, len(output_size))


def adaptive_max_pool(op: Emit, self: ir.Value, output_size: Sequence[int]) -> tuple[ir.Value, ir.Value | None]:
    """Windows of one size: MaxPool; one window over symbolic sizes: ReduceMax. Else every window is gathered (short ones
    repeat their last element) and reduced.
    """
    spatial, rank = len(output_size), op.rank(self)
    source, target = op.dims(self)[-spatial:], op.result_dims()[-spatial:]
    sizes = _divisible(source, target)
    if sizes is not None:
        return max_pooled(op, self, sizes, sizes, as_list(0, spatial), as_list(1, spatial), False, True)
    if all(count == 1 for count in target):
        flat = op.reshape(self, (*op.dims(self)[:-spatial], product(source)))
        found = op.ReduceMax(flat, axes=[-1], keepdims=1), op.ArgMax(flat, axis=rank - spatial, keepdims=1)
        return op.reshape(found[0], op.result_dims()), op.reshape(found[1], op.result_dims())
    tables = [_window_table(op, size, count) for size, count in zip(source, target, strict=True)]
    value = self
    for place in reversed(range(spatial)):
        value = op.Gather(value, tables[place], axis=rank - spatial + place)
    lead = list(range(rank - spatial))
    outer = [rank - spatial + 2 * place for place in range(spatial)]
    inner = [axis + 1 for axis in outer]
    value = op.Transpose(value, perm=[*lead, *outer, *inner]) if spatial > 1 else value
    value = op.reshape(value, (*op.dims(value)[:rank], product([op.dims(table)[1] for table in tables])))
    chosen = op.ArgMax(value, axis=rank, keepdims=1)
    if any(isinstance(count, Dim) for count in target):  # of no windows onnxruntime's ReduceMax has another shape
        best = op.Squeeze(op.GatherElements(value, chosen, axis=rank), axes=[rank])
    else:
        best = op.ReduceMax(value, axes=[-1], keepdims=0)
    spread = op.expand(_flat_places(op, tables, source), op.dims(value))
    return best, op.Squeeze(op.GatherElements(spread, chosen, axis=rank), axes=[rank])


def _window_table(op: Emit, size: DimLike, count: DimLike) -> ir.Value:
    """[count, longest]: the elements of every window, its last one repeated to the longest window's length."""
    if isinstance(size, Dim) or isinstance(count, Dim):
        start, end = _bounds(op, size, count)
        longest = whole(apply("floordiv", size, apply("max", count, 1)) + 2)
        places = op.Add(op.Unsqueeze(start, axes=[1]), steps(op, longest))
        last = op.Unsqueeze(op.Sub(end, op.const(1)), axes=[1])
        return op.Where(op.Greater(places, last), last, places)
    bounds = windows(size, count)
    most = max(end - start for start, end in bounds)
    return op.const(np.array([[min(start + step, end - 1) for step in range(most)] for start, end in bounds]))


def _flat_places(op: Emit, tables: Sequence[ir.Value], sizes: Dims) -> ir.Value:
    """[*counts, product of the longest]: where each gathered element stands in its flattened channel."""
    spatial, total = len(tables), None
    for place, (table, size) in enumerate(zip(tables, sizes, strict=True)):
        others = [axis for axis in range(2 * spatial) if axis not in (place, spatial + place)]
        spread = op.Unsqueeze(table, axes=others) if others else table
        total = spread if total is None else op.Add(op.Mul(total, op.size(size)), spread)
    assert total is not None
    return op.reshape(total, (*op.dims(total)[:spatial], product(list(op.dims(total)[spatial:]))))


register_shared(
    adaptive_avg_pool,
    "GlobalAveragePool, AveragePool; MatMul with the windows' weights",
    *overloads_of(
        "adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool3d"
    ),
)
register_shared(
    adaptive_max_pool,
    "MaxPool, ReduceMax; Gather of every window and ReduceMax",
    *overloads_of("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"),
)


INT64 = ir.DataType.INT64


def _starts(op: Emit, sample: ir.Value, size: DimLike, kernel: int, count: DimLike) -> ir.Value:
    """[.., count]: where the windows of one axis begin. ``sample`` is [.., 1].

    Source: generate_intervals in ATen/native/FractionalMaxPool2d.cpp: int((i + u) a) - int(u a), a = (size - kernel) /
    (count - 1), in the example's dtype; the last window ends at the end.
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


def _unpooled(op: Emit, value: ir.Value, indices: ir.Value, sizes: Dims) -> ir.Value:
    """PyTorch's indices count within one channel, so each channel is scattered into a vector of its own."""
    lead = op.rank(value) - len(sizes)
    dims = op.dims(value)[:lead]
    plane, taken = product(list(sizes)), product(list(op.dims(value)[lead:]))
    empty = filled(op, (*dims, plane), 0, op.dtype(value))
    places, values = op.reshape(indices, (*dims, taken)), op.reshape(value, (*dims, taken))
    return op.reshape(op.ScatterElements(empty, places, values, axis=lead), (*dims, *sizes))


def _unpool(spatial: int) -> Callable[..., ir.Value]:
    return lambda op, self, indices: _unpooled(op, self, indices, op.result_dims()[-spatial:])


register_shared(_unpool(2), "ScatterElements", aten.max_unpool2d.default)
register_shared(_unpool(3), "ScatterElements", aten.max_unpool3d.default)
