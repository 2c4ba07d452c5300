"""Gradients of average, adaptive and max pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from fx2onnx.aten_map.adaptive_pooling import averaging_matrix
from fx2onnx.aten_map.scattering import scattered
from fx2onnx.aten_map.table.axes import as_list, filled, fixed, sliced, steps, swap, unsqueeze, whole
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims
from fx2onnx.sizes.expr import product

aten = torch.ops.aten
Ints = Sequence[int]


def spread_over_windows(op: Emit, value: ir.Value, target: Dims, kernel: Ints, stride: Ints, padding: Ints) -> ir.Value:
    """Each element of ``value`` added to all places of its window, in an image of the spatial sizes ``target``.

    A ConvTranspose by ones, channel by channel. More rows are made than any size has, and those beyond are cut off.
    """
    spatial, dtype, dims = len(kernel), op.dtype(value), op.dims(value)
    lead, source = dims[:-spatial], dims[-spatial:]
    flat = op.reshape(value, (product(list(lead)), 1, *source))
    beyond = [step - 1 for step in stride]
    full = [whole((size - 1) * stride[axis] + kernel[axis] + beyond[axis]) for axis, size in enumerate(source)]
    made = op.ConvTranspose(
        flat,
        op.const(np.ones((1, 1, *kernel)), dtype),
        kernel_shape=list(kernel),
        strides=list(stride),
        output_padding=beyond,
        outputs=[(dtype, (op.dims(flat)[0], 1, *full))],
    )
    missing = [
        pad + size - known if isinstance(size, int) and isinstance(known, int) else 0
        for pad, size, known in zip(padding, target, full, strict=True)
    ]
    if any(number > 0 for number in missing):
        made = op.Pad(made, pads=[0] * (4 + spatial) + [max(number, 0) for number in missing])
    for axis, size in enumerate(target):
        made = sliced(op, made, axis + 2, padding[axis], whole(padding[axis] + size), size)
    return op.reshape(made, (*lead, *target))


def _window_counts(
    source: Dims, target: Dims, kernel: Ints, stride: Ints, padding: Ints, count_include_pad: bool
) -> list[npt.NDArray[np.float64]]:
    """For each axis, how many elements each window counts. Source: ATen/native/cpu/AvgPoolKernel.cpp."""
    counts = []
    for axis, size in enumerate(source):
        total = fixed(size, "a size that is pooled with padding or ceil_mode and differentiated")
        starts = np.arange(fixed(target[axis], "a pooled size")) * stride[axis] - padding[axis]
        ends = np.minimum(starts + kernel[axis], total + padding[axis])
        if not count_include_pad:
            starts, ends = np.maximum(starts, 0), np.minimum(ends, total)
        counts.append((ends - starts).astype(np.float64))
    return counts


def _average_pool_backward(spatial: int) -> Callable[..., ir.Value]:
    def entry(
        op: Emit,
        grad_output: ir.Value,
        self: ir.Value,
        kernel_size: Ints,
        stride: Ints,
        padding: Ints,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> ir.Value:
        kernel = as_list(kernel_size, spatial)
        strides, pads = as_list(stride, spatial) or kernel, as_list(padding, spatial)
        source, target, dtype = op.dims(self)[-spatial:], op.dims(grad_output)[-spatial:], op.dtype(grad_output)
        if divisor_override is not None:
            divisor = op.const(divisor_override, dtype)
        elif not ceil_mode and (count_include_pad or not any(pads)):
            divisor = op.const(math.prod(kernel), dtype)
        else:
            counts = _window_counts(source, target, kernel, strides, pads, count_include_pad)
            divisor = op.const(np.asarray(math.prod(np.ix_(*counts))), dtype)
        return spread_over_windows(op, op.Div(grad_output, divisor), source, kernel, strides, pads)

    return entry


def _adaptive_average_backward(spatial: int) -> Callable[..., ir.Value]:
    """One window: its share for every element. Else one product with a matrix of the windows' weights an axis."""

    def entry(op: Emit, grad_output: ir.Value, self: ir.Value) -> ir.Value:
        rank, dims, counts, dtype = op.rank(self), op.dims(self), op.dims(grad_output), op.dtype(grad_output)
        axes = range(rank - spatial, rank)
        if all(counts[axis] == 1 for axis in axes):
            share = op.Div(grad_output, op.size(product([dims[axis] for axis in axes]), dtype))
            return op.expand(share, dims)
        value = grad_output
        for axis in (axis for axis in axes if dims[axis] != counts[axis]):
            matrix = averaging_matrix(op, dims[axis], counts[axis], dtype, rows_first=True)
            value = swap(op, op.MatMul(swap(op, value, axis, rank - 1), matrix), axis, rank - 1)
        return value

    return entry


def _max_backward(spatial: int) -> Callable[..., ir.Value]:
    """Each gradient goes to the place that its index names within its channel; overlapping windows add up."""

    def entry(op: Emit, grad_output: ir.Value, self: ir.Value, indices: ir.Value) -> ir.Value:
        sizes, lead = op.dims(self)[-spatial:], op.dims(self)[:-spatial]
        plane, taken = product(list(sizes)), product(list(op.dims(grad_output)[-spatial:]))
        places, values = op.reshape(indices, (*lead, taken)), op.reshape(grad_output, (*lead, taken))
        if op.opset >= 16:
            empty = filled(op, (*lead, plane), 0, op.dtype(self))
            found = scattered(op, empty, len(lead), places, values, "add")
        else:
            hits = op.Equal(unsqueeze(op, places, len(lead)), unsqueeze(op, steps(op, plane), 1))
            zero = op.const(0, op.dtype(self))
            found = op.ReduceSum(
                op.Where(hits, unsqueeze(op, values, len(lead)), zero), axes=[len(lead) + 1], keepdims=0
            )
        return op.reshape(found, op.dims(self))

    return entry


_FORM = "ScatterElements(add) from opset 16 on; before, each place compared with every index"
for _spatial in (2, 3):
    register_shared(
        _average_pool_backward(_spatial), "ConvTranspose by ones", *overloads_of(f"avg_pool{_spatial}d_backward")
    )
    register_shared(
        _adaptive_average_backward(_spatial),
        "Expand; MatMul with the windows' weights",
        *overloads_of(f"_adaptive_avg_pool{_spatial}d_backward"),
    )
    _maximal = f"max_pool{_spatial}d_with_indices_backward adaptive_max_pool{_spatial}d_backward "
    _maximal += f"fractional_max_pool{_spatial}d_backward"
    register_shared(_max_backward(_spatial), _FORM, *overloads_of(_maximal))
