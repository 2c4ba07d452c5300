"""The weights of eager-quantized layers: integers that PyTorch has packed, unpacked as constants of the program."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fx2onnx.capture.quantized.operands import Affine
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.modules import PATHS
from fx2onnx.torchcompat.operators import PackedWeight, quantized_decomposed

INT32 = 2**31


@dataclass(frozen=True, eq=False)
class Packed:
    """A weight's integers with their scales, and the bias."""

    codes: torch.Tensor
    scale: torch.Tensor
    """One number, or one a channel."""
    zero: torch.Tensor
    axis: int | None
    bias: torch.Tensor | None
    name: str

    def numbers(self, tracer: Tracer) -> torch.Tensor:
        """The numbers that the weight's integers stand for."""
        low, high = torch.iinfo(self.codes.dtype).min, torch.iinfo(self.codes.dtype).max
        ops = quantized_decomposed()
        rest = (low, high, self.codes.dtype)
        with tracer.mode:
            if self.axis is None:
                found = ops.dequantize_per_tensor.default(self.codes, float(self.scale), int(self.zero), *rest)
            else:
                found = ops.dequantize_per_channel.default(self.codes, self.scale, self.zero, self.axis, *rest)
        return found  # type: ignore[no-any-return]

    def bias_numbers(self, tracer: Tracer, x: Affine) -> torch.Tensor | None:
        """The bias as PyTorch's kernels add it: in steps of the product's scale, as int32."""
        if self.bias is None or not isinstance(x.scale, float) or self.scale.numel() not in (1, self.bias.numel()):
            return self.plain_bias(tracer)
        with no_dispatch():
            scale = (self.scale.double() * x.scale).float().expand(self.bias.numel()).contiguous()
            steps = torch.round(self.bias.detach().double() / scale.double())
            codes = steps.clamp(-INT32, INT32 - 1).to(torch.int32)
            codes = tracer.values.name_constant(codes, f"{self.name}.bias")
            scale = tracer.values.name_constant(scale, f"{self.name}.bias_scale")
        with tracer.mode:
            return quantized_decomposed().dequantize_per_channel.default(  # type: ignore[no-any-return]
                codes, scale, None, 0, -INT32, INT32 - 1, torch.int32
            )

    def plain_bias(self, tracer: Tracer) -> torch.Tensor | None:
        with no_dispatch():
            return None if self.bias is None else tracer.values.name_constant(self.bias, f"{self.name}.bias")


def unpacked(tracer: Tracer, packed: PackedWeight, squeezed: int | None = None) -> Packed:
    """The weight of a packed layer. ``squeezed``: an axis of one that the packing added."""
    with no_dispatch():
        weight, bias = packed.unpack()
        return _packed(tracer, weight if squeezed is None else weight.squeeze(squeezed), bias, PATHS.current)


def floats_of(tracer: Tracer, packed: PackedWeight) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of a layer that was rounded to half precision."""
    with no_dispatch():
        weight, bias = packed.unpack()
        weight = tracer.values.name_constant(weight.float(), f"{PATHS.current}.weight")
        return weight, None if bias is None else tracer.values.name_constant(bias, f"{PATHS.current}.bias")


def state_of(
    cell: PackedWeight,
) -> tuple[str, list[torch.Tensor], object, list[int], list[PackedWeight]]:
    """The state of a recurrent layer's packed weights: kind, tensors, numbers, whole numbers, packed products."""
    with no_dispatch():
        state, _ = cell.__getstate__()  # and the name of its class
    return state  # type: ignore[no-any-return]


def table_of(tracer: Tracer, packed: PackedWeight) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The table of a quantized embedding: its integers, and a scale and a zero point for each row, [rows, 1] of float32."""
    with no_dispatch():
        weight = packed.unpack()
        codes = weight.int_repr()
        if weight.dtype == torch.quint4x2:
            pairs = codes.reshape(len(weight), -1)
            codes = torch.stack([pairs & 15, pairs >> 4], -1).flatten(1)[:, : weight.shape[1]].contiguous()
        scale = weight.q_per_channel_scales().float().unsqueeze(1)
        zero = weight.q_per_channel_zero_points().float().unsqueeze(1)
        parts = ((codes, "weight"), (scale, "scale"), (zero, "zero_point"))
        codes, scale, zero = (tracer.values.name_constant(tensor, f"{PATHS.current}.{part}") for tensor, part in parts)
    return codes, scale, zero


def _packed(tracer: Tracer, weight: torch.Tensor, bias: torch.Tensor | None, name: str) -> Packed:
    codes, axis = weight.int_repr().contiguous(), None
    if weight.qscheme() == torch.per_tensor_affine:
        scale, zero = torch.tensor(weight.q_scale()), torch.tensor(weight.q_zero_point())
    else:
        axis = weight.q_per_channel_axis()
        scale, zero = weight.q_per_channel_scales().float(), weight.q_per_channel_zero_points().to(codes.dtype)
    codes = tracer.values.name_constant(codes, f"{name}.weight")
    if axis is not None:
        scale = tracer.values.name_constant(scale, f"{name}.scale")
        zero = tracer.values.name_constant(zero, f"{name}.zero_point")
    return Packed(codes, scale, zero, axis, None if bias is None else bias.detach(), name)
