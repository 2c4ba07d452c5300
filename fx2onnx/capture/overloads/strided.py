"""``as_strided``: sizes and strides count in the storage, which a graph of values does not have."""

from __future__ import annotations

import torch

from fx2onnx.base.dims import Dim
from fx2onnx.capture.overloads.registry import Call, Kind, register
from fx2onnx.capture.recording.base_recorder import BaseRecorder

aten = torch.ops.aten


@register(Kind.RECORD, aten.as_strided.default)
def _as_strided(
    recorder: BaseRecorder,
    call: Call,
    self: torch.Tensor,
    size: object,
    stride: object,
    storage_offset: int | torch.SymInt | None,
) -> object:
    """Say it of the tensor that the operand is a view of: where that one is contiguous, storage and value are the same.

    Raises: UserError E203 where the storage's order, or what lies around the operand in it, is not in the graph.
    """
    fake = recorder.fake_of(self)
    view = recorder.view_of(self)
    viewed = (other.tensor for other in recorder.views.values() if other.memory is view.memory and not other.steps)
    whole = next(viewed, self)  # the tensor that shows the memory by no step
    base = recorder.fake_of(whole)
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
