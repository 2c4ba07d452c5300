"""Batch normalization, with stored statistics (eval) and with the batch's own (training)."""

from __future__ import annotations

import math
from typing import NamedTuple

import onnx_ir as ir
import torch

from fx2onnx.aten_map.matmul import scaled
from fx2onnx.aten_map.table.axes import filled, zeros
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import DimLike, product

aten = torch.ops.aten
FLOAT = ir.DataType.FLOAT
HALF = frozenset([ir.DataType.FLOAT16, ir.DataType.BFLOAT16])


class Statistics(NamedTuple):
    """The statistics of a batch in training mode, one number a channel."""

    output: ir.Value
    mean: ir.Value
    variance: ir.Value
    rstd: ir.Value


def channel_vector(op: Emit, given: ir.Value | None, number: float, size: DimLike, dtype: ir.DataType) -> ir.Value:
    """``given`` as ``dtype``, or ``number`` for every channel. Raises UserError E203 for what is no vector of channels."""
    gap = op.dims(given)[0] - size if given is not None and op.rank(given) == 1 else given is not None
    if isinstance(gap, int) and gap:
        raise UserError(
            "E203",
            f"batch normalization of {size} channels with a parameter of sizes {list(op.dims(given))}",  # type: ignore[arg-type]
            why="each parameter is one number a channel",
            next="give it the shape [channels]",
        )
    return filled(op, (size,), number, dtype) if given is None else op.cast(given, dtype)


def normalized_by(
    op: Emit,
    value: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    mean: ir.Value,
    variance: ir.Value,
    eps: float,
) -> ir.Value:
    """``BatchNormalization`` with stored statistics. Below opset 15 all operands have one dtype."""
    dtype, channels = op.dtype(value), op.dims(value)[1]
    inner = dtype if op.opset >= 15 or op.dtype(mean) == dtype else op.dtype(mean)
    scale_dtype = inner if weight is None and bias is None else op.dtype(weight if weight is not None else bias)  # type: ignore[arg-type]
    scale_dtype = scale_dtype if op.opset >= 15 else inner
    result = op.BatchNormalization(
        op.cast(value, inner),
        channel_vector(op, weight, 1, channels, scale_dtype),
        channel_vector(op, bias, 0, channels, scale_dtype),
        channel_vector(op, mean, 0, channels, inner if op.opset < 15 else op.dtype(mean)),
        channel_vector(op, variance, 1, channels, inner if op.opset < 15 else op.dtype(mean)),
        epsilon=float(eps),
    )
    return op.cast(result, dtype)


def over_channels(op: Emit, vector: ir.Value, rank: int) -> ir.Value:
    """A vector of channels shaped to broadcast over axis 1 of ``rank`` axes."""
    return op.reshape(vector, (*op.dims(vector), *(1 for _ in range(rank - 2)))) if rank > 2 else vector


def trained(op: Emit, value: ir.Value, weight: ir.Value | None, bias: ir.Value | None, eps: float) -> Statistics:
    """Normalized by the batch's mean and biased variance. Numerics: in float32 at least."""
    dtype, rank = op.dtype(value), op.rank(value)
    inner = FLOAT if dtype in HALF else dtype
    axes = [axis for axis in range(rank) if axis != 1]
    wide = op.cast(value, inner)
    mean = op.ReduceMean(wide, axes=axes, keepdims=0)
    channels = op.dims(value)[1]
    centred = centred_by(op, wide, mean)
    variance = op.ReduceMean(op.Mul(centred, centred), axes=axes, keepdims=0)
    rstd = op.Reciprocal(op.Sqrt(op.Add(variance, op.const(float(eps), inner))))
    if eps == 0:  # PyTorch takes 0 where a channel does not vary
        rstd = op.Where(op.Equal(variance, op.const(0, inner)), op.const(0, inner), rstd)
    scale = rstd if weight is None else op.Mul(channel_vector(op, weight, 1, channels, inner), rstd)
    output = affine(op, centred, scale, channel_vector(op, bias, 0, channels, inner))
    return Statistics(op.cast(output, dtype), mean, variance, rstd)


def affine(
    op: Emit, value: ir.Value, scale: ir.Value, shift: ir.Value, mean: ir.Value | None = None, variance: float = 1
) -> ir.Value:
    """``(value - mean) / sqrt(variance) * scale + shift`` by channel, in one operator."""
    dtype, channels = op.dtype(value), op.dims(value)[1]
    by = filled(op, (channels,), variance, dtype)
    return op.BatchNormalization(value, scale, shift, channel_vector(op, mean, 0, channels, dtype), by, epsilon=0.0)


