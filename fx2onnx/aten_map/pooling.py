"""Max and average pooling with windows of fixed size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import as_list, fixed, squeeze, unsqueeze, whole
from fx2onnx.aten_map.table.dtypes import FLOATS, takes
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims
from fx2onnx.sizes.expr import Dim, DimLike, product

aten = torch.ops.aten
INT64, FLOAT, DOUBLE = ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE
Ints = Sequence[int]
POOLED_AS: dict[ir.DataType, ir.DataType] = {
    ir.DataType.INT16: FLOAT,
    ir.DataType.UINT16: FLOAT,
    ir.DataType.INT32: DOUBLE,
}
"""MaxPool has no such dtypes: pooled as the float that holds them. None holds int64."""


def _in_windows(
    op: Emit, value: ir.Value, axis: int, count: DimLike, by: tuple[int, int, int], ends: tuple[int, int], filler: int
) -> list[ir.Value]:
    """The first, second, ... elements of the ``count`` windows along an axis; ``by``: kernel, stride and dilation; ``ends``: the padding."""
    kernel, stride, dilation = by
    dims, dtype = list(op.dims(value)), op.dtype(value)
    if any(ends):
        dims[axis] = whole(dims[axis] + sum(ends))
        pads = [0] * (2 * len(dims))
        pads[axis], pads[axis + len(dims)] = ends
        value = op.Pad(value, op.const(pads, INT64), op.const(filler, dtype), outputs=[(dtype, tuple(dims))])
    dims[axis] = count
    last = (count - 1) * stride + 1
    return [
        op.Slice(
            value,
            op.const([first], INT64),
            op.sizes([last + first]),
            op.const([axis], INT64),
            op.const([stride], INT64),
            outputs=[(dtype, tuple(dims))],
        )
        for first in range(0, kernel * dilation, dilation)
    ]


def _max_of_integers(
    op: Emit, value: ir.Value, dims: Dims, windows: Sequence[tuple[int, int, int]], ends: Sequence[tuple[int, int]]
) -> tuple[ir.Value, ir.Value]:
    """The largest int64 of each window, and the place of the first of them within its channel, one axis after the other."""
    source = op.dims(value)
    plane = product(list(source[2:]))
    places = op.Range(op.const(0, INT64), op.size(plane), op.const(1, INT64), outputs=[(INT64, (plane,))])
    places = op.expand(op.reshape(places, (1, 1, *source[2:])), source)
    for axis in reversed(range(2, len(dims))):
        args = (axis, dims[axis], windows[axis - 2], ends[axis - 2])
        value, *others = _in_windows(op, value, *args, np.iinfo(np.int64).min)
        places, *other_places = _in_windows(op, places, *args, -1)
        for other, place in zip(others, other_places, strict=True):
            is_more = op.Greater(other, value)
            if any(ends[axis - 2]):  # the smallest int64 is more than the padding of that value
                is_more = op.Or(is_more, op.Less(places, op.const(0, INT64)))
            value, places = op.Where(is_more, other, value), op.Where(is_more, place, places)
    return value, places


def _sum_of_integers(
    op: Emit, value: ir.Value, dims: Dims, windows: Sequence[tuple[int, int, int]], ends: Sequence[tuple[int, int]]
) -> ir.Value:
    """The sum of the int64 in each window, one axis after the other."""
    for axis in range(2, len(dims)):
        value, *others = _in_windows(op, value, axis, dims[axis], windows[axis - 2], ends[axis - 2], 0)
        for other in others:
            value = op.Add(value, other)
    return value


def _ends(kernel: Ints, padding: Ints, dilation: Ints, ceil_mode: bool) -> list[tuple[int, int]]:
    """The padding before and behind each axis; with ceil_mode, as much as the last window can reach."""
    reach = [(size - 1) * step for size, step in zip(kernel, dilation, strict=True)]
    return list(zip(padding, reach if ceil_mode else padding, strict=True))


def max_pooled(
    op: Emit, value: ir.Value, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool, indices: bool
) -> tuple[ir.Value, ir.Value | None]:
    """``MaxPool``; PyTorch's indices count within one channel, ONNX's over the whole tensor.

    After a Pad by zeros the indices are always asked for: onnxruntime 1.31 would else take the zeros for MaxPool's own
    padding, which is by minus infinity.
    """
    dtype = op.dtype(value)
    pooled_as = POOLED_AS.get(dtype)
    if pooled_as is None and dtype != INT64 and not takes("MaxPool", op.opset, dtype):
        pooled_as = FLOAT
    if pooled_as is not None:
        found, places = max_pooled(op, op.cast(value, pooled_as), kernel, stride, padding, dilation, ceil_mode, indices)
        return op.cast(found, dtype), places
    spatial = len(kernel)
    batched = op.rank(value) == spatial + 2
    if not batched:
        value = unsqueeze(op, value, 0)
    dims = (*op.dims(value)[:2], *op.result_dims()[-spatial:])
    if dtype == INT64:
        windows = list(zip(kernel, stride, dilation, strict=True))
        largest, at = _max_of_integers(op, value, dims, windows, _ends(kernel, padding, dilation, ceil_mode))
        return (largest, at) if batched else (squeeze(op, largest, 0), squeeze(op, at, 0))
    attrs: dict[str, Any] = {"kernel_shape": list(kernel), "strides": list(stride), "pads": list(padding) * 2}
    if any(step != 1 for step in dilation):
        attrs["dilations"] = list(dilation)
    if ceil_mode:
        attrs["ceil_mode"] = 1
    with_places = indices or _is_padded_by_number(op, value)
    outputs = [(dtype, dims)] + [(INT64, dims)] * with_places
    result = op.MaxPool(value, outputs=outputs, **attrs)
    if not indices:
        result = result[0] if with_places else result
        return (result if batched else squeeze(op, result, 0)), None
    plane = product(list(op.dims(value)[2:]))
    found, places = result[0], op.Mod(result[1], op.size(plane))
    return (found, places) if batched else (squeeze(op, found, 0), squeeze(op, places, 0))


def _is_padded_by_number(op: Emit, value: ir.Value) -> bool:
    """Return whether a Pad makes ``value``, by something else than minus infinity."""
    producer = op.producer(value)
    if producer is None or producer.op_type != "Pad":
        return False
    filler = producer.inputs[2] if len(producer.inputs) > 2 else None
    number = None if filler is None else op.constant(filler)
    return number is None or not bool(np.isneginf(number.astype(np.float64)).all())


def _windows_inside(
    op: Emit, value: ir.Value, kernel: Ints, stride: Ints, padding: Ints, ceil_mode: bool
) -> tuple[list[int], list[int]]:
    """Kernel and stride, cut to the input where ceil_mode lets one window reach beyond it: engines would pad up to it."""
    sizes, strides = list(kernel), list(stride)
    for axis, size in enumerate(op.dims(value)[-len(sizes) :]):
        if ceil_mode and isinstance(size, int) and 0 < size < sizes[axis] and padding[axis] == 0:
            sizes[axis] = strides[axis] = size
    return sizes, strides


def _max_pool(spatial: int, indices: bool) -> Callable[..., Any]:
    def entry(
        op: Emit, self: ir.Value, kernel_size: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool
    ) -> Any:
        sizes = as_list(kernel_size, spatial)
        strides = as_list(stride, spatial) or sizes
        pads, dilations = as_list(padding, spatial), as_list(dilation, spatial)
        if all(step == 1 for step in dilations):
            sizes, strides = _windows_inside(op, self, sizes, strides, pads, ceil_mode)
        found = max_pooled(op, self, sizes, strides, pads, dilations, ceil_mode, indices)
        return found if indices else found[0]

    return entry


def average_pooled(
    op: Emit,
    value: ir.Value,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> ir.Value:
    """``AveragePool``, after an explicit Pad where the divisor is not what the operator counts.

    PyTorch counts declared padding (``count_include_pad``) but never what ceil_mode adds beyond it.
    """
    spatial, dtype = len(kernel), op.dtype(value)
    batched = op.rank(value) == spatial + 2
    if not batched:
        value = unsqueeze(op, value, 0)
    dims: Dims = (*op.dims(value)[:2], *op.result_dims()[-spatial:])
    if dtype not in FLOATS:  # int64 alone, in eager PyTorch
        windows = [(size, step, 1) for size, step in zip(kernel, stride, strict=True)]
        pads = _ends(kernel, padding, [1] * spatial, ceil_mode)
        total = _sum_of_integers(op, value, dims, windows, pads)
        number = op.const(divisor, dtype) if divisor else _places_of(op, value, dims, windows, pads, count_include_pad)
        quotient = op.Div(total, number)
        return quotient if batched else squeeze(op, quotient, 0)
    if ceil_mode and any(isinstance(size, Dim) for size in op.dims(value)[2:]):
        ceiled = _average_beyond_the_end(op, value, dims, kernel, stride, padding, count_include_pad, divisor)
        return ceiled if batched else squeeze(op, ceiled, 0)
    over = overhang(op.dims(value)[2:], dims[2:], kernel, stride, padding, ceil_mode)
    attrs: dict[str, Any] = {"kernel_shape": list(kernel), "strides": list(stride)}
    padded = any(padding)
    if divisor is not None:
        if padded or any(over):
            ends = [pad + beyond for pad, beyond in zip(padding, over, strict=True)]
            value = op.Pad(value, pads=[0, 0, *padding, 0, 0, *ends])
        total = op.AveragePool(value, outputs=[(dtype, dims)], **attrs)
        factor = math.prod(kernel) / divisor
        result = total if factor == 1 else op.Mul(total, op.const(factor, dtype))
    else:
        if any(over) and count_include_pad and padded:
            ends = _ends_read(op.dims(value), dims, kernel, stride, padding)
            value = op.Pad(value, pads=[0, 0, *padding, 0, 0, *ends])
            padded = False
        begins = list(padding) if padded else [0] * spatial
        ends = [begin + beyond for begin, beyond in zip(begins, over, strict=True)]
        if any(over) and all(end < size for end, size in zip(ends, kernel, strict=True)):
            attrs["pads"] = begins + ends
        elif any(over):
            attrs |= {"pads": begins * 2, "ceil_mode": 1}
        else:
            attrs["pads"] = begins * 2
            if padded and count_include_pad:
                attrs["count_include_pad"] = 1
        result = op.AveragePool(value, outputs=[(dtype, dims)], **attrs)
    return result if batched else squeeze(op, result, 0)


def _places_of(
    op: Emit,
    value: ir.Value,
    dims: Dims,
    windows: Sequence[tuple[int, int, int]],
    ends: Sequence[tuple[int, int]],
    count_include_pad: bool,
) -> ir.Value:
    """The number of places that count in each window."""
    source = op.dims(value)[2:]
    if count_include_pad:
        source = tuple(whole(size + 2 * before) for size, (before, _) in zip(source, ends, strict=True))
        ends = [(0, behind - before) for before, behind in ends]
    ones = op.expand(op.const(1, op.dtype(value)), (1, 1, *source))
    return _sum_of_integers(op, ones, (1, 1, *dims[2:]), windows, ends)


def _ends_read(source: Dims, dims: Dims, kernel: Ints, stride: Ints, padding: Ints) -> list[int]:
    """The part of the declared padding at the end of each axis that the windows read."""
    what = "a size pooled with ceil_mode"
    ends = []
    for axis, pad in enumerate(padding):
        last = (fixed(dims[axis + 2], what) - 1) * stride[axis] + kernel[axis]
        ends.append(min(pad, max(0, last - fixed(source[axis + 2], what) - pad)))
    return ends


def _average_beyond_the_end(
    op: Emit,
    value: ir.Value,
    dims: Dims,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    count_include_pad: bool,
    divisor: int | None,
) -> ir.Value:
    """ceil_mode over symbolic sizes: zeros at the end, as many as any last window can need and none beyond.

    The sum of a window is divided by how many of its places count, counted by the same windows over a tensor of ones.
    """
    dtype, source, axes = op.dtype(value), op.dims(value)[2:], range(len(kernel))
    beyond = [min(stride[axis] - 1, kernel[axis] - 1 - padding[axis]) for axis in axes]
    padded = [whole(source[axis] + 2 * padding[axis]) for axis in axes]
    extended = [whole(padded[axis] + beyond[axis]) for axis in axes]
    ends = [pad + more for pad, more in zip(padding, beyond, strict=True)]

    def pooled(image: ir.Value, before: Ints, after: Ints) -> ir.Value:
        lead = op.dims(image)[:2]
        wide = op.Pad(image, pads=[0, 0, *before, 0, 0, *after], outputs=[(dtype, (*lead, *extended))])
        return op.AveragePool(
            wide, kernel_shape=list(kernel), strides=list(stride), outputs=[(dtype, (*lead, *dims[2:]))]
        )

    total = pooled(value, padding, ends)
    if divisor is not None:
        return op.Mul(total, op.const(math.prod(kernel) / divisor, dtype))
    ones = op.expand(op.const(1, dtype), (1, 1, *(padded if count_include_pad else source)))
    margins = ([0] * len(kernel), beyond) if count_include_pad else (padding, ends)
    return op.Div(total, pooled(ones, *margins))


def overhang(
    source: Sequence[DimLike], target: Sequence[DimLike], kernel: Ints, stride: Ints, padding: Ints, ceil_mode: bool
) -> list[int]:
    """The number of elements by which the last window of ceil_mode reaches beyond the padded input, for each axis.

    Raises UserError E203 for a symbolic size: whether there is an overhang depends on the number.
    """
    if not ceil_mode:
        return [0] * len(kernel)
    what = "a size pooled with ceil_mode"
    return [
        max(
            0,
            (fixed(target[axis], what) - 1) * stride[axis]
            + kernel[axis]
            - fixed(source[axis], what)
            - 2 * padding[axis],
        )
        for axis in range(len(kernel))
    ]


def _average_pool(spatial: int) -> Callable[..., ir.Value]:
    def entry(
        op: Emit,
        self: ir.Value,
        kernel_size: Ints,
        stride: Ints,
        padding: Ints,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None = None,
    ) -> ir.Value:
        sizes = as_list(kernel_size, spatial)
        strides = as_list(stride, spatial) or sizes
        pads = as_list(padding, spatial)
        sizes, strides = _windows_inside(op, self, sizes, strides, pads, ceil_mode)
        return average_pooled(op, self, sizes, strides, pads, ceil_mode, count_include_pad, divisor_override)

    return entry


for _spatial in (1, 2, 3):
    _name = f"max_pool{_spatial}d"
    register_shared(_max_pool(_spatial, False), "MaxPool", *overloads_of(_name))
    register_shared(_max_pool(_spatial, True), "MaxPool with indices", *overloads_of(f"{_name}_with_indices"))
    register_shared(_average_pool(_spatial), "AveragePool", *overloads_of(f"avg_pool{_spatial}d"))
