"""Operators that give Python a plain answer: about memory, or about numbers that no input decides."""

from __future__ import annotations

from typing import Any

import torch

from fx2onnx.capture.overloads.registry import Call, Kind, register
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.fake_tensors import storage_key

aten = torch.ops.aten


@register(Kind.RECORD, aten.is_pinned.default)
def _is_pinned(recorder: BaseRecorder, call: Call) -> bool:
    return False


@register(Kind.RECORD, aten._shape_as_tensor.default)
def _shape_as_tensor(recorder: BaseRecorder, call: Call, self: torch.Tensor) -> torch.Tensor:
    with recorder.mode:
        sizes = [torch.scalar_tensor(size, dtype=torch.int64) for size in self.shape]
        return torch.stack(sizes) if sizes else torch.zeros(0, dtype=torch.int64)


@register(Kind.RECORD, aten.is_set_to.default)
def _is_set_to(recorder: BaseRecorder, call: Call, self: torch.Tensor, tensor: torch.Tensor) -> bool:
    """The same memory in the same order."""
    one, other = recorder.fake_of(self), recorder.fake_of(tensor)
    return (
        storage_key(one) == storage_key(other)
        and one.storage_offset() == other.storage_offset()
        and one.shape == other.shape
        and one.stride() == other.stride()
    )


@register(Kind.RECORD, aten.equal.default, aten.allclose.default)
def _equal(recorder: BaseRecorder, call: Call) -> Any:
    values = [recorder.value_of(recorder.node_of(arg)) for arg in call.args if isinstance(arg, torch.Tensor)]
    if any(value is None for value in values):
        return NotImplemented
    with no_dispatch():
        return call.func(*values, *call.args[len(values) :], **call.kwargs)