def centred_by(op: Emit, value: ir.Value, mean: ir.Value) -> ir.Value:
    """``value - mean`` by channel."""
    one, zero = (channel_vector(op, None, number, op.dims(value)[1], op.dtype(value)) for number in (1, 0))
    return affine(op, value, one, zero, mean)


def updated(op: Emit, running: ir.Value, fresh: ir.Value, momentum: float, factor: float = 1.0) -> ir.Value:
    """(1 - momentum) * running + momentum * factor * fresh."""
    dtype = op.dtype(running)
    if momentum == 1:
        return scaled(op, op.cast(fresh, dtype), factor)
    old = op.Mul(running, op.const(1 - momentum, dtype))
    new = op.Mul(op.cast(fresh, dtype), op.const(momentum * factor, dtype))
    return op.Add(old, new)


def unbiased(op: Emit, value: ir.Value, variance: ir.Value) -> tuple[ir.Value, float]:
    """A variance, and the number that it is to be multiplied by, to be the one by n - 1, which PyTorch stores, where the given
    one is by n, which it normalizes with.
    """
    dims, dtype = op.dims(value), op.dtype(variance)
    count = product([size for axis, size in enumerate(dims) if axis != 1])
    if isinstance(count, int):
        return variance, math.nan if count == 1 else count / max(count - 1, 1)
    return op.Mul(variance, op.Div(op.size(count, dtype), op.size(count - 1, dtype))), 1.0


@translates(aten.batch_norm.default)
def batch_norm(
    op: Emit,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value | None,
    running_var: ir.Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> ir.Value:
    """batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps, bool cudnn_enabled) -> Tensor

    ONNX:  BatchNormalization in eval mode; in training the batch's mean and variance by plain nodes.
    """
    if training or running_mean is None or running_var is None:
        return trained(op, input, weight, bias, eps).output
    return normalized_by(op, input, weight, bias, running_mean, running_var, eps)


def _saved(op: Emit, index: int, value: ir.Value) -> ir.Value:
    """Output ``index``: the statistic, or the empty tensor that eval mode gives."""
    dtype, dims = op.result[index]
    return zeros(op, dims, dtype) if tuple(dims) == (0,) else op.cast(value, dtype)


def _reserve(op: Emit, count: int) -> list[ir.Value]:
    """Output 3 of the overloads of ``count`` outputs: bytes that cuDNN uses."""
    return [zeros(op, op.result_dims(3), op.result_dtype(3))] if len(op.result) == count else []


def _native(
    op: Emit,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    eps: float,
    running_mean: ir.Value | None = None,
    running_var: ir.Value | None = None,
    training: bool = False,
) -> tuple[ir.Value, ...]:
    """Output, saved mean, saved rstd (and a reserve that cuDNN uses)."""
    reserve = _reserve(op, 4)
    if training or running_mean is None or running_var is None:
        found = trained(op, input, weight, bias, eps)
        return found.output, _saved(op, 1, found.mean), _saved(op, 2, found.rstd), *reserve
    output = normalized_by(op, input, weight, bias, running_mean, running_var, eps)
    if op.result_dims(1) == (0,):
        return output, _saved(op, 1, running_mean), _saved(op, 2, running_mean), *reserve
    rstd = op.Reciprocal(op.Sqrt(op.Add(running_var, op.const(float(eps), op.dtype(running_var)))))
    return output, _saved(op, 1, running_mean), _saved(op, 2, rstd), *reserve


def _functional(
    op: Emit,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value,
    running_var: ir.Value,
    momentum: float,
    eps: float,
    training: bool = True,
) -> tuple[ir.Value, ...]:
    """Output, saved mean, saved rstd, (a reserve that cuDNN uses,) and the new running statistics."""
    if not training:
        return *_native(op, input, weight, bias, eps, running_mean, running_var), running_mean, running_var
    found = trained(op, input, weight, bias, eps)
    reserve = _reserve(op, 6)
    new_mean = updated(op, running_mean, found.mean, momentum)
    variance, factor = unbiased(op, input, found.variance)
    new_var = updated(op, running_var, variance, momentum, factor)
    return found.output, _saved(op, 1, found.mean), _saved(op, 2, found.rstd), *reserve, new_mean, new_var


_NATIVE = "native_batch_norm _native_batch_norm_legit.no_stats _native_batch_norm_legit_no_training "
_NATIVE += "_batch_norm_no_update"
_FUNCTIONAL = "_native_batch_norm_legit_functional _batch_norm_with_update_functional"
_FORM = "BatchNormalization in eval mode; in training the batch's mean and variance by plain nodes"
register_shared(_native, _FORM, *overloads_of(_NATIVE))
register_shared(_functional, _FORM, *overloads_of(_FUNCTIONAL))
