"""``as_strided``: sizes and strides count in the storage, which a graph of values does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fx2onnx.base.dims import Dim
from fx2onnx.capture.recording.aliasing import View

if TYPE_CHECKING:
    from fx2onnx.capture.recording.recorder import Recorder

aten = torch.ops.aten


def as_strided(recorder: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Say it of the tensor that the operand is a view of: where that one is contiguous, storage and value are the same.

    Raises: UserError E203 where the storage's order, or what lies around the operand in it, is not in the graph.
    """
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    operand: torch.Tensor = given["self"]
    fake = recorder.to_fake(operand)
    whole = _viewed(recorder, recorder.view_of(operand))
    base = recorder.to_fake(whole)
    offset = given.get("storage_offset")
    moved = recorder.storage_offsets.get(id(whole), 0) if isinstance(offset, int) or base is not fake else 0
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
    if offset is None:
        offset = fake.storage_offset()
    return recorder.record(func, (whole, given["size"], given["stride"], offset), {})


def _viewed(recorder: Recorder, view: View) -> Any:
    """The tensor whose memory the view looks at: the one that is a view by no step."""
    return next((v.tensor for v in recorder.views() if v.memory is view.memory and not v.steps), view.tensor)
