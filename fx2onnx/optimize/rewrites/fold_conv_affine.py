"""``Add(Conv(x), constant)`` and ``Mul(Conv(x), constant)``, one number a channel -> ``Conv(x)`` with other weights."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dtype_of
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attributes,
    is_constant,
    operand,
    operand_produced_by,
    sole_use,
    static_dims,
)
from fx2onnx.optimize.rewrites.fold_batch_norm import scale_view
from fx2onnx.optimize.weights import Array, DerivedTensor, ScaledTensor, tensors_of


@dataclass(frozen=True, eq=False)
class ConvAffineMatch(Match):
    layer: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    number: ir.Value
    channels: int
    op_type: str
    sign: float


class FoldConvAffine(Rewrite[ConvAffineMatch]):
    """``Add(Conv(x, w, b), c)`` -> ``Conv(x, w, b + c)``; ``Mul(Conv(x, w, b), c)`` -> ``Conv(x, w * c, b * c)``; also
    ``Sub``, and ConvTranspose.

    Shapes:    c [C, 1, .., 1], [1, C, 1, .., 1] or one number.
    Refuses:   weights that are not constant or read elsewhere, a constant of another shape or dtype.
    Buffers:   the new weights are computed when the file is written and not kept.
    """

    roots: ClassVar = ("Add", "Mul", "Sub")
    since = 7
    changes_weights = True
    moves_rounding = True

    def match(self, node: ir.Node) -> ConvAffineMatch | Why:
        found = operand_produced_by(node, "Conv", "ConvTranspose")
        if found is None or len(node.inputs) != 2:
            return Why("no operand is a Conv that nobody else reads")
        layer, number = found
        if node.op_type == "Sub" and node.inputs[1] is not number:
            return Why("it is subtracted from a constant")
        weight, bias = layer.inputs[1], operand(layer, 2)
        if weight is None or not is_constant(weight) or (bias is not None and not is_constant(bias)):
            return Why("a weight is not constant")
        if node.op_type == "Mul" and not sole_use(weight):
            return Why("the weight is read elsewhere; it would be stored twice")
        sizes, given = static_dims(weight), static_dims(number)
        if sizes is None or given is None or not is_constant(number) or number.dtype != weight.dtype:
            return Why("the other operand is no constant of the weight's dtype")
        groups = int(attributes(layer).get("group", 1))
        channels = sizes[0] if layer.op_type == "Conv" else sizes[1] * groups
        rank = len(sizes)
        wanted = [(channels,) + (1,) * (rank - 2), (1, channels) + (1,) * (rank - 2)]
        if int(np.prod(given)) != 1 and given not in wanted:
            return Why("the constant is not one number a channel")
        if len(given) > rank or weight.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            return Why("the constant adds axes, or the weight is of half precision")
        return ConvAffineMatch(
            layer, weight, bias, number, channels, node.op_type, -1.0 if node.op_type == "Sub" else 1.0
        )

    def build(self, op: Emit, m: ConvAffineMatch) -> ir.Value:
        (own,), (number,) = tensors_of([m.weight]), tensors_of([m.number])
        sizes = static_dims(m.weight) or ()
        weight, biases = m.weight, tensors_of([] if m.bias is None else [m.bias])
        if m.op_type == "Mul":
            grouped, view = scale_view(m.layer, sizes)
            factor = functools.partial(_factor, m.channels, view)
            name = f"{m.weight.name}.scaled"
            weight = op.builder.add_initializer(name, ScaledTensor(own, grouped, factor, [number], name), sizes)
        stem = m.bias.name if m.bias is not None else f"{(m.weight.name or '').removesuffix('.weight')}.bias"
        name = f"{stem}.shifted"
        made = functools.partial(_scaled_bias if m.op_type == "Mul" else _shifted_bias, m.channels, m.sign)
        bias: ir.Value | None = m.bias
        if biases or m.op_type != "Mul":
            tensor = DerivedTensor(made, [number, *biases], dtype_of(m.weight), (m.channels,), name)
            bias = op.builder.add_initializer(name, tensor, (m.channels,))
        result: ir.Value = op.node(
            m.layer.op_type, m.layer.inputs[0], weight, bias, outputs=(op.result[0],), **attributes(m.layer)
        )
        return result


def _factor(channels: int, view: tuple[int, ...], number: Array) -> Array:
    return np.broadcast_to(number.reshape(-1), (channels,)).reshape(view)


def _shifted_bias(channels: int, sign: float, number: Array, *bias: Array) -> Array:
    shift = sign * np.broadcast_to(number.reshape(-1), (channels,)).astype(np.float64)
    return np.asarray(shift + (bias[0] if bias else 0.0))


def _scaled_bias(channels: int, sign: float, number: Array, *bias: Array) -> Array:
    return np.asarray(np.broadcast_to(number.reshape(-1), (channels,)).astype(np.float64) * bias[0])
