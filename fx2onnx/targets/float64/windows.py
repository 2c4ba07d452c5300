"""Convolutions and pools in float64: windows of the image gathered, then a product or a reduction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dims_of
from fx2onnx.sizes.expr import DimLike
from fx2onnx.sizes.expr import apply as apply_to
from fx2onnx.targets.float64.node import (
    DOUBLE,
    INT64,
    attribute,
    channels_last,
    channels_second,
    given,
    image_axes,
    number,
    operand,
    reshaped,
    size_of,
    static_dims,
)

ONE = ir.tensor(np.array([1], np.int64))


@dataclass(frozen=True)
class Axis:
    """The elements of one axis that each window has: element (step o + offset[k] + before) / over for window o and
    place k, where that is a whole number and inside.
    """

    size: DimLike
    count: DimLike
    step: int
    offsets: np.ndarray[tuple[int], np.dtype[np.int64]]
    before: DimLike
    over: int = 1
    may_leave: bool = True
    """True if windows may reach outside the image."""
    behind: DimLike = 0
    """Padding behind the image, for pools that count it in their mean."""

    def positions(self, op: Emit) -> ir.Value:
        """step o + offset[k] + before, not yet divided.  [count, places]."""
        shift = self.offsets
        if isinstance(self.count, int) and isinstance(self.before, int):
            return op.const(np.arange(self.count)[:, None] * self.step + shift[None, :] + self.before)
        ones = op.node("ConstantOfShape", op.sizes([self.count]), value=ONE, outputs=((INT64, (self.count,)),))
        numbered = op.node("NonZero", ones, outputs=((INT64, (1, self.count)),))
        windows = op.node("Transpose", numbered, perm=[1, 0], outputs=((INT64, (self.count, 1)),))
        places = op.Add(op.const(shift), op.size(self.before))
        scaled = op.Mul(windows, op.const(self.step, INT64))
        return op.node("Add", scaled, places, outputs=((INT64, (self.count, len(shift))),))

    def indices(self, op: Emit) -> tuple[ir.Value, ir.Value | None]:
        """The elements, 0 for those outside; and which are inside, None where all are."""
        top = self.positions(op)
        if top.const_value is not None and isinstance(self.size, int):
            numbers = top.const_value.numpy()
            inside = (numbers >= 0) & (numbers < self.size * self.over) & (numbers % self.over == 0)
            found = op.const(np.where(inside, numbers // self.over, 0))
            return found, None if inside.all() else op.const(inside)
        if not self.may_leave:
            return top, None
        zero, over = op.const(0, INT64), op.const(self.over, INT64)
        valid = op.And(op.Greater(top, op.const(-1, INT64)), op.Less(top, op.Mul(op.size(self.size), over)))
        if self.over > 1:
            valid = op.And(valid, op.Equal(op.Mod(top, over), zero))
        return op.Where(valid, op.Div(top, over), zero), valid

    def counted(self, op: Emit, *, with_padding: bool) -> ir.Value:
        """The number of elements of each window that count for a mean. [count]."""
        top = self.positions(op)
        end = self.size + self.behind if with_padding else self.size
        if top.const_value is not None and isinstance(end, int):
            numbers = top.const_value.numpy()
            inside = (numbers < end) & (with_padding | (numbers >= 0))
            return op.const(inside.sum(1).astype(np.float64))
        valid = op.Less(top, op.size(end))
        if not with_padding:
            valid = op.And(valid, op.Greater(top, op.const(-1, INT64)))
        return op.ReduceSum(op.Cast(valid, to=DOUBLE), axes=[1], keepdims=0)


def windows(op: Emit, x: ir.Value, first: int, axes: Sequence[Axis]) -> ir.Value:
    """The axes from ``first`` on as pairs of axes: windows, and places in them. Zero outside the image."""
    for index in reversed(range(len(axes))):
        axis = first + index
        dims = dims_of(x)
        elements, inside = axes[index].indices(op)
        pair = (axes[index].count, len(axes[index].offsets))
        wanted = (*dims[:axis], *pair, *dims[axis + 1 :])
        typed = ((DOUBLE, wanted),)
        if axes[index].size == 0:  # padding alone
            x = op.expand(number(op, 0), wanted)
            continue
        x = op.node("Gather", x, elements, axis=axis, outputs=typed)
        if inside is not None:
            behind = len(dims) - axis - 1
            if behind:
                shape = (*pair, *(1 for _ in range(behind)))
                inside = op.node(
                    "Unsqueeze", inside, axes=[*range(2, 2 + behind)], outputs=((ir.DataType.BOOL, shape),)
                )
            x = op.node("Where", inside, x, number(op, 0), outputs=typed)
    return x


def _axes_of(op: Emit, node: ir.Node, x: ir.Value, kernel: Sequence[int]) -> list[Axis]:
    """The windows of a convolution or a pool."""
    rank = len(kernel)
    strides, dilations = attribute(node, "strides", [1] * rank), attribute(node, "dilations", [1] * rank)
    pads, auto = list(attribute(node, "pads", [0] * 2 * rank)), attribute(node, "auto_pad", "NOTSET")
    ceil = bool(attribute(node, "ceil_mode", 0))
    found = []
    for index in range(rank):
        size: Any
        count: Any
        size, step, reach = size_of(op, x, 2 + index), strides[index], dilations[index] * (kernel[index] - 1) + 1
        before: Any = pads[index] if auto == "NOTSET" else 0
        behind: Any = pads[index + rank] if auto == "NOTSET" else 0
        if auto.startswith("SAME"):
            count = (size + step - 1) // step
            total = apply_to("max", (count - 1) * step + reach - size, 0)
            behind = total // 2 if auto == "SAME_LOWER" else total - total // 2
            before = total - behind
        else:
            room = size + before + behind - reach
            count = (room + (step - 1 if ceil else 0)) // step + 1
            if ceil:  # a window must not start behind the image
                count = apply_to("min", count, (size + before - 1) // step + 1)
        offsets = np.arange(kernel[index]) * dilations[index]
        leaves = ceil or before != 0 or behind != 0
        found.append(Axis(size, count, step, offsets, -before, may_leave=leaves, behind=behind))
    return found


def gathered_product(op: Emit, x: ir.Value, weight: ir.Value, axes: Sequence[Axis], groups: int) -> ir.Value:
    """Each window times the weights.

    Shapes:  x [N, C, *in], weight [places, C / G, M] -> [N, M, *out].
    Numerics: no MatMul has a batch, which may be empty and is not broadcast to then.
    """
    rank = len(axes)
    places, each, outputs = (int(cast(int, dim)) for dim in dims_of(weight))
    columns = windows(op, channels_last(op, x), 1, axes)
    order = [0, *range(1, 1 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2), 1 + 2 * rank]
    columns = op.Transpose(columns, perm=order) if rank > 1 else columns
    if groups == 1:
        columns = reshaped(op, columns, 1 + rank, [places * each])
        return channels_second(op, op.MatMul(columns, reshaped(op, weight, 0, [places * each, outputs])))
    if each == 1:
        columns = reshaped(op, columns, 1 + rank, [places, groups, 1])
        parts = op.Mul(columns, reshaped(op, weight, 0, [places, groups, outputs // groups]))
        summed = op.ReduceSum(parts, axes=[1 + rank], keepdims=0)
        return channels_second(op, reshaped(op, summed, 1 + rank, [outputs]))
    columns = reshaped(op, columns, 1 + rank, [places, groups * each])
    results = []
    for group in range(groups):
        part = op.Slice(columns, starts=[group * each], ends=[(group + 1) * each], axes=[2 + rank])
        own = [group * outputs // groups, (group + 1) * outputs // groups]
        factor = op.Slice(weight, starts=own[:1], ends=own[1:], axes=[2])
        factor = reshaped(op, factor, 0, [places * each, outputs // groups])
        results.append(op.MatMul(reshaped(op, part, 1 + rank, [places * each]), factor))
    return channels_second(op, op.Concat(*results, axis=-1))


def _with_bias(op: Emit, y: ir.Value, node: ir.Node, outputs: int, rank: int) -> ir.Value:
    bias = operand(node, 2)
    return y if bias is None else op.Add(y, reshaped(op, bias, 0, [outputs] + [1] * rank))


def conv(op: Emit, node: ir.Node) -> ir.Value | None:
    """Conv with a kernel of known size."""
    x, weight = given(node, 2)
    sizes = static_dims(weight)
    if sizes is None or x.shape is None:
        return None
    outputs, each, *kernel = sizes
    rank = len(kernel)
    matrix = op.Transpose(weight, perm=[*range(2, 2 + rank), 1, 0])
    matrix = reshaped(op, matrix, 0, [math.prod(kernel), each, outputs])
    y = gathered_product(op, x, matrix, _axes_of(op, node, x, kernel), attribute(node, "group", 1))
    return _with_bias(op, y, node, outputs, rank)


def conv_transpose(op: Emit, node: ir.Node) -> ir.Value | None:
    """ConvTranspose with a kernel of known size: each output gathers the elements that reach it."""
    x, weight = given(node, 2)
    sizes = static_dims(weight)
    if sizes is None or x.shape is None:
        return None
    channels, own, *kernel = sizes
    rank, groups = len(kernel), attribute(node, "group", 1)
    outputs, each = own * groups, channels // groups
    strides, dilations = attribute(node, "strides", [1] * rank), attribute(node, "dilations", [1] * rank)
    pads, auto = list(attribute(node, "pads", [0] * 2 * rank)), attribute(node, "auto_pad", "NOTSET")
    extra, wanted = attribute(node, "output_padding", [0] * rank), list(attribute(node, "output_shape", [0] * 0))
    axes = []
    for index in range(rank):
        size: Any
        count: Any
        size, step, step_in = size_of(op, x, 2 + index), strides[index], dilations[index]
        whole = step * (size - 1) + extra[index] + step_in * (kernel[index] - 1) + 1
        before: Any = pads[index] if auto == "NOTSET" else 0
        if wanted or auto.startswith("SAME"):
            count = wanted[index - rank] if wanted else size * step
            total = apply_to("max", whole - count, 0)
            before = total // 2 if auto == "SAME_UPPER" else total - total // 2
        else:
            count = whole - before - (pads[index + rank] if auto == "NOTSET" else 0)
        axes.append(Axis(size, count, 1, -np.arange(kernel[index]) * step_in, before, step))
    matrix = reshaped(op, weight, 0, [groups, each, own, *kernel])
    matrix = op.Transpose(matrix, perm=[*range(3, 3 + rank), 1, 0, 2])
    y = gathered_product(op, x, reshaped(op, matrix, 0, [math.prod(kernel), each, outputs]), axes, groups)
    return _with_bias(op, y, node, outputs, rank)


def _summed(op: Emit, x: ir.Value, axes: Sequence[Axis]) -> ir.Value:
    places = [*range(3, 3 + 2 * len(axes), 2)]
    return op.ReduceSum(windows(op, x, 2, axes), axes=places, keepdims=0)


def average_pool(op: Emit, node: ir.Node) -> ir.Value | None:
    """The sum of each window over how many elements count."""
    (x,) = given(node, 1)
    kernel = attribute(node, "kernel_shape", [0] * 0)
    axes = _axes_of(op, node, x, kernel)
    y, with_padding = _summed(op, x, axes), bool(attribute(node, "count_include_pad", 0))
    if not any(axis.may_leave for axis in axes):
        return op.Div(y, number(op, math.prod(kernel)))
    for index, axis in enumerate(axes):
        counts, behind = axis.counted(op, with_padding=with_padding), len(axes) - 1 - index
        if behind:
            counts = op.Unsqueeze(counts, axes=[*range(1, 1 + behind)])
        y = op.node("Div", y, counts, outputs=((DOUBLE, dims_of(y)),))
    return y


def _norm(op: Emit, x: ir.Value, p: int, summed: ir.Value | None = None) -> ir.Value:
    """|x|^p, or the root of what is summed."""
    if p == 2:
        return op.Mul(x, x) if summed is None else op.Sqrt(summed)
    if p == 1:
        return op.Abs(x) if summed is None else summed
    return op.Pow(op.Abs(x), number(op, p)) if summed is None else op.Pow(summed, number(op, 1 / p))


def lp_pool(op: Emit, node: ir.Node) -> ir.Value | None:
    (x,) = given(node, 1)
    p = attribute(node, "p", 2)
    axes = _axes_of(op, node, x, attribute(node, "kernel_shape", [0] * 0))
    return _norm(op, x, p, _summed(op, _norm(op, x, p), axes))


def global_lp_pool(op: Emit, node: ir.Node) -> ir.Value | None:
    (x,) = given(node, 1)
    p = attribute(node, "p", 2)
    return _norm(op, x, p, op.ReduceSum(_norm(op, x, p), axes=image_axes(x), keepdims=1))


def lrn(op: Emit, node: ir.Node) -> ir.Value | None:
    """x over a power of the sum of squares of the channels around."""
    (x,) = given(node, 1)
    size = attribute(node, "size", 1)
    dim = size_of(op, x, 1)
    axis = Axis(dim, dim, 1, np.arange(size), -((size - 1) // 2))
    squares = op.ReduceSum(windows(op, op.Mul(x, x), 1, [axis]), axes=[2], keepdims=0)
    scaled = op.Mul(squares, number(op, attribute(node, "alpha", 1e-4) / size))
    base = op.Add(scaled, number(op, attribute(node, "bias", 1.0)))
    return op.Div(x, op.Pow(base, number(op, attribute(node, "beta", 0.75))))
