"""Fake quantization, as quantization-aware training puts it into modules: numbers rounded to those that integers stand for."""

from __future__ import annotations

import torch

from fx2onnx.capture.quantized.operands import NO_SCALE, SMALL_SCALE
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import dims_of
from fx2onnx.capture.registry import Call, Kind, overloads_of, register

aten = torch.ops.aten
_FAKE = (
    aten.fake_quantize_per_tensor_affine,
    aten.fake_quantize_per_channel_affine,
    aten.fake_quantize_per_tensor_affine_cachemask,
    aten.fake_quantize_per_channel_affine_cachemask,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams,
)


@register(Kind.RECORD, *(each for packet in _FAKE for each in overloads_of(packet) if not each._schema.is_mutable))
def _fake_quantized(tracer: Tracer, call: Call, self: torch.Tensor) -> object:
    """The results at symbolic sizes, for which torch has no kernel: a tensor like the operand, and a mask if there is one."""
    dims = dims_of(self)
    if all(isinstance(size, int) for size in dims):
        return NotImplemented
    makes = [self.dtype, torch.bool][: len(call.func._schema.returns)]
    results = [tracer.values.new_fake(dims, dtype, self.device) for dtype in makes]
    nodes = tracer.values.to_nodes(call.args, call.kwargs)
    return tracer.finish(call.func, call.args, nodes, results[0] if len(results) == 1 else tuple(results))


@register(Kind.RECORD, aten._fake_quantize_learnable_per_tensor_affine.default)
def _learnable(
    tracer: Tracer,
    call: Call,
    self: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    quant_min: int,
    quant_max: int,
) -> object:
    """A zero point is rounded half up. Source: fake_quantize_core of PyTorch's ATen/native/quantized."""
    with tracer.mode:
        zero = (zero_point.reshape(()) + 0.5).clamp(quant_min, quant_max).to(torch.int32)
        return aten.fake_quantize_per_tensor_affine.tensor_qparams(self, scale.reshape(()), zero, quant_min, quant_max)


@register(Kind.RECORD, aten._fake_quantize_learnable_per_channel_affine.default)
def _learnable_channels(
    tracer: Tracer,
    call: Call,
    self: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> object:
    """Zero points are rounded to even."""
    with tracer.mode:
        zero = zero_point.round().clamp(quant_min, quant_max).to(torch.int32)
        return aten.fake_quantize_per_channel_affine.default(self, scale, zero, axis, quant_min, quant_max)


@register(Kind.WRITE, aten.fused_moving_avg_obs_fake_quant.default, aten._fused_moving_avg_obs_fq_helper.default)
def _observed(
    tracer: Tracer,
    call: Call,
    self: torch.Tensor,
    observer_on: torch.Tensor,
    fake_quant_on: torch.Tensor,
    running_min: torch.Tensor,
    running_max: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool,
    symmetric_quant: bool,
) -> object:
    """The range that was seen, its scale and zero point where they are to be observed, and numbers rounded by them.

    Source: fused_obs_fake_quant.cpp of PyTorch's ATen/native/quantized/cpu.
    """
    with tracer.mode:
        observes, rounds = observer_on.reshape(()) != 0, fake_quant_on.reshape(()) != 0
        if _is_known(tracer, observer_on) is not False:
            rows = self.movedim(ch_axis, 0).flatten(1) if per_row_fake_quant else self.reshape(1, -1)
            for running, seen in ((running_min, rows.amin(1)), (running_max, rows.amax(1))):
                old = running.reshape(-1)
                new = torch.where(old.isinf(), seen, old + averaging_const * (seen - old))
                running.copy_(torch.where(observes, new, old).reshape(running.shape))
        if _is_known(tracer, fake_quant_on) is False:
            value, mask = self.clone(), torch.ones_like(self, dtype=torch.bool)
        else:
            made = _parameters(running_min, running_max, quant_min, quant_max, symmetric_quant)
            for old, new in zip((scale, zero_point), made, strict=True):
                old.copy_(torch.where(rounds, new.reshape(old.shape).to(old.dtype), old))
            found, inside = _rounded(self, scale, zero_point, quant_min, quant_max, per_row_fake_quant)
            value, mask = torch.where(rounds, found, self), torch.logical_or(inside, torch.logical_not(rounds))
    return value if len(call.func._schema.returns) == 1 else (value, mask)


def _rounded(
    value: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, low: int, high: int, is_by_row: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    zero = zero_point.to(torch.int32)
    if is_by_row:
        found: tuple[torch.Tensor, torch.Tensor] = aten.fake_quantize_per_channel_affine_cachemask.default(
            value, scale, zero, 0, low, high
        )
        return found
    overload = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
    found = overload(value, scale.reshape(()), zero.reshape(()), torch.ones(1, dtype=torch.int64), low, high)
    return found


def _is_known(tracer: Tracer, flag: torch.Tensor) -> bool | None:
    """The truth of a flag that no input decides."""
    value = tracer.values.value_of(tracer.values.node_of(flag))
    return None if value is None or value.device.type == "meta" else bool(value.item())


def _parameters(
    least: torch.Tensor, most: torch.Tensor, low: int, high: int, is_symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero point for a range, computed as ChooseQuantizationParams of QuantUtils.h does. Is recorded."""
    least, most = least.clamp(max=0.0), most.clamp(min=0.0)
    both = torch.logical_and(least < 0, most > 0)
    if is_symmetric:
        below, above = -((high - low) // 2 + 1), (high - low) // 2
        step = torch.maximum((least / below).abs(), (most / above).abs())
        least, most = torch.where(both, step * below, least), torch.where(both, step * above, most)
    exact = ((most.double() - least.double()) / (high - low)).float()
    exact = torch.where(torch.logical_or(exact == 0.0, (1.0 / exact).isinf()), NO_SCALE, exact)
    is_small = exact < SMALL_SCALE
    scale = exact.clamp(min=SMALL_SCALE)
    # a range below the least scale keeps its end at zero, or grows on both sides
    grown = SMALL_SCALE * (high - low)
    factor = SMALL_SCALE / exact
    least_grown = torch.where(
        least == 0.0, least, torch.where(most == 0.0, torch.full_like(least, -grown), least * factor)
    )
    most_grown = torch.where(least == 0.0, torch.full_like(most, grown), torch.where(most == 0.0, most, most * factor))
    least, most = torch.where(is_small, least_grown, least).double(), torch.where(is_small, most_grown, most).double()
    wide = scale.double()
    from_least, from_most = low - least / wide, high - most / wide
    errors = [abs(end) + (edge / wide).abs() for end, edge in ((low, least), (high, most))]
    first = torch.where(errors[0] < errors[1], from_least, from_most)
    if is_symmetric:
        first = torch.where(both, torch.full_like(first, (low + high) / 2), first)
    return scale, first.clamp(low, high).round()
