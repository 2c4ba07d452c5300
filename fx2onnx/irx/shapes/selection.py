"""Operators that choose elements by index, and those that make tensors out of sizes."""

from __future__ import annotations

from fx2onnx.irx.shapes.table import FLOAT, INT64, Call, Typed, UnknownShape, as_dim, rule
from fx2onnx.irx.values import known_sizes, rank_of
from fx2onnx.sizes.expr import apply


@rule("Gather")
def _gather(call: Call) -> list[Typed]:
    dims = call.dims()
    axis = call.attrs.get("axis", 0) % len(dims)
    return [(call.dtype(), (*dims[:axis], *call.dims(1), *dims[axis + 1 :]))]


@rule("GatherElements")
def _gather_elements(call: Call) -> list[Typed]:
    return [(call.dtype(), call.dims(1))]


@rule("GatherND")
def _gather_nd(call: Call) -> list[Typed]:
    data, indices = call.dims(), call.dims(1)
    batch, depth = call.attrs.get("batch_dims", 0), indices[-1]
    if not isinstance(depth, int):
        raise UnknownShape("GatherND of a symbolic depth")
    return [(call.dtype(), indices[:-1] + data[batch + depth :])]


@rule("Shape")
def _shape(call: Call) -> list[Typed]:
    count = len(range(rank_of(call.value(0)))[call.attrs.get("start", 0) : call.attrs.get("end")])
    return [(INT64, (count,))]


@rule("Size")
def _size(call: Call) -> list[Typed]:
    return [(INT64, ())]


@rule("ConstantOfShape")
def _constant_of_shape(call: Call) -> list[Typed]:
    dims = known_sizes(call.value(0))
    if dims is None:
        raise UnknownShape("ConstantOfShape of a computed shape")
    value = call.attrs.get("value")
    return [(FLOAT if value is None else value.dtype, tuple(dims))]


@rule("OneHot")
def _one_hot(call: Call) -> list[Typed]:
    depth = known_sizes(call.value(1))
    if depth is None:
        raise UnknownShape("OneHot of a computed depth")
    dims = list(call.dims())
    axis = call.attrs.get("axis", -1) % (len(dims) + 1)
    return [(call.dtype(2), (*dims[:axis], depth[0], *dims[axis:]))]


@rule("TopK")
def _top_k(call: Call) -> list[Typed]:
    count, dims = known_sizes(call.value(1)), list(call.dims())
    if count is None:
        raise UnknownShape("TopK of a computed k")
    dims[call.attrs.get("axis", -1)] = count[0]
    return [(call.dtype(), tuple(dims)), (INT64, tuple(dims))]


@rule("Range")
def _range(call: Call) -> list[Typed]:
    bounds = [known_sizes(call.value(index)) for index in range(3)]
    if any(bound is None for bound in bounds):
        raise UnknownShape("Range over computed bounds")
    start, limit, delta = (bound[0] for bound in bounds if bound is not None)
    return [(call.dtype(), (as_dim(apply("max", -((start - limit) // delta), 0)),))]


@rule("NonZero")
def _non_zero(call: Call) -> list[Typed]:
    raise UnknownShape("NonZero's size depends on data")
