"""Convolution and transposed convolution in 1-3 dimensions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import END, as_list, fixed, squeeze, transpose, unsqueeze, whole
from fx2onnx.aten_map.table.axes import steps as numbers
from fx2onnx.aten_map.table.dtypes import FLOATS
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims
from fx2onnx.sizes.expr import Dim, DimLike

aten = torch.ops.aten
D = ir.DataType
Ints = Sequence[int]


def same_pads(kernel: Sequence[DimLike], dilation: Ints) -> list[DimLike]:
    """Pads of ``padding="same"``: the odd one goes to the end."""
    totals = [dilation[axis] * (size - 1) for axis, size in enumerate(kernel)]
    return [whole(total // 2) for total in totals] + [whole(total - total // 2) for total in totals]


def convolved(
    op: Emit,
    value: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    stride: Ints,
    padding: Ints | str,
    dilation: Ints = (1,),
    groups: DimLike = 1,
    output_padding: Ints | None = None,
) -> ir.Value:
    """``Conv``, or ``ConvTranspose`` where ``output_padding`` is given; an input without batch axis gets one."""
    spatial = op.rank(weight) - 2
    dtype = op.dtype(value)
    if dtype not in FLOATS:
        return _of_integers(op, value, weight, bias, (stride, padding, dilation, groups, output_padding))
    bias = None if bias is None else op.cast(bias, dtype)  # some of PyTorch's kernels take one of another dtype
    batched = op.rank(value) == spatial + 2
    if not batched:
        value = unsqueeze(op, value, 0)
    dilations = [fixed(number, "the dilation") for number in as_list(dilation, spatial)]
    kernel = op.dims(weight)[2:]
    dilations = [1 if size == 1 and by == 0 else by for size, by in zip(kernel, dilations, strict=True)]
    if isinstance(groups, Dim):
        weight, groups = _of_one_group(op, weight, groups), 1
    attrs: dict[str, Any] = {"strides": as_list(stride, spatial), "dilations": dilations, "group": groups}
    kernel = op.dims(weight)[2:]
    if not any(isinstance(size, Dim) for size in kernel):
        attrs["kernel_shape"] = list(kernel)
    if padding == "valid":
        attrs["pads"] = [0] * (2 * spatial)
    elif padding == "same":
        attrs["pads"] = same_pads(kernel, dilations)
    else:
        attrs["pads"] = as_list(padding, spatial) * 2  # type: ignore[arg-type]
        if any(isinstance(pad, int) and pad < 0 for pad in attrs["pads"]):
            raise UserError("E203", "ONNX has no convolution with negative padding", next="crop the input")
    if output_padding is None:
        if op.dims(value)[1] == 0:
            result = _of_no_channels(op, value, weight, bias, attrs)
        else:
            value = _padded(op, value, attrs, spatial)
            steps = _taken_later(attrs)
            result = _every(op, op.Conv(value, weight, bias, **attrs), steps, spatial)
    else:
        result = _taken_back(op, value, weight, bias, attrs, as_list(output_padding, spatial))
    return result if batched else squeeze(op, result, 0)


def _taken_back(
    op: Emit, value: ir.Value, weight: ir.Value, bias: ir.Value | None, attrs: dict[str, Any], extra: Sequence[DimLike]
) -> ir.Value:
    """A transposed convolution; of output padding that a size tells, the largest that PyTorch takes, of which the rest is cut."""
    spatial = len(extra)
    for name in ("strides", "pads"):
        attrs[name] = [fixed(number, f"{name} of a transposed convolution") for number in attrs[name]]
    attrs["output_padding"] = extra
    wanted = _transposed_dims(op.dims(value), op.dims(weight), attrs)
    attrs["output_padding"] = [
        max(step, by) - 1 if isinstance(each, Dim) else each
        for each, step, by in zip(extra, attrs["strides"], attrs["dilations"], strict=True)
    ]
    outputs = [(op.dtype(value), _transposed_dims(op.dims(value), op.dims(weight), attrs))]
    if any(each < 0 for each in attrs["output_padding"]):
        raise UserError("E203", "ONNX has no convolution with negative output padding", next="crop the result")
    if any(each >= step for each, step in zip(attrs["output_padding"], attrs["strides"], strict=True)):
        _cut_less(attrs, spatial)
    result = _transposed(op, value, weight, bias, attrs, outputs)
    if not any(isinstance(each, Dim) for each in extra):
        return result
    axes, ends = op.const(np.arange(2, 2 + spatial)), op.sizes(list(wanted[2:]))
    return op.Slice(result, op.const([0] * spatial), ends, axes, outputs=[(op.dtype(value), wanted)])


def _of_integers(op: Emit, value: ir.Value, weight: ir.Value, bias: ir.Value | None, rest: Any) -> ir.Value:
    """A sum over digits of the integers, which float64 convolves exactly. It wraps around beyond 64 bits, as PyTorch's own does.

    Products of two digits of 16 bits leave room for sums of 2**21 of them; those of a weight that is known to be small, for more.
    """
    known = op.constant(weight, most=1 << 16)
    is_small = known is not None and known.size and int(abs(known.astype(np.float64)).max()) * known.size < 1 << 21
    width = 32 if is_small else 16
    rows, columns = _digits(op, value, width), [weight] if is_small else _digits(op, weight, width)
    total: ir.Value | None = None
    for (at, row), (by, column) in itertools.product(enumerate(rows), enumerate(columns)):
        shift = (at + by) * width
        if shift < D(op.dtype(value)).bitwidth:
            found = convolved(op, op.cast(row, D.DOUBLE), op.cast(column, D.DOUBLE), None, *rest)
            found = op.cast(found, D.INT64)
            found = op.Mul(found, op.const(np.int64(1 << shift))) if shift else found
            total = found if total is None else op.Add(total, found)
    assert total is not None
    if bias is not None:
        dims = (op.dims(bias)[0], *(1 for _ in op.dims(weight)[2:]))
        total = op.Add(total, op.reshape(op.cast(bias, D.INT64), dims))
    return op.cast(total, op.dtype(value))


def _digits(op: Emit, value: ir.Value, width: int) -> list[ir.Value]:
    """Integers as digits of ``width`` bits, the lowest first; the highest one has the sign."""
    producer = op.producer(value)
    source = producer.inputs[0] if producer is not None and producer.op_type == "Cast" else None
    dtypes = [op.dtype(value), *([op.dtype(source)] if source is not None else [])]
    bits = min(D(dtype).bitwidth for dtype in dtypes if dtype not in FLOATS)
    digits, rest, base = [], value, op.const(np.int64(1 << width))
    for _ in range(width, bits, width):
        rest = op.cast(rest, D.INT64)
        digit = op.Mod(rest, base)
        rest = op.Div(op.Sub(rest, digit), base)
        digits.append(digit)
    return [*digits, rest]


def _of_no_channels(
    op: Emit, value: ir.Value, weight: ir.Value, bias: ir.Value | None, attrs: dict[str, Any]
) -> ir.Value:
    """The bias alone: with padding, Conv of an input without channels does not end in onnxruntime 1.31."""
    spatial, counts = op.rank(value) - 2, []
    for axis, (size, kernel) in enumerate(zip(op.dims(value)[2:], op.dims(weight)[2:], strict=True)):
        room = size + attrs["pads"][axis] + attrs["pads"][spatial + axis] - attrs["dilations"][axis] * (kernel - 1) - 1
        counts.append(whole(room // attrs["strides"][axis] + 1))
    rows = op.dims(weight)[0]
    number = op.const(0, op.dtype(value)) if bias is None else op.reshape(bias, (rows, *[1] * spatial))
    return op.expand(number, (op.dims(value)[0], rows, *counts))


def _of_one_group(op: Emit, weight: ir.Value, groups: Dim) -> ir.Value:
    """The weight [rows, columns, ...] of as many groups as a size as that of one, with zeros between them: [rows, groups *
    columns, ...]. The rows of a group follow each other, as its columns then do.
    """
    rows, columns, *kernel = op.dims(weight)
    each = whole(rows // groups)
    group_of_row = op.Div(numbers(op, rows), op.size(each))
    is_own = op.Equal(unsqueeze(op, group_of_row, 1), unsqueeze(op, numbers(op, groups), 0))
    repeated = op.expand(unsqueeze(op, weight, 1), (rows, groups, columns, *kernel))
    mask = unsqueeze(op, is_own, *range(2, 3 + len(kernel)))
    own = op.Where(mask, repeated, op.const(0, op.dtype(weight)))
    return op.reshape(own, (rows, whole(groups * columns), *kernel))


def _padded(op: Emit, value: ir.Value, attrs: dict[str, Any], spatial: int) -> ir.Value:
    """With the padding that depends on sizes, which is then none of the operator's."""
    pads = attrs["pads"]
    if not any(isinstance(pad, Dim) for pad in pads):
        return value
    attrs["pads"] = [0] * len(pads)
    *leading, first, second = [*op.dims(value)[:2], pads[:spatial], pads[spatial:]]
    dims = (*leading, *map(_sum, op.dims(value)[2:], first, second))
    return op.Pad(value, pads=op.sizes([0, 0, *first, 0, 0, *second]), outputs=[(op.dtype(value), dims)])


