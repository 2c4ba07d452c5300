"""``as_strided``: sizes and strides count in the storage, which a graph of values does not have."""

from __future__ import annotations

from typing import Any

import torch

from fx2onnx.base.dims import Dim
from fx2onnx.capture.overloads.registry import Call, Kind, register
from fx2onnx.capture.recording.aliasing import View
from fx2onnx.capture.recording.base_recorder import BaseRecorder

aten = torch.ops.aten


@register(Kind.RECORD, aten.as_strided.default)
def _as_strided(
    recorder: BaseRecorder, call: Call, self: torch.Tensor, size: Any, stride: Any, storage_offset: Any
) -> Any:
    """Say it of the tensor that the operand is a view of: where that one is contiguous, storage and value are the same.

    Raises: UserError E203 where the storage's order, or what lies around the operand in it, is not in the graph.
    """
    fake = recorder.to_fake(self)
    whole = _viewed(recorder, recorder.view_of(self))
    base = recorder.to_fake(whole)
    is_given = isinstance(storage_offset, int)
    moved = recorder.storage_offsets.get(id(whole), 0) if is_given or base is not fake else 0
    if not base.is_contiguous() or base.dtype != fake.dtype or moved:
        raise recorder.refuse(
            "E203",
            "as_strided of a tensor whose storage the graph does not have",
            node=f"storage offset {moved}, strides {list(base.stride())} of sizes {list(base.shape)}"
            if not any(isinstance(size, Dim) for size in base.shape)
            else "",
            why="its elements stand in another order in memory than in the tensor, or are a part of a larger storage",
            next="call .contiguous().clone() before as_strided, or write it with slices and reshapes",
        )
    if base is fake:
        return NotImplemented
    if storage_offset is None:
        storage_offset = fake.storage_offset()
    return recorder.record(call.func, (whole, size, stride, storage_offset), {})


def _viewed(recorder: BaseRecorder, view: View) -> Any:
    """The tensor whose memory the view looks at: the one that is a view by no step."""
    return next((v.tensor for v in recorder.views() if v.memory is view.memory and not v.steps), view.tensor)
