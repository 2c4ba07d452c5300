"""Gradients of convolution and transposed convolution in 1-3 dimensions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import onnx_ir as ir
import torch

from fx2onnx.aten_map.convolution import convolved
from fx2onnx.aten_map.repeating import flipped
from fx2onnx.aten_map.table.axes import as_list, fixed, sliced, transpose, unsqueeze, whole
from fx2onnx.aten_map.table.registry import translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike, product

aten = torch.ops.aten
Ints = Sequence[int]
MOST_GATHERED_ROWS = 256
"""The most rows (channels times kernel places) of a matrix of all windows: its memory is this many times the
image's."""
GATHERED_BY_RESULT = 4
"""The matrix of all windows is made whole, too, where its rows are at most so many times as long as those of the result, which
would be copied twice."""


@translates(aten.convolution_backward.default)
def convolution_backward(
    op: Emit,
    grad_output: ir.Value,
    input: ir.Value,
    weight: ir.Value,
    bias_sizes: Sequence[DimLike] | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: DimLike,
    output_mask: Sequence[bool],
) -> tuple[ir.Value | None, ...]:
    """convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)

    Input:  ConvTranspose of the gradient, or, where windows move by single steps, Conv with the kernel turned round, which
            engines spread over threads; of a transposed convolution Conv. Bias: a sum over all but the channels.
    Weight: one product of the gradient with the image at each place of the kernel; of one channel a group, a sum.
    """
    spatial = op.rank(weight) - 2
    steps, pads, gaps = (as_list(numbers, spatial) for numbers in (stride, padding, dilation))
    wants_input, wants_weight, wants_bias = output_mask
    of_input = of_weight = of_bias = None
    if wants_input and transposed:
        of_input = _cut(op, convolved(op, grad_output, weight, None, steps, pads, gaps, groups), input, [0] * spatial)
    elif wants_input and _is_conv(op, weight, steps, pads, gaps):
        of_input = _turned(op, grad_output, weight, pads, gaps, groups)
    elif wants_input:
        of_input = scattered_windows(op, grad_output, weight, input, steps, pads, gaps, groups)
    if wants_weight and transposed:
        of_weight = _of_weight(op, grad_output, input, weight, steps, pads, gaps, groups)
    elif wants_weight:
        of_weight = _of_weight(op, input, grad_output, weight, steps, pads, gaps, groups)
    if wants_bias:
        of_bias = op.ReduceSum(grad_output, axes=[0, *range(2, spatial + 2)], keepdims=0)
    return of_input, of_weight, of_bias


def _is_conv(op: Emit, weight: ir.Value, stride: Ints, padding: Ints, dilation: Ints) -> bool:
    """Return whether ``_turned`` gives the gradient. Of a kernel of one place ConvTranspose is the product that it is, too."""
    kernel = [size for size in op.dims(weight)[2:] if isinstance(size, int)]
    if any(isinstance(size, Dim) for size in (*op.dims(weight), *padding)) or math.prod(kernel) == 1:
        return False
    reach = [gap * (size - 1) for gap, size in zip(dilation, kernel, strict=True)]
    return set(stride) == {1} and all(pad <= most for pad, most in zip(padding, reach, strict=True))