def _sum(*sizes: DimLike) -> DimLike:
    return whole(sum(sizes, start=0))


def _taken_later(attrs: dict[str, Any]) -> list[DimLike]:
    """Steps that depend on sizes, which are then none of the operator's: it gives all results, of which they leave some."""
    steps = attrs["strides"]
    attrs["strides"] = [1 if isinstance(step, Dim) else step for step in steps]
    return [step if isinstance(step, Dim) else 1 for step in steps]


def _every(op: Emit, value: ir.Value, steps: Sequence[DimLike], spatial: int) -> ir.Value:
    if all(step == 1 for step in steps):
        return value
    axes = [2 + axis for axis in range(spatial)]
    counts = [whole((op.dims(value)[axis] + step - 1) // step) for axis, step in zip(axes, steps, strict=True)]
    outputs = [(op.dtype(value), (*op.dims(value)[:2], *counts))]
    return op.Slice(
        value, op.sizes([0] * spatial), op.sizes([END] * spatial), op.const(axes), op.sizes(steps), outputs=outputs
    )


def _transposed_dims(dims: Dims, kernel: Dims, attrs: dict[str, Any]) -> Dims:
    """Source: ConvTranspose-11's output_shape formula."""
    spatial = [
        (dims[axis + 2] - 1) * attrs["strides"][axis]
        + attrs["output_padding"][axis]
        + attrs["dilations"][axis] * (kernel[axis + 2] - 1)
        + 1
        - 2 * attrs["pads"][axis]
        for axis in range(len(dims) - 2)
    ]
    return (dims[0], kernel[1] * attrs["group"], *spatial)


def _cut_less(attrs: dict[str, Any], spatial: int) -> None:
    """Output padding as padding that is not cut off: runtimes refuse output padding of a stride or more."""
    for axis in range(spatial):
        saved = min(attrs["pads"][spatial + axis], attrs["output_padding"][axis])
        attrs["pads"][spatial + axis] -= saved
        attrs["output_padding"][axis] -= saved


def _transposed(
    op: Emit, value: ir.Value, weight: ir.Value, bias: ir.Value | None, attrs: dict[str, Any], outputs: Any
) -> ir.Value:
    """``ConvTranspose``; output padding of a stride or more, which reads nothing, as zeros behind it, then the bias."""
    extra = attrs["output_padding"]
    if all(size < step for size, step in zip(extra, attrs["strides"], strict=True)):
        return op.ConvTranspose(value, weight, bias, outputs=outputs, **attrs)
    attrs["output_padding"] = [0] * len(extra)
    dims = _transposed_dims(op.dims(value), op.dims(weight), attrs)
    short = op.ConvTranspose(value, weight, None, outputs=[(op.dtype(value), dims)], **attrs)
    result = op.Pad(short, pads=[0] * (2 + len(extra)) + [0, 0, *extra], outputs=outputs)
    if bias is None:
        return result
    return op.Add(result, op.reshape(bias, (*op.dims(bias), *(1 for _ in extra))))


def _conv_transpose(
    op: Emit,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    dilation: Ints,
    groups: int = 1,
    transposed: bool = True,
) -> ir.Value:
    return convolved(op, input, weight, bias, stride, padding, dilation, groups, output_padding if transposed else None)


@translates(aten.conv_tbc.default)
def conv_tbc(op: Emit, self: ir.Value, weight: ir.Value, bias: ir.Value, pad: int) -> ir.Value:
    """conv_tbc(Tensor self, Tensor weight, Tensor bias, int pad=0) -> Tensor

    A 1-D convolution of [time, batch, channels] with a weight [kernel, in, out].
    """
    if op.dims(weight)[0] == 0:  # the bias alone
        return op.expand(op.cast(bias, op.result_dtype()), op.result_dims())
    result = convolved(op, transpose(op, self, (1, 2, 0)), transpose(op, weight, (2, 1, 0)), bias, [1], [pad], [1], 1)
    return transpose(op, result, (2, 0, 1))


def _conv_depthwise(
    op: Emit,
    self: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
) -> ir.Value:
    channels = fixed(op.dims(self)[-op.rank(weight) + 1], "the number of channels")
    return convolved(op, self, weight, bias, stride, padding, dilation, channels)


def _check_kernel(op: Emit, weight: ir.Value, kernel_size: Ints) -> None:
    """Refuse sizes of a kernel that are not the weight's: kernels of PyTorch that take both read other elements of the weight."""
    wanted, kernel = as_list(kernel_size, op.rank(weight) - 2), list(op.dims(weight)[2:])
    if wanted != kernel:
        raise UserError("E203", f"a convolution of kernels of {wanted} with a weight of kernels of {kernel}")


def _slow_transpose(
    op: Emit,
    self: ir.Value,
    weight: ir.Value,
    kernel_size: Ints,
    bias: ir.Value | None,
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    dilation: Ints,
) -> ir.Value:
    """The result of images has a batch axis where the input has none, too; that of volumes has not."""
    _check_kernel(op, weight, kernel_size)
    value = unsqueeze(op, self, 0) if op.rank(self) < op.rank(weight) else self
    found = _conv_transpose(op, value, weight, bias, stride, padding, output_padding, dilation)
    return op.reshape(found, op.result_dims()) if op.rank(found) != len(op.result_dims()) else found


def _slow_conv(
    op: Emit,
    self: ir.Value,
    weight: ir.Value,
    kernel_size: Ints,
    bias: ir.Value | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints = (1,),
) -> ir.Value:
    _check_kernel(op, weight, kernel_size)
    return convolved(op, self, weight, bias, stride, padding, list(dilation))


def _slow_conv3d(
    op: Emit,
    self: ir.Value,
    weight: ir.Value,
    kernel_size: Ints,
    bias: ir.Value | None,
    stride: Ints,
    padding: Ints,
) -> ir.Value:
    """With as many groups as the channels hold those of the weight."""
    _check_kernel(op, weight, kernel_size)
    channels = fixed(op.dims(self)[-4], "the number of channels")
    groups = channels // fixed(op.dims(weight)[1], "the number of channels of a weight")
    return convolved(op, self, weight, bias, stride, padding, [1], groups)


_CONV = "conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding _convolution_mode"
register_shared(convolved, "Conv", *overloads_of(_CONV))
register_shared(_slow_conv, "Conv", *overloads_of("thnn_conv2d slow_conv_dilated2d slow_conv_dilated3d"))
register_shared(_slow_conv3d, "Conv", *overloads_of("slow_conv3d"))
_TRANSPOSED = "conv_transpose1d conv_transpose2d.input conv_transpose3d.input"
register_shared(_conv_transpose, "ConvTranspose", *overloads_of(_TRANSPOSED))
register_shared(_slow_transpose, "ConvTranspose", *overloads_of("slow_conv_transpose2d slow_conv_transpose3d"))
_EITHER = "convolution convolution_overrideable _convolution _convolution.deprecated"
register_shared(_conv_transpose, "Conv, ConvTranspose", *overloads_of(_EITHER))
register_shared(_conv_depthwise, "Conv of one channel a group", *overloads_of("_conv_depthwise2d conv_depthwise3d"))
