"""Operators that move, cut, join, repeat and choose elements, and those that make tensors of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fx2onnx.irx.shapes.table import (
    FLOAT,
    INT64,
    ShapeCall,
    Typed,
    UnknownShape,
    as_dim,
    broadcast_dims,
    check_broadcast,
    check_count,
    check_equal,
    rule,
)
from fx2onnx.irx.values import known_sizes, rank_of
from fx2onnx.sizes.expr import DimLike, apply, product


@rule("Transpose")
def _transpose(call: ShapeCall) -> list[Typed]:
    dims = call.dims()
    perm = call.attrs.get("perm") or tuple(reversed(range(len(dims))))
    return [(call.dtype(), tuple(dims[axis] for axis in perm))]


@rule("Reshape")
def _reshape(call: ShapeCall) -> list[Typed]:
    target = known_sizes(call.value(1))
    if target is None:
        raise UnknownShape("Reshape to a computed shape")
    dims = call.dims()
    if not call.attrs.get("allowzero"):
        target = [dims[axis] if size == 0 else size for axis, size in enumerate(target)]
    if -1 in target:
        hole = target.index(-1)
        rest = product([size for axis, size in enumerate(target) if axis != hole])
        target[hole] = as_dim(product(dims) // rest) if rest != 0 else 0
    check_count(call, dims, target)
    return [(call.dtype(), tuple(target))]


@rule("Flatten")
def _flatten(call: ShapeCall) -> list[Typed]:
    dims, axis = call.dims(), call.attrs.get("axis", 1)
    axis = axis % len(dims) if axis < 0 else axis
    return [(call.dtype(), (product(dims[:axis]), product(dims[axis:])))]


@rule("Squeeze")
def _squeeze(call: ShapeCall) -> list[Typed]:
    dims, axes = call.dims(), call.ints("axes")
    if axes is None:
        gone = {axis for axis, size in enumerate(dims) if size == 1}
    else:
        gone = {axis % len(dims) for axis in axes}
    return [(call.dtype(), tuple(size for axis, size in enumerate(dims) if axis not in gone))]


@rule("Unsqueeze")
def _unsqueeze(call: ShapeCall) -> list[Typed]:
    axes = call.ints("axes")
    if axes is None:
        raise UnknownShape("Unsqueeze of computed axes")
    rank = rank_of(call.value(0)) + len(axes)
    new = {axis % rank for axis in axes}
    rest = iter(call.dims())
    return [(call.dtype(), tuple(1 if axis in new else next(rest) for axis in range(rank)))]


@rule("Expand")
def _expand(call: ShapeCall) -> list[Typed]:
    target = known_sizes(call.value(1))
    if target is None:
        raise UnknownShape("Expand to a computed shape")
    check_broadcast(call, call.dims(), tuple(target))
    return [(call.dtype(), broadcast_dims(call.dims(), target))]


@rule("Tile")
def _tile(call: ShapeCall) -> list[Typed]:
    repeats = known_sizes(call.value(1))
    if repeats is None:
        raise UnknownShape("Tile by computed repeats")
    return [(call.dtype(), tuple(as_dim(size * times) for size, times in zip(call.dims(), repeats, strict=True)))]


@rule("Concat")
def _concat(call: ShapeCall) -> list[Typed]:
    dims = list(call.dims())
    axis = call.attrs["axis"] % len(dims)
    total: Any = 0
    for index in range(len(call.inputs)):
        others = call.dims(index)
        check_equal(
            call, (*dims[:axis], *dims[axis + 1 :]), (*others[:axis], *others[axis + 1 :]), "sizes of other axes"
        )
        total = total + others[axis]
    dims[axis] = total
    return [(call.dtype(), tuple(dims))]


@rule("Split")
def _split(call: ShapeCall) -> list[Typed]:
    dims = call.dims()
    axis = call.attrs.get("axis", 0) % len(dims)
    sizes: Sequence[DimLike] | None = call.attrs.get("split") or known_sizes(call.optional("split"))
    if sizes is None:
        if not isinstance(dims[axis], int) or call.optional("split") is not None:
            raise UnknownShape("Split of a symbolic size, or into computed ones")
        chunk = -(-dims[axis] // call.num_outputs)
        sizes = [min(chunk, dims[axis] - chunk * index) for index in range(call.num_outputs)]
    check_equal(call, (as_dim(sum(sizes)),), (dims[axis],), "the parts together, and the whole")
    return [(call.dtype(), (*dims[:axis], size, *dims[axis + 1 :])) for size in sizes]


@rule("Slice")
def _slice(call: ShapeCall) -> list[Typed]:
    starts, ends = (known_sizes(call.optional(name)) for name in ("starts", "ends"))
    axes = call.ints("axes")
    if starts is None or ends is None:
        raise UnknownShape("Slice by computed bounds")
    dims = list(call.dims())
    axes = list(range(len(starts))) if axes is None else axes
    steps = call.ints("steps") or [1] * len(axes)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        dims[axis] = slice_size(dims[axis], start, end, step)
    return [(call.dtype(), tuple(dims))]


def slice_size(size: DimLike, start: DimLike, end: DimLike, step: int) -> DimLike:
    """The number of elements that ``[start:end:step]`` takes of ``size``. Raises UnknownShape for symbolic bounds that
    differ."""
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(*slice(start, end if step > 0 or end >= -size else None, step).indices(size)))
    if isinstance(start, int) and start == 0 and step == 1:
        if isinstance(end, int) and end >= 2**31 - 1:
            return size
        if end == size:
            return size
    if step == 1 and isinstance(end, int) and end >= 2**31 - 1 and isinstance(start, int):
        if start < 0:
            raise UnknownShape("Slice from the end of a symbolic size")
        return as_dim(apply("max", size - start, 0))
    if step == 1 and not isinstance(end, int) and not (isinstance(start, int) and start < 0):
        return as_dim(end - start)
    raise UnknownShape("Slice of a symbolic size")


@rule("Pad")
def _pad(call: ShapeCall) -> list[Typed]:
    pads, dims = known_sizes(call.optional("pads")), list(call.dims())
    if pads is None:
        raise UnknownShape("Pad by computed pads")
    axes = call.ints("axes") or list(range(len(dims)))
    for place, axis in enumerate(axes):
        dims[axis] = as_dim(dims[axis] + pads[place] + pads[place + len(axes)])
    return [(call.dtype(), tuple(dims))]


@rule("DepthToSpace")
def _depth_to_space(call: ShapeCall) -> list[Typed]:
    batch, channels, height, width = call.dims()
    block = call.attrs["blocksize"]
    return [(call.dtype(), (batch, as_dim(channels // (block * block)), as_dim(height * block), as_dim(width * block)))]


@rule("SpaceToDepth")
def _space_to_depth(call: ShapeCall) -> list[Typed]:
    batch, channels, height, width = call.dims()
    block = call.attrs["blocksize"]
    return [
        (call.dtype(), (batch, as_dim(channels * (block * block)), as_dim(height // block), as_dim(width // block)))
    ]


@rule("Gather")
def _gather(call: ShapeCall) -> list[Typed]:
    dims = call.dims()
    axis = call.attrs.get("axis", 0) % len(dims)
    return [(call.dtype(), (*dims[:axis], *call.dims(1), *dims[axis + 1 :]))]


@rule("GatherElements")
def _gather_elements(call: ShapeCall) -> list[Typed]:
    return [(call.dtype(), call.dims(1))]


@rule("GatherND")
def _gather_nd(call: ShapeCall) -> list[Typed]:
    data, indices = call.dims(), call.dims(1)
    batch, depth = call.attrs.get("batch_dims", 0), indices[-1]
    if not isinstance(depth, int):
        raise UnknownShape("GatherND of a symbolic depth")
    return [(call.dtype(), indices[:-1] + data[batch + depth :])]


@rule("Shape")
def _shape(call: ShapeCall) -> list[Typed]:
    count = len(range(rank_of(call.value(0)))[call.attrs.get("start", 0) : call.attrs.get("end")])
    return [(INT64, (count,))]


@rule("Size")
def _size(call: ShapeCall) -> list[Typed]:
    return [(INT64, ())]


@rule("ConstantOfShape")
def _constant_of_shape(call: ShapeCall) -> list[Typed]:
    dims = known_sizes(call.value(0))
    if dims is None:
        raise UnknownShape("ConstantOfShape of a computed shape")
    value = call.attrs.get("value")
    return [(FLOAT if value is None else value.dtype, tuple(dims))]


@rule("OneHot")
def _one_hot(call: ShapeCall) -> list[Typed]:
    depth = known_sizes(call.value(1))
    if depth is None:
        raise UnknownShape("OneHot of a computed depth")
    dims = list(call.dims())
    axis = call.attrs.get("axis", -1) % (len(dims) + 1)
    return [(call.dtype(2), (*dims[:axis], depth[0], *dims[axis:]))]


@rule("TopK")
def _top_k(call: ShapeCall) -> list[Typed]:
    count, dims = known_sizes(call.value(1)), list(call.dims())
    if count is None:
        raise UnknownShape("TopK of a computed k")
    dims[call.attrs.get("axis", -1)] = count[0]
    return [(call.dtype(), tuple(dims)), (INT64, tuple(dims))]


@rule("Range")
def _range(call: ShapeCall) -> list[Typed]:
    bounds = [known_sizes(call.value(index)) for index in range(3)]
    if any(bound is None for bound in bounds):
        raise UnknownShape("Range over computed bounds")
    start, limit, delta = (bound[0] for bound in bounds if bound is not None)
    return [(call.dtype(), (as_dim(apply("max", -((start - limit) // delta), 0)),))]


@rule("NonZero")
def _non_zero(call: ShapeCall) -> list[Typed]:
    raise UnknownShape("NonZero's size depends on data")