def _turned(op: Emit, value: ir.Value, weight: ir.Value, padding: Ints, dilation: Ints, groups: DimLike) -> ir.Value:
    """The gradient of the input of a convolution whose windows move by single steps: Conv with the kernel turned round."""
    rows, columns, *kernel = op.dims(weight)
    spatial = list(range(2, len(kernel) + 2))
    if groups == 1:
        swapped = transpose(op, weight, (1, 0, *spatial))
    else:
        apart = op.reshape(weight, (groups, whole(rows // groups), columns, *kernel))
        swapped = transpose(op, apart, (0, 2, 1, *(axis + 1 for axis in spatial)))
        swapped = op.reshape(swapped, (whole(groups * columns), whole(rows // groups), *kernel))
    turned = flipped(op, swapped, spatial)
    reach = [gap * (fixed(size, "the kernel") - 1) for gap, size in zip(dilation, kernel, strict=True)]
    pads = [most - pad for most, pad in zip(reach, padding, strict=True)]
    return convolved(op, value, turned, None, [1] * len(pads), pads, dilation, groups)


def scattered_windows(
    op: Emit,
    value: ir.Value,
    weight: ir.Value,
    image: ir.Value,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: DimLike,
) -> ir.Value:
    """The gradient of a convolution's input: ConvTranspose, of the spatial sizes of ``image``.

    Which of the last rows no window reached depends on the size: where it is symbolic, as many as there may be are made, and
    cut off.
    """
    spatial = len(stride)
    kernel, source, target = op.dims(weight)[2:], op.dims(value)[2:], op.dims(image)[2:]
    reached = [
        whole((source[axis] - 1) * stride[axis] - 2 * padding[axis] + dilation[axis] * (kernel[axis] - 1) + 1)
        for axis in range(spatial)
    ]
    missing = [whole(size - known) for size, known in zip(target, reached, strict=True)]
    extra = [
        number if isinstance(number, int) and 0 <= number < step else step - 1
        for number, step in zip(missing, stride, strict=True)
    ]
    made = convolved(op, value, weight, None, stride, padding, dilation, groups, extra)
    return _cut(op, made, image, [0] * spatial)


def _cut(op: Emit, value: ir.Value, like: ir.Value, starts: Ints) -> ir.Value:
    """``value`` from ``starts`` on with the spatial sizes of ``like``."""
    for axis, start in enumerate(starts, start=2):
        size = op.dims(like)[axis]
        value = sliced(op, value, axis, start, whole(start + size), size)
    return value


def _of_weight(
    op: Emit,
    image: ir.Value,
    windows: ir.Value,
    weight: ir.Value,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: DimLike,
) -> ir.Value:
    """[channels of windows, channels of image / groups, *kernel]: ``windows`` times what each of its places sees of ``image``."""
    spatial, dims = len(stride), op.dims(weight)
    kernel = [fixed(size, "the kernel of a convolution that is differentiated") for size in dims[2:]]
    if any(padding):
        ends = [0, 0, *padding]
        sizes = (
            *op.dims(image)[:2],
            *(whole(size + 2 * pad) for size, pad in zip(op.dims(image)[2:], padding, strict=True)),
        )
        image = op.Pad(image, pads=[*ends, *ends], outputs=[(op.dtype(image), sizes)])
    if op.dims(windows)[1] == op.dims(image)[1] == groups:
        return _of_single_channels(op, image, windows, kernel, stride, dilation, dims)
    swapped = transpose(op, image, (1, 0, *range(2, spatial + 2)))
    gradient = transpose(op, windows, (1, 0, *range(2, spatial + 2)))
    places = product(list(op.dims(gradient)[1:]))
    if groups != 1:
        left = op.reshape(gradient, (groups, whole(op.dims(gradient)[0] // groups), places))
        each = (groups, whole(op.dims(swapped)[0] // groups), places)
        parts = (op.reshape(part, each) for part in _each_place(op, swapped, windows, kernel, stride, dilation))
        products = [op.MatMul(left, transpose(op, part, (0, 2, 1))) for part in parts]
        return op.reshape(op.Concat(*(unsqueeze(op, part, 3) for part in products), axis=3), dims)
    rows = fixed(op.dims(windows)[1], "the number of channels")
    columns = fixed(op.dims(image)[1], "the number of channels")
    known = math.prod(size for size in op.dims(gradient)[1:] if isinstance(size, int))
    count = math.prod(kernel)
    is_gathered = count * columns <= MOST_GATHERED_ROWS or known <= GATHERED_BY_RESULT * rows
    left = op.reshape(gradient, (rows, places))
    if count > 1 and is_gathered:
        if kernel[-1] > 1:
            shifted = _shifted(op, swapped, windows, kernel, stride, dilation)
            seen = _each_row(op, shifted, windows, kernel, stride, dilation)
        else:
            seen = list(_each_place(op, swapped, windows, kernel, stride, dilation))
        together = op.Concat(*seen, axis=1) if len(seen) > 1 else seen[0]
        return op.reshape(op.Gemm(left, op.reshape(together, (columns * count, places)), transB=1), dims)
    seen = list(_each_place(op, swapped, windows, kernel, stride, dilation))
    products = [op.Gemm(left, op.reshape(part, (columns, places)), transB=1) for part in seen]
    return op.reshape(products[0], dims) if count == 1 else _placed(op, products, dims)


def _shifted(op: Emit, image: ir.Value, windows: ir.Value, kernel: Ints, stride: Ints, dilation: Ints) -> ir.Value:
    """The inputs of all places of a row of the kernel, joined along axis 1."""
    last, count, step = len(kernel) + 1, op.dims(windows)[-1], stride[-1]
    starts = [place * dilation[-1] for place in range(kernel[-1])]
    phases: dict[int, ir.Value] = {}
    if step > 1 and isinstance(op.dims(image)[last], int):
        phases = {phase: _phase(op, image, last, phase, step) for phase in {start % step for start in starts}}
    parts = [
        _taken(op, phases[start % step], last, start // step, count, 1)
        if phases
        else _taken(op, image, last, start, count, step)
        for start in starts
    ]
    return op.Concat(*parts, axis=1)


def _each_row(
    op: Emit, shifted: ir.Value, windows: ir.Value, kernel: Ints, stride: Ints, dilation: Ints
) -> list[ir.Value]:
    """For each row of the kernel, in order, its part of ``_shifted``."""
    counts, found = op.dims(windows)[2:-1], []
    for row in itertools.product(*map(range, kernel[:-1])):
        part = shifted
        for axis, (place, count) in enumerate(zip(row, counts, strict=True)):
            part = _taken(op, part, axis + 2, place * dilation[axis], count, stride[axis])
        found.append(part)
    return found


def _taken(op: Emit, value: ir.Value, axis: int, start: int, count: DimLike, step: int) -> ir.Value:
    """``count`` elements along ``axis`` from ``start`` on, ``step`` apart."""
    return sliced(op, value, axis, start, whole(start + (count - 1) * step + 1), count, step)


def _placed(op: Emit, products: Sequence[ir.Value], dims: Sequence[DimLike]) -> ir.Value:
    """The weight of sizes ``dims`` from its matrices, which are in the order of the places of the kernel."""
    joined = op.Concat(*products, axis=1) if len(products) > 1 else products[0]
    rows, columns, *kernel = dims
    return op.reshape(transpose(op, op.reshape(joined, (rows, product(kernel), columns)), (0, 2, 1)), dims)


def _of_single_channels(
    op: Emit,
    image: ir.Value,
    windows: ir.Value,
    kernel: Ints,
    stride: Ints,
    dilation: Ints,
    dims: Sequence[DimLike],
) -> ir.Value:
    axes = [0, *range(2, len(kernel) + 2)]
    sums = [
        unsqueeze(op, op.ReduceSum(op.Mul(part, windows), axes=axes, keepdims=0), 1)
        for part in _each_place(op, image, windows, kernel, stride, dilation)
    ]
    return op.reshape(op.Concat(*sums, axis=1) if len(sums) > 1 else sums[0], dims)


def _each_place(
    op: Emit, image: ir.Value, windows: ir.Value, kernel: Ints, stride: Ints, dilation: Ints
) -> Iterator[ir.Value]:
    """For each place of the kernel, in order, what the windows have there: [*, *, *spatial sizes of ``windows``]."""
    counts, axes = op.dims(windows)[2:], range(len(kernel))
    starts = [[index * dilation[axis] for index in range(kernel[axis])] for axis in axes]
    is_apart = all(isinstance(size, int) for size in op.dims(image)[2:]) and any(
        step > 1 and len({start % step for start in found}) < len(found)
        for step, found in zip(stride, starts, strict=True)
    )
    phases: dict[tuple[int, ...], ir.Value] = {}
    parts: dict[tuple[tuple[int, ...], tuple[int, ...]], ir.Value] = {}
    """The parts of the result, by phase and place on the last axes."""
    for place in itertools.product(*starts):
        phase = tuple(start % step for start, step in zip(place, stride, strict=True)) if is_apart else ()
        if is_apart and phase not in phases:
            phases[phase] = image
            for axis, (begin, step) in enumerate(zip(phase, stride, strict=True), start=2):
                phases[phase] = _phase(op, phases[phase], axis, begin, step)
        part = phases.get(phase, image)
        for axis in reversed(axes):
            key = (phase, place[axis:])
            if key not in parts:
                step = 1 if is_apart else stride[axis]
                start = place[axis] // stride[axis] if is_apart else place[axis]
                parts[key] = _taken(op, part, axis + 2, start, counts[axis], step)
            part = parts[key]
        yield part


def _phase(op: Emit, image: ir.Value, axis: int, start: int, step: int) -> ir.Value:
    """Every ``step``-th element from ``start`` on: windows lie in it without gaps, and are copied by rows."""
    size = op.dims(image)[axis]
    if step == 1:
        return image
    return sliced(op, image, axis, start, size, whole((size - start + step - 1) // step), step)
