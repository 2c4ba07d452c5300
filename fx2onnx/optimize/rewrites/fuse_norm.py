"""Decomposed LayerNorm and RMSNorm -> ``LayerNormalization``, ``RMSNormalization``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import known_ints
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    attributes,
    dims_or_none,
    is_float,
    operand,
    operand_produced_by,
    produced_by,
    same_dims,
    scalar_of,
)


@dataclass(frozen=True, eq=False)
class NormMatch(Match):
    x: ir.Value
    weight: ir.Value
    epsilon: float
    axis: int


class FuseLayerNorm(Rewrite[NormMatch]):
    """``Mul(Div(d, Sqrt(Add(ReduceMean(d * d), eps))), weight)`` with ``d = Sub(x, ReduceMean(x))`` ->
    ``LayerNormalization(x, weight)``.

    Shapes:    weight [N1..Nk], the last k dims of x, over which both means are.
    Refuses:   means over other axes, a weight of other dims, variance by another formula.
    """

    roots: ClassVar = ("Mul",)
    since = 17
    moves_rounding = True

    def match(self, node: ir.Node) -> NormMatch | Why:
        found = _normalised(node)
        if isinstance(found, Why):
            return found
        x = _centred(found.x, found.axis)
        return x if isinstance(x, Why) else replace(found, x=x)

    def build(self, op: Emit, m: NormMatch) -> ir.Value:
        return op.LayerNormalization(m.x, m.weight, axis=m.axis, epsilon=m.epsilon)


@dataclass(frozen=True, eq=False)
class NormBiasMatch(Match):
    norm: ir.Node
    bias: ir.Value


class FuseLayerNormBias(Rewrite[NormBiasMatch]):
    """``Add(LayerNormalization(x, weight), bias)`` -> ``LayerNormalization(x, weight, bias)``.

    Refuses:   a bias of other dims than the weight, a norm that is read elsewhere.
    """

    roots: ClassVar = ("Add",)
    since = 17
    moves_rounding = True

    def match(self, node: ir.Node) -> NormBiasMatch | Why:
        found = operand_produced_by(node, "LayerNormalization")
        if found is None:
            return Why("no operand is a LayerNormalization that nobody else reads")
        norm, bias = found
        if operand(norm, 2) is not None or any(value.uses() for value in norm.outputs[1:]):
            return Why("it has a bias, or its statistics are read")
        if not same_dims(dims_or_none(bias), dims_or_none(norm.inputs[1])):
            return Why("the bias has other dims than the weight")
        return NormBiasMatch(norm, bias)

    def build(self, op: Emit, m: NormBiasMatch) -> ir.Value:
        x, weight = m.norm.inputs[:2]
        result: ir.Value = op.LayerNormalization(x, weight, m.bias, **attributes(m.norm))
        return result


class FuseRMSNorm(Rewrite[NormMatch]):
    """``Mul(Div(x, Sqrt(Add(ReduceMean(x * x), eps))), weight)`` -> ``RMSNormalization(x, weight)``.

    Shapes:    weight [N1..Nk], the last k dims of x.
    Refuses:   means over other axes, a weight of other dims, opset below 23.
    """

    roots: ClassVar = ("Mul",)
    since = 23
    moves_rounding = True

    def match(self, node: ir.Node) -> NormMatch | Why:
        return _normalised(node)

    def build(self, op: Emit, m: NormMatch) -> ir.Value:
        return op.RMSNormalization(m.x, m.weight, axis=m.axis, epsilon=m.epsilon)


def _normalised(node: ir.Node) -> NormMatch | Why:
    """x, weight, epsilon and the first (negative) axis of ``weight * x / sqrt(mean(x * x) + epsilon)``."""
    found = operand_produced_by(node, "Div", "Mul")
    if found is None:
        return Why("no operand is a quotient that nobody else reads")
    quotient, weight = found
    parts = _divided_by_root(quotient)
    if isinstance(parts, Why):
        return parts
    top, epsilon, axis = parts
    dims = dims_or_none(top)
    if dims is None or not same_dims(dims_or_none(weight), dims[axis:]):
        return Why("the weight does not have the dims that the mean is over")
    return NormMatch(top, weight, epsilon, axis)


def _divided_by_root(quotient: ir.Node) -> tuple[ir.Value, float, int] | Why:
    """x, epsilon and the first (negative) axis of ``x / sqrt(mean(x * x) + epsilon)``."""
    top, bottom = quotient.inputs
    if quotient.op_type == "Mul":
        reciprocal = produced_by(bottom, "Reciprocal")
        bottom = reciprocal.inputs[0] if reciprocal is not None else None
    root = produced_by(bottom, "Sqrt")
    add = produced_by(root.inputs[0], "Add") if root is not None else None
    if top is None or add is None or not is_float(top):
        return Why("nothing is divided by a root of a sum")
    for index in (0, 1):
        mean, epsilon = produced_by(add.inputs[index], "ReduceMean"), scalar_of(add.inputs[1 - index])
        if mean is not None and epsilon is not None and _is_square(mean.inputs[0], top):
            axis = _first_axis(mean)
            return (
                Why("the weight does not have the dims that the mean is over") if axis is None else (top, epsilon, axis)
            )
    return Why("what is under the root is not a mean of squares")


@dataclass(frozen=True, eq=False)
class BareMatch(Match):
    x: ir.Value
    epsilon: float
    axis: int
    sizes: tuple[int, ...]


class FuseBareLayerNorm(Rewrite[BareMatch]):
    """``Div(d, Sqrt(Add(ReduceMean(d * d), eps)))`` with ``d = Sub(x, ReduceMean(x))`` -> ``LayerNormalization(x, ones)``.

    Refuses:   where a weight follows, which ``FuseLayerNorm`` takes; sizes that are not known.
    """

    roots: ClassVar = ("Div",)
    since = 17
    moves_rounding = True

    def match(self, node: ir.Node) -> BareMatch | Why:
        parts = _divided_by_root(node)
        if isinstance(parts, Why):
            return parts
        top, epsilon, axis = parts
        if any(user.op_type == "Mul" for user, _ in node.outputs[0].uses()):
            return Why("a weight may follow")
        x = _centred(top, axis)
        if isinstance(x, Why):
            return x
        sizes = (dims_or_none(x) or ())[axis:]
        if not sizes or not all(isinstance(size, int) for size in sizes) or x.dtype != ir.DataType.FLOAT:
            return Why("the sizes of the axes are not known, or not float32")
        return BareMatch(x, epsilon, axis, tuple(size for size in sizes if isinstance(size, int)))

    def build(self, op: Emit, m: BareMatch) -> ir.Value:
        return op.LayerNormalization(m.x, np.ones(m.sizes, np.float32), axis=m.axis, epsilon=m.epsilon)


def _centred(value: ir.Value, axis: int) -> ir.Value | Why:
    """x of ``Sub(x, ReduceMean(x))`` over the axes from ``axis`` on."""
    sub = produced_by(value, "Sub")
    if sub is None or sub.inputs[0] is None:
        return Why("nothing is subtracted: no LayerNorm")
    mean = produced_by(sub.inputs[1], "ReduceMean")
    if mean is None or mean.inputs[0] is not sub.inputs[0] or _first_axis(mean) != axis:
        return Why("what is subtracted is not the mean over the same axes")
    return sub.inputs[0]


def _is_square(value: ir.Value | None, x: ir.Value) -> bool:
    node = produced_by(value, "Mul", "Pow")
    if node is None or node.inputs[0] is not x:
        return False
    return node.inputs[1] is x if node.op_type == "Mul" else scalar_of(node.inputs[1]) == 2


def _first_axis(mean: ir.Node) -> int | None:
    """The first axis, counted from the end, of a mean over all the last axes with keepdims; else None."""
    dims = dims_or_none(mean.inputs[0])
    axes = attribute(mean, "axes") or known_ints(operand(mean, 1))
    if dims is None or not axes or not attribute(mean, "keepdims", 1):
        return None
    last = sorted(axis - len(dims) if axis >= 0 else axis for axis in axes)
    return last[0] if last == list(range(-len(last), 0)) else None
