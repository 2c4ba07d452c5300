"""Views of symbolic sizes: reshapes, squeezes and expands of sizes that are data-dependent or computed.

torch's own code compares sizes on its way: of the former it knows no answer, and of the latter what holds at the
example's sizes, such as that there is one window, would be part of the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fx2onnx.capture.overloads.common import Size
from fx2onnx.capture.recording.meta_cache import contiguous_strides
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import Copy, axis_of, dims_of
from fx2onnx.capture.registry import Call, Kind, register
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.symnode import sym_int, unwrap
from fx2onnx.sizes.expr import Dim, DimLike, Scalar, apply, product, without_remainders
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.solve import simplified, solved
from fx2onnx.torchcompat.fake_tensors import fake_view

aten = torch.ops.aten


@register(Kind.RECORD, aten.view.default)
def _view(tracer: Tracer, call: Call, self: torch.Tensor, size: Sequence[Size]) -> object:
    return _reshaped(tracer, call, self, list(map(unwrap, size)))


@register(Kind.RECORD, aten.reshape.default)
def _reshape(tracer: Tracer, call: Call, self: torch.Tensor, shape: Sequence[Size]) -> object:
    return _reshaped(tracer, call, self, list(map(unwrap, shape)))


@register(Kind.RECORD, aten.view_as.default, aten.reshape_as.default)
def _view_as(tracer: Tracer, call: Call, self: torch.Tensor, other: torch.Tensor) -> object:
    return _reshaped(tracer, call, self, dims_of(other))


@register(Kind.RECORD, aten.ravel.default)
def _ravel(tracer: Tracer, call: Call, self: torch.Tensor) -> object:
    return _reshaped(tracer, call, self, [-1])


@register(Kind.RECORD, aten.flatten.using_ints)
def _flatten(tracer: Tracer, call: Call, self: torch.Tensor, start_dim: int, end_dim: int) -> object:
    """flatten(self, start_dim=0, end_dim=-1): the axes from start_dim to end_dim become one."""
    dims = dims_of(self)
    if not dims:
        return NotImplemented
    first, last = (axis_of(len(dims), dim) for dim in (start_dim, end_dim))
    return _reshaped(tracer, call, self, [*dims[:first], product(dims[first : last + 1]), *dims[last + 1 :]])


@register(Kind.RECORD, aten.unflatten.int)
def _unflatten(tracer: Tracer, call: Call, self: torch.Tensor, dim: int, sizes: Sequence[Size]) -> object:
    """unflatten(self, dim, sizes): the axis dim becomes those of the given sizes, of which one may be -1."""
    dims = dims_of(self)
    if not tracer.sizes.unbacked or not dims:
        return NotImplemented
    axis = axis_of(len(dims), dim)
    inner = _without_minus_one(tracer.sizes, dims[axis], list(map(unwrap, sizes)))
    return _reshaped(tracer, call, self, [*dims[:axis], *inner, *dims[axis + 1 :]])


@register(Kind.RECORD, aten.pixel_unshuffle.default)
def _pixel_unshuffle(tracer: Tracer, call: Call, self: torch.Tensor, downscale_factor: int) -> object:
    """pixel_unshuffle(self, downscale_factor) of data-dependent sizes, which the factor has to divide; a tensor without
    elements keeps its sizes.
    """
    env, dims = tracer.sizes, dims_of(self)
    if 0 in dims and not any(isinstance(size, Dim) for size in dims):
        call.func(self, downscale_factor)  # checks
        with tracer.mode:
            return self.clone()
    if not any(isinstance(size, Dim) and size.symbols() & env.unbacked for size in dims[-2:]):
        return NotImplemented
    for size in dims[-2:]:
        env.expect_equal(apply("mod", size, downscale_factor), 0)
    height, width = (apply("floordiv", size, downscale_factor) for size in dims[-2:])
    made = tracer.values.new_fake([*dims[:-3], dims[-3] * downscale_factor**2, height, width], self.dtype, self.device)
    return tracer.finish(call.func, call.args, tracer.values.to_nodes(call.args, call.kwargs), made)


def _reshaped(tracer: Tracer, call: Call, tensor: torch.Tensor, target: list[DimLike]) -> object:
    """``call`` of a view or reshape to the sizes ``target``. As many elements as there are is what eager PyTorch needs."""
    env, dims = tracer.sizes, dims_of(tensor)
    sizes = [size for size in (*dims, *target) if isinstance(size, Dim)]
    if not env.unbacked or not any(size.symbols() & env.unbacked for size in sizes):
        return _of_computed(tracer, call, tensor, dims, target)
    if env.facts.sets:
        dims, target = ([_simplified(env, size) for size in group] for group in (dims, target))
    target = _without_minus_one(env, product(dims), target)
    env.expect_equal(*_counts_without_common(target, dims), Relation("eq", (product(target), product(dims))))
    strides = strides_of_view(env, dims, list(map(unwrap, tensor.stride())), target)
    if strides is None and call.func in (aten.view.default, aten.view_as.default):
        strides = list(contiguous_strides(target))  # eager PyTorch raises where there is no view
    return _finished(tracer, call, tensor, target, strides)


def _counts_without_common(target: Sequence[DimLike], dims: Sequence[DimLike]) -> tuple[Scalar, Scalar]:
    """The numbers of elements of both, without the sizes that both have."""
    rest, others = [], list(dims)
    for size in target:
        if size in others:
            others.remove(size)
        else:
            rest.append(size)
    return product(rest), product(others)


def _of_computed(
    tracer: Tracer, call: Call, tensor: torch.Tensor, dims: Sequence[DimLike], target: list[DimLike]
) -> object:
    """The reshaped tensor of computed sizes if the numbers of elements are equal, as eager PyTorch needs; else
    NotImplemented, so that torch's own code refuses it."""
    is_plain = not _has_computed((*dims, *target))
    if is_plain and not any(isinstance(size, Dim) for size in dims):
        return NotImplemented
    env, needed, own = tracer.sizes, None, list(map(unwrap, tensor.stride()))
    if is_plain:  # torch's own code goes by what divides what at the example's sizes
        count = product(list(dims))
        target = _with_quotient(count, target)
        if -1 in target or product(target) != count:
            return NotImplemented
        is_contiguous = own == list(contiguous_strides(dims))
        strides = list(contiguous_strides(target)) if is_contiguous else strides_of_view(env, dims, own, target)
        if strides is None and call.func in (aten.view.default, aten.view_as.default):
            return NotImplemented
        return _finished(tracer, call, tensor, target, strides)
    if target.count(-1) == 1:
        count, given = product(list(dims)), product([size for size in target if size != -1])
        if given == 0:
            return NotImplemented
        rest, needed = apply("floordiv", count, given), Relation("eq", (apply("mod", count, given), 0))
        target = [rest if size == -1 else size for size in target]  # type: ignore[misc]
    counts = [without_remainders(_simplified(env, product(list(sizes)))) for sizes in (target, dims)]
    if counts[0] != counts[1] and not _is_met(env, needed or Relation("eq", (counts[0], counts[1]))):
        return NotImplemented
    # also of a view a copy: ``contiguous()`` before it does nothing at the example's sizes, and copies at other sizes
    return _finished(tracer, call, tensor, target, strides_of_view(env, dims, own, target))


