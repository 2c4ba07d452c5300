"""Gradients of interpolation and of replication padding, products with the transposed matrix, and of pooling; and of sampled functions by differences (``torch.gradient``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from fx2onnx.aten_map.interpolation import MODES, nearest_places
from fx2onnx.aten_map.interpolation_taps import resampling_matrix
from fx2onnx.aten_map.irregular_pooling import averaging_matrix
from fx2onnx.aten_map.layout import joined
from fx2onnx.aten_map.scans import difference
from fx2onnx.aten_map.scattering import scattered
from fx2onnx.aten_map.table.axes import as_list, axes_of, filled, fixed, sliced, steps, swap, unsqueeze, whole
from fx2onnx.aten_map.table.dtypes import as_dtype
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims
from fx2onnx.sizes.expr import Dim, DimLike, product

Matrix = npt.NDArray[np.float64]
Scale = float | None


def along(op: Emit, value: ir.Value, axis: int, matrix: Matrix) -> ir.Value:
    """``value`` times ``matrix`` [its size, the new one] along ``axis``."""
    last, weights = op.rank(value) - 1, op.const(matrix, op.dtype(value))
    return swap(op, op.MatMul(swap(op, value, axis, last), weights), axis, last)


def _one_hot(places: Sequence[int], size: int) -> Matrix:
    matrix = np.zeros((len(places), size))
    matrix[np.arange(len(places)), list(places)] = 1
    return matrix


def _matrix(size: int, count: int, mode: str, scale: Scale, align_corners: bool, antialias: bool) -> Matrix:
    """[count, size]: what of each input goes into each output. Nearest neighbours ignore factors as those of images do."""
    if mode.startswith("nearest"):
        return _one_hot(nearest_places(size, count, scale, mode == "nearest-exact"), size)
    delta = 0.5 if align_corners and not antialias else 0.0
    return resampling_matrix(
        size, count, mode, None if align_corners else scale, align_corners, antialias, delta, not antialias
    )


def _repeats(size: DimLike, count: DimLike, scale: Scale) -> int | None:
    """The number of times that nearest neighbours repeat each element; None where it differs between elements."""
    factor = count // size
    if isinstance(factor, int) and factor * size == count and (scale is None or scale == factor):
        return factor
    return None


def _upsample_backward(mode: str, antialias: bool) -> Callable[..., ir.Value]:
    def entry(
        op: Emit,
        grad_output: ir.Value,
        input_size: Sequence[DimLike],
        scales: Scale = None,
        scales_d: Scale = None,
        scales_h: Scale = None,
        scales_w: Scale = None,
        align_corners: bool = False,
    ) -> ir.Value:
        spatial = op.rank(grad_output) - 2
        factors = [scales] if spatial == 1 else [scales_d, scales_h, scales_w][-spatial:]
        value = grad_output
        if mode == "cubic" and not antialias and list(input_size[2:]) == list(op.dims(value)[2:]):
            return value  # as PyTorch's kernel, whatever the scales
        for axis, scale in enumerate(factors, start=2):
            size, count = input_size[axis], op.dims(value)[axis]
            if size == count and (scale is None or scale == 1 or (mode == "linear" and not antialias)):
                continue
            repeats = _repeats(size, count, scale) if mode.startswith("nearest") else None
            if repeats is not None:
                dims = op.dims(value)
                apart = op.reshape(value, (*dims[:axis], size, repeats, *dims[axis + 1 :]))
                value = op.ReduceSum(apart, axes=[axis + 1], keepdims=0)
                continue
            what = "a size that is interpolated and differentiated"
            matrix = _matrix(fixed(size, what), fixed(count, what), mode, scale, align_corners, antialias)
            value = along(op, value, axis, matrix)
        return value

    return entry


def _replication_pad_backward(op: Emit, grad_output: ir.Value, self: ir.Value, padding: Sequence[int]) -> ir.Value:
    value, what = grad_output, "a size that is padded by its borders and differentiated"
    for place, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        if not before and not after:
            continue
        axis = op.rank(self) - 1 - place
        size = fixed(op.dims(self)[axis], what)
        places = np.clip(np.arange(-before, size + after), 0, size - 1)
        value = along(op, value, axis, _one_hot(places.tolist(), size))
    return value


_FORM = "MatMul with the transposed weights of each axis; ReduceSum of equal repeats"
for _name, (_mode, _ranks) in MODES.items():
    for _spatial in _ranks:
        _packet = _name.format(_spatial)
        _backward = _packet.removesuffix("_aa") + ("_aa_backward" if _packet.endswith("_aa") else "_backward")
        register_shared(_upsample_backward(_mode, _packet.endswith("_aa")), _FORM, *overloads_of(_backward))
_PADS = " ".join(f"replication_pad{_spatial}d_backward" for _spatial in (1, 2, 3))
register_shared(_replication_pad_backward, "MatMul with the transposed weights of each axis", *overloads_of(_PADS))


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


_MAX_FORM = "ScatterElements(add) from opset 16 on; before, each place compared with every index"
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
    register_shared(_max_backward(_spatial), _MAX_FORM, *overloads_of(_maximal))


def _gradient_along(op: Emit, value: ir.Value, axis: int, spacing: Any, edge_order: int) -> ir.Value:
    """Differences of second order inside, of ``edge_order`` at the ends; ``spacing`` a step or a tensor of places.

    Source:  gradient_helper and gradient_helper_float in ATen/native/ReduceOps.cpp.
    """
    dtype, count = op.dtype(value), op.dims(value)[axis]
    trailing = list(range(1, op.rank(value) - axis))

    def part(first: int, size: DimLike) -> ir.Value:
        start = whole(count + first) if first < 0 else first
        return sliced(op, value, axis, start, whole(start + size), size)

    has_inside = isinstance(count, Dim) or count > 2
    inside = whole(count - 2)
    if not isinstance(spacing, ir.Value):
        first, last = op.Sub(part(1, 1), part(0, 1)), op.Sub(part(-1, 1), part(-2, 1))
        if edge_order == 2:
            first = _weighted(op, [-1.5, 2.0, -0.5], [part(0, 1), part(1, 1), part(2, 1)])
            last = _weighted(op, [0.5, -2.0, 1.5], [part(-3, 1), part(-2, 1), part(-1, 1)])
        middle = [op.Mul(op.Sub(part(2, inside), part(0, inside)), op.const(0.5, dtype))] if has_inside else []
        return op.Div(joined(op, [first, *middle, last], axis), op.const(float(spacing), dtype))
    if op.dims(spacing) != (count,):
        raise UserError(
            "E203",
            f"a gradient over {count} elements with places of the shape {list(op.dims(spacing))}",
            why="PyTorch broadcasts them against each other",
            next="give one place for each element of the axis",
        )
    steps = difference(op, op.cast(spacing, dtype), 0)

    def step(index: int, size: DimLike = 1) -> ir.Value:
        start = whole(count - 1 + index) if index < 0 else index
        found = sliced(op, steps, 0, start, whole(start + size), size)
        return op.Unsqueeze(found, axes=trailing) if trailing else found

    first, last = op.Div(op.Sub(part(1, 1), part(0, 1)), step(0)), op.Div(op.Sub(part(-1, 1), part(-2, 1)), step(-1))
    if edge_order == 2:
        first = _at_first(op, step(0), step(1), [part(0, 1), part(1, 1), part(2, 1)])
        last = op.Neg(_at_first(op, step(-1), step(-2), [part(-1, 1), part(-2, 1), part(-3, 1)]))
    middle = []
    if has_inside:
        near, far = step(0, inside), step(1, inside)
        both = op.Add(near, far)
        weights = [
            op.Neg(op.Div(far, op.Mul(near, both))),
            op.Div(op.Sub(far, near), op.Mul(near, far)),
            op.Div(near, op.Mul(far, both)),
        ]
        middle = [_weighted(op, weights, [part(0, inside), part(1, inside), part(2, inside)])]
    return joined(op, [first, *middle, last], axis)


def _weighted(op: Emit, weights: Sequence[ir.Value | float], values: Sequence[ir.Value]) -> ir.Value:
    dtype = op.dtype(values[0])
    terms = [op.Mul(as_dtype(op, weight, dtype), value) for weight, value in zip(weights, values, strict=True)]
    return op.Add(op.Add(terms[0], terms[1]), terms[2])


def _at_first(op: Emit, near: ir.Value, far: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
    """The derivative at the first of three points, steps ``near`` then ``far``."""
    both = op.Add(near, far)
    weights = [
        op.Neg(op.Div(op.Add(op.Add(near, near), far), op.Mul(near, both))),
        op.Div(both, op.Mul(near, far)),
        op.Neg(op.Div(near, op.Mul(far, both))),
    ]
    return _weighted(op, weights, values)


def _gradient(
    op: Emit, self: ir.Value, dim: Any = None, spacing: Any = None, edge_order: int = 1
) -> tuple[ir.Value, ...]:
    axes = list(range(op.rank(self))) if dim is None else axes_of(dim, op.rank(self))
    steps = list(spacing) if isinstance(spacing, list | tuple) else [1 if spacing is None else spacing] * len(axes)
    value = op.cast(self, op.result_dtype())
    return tuple(
        op.cast(_gradient_along(op, value, axis, step, edge_order), op.result_dtype())
        for axis, step in zip(axes, steps, strict=True)
    )


_GRADIENTS = ("scalarint", "scalararray", "array", "scalarrayint", "scalarrayarray", "tensorarrayint", "tensorarray")
register_shared(
    _gradient, "Slice, Sub, Div, Concat", *overloads_of(" ".join(f"gradient.{name}" for name in _GRADIENTS))
)
