"""Convolutions and poolings: what stands before and behind them becomes theirs."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dtype_of, known_ints
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    attributes,
    dims_or_none,
    is_constant,
    operand,
    operand_produced_by,
    produced_by,
    required,
    scalar_of,
    sole_use,
    static_dims,
)
from fx2onnx.optimize.rewrites.linear_layers import scale_view
from fx2onnx.optimize.weights import Array, DerivedTensor, ScaledTensor, tensors_of


@dataclass(frozen=True, eq=False)
class PadMatch(Match):
    node: ir.Node
    source: ir.Value
    pads: list[int]


class FusePad(Rewrite[PadMatch]):
    """``Conv(Pad(x))`` -> ``Conv(x)`` with larger ``pads``; likewise ``MaxPool`` of a padding with -inf.

    Refuses:   padding by another number or mode, negative pads, padded batch or channels, ``auto_pad``,
               a MaxPool with windows in the padding only, or whose indices are read.
    """

    roots: ClassVar = ("Conv", "MaxPool")
    moves_rounding = True

    def match(self, node: ir.Node) -> PadMatch | Why:
        pad = produced_by(node.inputs[0], "Pad")
        if pad is None or not sole_use(pad.outputs[0]):
            return Why("the operand is no Pad that nobody else reads")
        if attribute(pad, "mode", "constant") != "constant" or operand(pad, 3) is not None:
            return Why("the Pad copies elements or names axes")
        dims = dims_or_none(pad.outputs[0])
        pads = attribute(pad, "pads") or known_ints(operand(pad, 1))
        if dims is None or pads is None or min(pads) < 0:
            return Why("the pads are unknown or negative")
        rank = len(dims)
        if any(pads[axis] or pads[axis + rank] for axis in (0, 1)):
            return Why("batch or channels are padded")
        filler = operand(pad, 2)
        number = attribute(pad, "value", 0.0) if filler is None else scalar_of(filler)
        own = attribute(node, "pads") or [0] * (2 * (rank - 2))
        if attribute(node, "auto_pad", "NOTSET") != "NOTSET" or attribute(node, "ceil_mode", 0):
            return Why("auto_pad or ceil_mode decide the pads")
        if node.op_type == "Conv":
            if number != 0:
                return Why("the padding is not zero")
        else:
            refusal = _max_pool_refusal(node, number, [*pads[2:rank], *pads[rank + 2 :]], own)
            if refusal:
                return Why(refusal)
        total = [a + b for a, b in zip(own, [*pads[2:rank], *pads[rank + 2 :]], strict=True)]
        return PadMatch(node, required(pad, 0), total)

    def build(self, op: Emit, m: PadMatch) -> ir.Value:
        attrs = {**attributes(m.node), "pads": m.pads}
        result: ir.Value = op.node(m.node.op_type, m.source, *m.node.inputs[1:], outputs=op.result, **attrs)
        return result


def _max_pool_refusal(node: ir.Node, number: float | None, pads: list[int], own: list[int]) -> str:
    if len(node.outputs) > 1:
        return "the indices are read"
    if number is None or not np.isneginf(number):
        return "the padding is not -inf"
    kernel = attribute(node, "kernel_shape")
    dilations = attribute(node, "dilations") or [1] * len(kernel)
    rank = len(kernel)
    for axis in range(rank):
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        if max(pads[axis] + own[axis], pads[axis + rank] + own[axis + rank]) >= kernel[axis] or reach != kernel[axis]:
            return "a window may lie in the padding alone"
    return ""


FUSING = ("Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "Add")
"""Runtimes compute a Relu within these for nothing."""


@dataclass(frozen=True, eq=False)
class PoolMatch(Match):
    pool: ir.Node
    source: ir.Value


class SwapReluMaxPool(Rewrite[PoolMatch]):
    """``MaxPool(Relu(x))`` -> ``Relu(MaxPool(x))``: the Relu sees fewer elements.

    Refuses:   a pool that does not shrink, indices that are read, a Relu that its producer takes in.
    Numerics:  exact: both are monotone, and padding never wins over an element.
    """

    roots: ClassVar = ("MaxPool",)

    def match(self, node: ir.Node) -> PoolMatch | Why:
        relu = produced_by(node.inputs[0], "Relu")
        if relu is None or not sole_use(relu.outputs[0]):
            return Why("the operand is no Relu that nobody else reads")
        if len(node.outputs) > 1:
            return Why("the indices are read")
        if produced_by(relu.inputs[0], *FUSING) is not None:
            return Why("the Relu costs nothing in its producer")
        before, after = static_dims(node.inputs[0]), static_dims(node.outputs[0])
        shrinks = (
            math.prod(after) < math.prod(before)
            if before is not None and after is not None
            else math.prod(attribute(node, "strides") or [1]) > 1
        )
        return PoolMatch(node, required(relu, 0)) if shrinks else Why("the pool does not shrink")

    def build(self, op: Emit, m: PoolMatch) -> ir.Value:
        return op.Relu(op.MaxPool(m.source, outputs=(op.result[0],), **attributes(m.pool)))


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
