"""Squeezes and expands: of an axis whose size is data-dependent or computed, torch would decide at the example's sizes whether it is 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fx2onnx.capture.overloads.common import Size
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import axis_of, dims_of
from fx2onnx.capture.registry import Call, Kind, register
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.symnode import sym_int, unwrap
from fx2onnx.sizes.expr import Dim, DimLike, Scalar, apply
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.fake_tensors import fake_view
from fx2onnx.torchcompat.frames import user_location

aten = torch.ops.aten


@register(Kind.RECORD, aten.squeeze.default)
def _squeeze(tracer: Tracer, call: Call, self: torch.Tensor) -> object:
    return _squeezed(tracer, self, range(self.dim()))


@register(Kind.RECORD, aten.squeeze.dim)
def _squeeze_dim(tracer: Tracer, call: Call, self: torch.Tensor, dim: int) -> object:
    return _squeezed(tracer, self, [axis_of(self.dim(), dim)])


@register(Kind.RECORD, aten.squeeze.dims)
def _squeeze_dims(tracer: Tracer, call: Call, self: torch.Tensor, dim: list[int]) -> object:
    axes = [axis_of(self.dim(), axis) for axis in dim]
    for axis in axes:
        if axes.count(axis) > 1:  # as eager PyTorch says
            raise RuntimeError(f"dim {axis} appears multiple times in the list of dims")
    return _squeezed(tracer, self, axes)


def _squeezed(tracer: Tracer, tensor: torch.Tensor, axes: range | list[int]) -> object:
    sizes, env = dims_of(tensor), tracer.sizes
    of_data = [axis for axis in axes if sizes and env.facts.as_one(Relation("eq", (sizes[axis], 1)))]
    if of_data:  # no element there ends the run in the file
        with tracer.mode:
            taken = tensor
            for axis in sorted(of_data, reverse=True):
                taken = taken.select(axis, 0)
            rest = [axis for axis in axes if axis not in of_data]
            places = [axis - sum(gone < axis for gone in of_data) for axis in rest]
            return taken.squeeze(places) if places else taken
    for axis in axes if sizes else ():
        keep_rank(tracer, sizes[axis])
    return NotImplemented


def keep_rank(tracer: Tracer, size: DimLike) -> None:
    """A size that is not 1 in the example inputs is never 1: a file's values have one rank each."""
    env = tracer.sizes
    differs = Relation("ne", (size, 1))
    if not isinstance(size, Dim) or env.certain("ne", size, 1) is not None or not env.hint(differs):
        return
    if size.symbols() & env.unbacked:
        env.assume(differs, user_location())
    else:
        env.note(differs, user_location())


@register(Kind.RECORD, aten.expand.default, aten.broadcast_to.default)
def _expand(tracer: Tracer, call: Call, self: torch.Tensor, size: Sequence[Size]) -> object:
    return _expanded(tracer, call, self, list(map(unwrap, size)))


@register(Kind.RECORD, aten.expand_as.default)
def _expand_as(tracer: Tracer, call: Call, self: torch.Tensor, other: torch.Tensor) -> object:
    return _expanded(tracer, call, self, dims_of(other))


def _expanded(tracer: Tracer, call: Call, tensor: torch.Tensor, target: Sequence[Scalar]) -> object:
    """A size of which data decides whether it is 1 becomes the one asked for, which it has to be otherwise: so does Expand."""
    fake, env = tracer.values.fake_of(tensor), tracer.sizes
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
            env.assume(fits, user_location())
    sym_sizes, sym_strides = ([sym_int(env, number) for number in group] for group in (sizes, strides))
    made = fake_view(tracer.values.fake_mode, fake, sym_sizes, sym_strides, fake.storage_offset())
    return tracer.finish(call.func, call.args, tracer.values.to_nodes(call.args, call.kwargs), made)


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
