"""Quantized values: zero points in the dtype of the codes, and pairs that undo each other."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dims_of, known_array
from fx2onnx.optimize.rewrite import Kept, Match, Removal, Rewrite, Why, attribute, is_constant, operand, produced_by
from fx2onnx.optimize.weights import Array, DerivedTensor, tensors_of

ZERO_POINT = {"QuantizeLinear": 2, "DequantizeLinear": 2}
"""The place of the zero point among the inputs, by operator."""


@dataclass(frozen=True, eq=False)
class ZeroPointMatch(Match):
    weight: ir.Value
    dtype: ir.DataType


class FoldZeroPoint(Rewrite[ZeroPointMatch]):
    """``QuantizeLinear(x, s, Cast(weight))`` -> ``QuantizeLinear(x, s, w)``, w an initializer; of DequantizeLinear the same.

    Refuses:   what is no integer, and a Cast that something else reads.
    Buffers:   the new numbers are made when the file is written. PyTorch keeps zero points in 64 bits, where 8 do.
    """

    roots: ClassVar = ("Cast",)
    changes_weights = True

    def match(self, node: ir.Node) -> ZeroPointMatch | Why:
        weight, result = node.inputs[0], node.outputs[0]
        if weight is None or not is_constant(weight):
            return Why("the operand is no weight")
        if result.is_graph_output() or not result.uses():
            return Why("it is read by no node")
        if any(ZERO_POINT.get(reader.op_type) != place for reader, place in result.uses()):
            return Why("it is no zero point")
        if weight.dtype is None or result.dtype is None:
            return Why("the dtype is unknown")
        if not weight.dtype.is_integer() or not result.dtype.is_integer():
            return Why("it is no integer")
        return ZeroPointMatch(weight, result.dtype)

    def build(self, op: Emit, m: ZeroPointMatch) -> ir.Value:
        name = f"{m.weight.name}.{m.dtype.name.lower()}"
        (tensor,) = tensors_of([m.weight])
        dims = tensor.shape.numpy()
        made = DerivedTensor(functools.partial(_cast, m.dtype.numpy()), (tensor,), m.dtype, dims, name)
        return op.builder.add_initializer(name, made, dims_of(m.weight))


def _cast(dtype: np.dtype[Any], array: Array) -> Array:
    return array.astype(dtype)


EXACT_STEPS_BITS = 16
"""q - z of up to 17 bits times a float32 scale, divided by it again, is within half a step of q - z."""


class RemoveRequantize(Removal):
    """``QuantizeLinear(DequantizeLinear(q, s, z), s, z)`` -> ``q``; so a chain of fake quantizations becomes one.

    Refuses:   other scale or zero point, blocks or axes that differ, another integer dtype, more than 16 bits,
               scales so small that q * s underflows.
    """

    roots: ClassVar = ("QuantizeLinear",)

    def match(self, node: ir.Node) -> Kept | Why:
        inner = produced_by(node.inputs[0], "DequantizeLinear")
        if inner is None or inner.inputs[0] is None:
            return Why("the operand was not quantised")
        source = inner.inputs[0]
        if source.dtype is None or source.dtype != node.outputs[0].dtype:
            return Why("the integer dtype differs")
        if not source.dtype.is_integer() or source.dtype.bitwidth > EXACT_STEPS_BITS:
            return Why("the integers are wider than 16 bits")
        for index in (1, 2):
            if not _equal(operand(inner, index), operand(node, index)):
                return Why("scale or zero point differ")
        if any(attribute(inner, name, d) != attribute(node, name, d) for name, d in (("axis", 1), ("block_size", 0))):
            return Why("the axis differs")
        scale = known_array(inner.inputs[1])
        if scale is None or inner.inputs[1] is None or inner.inputs[1].dtype != ir.DataType.FLOAT:
            return Why("the scale is not a small float32 constant")
        if not bool(((scale > 1e-30) & (scale < 1e30)).all()):  # type: ignore[operator]
            return Why("the scale is near the ends of float32")
        return Kept(source)


def _equal(lhs: ir.Value | None, rhs: ir.Value | None) -> bool:
    if lhs is rhs:
        return True
    left, right = known_array(lhs), known_array(rhs)
    return left is not None and right is not None and left.dtype == right.dtype and bool((left == right).all())
