"""``squeeze`` of symbolic sizes: the rank of its result depends on which of them are 1."""

from __future__ import annotations

import torch

from fx2onnx.capture.overloads.registry import Call, Kind, register
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.capture.recording.tensor_tracker import axis_of, dims_of
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.frames import user_location

aten = torch.ops.aten


@register(Kind.RECORD, aten.squeeze.default)
def _squeeze(recorder: BaseRecorder, call: Call, self: torch.Tensor) -> object:
    return _squeezed(recorder, self, range(self.dim()))


@register(Kind.RECORD, aten.squeeze.dim)
def _squeeze_dim(recorder: BaseRecorder, call: Call, self: torch.Tensor, dim: int) -> object:
    return _squeezed(recorder, self, [axis_of(self.dim(), dim)])


@register(Kind.RECORD, aten.squeeze.dims)
def _squeeze_dims(recorder: BaseRecorder, call: Call, self: torch.Tensor, dim: list[int]) -> object:
    axes = [axis_of(self.dim(), axis) for axis in dim]
    for axis in axes:
        if axes.count(axis) > 1:  # as eager PyTorch says
            raise RuntimeError(f"dim {axis} appears multiple times in the list of dims")
    return _squeezed(recorder, self, axes)


def _squeezed(recorder: BaseRecorder, tensor: torch.Tensor, axes: range | list[int]) -> object:
    sizes, env = dims_of(tensor), recorder.shape_env
    of_data = [axis for axis in axes if sizes and env.as_one(Relation("eq", (sizes[axis], 1)))]
    if of_data:  # no element there ends the run in the file
        with recorder.mode:
            taken = tensor
            for axis in sorted(of_data, reverse=True):
                taken = taken.select(axis, 0)
            rest = [axis for axis in axes if axis not in of_data]
            places = [axis - sum(gone < axis for gone in of_data) for axis in rest]
            return taken.squeeze(places) if places else taken
    for axis in axes if sizes else ():
        keep_rank(recorder, sizes[axis])
    return NotImplemented


def keep_rank(recorder: BaseRecorder, size: DimLike) -> None:
    """A size that is not 1 in the sample is never 1: a file's values have one rank each."""
    env = recorder.shape_env
    differs = Relation("ne", (size, 1))
    if not isinstance(size, Dim) or env.certain("ne", size, 1) is not None or not env.hint(differs):
        return
    if size.symbols() & env.unbacked:
        env.take_for_true(differs, user_location())
    else:
        env.note(differs, user_location())
