"""``Cast(weight)`` as a zero point -> the weight in the dtype of the codes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dims_of
from fx2onnx.optimize.rewrite import Match, Rewrite, Why, is_constant
from fx2onnx.optimize.weights import Array, DerivedTensor, tensors_of

ZERO_POINT = {"QuantizeLinear": 2, "DequantizeLinear": 2}
"""Which input it is."""


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
