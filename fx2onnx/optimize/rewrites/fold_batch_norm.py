"""``BatchNormalization(Conv(x))`` -> ``Conv(x)`` with other weights; also ConvTranspose and Gemm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dtype_of
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    attributes,
    is_constant,
    is_float,
    operand,
    produced_by,
    required,
    sole_use,
    static_dims,
)
from fx2onnx.optimize.weights import Array, DerivedTensor, ScaledTensor, tensors_of


@dataclass(frozen=True, eq=False)
class BatchNormMatch(Match):
    layer: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    statistics: list[ir.Value]
    channels: tuple[int, ...]
    epsilon: float


class FoldBatchNorm(Rewrite[BatchNormMatch]):
    """``BatchNormalization(Conv(x, w, b), gamma, beta, mean, var)`` -> ``Conv(x, w * s, (b - mean) * s + beta)``.

    Shapes:    s = gamma / sqrt(var + epsilon), one number for each output channel of w.
    Refuses:   training mode, weights that are not constant, a weight or product read elsewhere.
    Numerics:  s in float64, products in float32; each output differs by a few roundings.
    Buffers:   the new weights are computed when the file is written and not kept.
    """

    roots: ClassVar = ("BatchNormalization",)
    since = 9
    changes_weights = True
    moves_rounding = True

    def match(self, node: ir.Node) -> BatchNormMatch | Why:
        layer = produced_by(node.inputs[0], "Conv", "ConvTranspose", "Gemm")
        if layer is None:
            return Why("the input comes from no Conv, ConvTranspose or Gemm")
        if attribute(node, "training_mode", 0) or len(node.outputs) > 1:
            return Why("the statistics are those of the batch")
        if not sole_use(layer.outputs[0]):
            return Why("the layer's output is read elsewhere")
        weight, bias = layer.inputs[1], operand(layer, 2)
        statistics = [required(node, index) for index in range(1, 5)]
        if weight is None or not all(map(is_constant, (weight, *statistics))):
            return Why("a weight is not constant")
        if not sole_use(weight):
            return Why("the weight is read elsewhere; it would be stored twice")
        channels = static_dims(statistics[0])
        if bias is not None and (not is_constant(bias) or static_dims(bias) != channels):
            return Why("the bias is not one constant a channel")
        if not is_float(weight) or any(v is not None and v.dtype != weight.dtype for v in (*statistics, bias)):
            return Why("weights and statistics differ in dtype")
        sizes = static_dims(weight)
        if sizes is None or channels is None:
            return Why("the sizes of a weight are unknown")
        if layer.op_type == "Gemm" and (attribute(layer, "alpha", 1.0) != 1.0 or attribute(layer, "beta", 1.0) != 1.0):
            return Why("the Gemm scales its operands")
        return BatchNormMatch(layer, weight, bias, statistics, channels, attribute(node, "epsilon", 1e-5))

    def build(self, op: Emit, m: BatchNormMatch) -> ir.Value:
        sizes = static_dims(m.weight) or ()
        grouped, view = scale_view(m.layer, sizes)
        epsilon = m.epsilon  # not the match itself: the new weights would keep the old graph

        def factor(gamma: Array, variance: Array) -> Array:
            return _factor(gamma, variance, epsilon).reshape(view)

        def new_bias(gamma: Array, beta: Array, mean: Array, variance: Array, *bias: Array) -> Array:
            shift = (bias[0] if bias else 0.0) - mean.astype(np.float64)
            return np.asarray(shift * _factor(gamma, variance, epsilon) + beta)

        name = f"{m.weight.name}.folded"
        (own,), constants = tensors_of([m.weight]), tensors_of(m.statistics)
        weight = ScaledTensor(own, grouped, factor, [constants[0], constants[3]], name)
        stem = (m.weight.name or "").removesuffix(".T").removesuffix(".weight")
        bias_name = f"{m.bias.name if m.bias is not None else stem + '.bias'}.folded"
        sources = constants + tensors_of([] if m.bias is None else [m.bias])
        bias = DerivedTensor(new_bias, sources, dtype_of(m.weight), m.channels, bias_name)
        result: ir.Value = op.node(
            m.layer.op_type,
            m.layer.inputs[0],
            op.builder.add_initializer(name, weight, sizes),
            op.builder.add_initializer(bias_name, bias, m.channels),
            outputs=(op.result[0],),
            **attributes(m.layer),
        )
        return result


def _factor(gamma: Array, variance: Array, epsilon: float) -> Array:
    return np.asarray(gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon))


def scale_view(layer: ir.Node, sizes: tuple[int, ...]) -> tuple[Any, Any]:
    """The weight's dims split so that the output channels stand apart, and the dims of the factor beside them."""
    if layer.op_type == "Conv":
        return sizes, (-1,) + (1,) * (len(sizes) - 1)
    if layer.op_type == "Gemm":
        return sizes, (-1, 1) if attribute(layer, "transB", 0) else (1, -1)
    groups = attribute(layer, "group", 1)
    return (groups, sizes[0] // groups, *sizes[1:]), (groups, 1, sizes[1]) + (1,) * (len(sizes) - 2)
