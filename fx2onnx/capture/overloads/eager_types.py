"""Overloads whose fake kernels give another type than PyTorch's kernels on the CPU, recorded with the kernels' type."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fx2onnx.capture.overloads.registry import Call, Kind, register
from fx2onnx.capture.overloads.unbacked import record_sized
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.capture.recording.tensor_tracker import dims_of

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)


@register(Kind.RECORD, aten.nansum.default, aten.nanmean.default)
def _over_all(
    recorder: BaseRecorder, call: Call, self: torch.Tensor, dim: object, keepdim: bool, dtype: object
) -> object:
    """No dims are all of them."""
    if not isinstance(dim, Sequence) or len(dim):
        return NotImplemented
    with recorder.mode:
        return call.func(self, None, keepdim, dtype=dtype)


@register(Kind.RECORD, aten.randperm.default, aten.randperm.generator)
def _randperm(recorder: BaseRecorder, call: Call, dtype: torch.dtype | None) -> object:
    """Integers, also where the dtype is given as None."""
    if dtype is not None or "dtype" not in call.kwargs:
        return NotImplemented
    with recorder.mode:
        return call.func(*call.args, **{**call.kwargs, "dtype": torch.int64})


@register(
    Kind.RECORD,
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
)
def _saved_statistics(
    recorder: BaseRecorder,
    call: Call,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    training: bool,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
) -> object:
    """Statistics are saved in float32 where a parameter is wider than half precision; the new running ones are as the old."""
    if input.dtype not in HALF or not training:
        return NotImplemented
    given = [tensor for tensor in (weight, bias, running_mean, running_var) if tensor is not None]
    saved = input.dtype if all(tensor.dtype == input.dtype for tensor in given) else torch.float32
    channels = [dims_of(input)[1]]
    running = [tensor.dtype for tensor in (running_mean, running_var) if tensor is not None]
    count = len(call.func._schema.returns)
    outputs = [(input.dtype, dims_of(input)), *((dtype, channels) for dtype in (saved, saved, *running))]
    return record_sized(recorder, call, outputs[:count])


@register(Kind.RECORD, aten._embedding_bag_forward_only.default)
def _bags_with_last_offset(
    recorder: BaseRecorder, call: Call, offsets: torch.Tensor, mode: int, include_last_offset: bool
) -> object:
    """With the last offset given, a sum has a size for each offset, the other modes one for each bag."""
    if not include_last_offset:
        return NotImplemented
    with recorder.mode:
        output, bags, sizes, best = aten._embedding_bag.default(*call.args, **call.kwargs)
        if mode == 0:
            sizes, best = (torch.zeros(offsets.shape[0], dtype=offsets.dtype, device=offsets.device) for _ in range(2))
    return output, bags, sizes, best
