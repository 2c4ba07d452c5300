"""Overloads that broadcast: composites whose code in torch does it by plain numbers, and sizes that are 1 or another as data decides."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fx2onnx.capture.overloads.registry import Call, Kind, register
from fx2onnx.capture.overloads.unbacked import Size
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.capture.recording.tensor_tracker import axis_of, dims_of
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.symnode import sym_int, unwrap
from fx2onnx.sizes.expr import Dim, Scalar, apply
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.fake_tensors import fake_view
from fx2onnx.torchcompat.frames import user_location

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
        axis = axis_of(self.dim(), dim)
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


@register(Kind.RECORD, aten.expand.default, aten.broadcast_to.default)
def _expand(recorder: BaseRecorder, call: Call, self: torch.Tensor, size: Sequence[Size]) -> object:
    return _expanded(recorder, call, self, list(map(unwrap, size)))


@register(Kind.RECORD, aten.expand_as.default)
def _expand_as(recorder: BaseRecorder, call: Call, self: torch.Tensor, other: torch.Tensor) -> object:
    return _expanded(recorder, call, self, dims_of(other))


def _expanded(recorder: BaseRecorder, call: Call, tensor: torch.Tensor, target: Sequence[Scalar]) -> object:
    """A size of which data decides whether it is 1 becomes the one asked for, which it has to be otherwise: so does Expand."""
    fake, env = recorder.fake_of(tensor), recorder.shape_env
    dims: list[Scalar] = [*dims_of(fake)]
    more = len(target) - len(dims)
    if more < 0:
        return NotImplemented
    axes = [axis for axis, own in enumerate(dims) if env.unbacked and _may_be_one(env, own, target[more + axis])]
    if not axes and not any(_is_one_by_chance(env, own, target[more + axis]) for axis, own in enumerate(dims)):
        return NotImplemented
    if not all(axis in axes or own == 1 or target[more + axis] in (own, -1) for axis, own in enumerate(dims)):
        return NotImplemented
    sizes, strides = [*target], [*([0] * more), *map(unwrap, fake.stride())]
    for axis, own in enumerate(dims):
        if target[more + axis] == -1:
            sizes[more + axis] = own
        elif own == 1:
            strides[more + axis] = 0
        elif axis in axes:
            strides[more + axis] = strides[more + axis] * apply("min", apply("max", own - 1, 0), 1)
            wanted = sizes[more + axis]
            if type(wanted) is int and wanted > 1:
                continue  # Expand itself fails at any other
            equal = Relation("eq", (own, wanted))
            fits = equal if wanted == 1 else Relation("or", (equal, Relation("eq", (own, 1))))
            env.take_for_true(fits, user_location())
    sym_sizes, sym_strides = ([sym_int(env, number) for number in group] for group in (sizes, strides))
    made = fake_view(recorder.fake_mode, fake, sym_sizes, sym_strides, fake.storage_offset())
    return recorder.finish(call.func, call.args, recorder.to_nodes(call.args, call.kwargs), made)


def _is_one_by_chance(env: ShapeEnv, own: Scalar, target: Scalar) -> bool:
    """True if an axis of size 1 is expanded to a computed size, such as ``-n % 2``, that happens to be 1 at the example's sizes."""
    return (
        own == 1
        and isinstance(target, Dim)
        and target.as_symbol() is None
        and bool(env.hint(Relation("eq", (target, 1))))
    )


def _may_be_one(env: ShapeEnv, own: Scalar, target: Scalar) -> bool:
    is_of_data = isinstance(own, Dim) and bool(own.symbols() & env.unbacked)
    return is_of_data and target != -1 and env.certain("eq", own, target) is None
