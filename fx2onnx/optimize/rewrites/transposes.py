"""Transposes: merged, folded into a weight, or taken by a Gemm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dims_of
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
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
    """Of each operand, what is transposed; None where nothing is."""


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
