"""Layer, RMS, group and instance normalization, and weight normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.batch_norm import FLOAT, HALF, channel_vector, normalized_by, over_channels, trained
from fx2onnx.aten_map.reductions import mean
from fx2onnx.aten_map.table.axes import axis_of, filled, reshaped_like, whole
from fx2onnx.aten_map.table.dtypes import TORCH_DTYPES, floating, opmath, promoted
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import DimLike, product

aten = torch.ops.aten
D = ir.DataType


def layer_normalized(
    op: Emit,
    value: ir.Value,
    count: int,
    weight: ir.Value | None,
    bias: ir.Value | None,
    eps: float,
    statistics: bool = False,
) -> tuple[ir.Value, ...]:
    """Output (and mean, rstd if asked) of a normalization over the last ``count`` axes.

    ONNX:      LayerNormalization from opset 17 on (it needs a weight: ones where PyTorch has none); plain nodes below.
    Numerics:  in float32 at least.
    """
    dtype, dims = op.dtype(value), op.dims(value)
    if op.opset >= 17 and not (statistics and dtype == D.DOUBLE):  # whose statistics are float32
        scale = filled(op, dims[-count:], 1, dtype) if weight is None else op.cast(weight, dtype)
        shift = None if bias is None else op.cast(bias, dtype)
        if statistics:
            return op.LayerNormalization(value, scale, shift, axis=-count, epsilon=float(eps), outputs=3)
        return (op.LayerNormalization(value, scale, shift, axis=-count, epsilon=float(eps)),)
    inner = FLOAT if dtype in HALF else dtype
    axes = list(range(-count, 0))
    wide = op.cast(value, inner)
    mean = op.ReduceMean(wide, axes=axes, keepdims=1)
    centred = op.Sub(wide, mean)
    variance = op.ReduceMean(op.Mul(centred, centred), axes=axes, keepdims=1)
    deviation = op.Sqrt(op.Add(variance, op.const(float(eps), inner)))
    output = op.Div(centred, deviation)
    if weight is not None:
        output = op.Mul(output, op.cast(weight, inner))
    if bias is not None:
        output = op.Add(output, op.cast(bias, inner))
    output = op.cast(output, dtype)
    return (output, mean, op.Reciprocal(deviation)) if statistics else (output,)


def _layer_norm(
    op: Emit,
    input: ir.Value,
    normalized_shape: Sequence[DimLike],
    weight: ir.Value | None,
    bias: ir.Value | None,
    eps: float,
) -> tuple[ir.Value, ...]:
    if len(op.result) > 1 and 0 in normalized_shape:
        return _of_no_elements(op)
    found = layer_normalized(op, input, len(normalized_shape), weight, bias, eps, statistics=len(op.result) > 1)
    return tuple(op.cast(value, op.result_dtype(index)) for index, value in enumerate(found))


def _of_no_elements(op: Emit) -> tuple[ir.Value, ...]:
    """Empty output, mean and 1 / deviation over no elements, as PyTorch gives them."""
    return tuple(
        filled(op, dims, number, dtype) for (dtype, dims), number in zip(op.result, (0, 0, math.nan), strict=True)
    )


register_shared(_layer_norm, "LayerNormalization from opset 17 on", *overloads_of("layer_norm native_layer_norm"))


def rms_normalized(
    op: Emit, value: ir.Value, count: int, weight: ir.Value | None, eps: float | None, statistics: bool = False
) -> tuple[ir.Value, ...]:
    """Output (and 1 / rms if asked): x / sqrt(mean(x^2) + eps) * weight over the last ``count`` axes.

    ONNX:  RMSNormalization from opset 23 on; plain nodes below. ``eps=None`` is the dtype's machine epsilon.
    """
    dtype, dims = op.dtype(value), op.dims(value)
    inner = FLOAT if dtype in HALF else dtype
    if eps is None:
        eps = torch.finfo(TORCH_DTYPES[inner]).eps
    if op.opset >= 23 and not statistics:
        scale = filled(op, dims[-count:], 1, dtype) if weight is None else op.cast(weight, dtype)
        return (op.RMSNormalization(value, scale, axis=-count, epsilon=float(eps)),)
    wide = op.cast(value, inner)
    square = mean(op, op.Mul(wide, wide), range(-count, 0), keepdim=True)
    rms = op.Sqrt(op.Add(square, op.const(float(eps), inner)))
    output = op.Div(wide, rms)
    if weight is not None:
        output = op.Mul(output, op.cast(weight, inner))
    return (op.cast(output, dtype), op.Reciprocal(rms)) if statistics else (op.cast(output, dtype),)


def _rms_norm(
    op: Emit, input: ir.Value, normalized_shape: Sequence[DimLike], weight: ir.Value | None, eps: float | None
) -> tuple[ir.Value, ...]:
    if len(normalized_shape) > op.rank(input):  # the fused kernel takes them
        raise UserError(
            "E203",
            f"an RMS norm over {len(normalized_shape)} axes of a tensor of {op.rank(input)}",
            next="give normalized_shape as many sizes as axes to norm",
        )
    found = rms_normalized(op, input, len(normalized_shape), weight, eps, statistics=len(op.result) > 1)
    return tuple(op.cast(value, op.result_dtype(index)) for index, value in enumerate(found))


register_shared(_rms_norm, "RMSNormalization from opset 23 on", *overloads_of("rms_norm _fused_rms_norm"))


def group_normalized(
    op: Emit, value: ir.Value, groups: int, weight: ir.Value | None, bias: ir.Value | None, eps: float
) -> ir.Value:
    """Each group of channels by its own mean and variance.

    ONNX:  InstanceNormalization over the groups as channels, then the channels' weight and bias. GroupNormalization
           (right from opset 21 on) is not used: onnxruntime runs its function body, which is slower.
    """
    dtype, dims, rank = op.dtype(value), op.dims(value), op.rank(value)
    ones, none = filled(op, (groups,), 1, dtype), filled(op, (groups,), 0, dtype)
    if groups == dims[1] and rank > 2:
        scale, shift = (ones if weight is None else weight), (none if bias is None else bias)
        return op.InstanceNormalization(value, op.cast(scale, dtype), op.cast(shift, dtype), epsilon=float(eps))
    rest = product(list(dims[1:]))
    grouped = op.reshape(value, (dims[0], groups, whole(rest // groups)))
    output = reshaped_like(op, op.InstanceNormalization(grouped, ones, none, epsilon=float(eps)), value)
    if weight is not None:
        output = op.Mul(output, over_channels(op, op.cast(weight, dtype), rank))
    if bias is not None:
        output = op.Add(output, over_channels(op, op.cast(bias, dtype), rank))
    return output


register_shared(group_normalized, "InstanceNormalization over the groups, Mul, Add", aten.group_norm.default)


@translates(aten.native_group_norm.default)
def native_group_norm(
    op: Emit,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    N: DimLike,
    C: DimLike,
    HxW: DimLike,
    group: int,
    eps: float,
) -> tuple[ir.Value, ...]:
    """native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps) -> (Tensor, Tensor, Tensor)"""
    if HxW == 0:
        return _of_no_elements(op)
    is_plain = op.rank(input) > 1 and op.dims(input)[:2] == (N, C)
    value = input if is_plain else op.reshape(input, (N, C, HxW))
    output = group_normalized(op, value, group, weight, bias, eps)
    output = output if is_plain else reshaped_like(op, output, input)
    dtype = op.result_dtype(1)
    inner = FLOAT if dtype in HALF else dtype
    grouped = op.cast(op.reshape(input, (N, group, whole(C * HxW // group))), inner)
    mean = op.ReduceMean(grouped, axes=[2], keepdims=1)
    centred = op.Sub(grouped, mean)
    variance = op.ReduceMean(op.Mul(centred, centred), axes=[2], keepdims=0)
    rstd = op.Reciprocal(op.Sqrt(op.Add(variance, op.const(float(eps), inner))))
    return output, op.cast(op.Squeeze(mean, axes=[2]), dtype), op.cast(rstd, op.result_dtype(2))


def _instances_without_eps(op: Emit, value: ir.Value, scale: ir.Value, shift: ir.Value) -> ir.Value:
    """Each channel of each instance as a channel of one batch norm; then scale and shift."""
    rank, dims = op.rank(value), op.dims(value)
    plain = trained(op, op.reshape(value, (1, whole(dims[0] * dims[1]), *dims[2:])), None, None, 0.0).output
    varied = op.Mul(op.reshape(plain, dims), over_channels(op, scale, rank))
    return op.Add(varied, over_channels(op, shift, rank))


@translates(aten.instance_norm.default)
def instance_norm(
    op: Emit,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value | None,
    running_var: ir.Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
) -> ir.Value:
    """instance_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool use_input_stats, float momentum, float eps, bool cudnn_enabled) -> Tensor

    ONNX:  InstanceNormalization; BatchNormalization where stored statistics are used.
    """
    if not use_input_stats and running_mean is not None and running_var is not None:
        return normalized_by(op, input, weight, bias, running_mean, running_var, eps)
    dtype, channels = op.dtype(input), op.dims(input)[1]
    scale = channel_vector(op, weight, 1, channels, dtype)
    shift = channel_vector(op, bias, 0, channels, dtype)
    value = op.Unsqueeze(input, axes=[2]) if op.rank(input) == 2 else input  # ONNX wants an axis to take the mean over
    if eps == 0:  # PyTorch takes 0 where a channel does not vary
        return op.reshape(_instances_without_eps(op, value, scale, shift), op.dims(input))
    return op.reshape(op.InstanceNormalization(value, scale, shift, epsilon=float(eps)), op.dims(input))


def norm_except(op: Emit, value: ir.Value, dim: int, power: float = 2) -> ir.Value:
    """The norm over all axes but ``dim`` (-1: over all), axes kept."""
    rank = op.rank(value)
    kept = set() if dim == -1 else {axis_of(dim, rank)}
    axes = [axis for axis in range(rank) if axis not in kept]
    if not axes:  # ONNX would reduce all of them
        return op.Abs(value) if power else op.cast(op.cast(value, D.BOOL), op.dtype(value))
    if power not in (1, 2):
        dtype = op.dtype(value)
        if power == 0:
            return op.ReduceSum(op.cast(op.cast(value, D.BOOL), dtype), axes=axes, keepdims=1)
        wide = floating(opmath(dtype))
        total = op.ReduceSum(op.Pow(op.Abs(op.cast(value, wide)), op.const(power, wide)), axes=axes, keepdims=1)
        return op.cast(op.Pow(total, op.const(1 / power, wide)), dtype)
    return op.node("ReduceL2" if power == 2 else "ReduceL1", value, axes=axes, keepdims=1)


def _weight_norm(op: Emit, v: ir.Value, g: ir.Value, dim: int) -> Any:
    """v * (g / |v|); of the kernel the norm, too.

    Along the first or last axis a kernel reads the gain's elements in order, whatever its shape; elsewhere it is broadcast.
    """
    inner = promoted(op, v, g)
    norm = op.cast(norm_except(op, v, dim), inner)
    gain, wide = op.cast(g, inner), op.cast(v, inner)
    is_kernel = dim in (0, op.rank(v) - 1)
    if is_kernel:
        count, wanted = product(op.dims(g)), product(op.dims(norm))
        if count != wanted:
            raise UserError(
                "E203",
                f"weight normalization of {wanted} norms with a gain of {count} elements",
                why="PyTorch's kernel reads one element a norm from memory, which ends before or goes on behind them",
                next="give the gain the shape of the norms",
            )
        gain = op.reshape(gain, op.dims(norm))
    value = op.cast(op.Mul(wide, op.Div(gain, norm)), op.result_dtype())
    return value if len(op.result) == 1 else (value, op.cast(op.reshape(norm, op.result_dims(1)), op.result_dtype(1)))


register_shared(_weight_norm, "ReduceL2, Div, Mul", *overloads_of("_weight_norm _weight_norm_interface"))


@translates(aten.norm_except_dim.default)
def norm_except_dim(op: Emit, v: ir.Value, pow: int, dim: int) -> ir.Value:
    """norm_except_dim(Tensor v, int pow=2, int dim=0) -> Tensor"""
    found = norm_except(op, v, dim, pow)
    return op.reshape(found, op.result_dims())