def _finished(
    tracer: Tracer, call: Call, tensor: torch.Tensor, target: list[DimLike], strides: Sequence[Scalar] | None
) -> object:
    """The result of ``call``, recorded: a view of these strides, or a copy, which may be a view where sizes have other values."""
    if strides is not None:
        made = _view_of(tracer, tensor, target, strides)
    else:
        made = tracer.values.new_fake(target, tensor.dtype, tensor.device)
    result = tracer.finish(call.func, call.args, tracer.values.to_nodes(call.args, call.kwargs), made)
    if strides is None:
        tracer.values.copies.append(Copy(tensor, made, tracer.values.views[id(made)].node, target))
    return result


def _with_quotient(count: DimLike, target: list[DimLike]) -> list[DimLike]:
    """The sizes with that of a -1 where the others divide ``count`` at every size."""
    if target.count(-1) != 1:
        return target
    given = product([size for size in target if size != -1])
    rest = -1 if given == 0 else apply("floordiv", count, given)
    return [rest if size == -1 and rest * given == count else size for size in target]  # type: ignore[misc]


def _is_met(env: ShapeEnv, needed: Relation) -> bool:
    """Return whether numbers of elements are equal at the example's sizes, under a condition that says so, of single
    sizes if possible."""
    if env.facts.is_settled(needed) is True:
        return True
    is_said = solved(needed, env.hints) is not None or len(needed.symbols()) > 1
    return is_said and bool(env.hint(needed)) and env.check(needed, is_equality=True)


