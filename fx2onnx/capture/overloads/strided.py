"""``as_strided``: sizes and strides count in the storage, which a graph of values does not have."""

from __future__ import annotations

from collections.abc import Sequence

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


@register(Kind.RECORD, aten._reshape_alias.default, aten._reshape_alias_copy.default)
def _reshape_alias(
    recorder: BaseRecorder, call: Call, self: torch.Tensor, size: Sequence[object], stride: Sequence[object]
) -> object:
    """A reshape where the strides are a reshape's; other strides count in the storage."""
    lengths = [number for number in size if isinstance(number, int)]
    if len(lengths) < len(size) or not all(isinstance(number, int) for number in stride):
        return NotImplemented
    fake = recorder.fake_of(self)
    packed = 1
    wanted: list[int] = []
    for length in reversed(lengths):
        wanted.insert(0, packed)
        packed *= max(length, 1)
    own = zip(lengths, stride, wanted, strict=True)
    if fake.is_contiguous() and packed == fake.numel() and all(length == 1 or a == b for length, a, b in own):
        return NotImplemented
    with recorder.mode:
        found = aten.as_strided.default(self, size, stride, fake.storage_offset())
        return found.clone() if call.func is aten._reshape_alias_copy.default else found


@register(Kind.RECORD, aten.slice_inverse.default)
def _slice_inverse(
    recorder: BaseRecorder, call: Call, self: torch.Tensor, src: torch.Tensor, dim: int, start: int | None
) -> object:
    """What ``self`` is a slice of, in the form of ``src``: it lies in the same storage, before and behind the slice."""
    fake = recorder.fake_of(src)
    before = 0
    if src.dim() and start:
        axis = dim % src.dim()
        first = start + src.shape[axis] if start < 0 else start
        before = min(max(first, 0), src.shape[axis]) * fake.stride(axis)
    with recorder.mode:
        offset = recorder.fake_of(self).storage_offset() - before
        return aten.as_strided.default(self, src.shape, fake.stride(), offset)
