"""``Transpose(weight)`` -> the weight stored transposed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dims_of
from fx2onnx.optimize.rewrite import Match, Rewrite, Why, is_constant, perm_of, sole_use
from fx2onnx.optimize.weights import TransposedTensor, tensors_of


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
