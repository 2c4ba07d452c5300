"""Reshapes and Transposes: merged, moved, given constant sizes, folded into a weight or a Gemm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims, dims_of, known_ints, known_sizes
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    attributes,
    dims_or_none,
    is_constant,
    is_float,
    operand,
    perm_of,
    produced_by,
    required,
    sole_use,
)
from fx2onnx.optimize.weights import TransposedTensor, tensors_of
from fx2onnx.sizes.expr import Dim, DimLike

VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


@dataclass(frozen=True, eq=False)
class MergeReshapesMatch(Match):
    source: ir.Value
    dims: Dims
    axes: list[int] | None
    """The axes of one Unsqueeze that does the same; None if none does."""


class MergeReshapes(Rewrite[MergeReshapesMatch]):
    """Two consecutive of ``Reshape``, ``Flatten``, ``Squeeze``, ``Unsqueeze`` -> one ``Reshape``; two ``Unsqueeze`` ->
    one ``Unsqueeze``.

    Refuses:   more than one size that is known only while running (it would have to be computed), empty tensors, unknown ranks.
    """

    roots: ClassVar = VIEWS

    def match(self, node: ir.Node) -> MergeReshapesMatch | Why:
        inner = produced_by(node.inputs[0], *VIEWS)
        if inner is None or inner.inputs[0] is None:
            return Why("the operand is no view")
        source = inner.inputs[0]
        before, after = dims_or_none(source), dims_or_none(node.outputs[0])
        if before is None or after is None or source.dtype is None:
            return Why("the rank is unknown")
        axes = _unsqueezed_axes(inner, node, len(after))
        if axes is None and not is_cheap(before, after):
            return Why("several sizes would have to be computed")
        return MergeReshapesMatch(source, after, axes)

    def build(self, op: Emit, m: MergeReshapesMatch) -> ir.Value:
        if m.axes is not None and m.dims != dims_or_none(m.source):
            return op.Unsqueeze(m.source, axes=m.axes)
        return op.reshape(m.source, m.dims)


def is_cheap(before: Dims, after: Dims) -> bool:
    """Return whether ``op.reshape`` needs no node beside the Reshape: at most one size neither fixed nor copied."""
    if 0 in before or 0 in after:
        return False
    moved = [
        axis
        for axis, dim in enumerate(after)
        if isinstance(dim, Dim) and not (axis < len(before) and before[axis] == dim)
    ]
    return len(moved) <= 1


def _unsqueezed_axes(inner: ir.Node, outer: ir.Node, rank: int) -> list[int] | None:
    """The axes that two Unsqueeze add together, else None."""
    if inner.op_type != "Unsqueeze" or outer.op_type != "Unsqueeze":
        return None
    inner_axes, outer_axes = (attribute(n, "axes") or known_ints(operand(n, 1)) for n in (inner, outer))
    if inner_axes is None or outer_axes is None:
        return None
    added = {axis % rank for axis in outer_axes}
    places = [axis for axis in range(rank) if axis not in added]
    return sorted(added | {places[axis % len(places)] for axis in inner_axes})


@dataclass(frozen=True, eq=False)
class MoveReshapeMatch(Match):
    source: ir.Value
    dims: Dims
    perm: list[int]


class MoveReshapeUp(Rewrite[MoveReshapeMatch]):
    """``Reshape(Transpose(Reshape(x)))`` -> ``Transpose(Reshape(x))`` where the last Reshape only splits axes, or adds
    and removes axes of size 1: it then does so before the Transpose, in the first Reshape.

    PyTorch's multi-head attention splits batch * heads so.

    Refuses:   a Reshape that joins axes, steps read elsewhere, several sizes that are known only while running.
    """

    roots: ClassVar = VIEWS

    def match(self, node: ir.Node) -> MoveReshapeMatch | Why:
        transpose = produced_by(node.inputs[0], "Transpose")
        first = produced_by(transpose.inputs[0], *VIEWS) if transpose is not None else None
        if transpose is None or first is None:
            return Why("the operand is no Transpose of a view")
        if not sole_use(transpose.outputs[0]) or not sole_use(first.outputs[0]):
            return Why("a step is read elsewhere")
        before, after = dims_or_none(transpose.outputs[0]), dims_or_none(node.outputs[0])
        source, perm = dims_or_none(first.inputs[0]), perm_of(transpose)
        if before is None or after is None or source is None or perm is None:
            return Why("the rank is unknown")
        groups = split_axes(before, after)
        if groups is None:
            return Why("it joins axes")
        order = sorted(range(len(perm)), key=lambda place: perm[place])
        dims = tuple(dim for place in order for dim in groups[place])
        if not is_cheap(source, dims):
            return Why("several sizes would have to be computed")
        lengths = [len(groups[place]) for place in order]
        starts = [sum(lengths[:place]) for place in range(len(lengths))]
        new_perm = [starts[perm[place]] + k for place in range(len(perm)) for k in range(len(groups[place]))]
        return MoveReshapeMatch(required(first, 0), dims, new_perm)

    def build(self, op: Emit, m: MoveReshapeMatch) -> ir.Value:
        return op.Transpose(op.reshape(m.source, m.dims), perm=m.perm)


def split_axes(before: Dims, after: Dims) -> list[list[DimLike]] | None:
    """For each axis of ``before`` the run of axes of ``after`` that it becomes; None where axes are joined."""
    groups: list[list[DimLike]] = []
    rest = list(after)
    for dim in before:
        group: list[DimLike] = []
        total: DimLike = 1
        while total != dim:
            if not rest:
                return None
            taken = rest.pop(0)
            total = total * taken  # type: ignore[assignment]
            group.append(taken)
            if isinstance(total, int) and isinstance(dim, int) and (total > dim or total == 0):
                return None
        groups.append(group)
    if any(dim != 1 for dim in rest) or not groups:
        return None
    groups[-1] += rest
    return groups


@dataclass(frozen=True, eq=False)
class FixedTargetMatch(Match):
    source: ir.Value
    dims: Dims


class FixedTarget(Rewrite[FixedTargetMatch]):
    """``Reshape(x, Concat(Gather(Shape(x), 0), 12, 64))`` -> ``Reshape(x, [0, 12, 64])``.

    Refuses:   a constant target, two sizes that are known only while running, a size that may be 0 where 0 copies.
    Numerics:  exact.
    """

    roots: ClassVar = ("Reshape",)
    since = 5

    def match(self, node: ir.Node) -> FixedTargetMatch | Why:
        source, shape = node.inputs[0], operand(node, 1)
        if source is None or shape is None or is_constant(shape):
            return Why("the target is a constant")
        held, before = known_sizes(shape), dims_or_none(source)
        if held is None or before is None or source.dtype is None:
            return Why("the target is not known")
        after = dims_or_none(node.outputs[0])
        if after is None or len(after) != len(held) or 0 in held:
            return Why("the dims of the result are not known")
        if not is_cheap(before, after):
            return Why("several sizes would have to be computed")
        if not any(isinstance(dim, Dim) for dim in after) and -1 in after:
            return Why("the dims of the result are not known")
        return FixedTargetMatch(source, after)

    def build(self, op: Emit, m: FixedTargetMatch) -> ir.Value:
        return op.reshape(m.source, m.dims)


@dataclass(frozen=True, eq=False)
class MergeTransposesMatch(Match):
    source: ir.Value
    perm: tuple[int, ...]
    cancels: bool


class MergeTransposes(Rewrite[MergeTransposesMatch]):
    """``Transpose(Transpose(x, p), q)`` -> ``Transpose(x, p[q])``, or x where that moves nothing.

    Refuses:   an inner Transpose that is read elsewhere, unless both cancel (its result is at hand already).
    """

    roots: ClassVar = ("Transpose",)

    def match(self, node: ir.Node) -> MergeTransposesMatch | Why:
        inner = produced_by(node.inputs[0], "Transpose")
        if inner is None:
            return Why("the operand is not transposed")
        first, second = perm_of(inner), perm_of(node)
        if first is None or second is None:
            return Why("the rank is unknown")
        perm = tuple(first[axis] for axis in second)
        cancels = perm == tuple(range(len(perm)))
        if not cancels and not sole_use(inner.outputs[0]):
            return Why("the inner Transpose is read elsewhere")
        return MergeTransposesMatch(required(inner, 0), perm, cancels)

    def build(self, op: Emit, m: MergeTransposesMatch) -> ir.Value:
        return m.source if m.cancels else op.Transpose(m.source, perm=m.perm)


@dataclass(frozen=True, eq=False)
class WeightTransposeMatch(Match):
    weight: ir.Value
    perm: tuple[int, ...]


class FoldWeightTranspose(Rewrite[WeightTransposeMatch]):
    """``Transpose(weight)`` -> ``weight.T``, an initializer.

    Refuses:   a weight read elsewhere: it would be stored twice (tied embeddings).
    Buffers:   the transposed bytes are made when the file is written and not kept.
    """

    roots: ClassVar = ("Transpose",)
    changes_weights = True

    def match(self, node: ir.Node) -> WeightTransposeMatch | Why:
        weight = node.inputs[0]
        if weight is None or not is_constant(weight):
            return Why("the operand is no weight")
        if node.outputs[0].is_graph_output():
            return Why("the transposed weight is a graph output")
        if not sole_use(weight):
            return Why("the weight is read elsewhere; it would be stored twice")
        perm = perm_of(node)
        if perm is None:
            return Why("the rank is unknown")
        return WeightTransposeMatch(weight, perm)

    def build(self, op: Emit, m: WeightTransposeMatch) -> ir.Value:
        name = f"{m.weight.name}.T"
        (tensor,) = tensors_of([m.weight])
        return op.builder.add_initializer(
            name, TransposedTensor(tensor, m.perm, name), [dims_of(m.weight)[axis] for axis in m.perm]
        )


@dataclass(frozen=True, eq=False)
class TransposesMatch(Match):
    node: ir.Node
    sources: list[ir.Value | None]
    """For each operand, the value that is transposed; None where none is."""


class FuseTransposeGemm(Rewrite[TransposesMatch]):
    """``Gemm(Transpose(a), b)`` -> ``Gemm(a, b, transA=1)``, likewise b; also of a ``MatMul`` of rank 2.

    Refuses:   rank other than 2, no transposed operand, integers.
    Numerics:  the same products; a runtime may sum them in another order.
    """

    roots: ClassVar = ("Gemm", "MatMul")
    since = 11
    moves_rounding = True

    def match(self, node: ir.Node) -> TransposesMatch | Why:
        lhs, rhs = node.inputs[0], node.inputs[1]
        sources = [_before_transpose(lhs), _before_transpose(rhs)]
        if sources == [None, None]:
            return Why("no operand is transposed")
        dims = [dims_or_none(value) for value in (lhs, rhs)]
        if any(item is None or len(item) != 2 for item in dims):
            return Why("MatMul is not 2-D")
        if not is_float(node.outputs[0]):
            return Why(f"runtimes have no Gemm of {node.outputs[0].dtype}")
        return TransposesMatch(node, sources)

    def build(self, op: Emit, m: TransposesMatch) -> ir.Value:
        attrs = attributes(m.node)
        operands = list(m.node.inputs[:2])
        for place, (source, name) in enumerate(zip(m.sources, ("transA", "transB"), strict=True)):
            if source is not None:
                operands[place] = source
                attrs[name] = 1 - attrs.get(name, 0)
        lhs, rhs = operands
        return op.Gemm(lhs, rhs, operand(m.node, 2), **attrs)


def _before_transpose(value: ir.Value | None) -> ir.Value | None:
    node = produced_by(value, "Transpose")
    return node.inputs[0] if node is not None and perm_of(node) == (1, 0) else None
