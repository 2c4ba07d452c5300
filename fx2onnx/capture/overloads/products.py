"""Convolutions and matrix products that stand for others: of other orders of axes, of float8 numbers with scales."""

from __future__ import annotations

import torch

from fx2onnx.capture.overloads.registry import Call, Kind, register
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.capture.recording.tensor_tracker import dims_of

aten = torch.ops.aten


@register(Kind.RECORD, aten.conv_tbc.default)
def _conv_tbc(
    recorder: BaseRecorder, call: Call, self: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, pad: int
) -> object:
    """``conv_tbc`` of a dynamic time or batch, as a convolution of [batch, channels, time]: torch's kernel takes plain numbers."""
    if all(isinstance(size, int) for tensor in (self, weight) for size in dims_of(tensor)):
        return NotImplemented
    with recorder.mode:
        found = torch.conv1d(self.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
        return found.permute(2, 0, 1).contiguous()


@register(Kind.RECORD, aten._scaled_mm.default)
def _scaled_mm(
    recorder: BaseRecorder,
    call: Call,
    self: torch.Tensor,
    mat2: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> object:
    """(self @ mat2) * scale_a * scale_b + bias of float8 numbers, summed in float32. Scales are numbers, or a column and a row."""
    dtype = out_dtype or self.dtype
    with recorder.mode:
        product = self.float() @ mat2.float() * scale_a.float() * scale_b.float()
        product = product if bias is None else product + bias.float()
        if scale_result is not None and dtype.itemsize == 1:
            product = product / scale_result
        return product.to(dtype)


@register(Kind.RECORD, aten._scaled_mm_v2.default if hasattr(aten, "_scaled_mm_v2") else "aten::_scaled_mm_v2")
def _scaled_mm_by_recipe(
    recorder: BaseRecorder,
    call: Call,
    self: torch.Tensor,
    mat2: torch.Tensor,
    scale_a: list[torch.Tensor],
    recipe_a: list[int],
    scale_b: list[torch.Tensor],
    recipe_b: list[int],
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> object:
    """``_scaled_mm`` where the scales are of tensors or of rows; scales of blocks are refused."""
    if {*recipe_a, *recipe_b} - {0, 1}:
        raise recorder.refuse(
            "E203", "scaled_mm with scales of blocks", next="multiply the operands with their scales, then torch.mm"
        )
    with recorder.mode:
        by_row, by_column = scale_a[0].reshape(-1, 1), scale_b[0].reshape(1, -1)
        return aten._scaled_mm.default(self, mat2, by_row, by_column, bias, None, out_dtype)
