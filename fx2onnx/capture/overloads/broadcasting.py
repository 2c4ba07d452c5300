"""Composite overloads whose code in torch broadcasts by plain numbers, said in others that take symbolic sizes."""

from __future__ import annotations

import torch

from fx2onnx.capture.overloads.registry import Call, Kind, register
from fx2onnx.capture.overloads.unbacked import Size
from fx2onnx.capture.recording.base_recorder import BaseRecorder

aten = torch.ops.aten


def _is_static(*tensors: torch.Tensor) -> bool:
    return all(type(size) is int for tensor in tensors for size in tensor.shape)


@register(Kind.RECORD, aten.take_along_dim.default)
def _take_along_dim(
    recorder: BaseRecorder, call: Call, self: torch.Tensor, indices: torch.Tensor, dim: int | None
) -> object:
    """A gather; the axes beside ``dim`` broadcast."""
    if _is_static(self, indices):
        return NotImplemented
    with recorder.mode:
        if dim is None:
            return self.reshape(-1).gather(0, indices.reshape(-1))
        axis = dim % self.dim()
        sizes = [_wider(*pair) for pair in zip(self.shape, indices.shape, strict=True)]
        own, taken = ([*sizes[:axis], one.shape[axis], *sizes[axis + 1 :]] for one in (self, indices))
        return self.expand(own).gather(axis, indices.expand(taken))


def _wider(one: Size, other: Size) -> Size:
    return other if type(one) is int and one == 1 else one


@register(Kind.RECORD, aten.kron.default)
def _kron(recorder: BaseRecorder, call: Call, self: torch.Tensor, other: torch.Tensor) -> object:
    """kron(a, b)[i * p + k, j * q + l] = a[i, j] * b[k, l]: of ``a`` as [m, 1, n, 1] and ``b`` as [1, p, 1, q]."""
    if _is_static(self, other):
        return NotImplemented
    rank = max(self.dim(), other.dim())
    with recorder.mode:
        left, right = (one.reshape([1] * (rank - one.dim()) + list(one.shape)) for one in (self, other))
        sizes = [a * b for a, b in zip(left.shape, right.shape, strict=True)]
        for axis in range(rank):
            left, right = left.unsqueeze(2 * axis + 1), right.unsqueeze(2 * axis)
        return (left * right).reshape(sizes)
