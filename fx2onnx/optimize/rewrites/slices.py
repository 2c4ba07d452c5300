"""Slices, gathers and Concats: merged, split, taken of one repeated number, or replaced by a Reshape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims, dtype_of, known_ints
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    dims_or_none,
    first_reader,
    is_constant,
    operand,
    produced_by,
    required,
    sole_reader,
    sole_use,
    speaks_for_readers,
    static_dims,
)

Cut = tuple[int, int, int]
"""Start, end and step along one axis."""


@dataclass(frozen=True, eq=False)
class SlicesMatch(Match):
    source: ir.Value
    cuts: dict[int, Cut]


class MergeSlices(Rewrite[SlicesMatch]):
    """``Slice(Slice(x, a), b)`` -> ``Slice(x, a and b)`` where both cut constant parts of different axes.

    Refuses:   computed bounds, an unknown rank, an axis that both cut, an inner Slice that is read elsewhere.
    """

    roots: ClassVar = ("Slice",)
    since = 10

    def match(self, node: ir.Node) -> SlicesMatch | Why:
        inner = produced_by(node.inputs[0], "Slice")
        if inner is None:
            return Why("the operand is no Slice")
        if not sole_use(inner.outputs[0]):
            return Why("the inner Slice is read elsewhere")
        dims = dims_or_none(required(node, 0))
        if dims is None:
            return Why("the rank is unknown")
        first, second = _cuts(inner, len(dims)), _cuts(node, len(dims))
        if first is None or second is None:
            return Why("a bound is computed")
        if first.keys() & second.keys():
            return Why("both cut one axis")
        return SlicesMatch(required(inner, 0), first | second)

    def build(self, op: Emit, m: SlicesMatch) -> ir.Value:
        starts, ends, steps = (list(column) for column in zip(*m.cuts.values(), strict=True))
        return op.Slice(m.source, *(op.const(np.array(each, np.int64)) for each in (starts, ends, list(m.cuts), steps)))


def _cuts(node: ir.Node, rank: int) -> dict[int, Cut] | None:
    """The cut of a Slice for each axis; None where a bound is computed."""
    given = [operand(node, index) for index in range(1, 5)]
    arrays = [None if each is None or each.const_value is None else each.const_value.numpy() for each in given]
    if any(each is not None and array is None for each, array in zip(given, arrays, strict=True)):
        return None
    starts, ends, axes, steps = (None if each is None else [int(number) for number in each] for each in arrays)
    if starts is None or ends is None:
        return None
    axes = list(range(len(starts))) if axes is None else [axis % rank for axis in axes]
    return dict(zip(axes, zip(starts, ends, steps or [1] * len(starts), strict=True), strict=True))


@dataclass(frozen=True, eq=False)
class Splat(Match):
    dims: tuple[int, ...]
    scalar: ir.Value | None
    value: Any


class SliceSplat(Rewrite[Splat]):
    """``Slice``, ``Gather``, ``Reshape``, ``Transpose``, ... of ``ConstantOfShape(v)`` or of ``Expand(scalar)`` -> a
    splat of the resulting dims.

    Refuses:   dims that are not known; a Gather of dims beyond the source is none of ours: indices are taken as valid.
    """

    roots: ClassVar = ("Slice", "Gather", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Tile")

    def match(self, node: ir.Node) -> Splat | Why:
        splat = produced_by(node.inputs[0], "ConstantOfShape", "Expand")
        if splat is None:
            return Why("the operand is no splat")
        dims = static_dims(node.outputs[0])
        if dims is None:
            return Why("the dims are unknown")
        if splat.op_type == "ConstantOfShape":
            return Splat(dims, None, attribute(splat, "value"))
        scalar = splat.inputs[0]
        if static_dims(scalar) is None or np.prod(static_dims(scalar) or (), dtype=np.int64) != 1:
            return Why("what is expanded is not one number")
        if len(static_dims(scalar) or ()) > len(dims):
            return Why("the number has more axes than the result")
        return Splat(dims, scalar, None)

    def build(self, op: Emit, m: Splat) -> ir.Value:
        shape = np.array(m.dims, dtype=np.int64)
        if m.scalar is not None:
            return op.Expand(m.scalar, shape, outputs=(op.result[0],))
        return op.ConstantOfShape(shape, value=m.value, outputs=(op.result[0],))


@dataclass(frozen=True, eq=False)
class GathersMatch(Match):
    x: ir.Value
    axis: int
    dims: Dims


class SplitGathers(Rewrite[GathersMatch]):
    """``Reshape(Gather(x, 0)), Reshape(Gather(x, 1)), ...`` -> ``Reshape`` of each part of one ``Split(x)``.

    Refuses:   numbers that do not cover the axis once each; a part that is read by other than one Reshape, which takes
               the axis of size 1 away for nothing.
    """

    roots: ClassVar = ("Gather",)
    since = 13

    def match(self, node: ir.Node) -> GathersMatch | Why:
        x = node.inputs[0]
        dims = dims_or_none(x)
        if x is None or dims is None or x.is_graph_output():
            return Why("the rank is unknown, or the operand is an output")
        if not speaks_for_readers(node, x):
            return Why("the first of the many Gathers that read the operand looks at the others")
        axis = attribute(node, "axis", 0) % max(len(dims), 1)
        parts: dict[int, ir.Node] = {}
        for user, index in x.uses():
            number = known_ints(user.inputs[1]) if user.op_type == "Gather" and index == 0 else None
            if number is None or dims_or_none(user.inputs[1]) != () or attribute(user, "axis", 0) % len(dims) != axis:
                return Why("it is read by other than a Gather of one number")
            if user.graph is not node.graph:
                return Why("a Gather lies in another graph")
            reader = sole_reader(user.outputs[0])
            if reader is None or reader.op_type != "Reshape" or dims_or_none(reader.outputs[0]) is None:
                return Why("a part is read by other than one Reshape")
            size = dims[axis]
            parts[number[0] % size if isinstance(size, int) and size else number[0]] = user
        if len(parts) < 2 or sorted(parts) != list(range(len(parts))) or dims[axis] != len(parts):
            return Why("the numbers do not cover the axis")
        users = [parts[number] for number in range(len(parts))]
        replaces = [user.outputs[0] for user in users]
        return GathersMatch(before=first_reader(users, x), replaces=replaces, x=x, axis=axis, dims=dims)

    def build(self, op: Emit, m: GathersMatch) -> Sequence[ir.Value]:
        count = len(m.replaces or ())
        part = (dtype_of(m.x), (*m.dims[: m.axis], 1, *m.dims[m.axis + 1 :]))
        values = op.Split(m.x, split=[1] * count, axis=m.axis, outputs=[part] * count)
        return [op.Squeeze(value, axes=[m.axis]) for value in values]


LIMIT_INDICES = 1 << 18
"""Larger index tensors are not compared: it would cost milliseconds."""


@dataclass(frozen=True, eq=False)
class GridMatch(Match):
    x: ir.Value
    dims: tuple[int, ...]


class GridGather(Rewrite[GridMatch]):
    """``GatherND(x, all indices in order)`` -> ``Reshape(x)``.

    transformers index their padding masks so: ``mask[batch_indices, key_indices]``.

    Refuses:   indices that are computed, incomplete or in another order; batch dims; dims that are unknown.
    """

    roots: ClassVar = ("GatherND",)
    since = 11

    def match(self, node: ir.Node) -> GridMatch | Why:
        x, indices = node.inputs[0], node.inputs[1]
        dims, places = static_dims(x), static_dims(indices)
        if not dims or not places or attribute(node, "batch_dims", 0):
            return Why("the dims are unknown, or there are batch dims")
        count = math.prod(dims)
        if places[-1] != len(dims) or math.prod(places[:-1]) != count or count * len(dims) > LIMIT_INDICES:
            return Why("the indices are not one for each element")
        if indices is None or not is_constant(indices) or indices.const_value is None:
            return Why("the indices are computed")
        grid = np.stack(np.unravel_index(np.arange(count), dims), axis=-1)
        if not np.array_equal(indices.const_value.numpy().reshape(-1, len(dims)), grid):
            return Why("the indices are in another order")
        return GridMatch(required(node, 0), places[:-1])

    def build(self, op: Emit, m: GridMatch) -> ir.Value:
        return op.reshape(m.x, m.dims)


@dataclass(frozen=True, eq=False)
class ConcatMatch(Match):
    operands: list[ir.Value | None]
    axis: int


class MergeConcats(Rewrite[ConcatMatch]):
    """``Concat(Concat(a, b), c)`` -> ``Concat(a, b, c)`` on one axis.

    Refuses:   an inner Concat on another axis, or read elsewhere (its parts would be copied twice).
    """

    roots: ClassVar = ("Concat",)

    def match(self, node: ir.Node) -> ConcatMatch | Why:
        dims = dims_or_none(node.outputs[0])
        if dims is None:
            return Why("the rank is unknown")
        axis = attribute(node, "axis") % len(dims)
        reader = sole_reader(node.outputs[0])
        if reader is not None and _inner(reader, node.outputs[0], axis) is node:
            return Why("the Concat that reads this one takes its operands")
        operands: list[ir.Value | None] = []
        pending = list(reversed(node.inputs))
        while pending:
            value = pending.pop()
            inner = _inner(node, value, axis)
            if inner is None:
                operands.append(value)
            else:
                pending += reversed(inner.inputs)
        if len(operands) == len(node.inputs):
            return Why("no operand is a Concat on the same axis that nobody else reads")
        return ConcatMatch(operands, axis)

    def build(self, op: Emit, m: ConcatMatch) -> ir.Value:
        return op.Concat(*m.operands, axis=m.axis)


def _inner(outer: ir.Node, value: ir.Value | None, axis: int) -> ir.Node | None:
    """The Concat that makes an operand of the Concat ``outer``, where both are one along ``axis``."""
    dims = dims_or_none(outer.outputs[0])
    inner = produced_by(value, "Concat")
    if outer.op_type != "Concat" or outer.domain or dims is None or attribute(outer, "axis") % len(dims) != axis:
        return None
    if inner is None or not sole_use(inner.outputs[0]) or attribute(inner, "axis") % len(dims) != axis:
        return None
    return inner