def _has_computed(sizes: Sequence[DimLike]) -> bool:
    return any(isinstance(size, Dim) and size.as_symbol() is None for size in sizes)


@register(Kind.RECORD, aten.contiguous.default)
def _contiguous(tracer: Tracer, call: Call, self: torch.Tensor, memory_format: torch.memory_format | int) -> object:
    """A copy, unless the strides are those of a contiguous tensor at every size: torch asks whether they are at the
    example's sizes."""
    dims = dims_of(self)
    order = _ORDERS.get(memory_format, ())
    is_plain = not any(isinstance(size, Dim) for size in dims)
    if is_plain or (not order and list(map(unwrap, self.stride())) == list(contiguous_strides(dims))):
        return NotImplemented
    if order or not _has_computed(dims):
        made = tracer.record(*call)
    else:
        made = tracer.values.new_fake(dims, self.dtype, self.device)
        tracer.finish(call.func, call.args, tracer.values.to_nodes(call.args, call.kwargs), made)
    if made is not self:
        assert isinstance(made, torch.Tensor)
        tracer.values.copies.append(Copy(self, made, tracer.values.views[id(made)].node, None, order))
    return made


_ORDERS: dict[object, tuple[int, ...]] = {torch.channels_last: (1, 3, 2, 0), torch.channels_last_3d: (1, 4, 3, 2, 0)}


def _view_of(tracer: Tracer, tensor: torch.Tensor, sizes: Sequence[DimLike], strides: Sequence[Scalar]) -> torch.Tensor:
    env = tracer.sizes
    return fake_view(
        tracer.values.fake_mode,
        tracer.values.fake_of(tensor),
        [sym_int(env, size) for size in sizes],
        [sym_int(env, step) for step in strides],
        tensor.storage_offset(),
    )


def _simplified(env: ShapeEnv, size: DimLike) -> DimLike:
    return simplified(size, env.facts.sets) if env.facts.sets and isinstance(size, Dim) else size  # type: ignore[return-value]


def _without_minus_one(env: ShapeEnv, count: DimLike, sizes: list[DimLike]) -> list[DimLike]:
    """``sizes`` with the size that a -1 among them stands for; the others have to divide the number of elements."""
    if -1 not in [size for size in sizes if isinstance(size, int)]:
        return sizes
    given = _simplified(env, product([size for size in sizes if isinstance(size, Dim) or size != -1]))
    rest = env.facts.quotient(count, given)
    env.expect_equal(rest * given, count, Relation("eq", (apply("mod", count, given), 0)))
    return [rest if isinstance(size, int) and size == -1 else size for size in sizes]


def strides_of_view(
    env: ShapeEnv, dims: Sequence[DimLike], strides: Sequence[Scalar], target: Sequence[DimLike]
) -> list[Scalar] | None:
    """The strides of a view of the sizes ``target``, None where there is none. Source: at::detail::computeStride."""
    if all(env.certain("eq", *pair) for pair in zip(strides, contiguous_strides(dims), strict=True)):
        return list(contiguous_strides(target))
    found: list[Scalar] = []
    left = list(target)
    step: Scalar = strides[-1]
    count: Scalar = 1
    for axis in reversed(range(len(dims))):
        count = count * dims[axis]
        begins = axis == 0 or (dims[axis - 1] != 1 and not env.certain("eq", strides[axis - 1], count * step))
        if not begins:
            continue
        taken: Scalar = 1
        while left and (not env.certain("eq", taken, count) or left[-1] == 1):
            found.append(taken * step)
            taken = taken * left.pop()
        if not env.certain("eq", taken, count):
            return None
        if axis:
            step, count = strides[axis - 1], 1
    return found[::-1] if not left else None
