"""Decomposed norms -> ``LayerNormalization``, ``RMSNormalization``, and onnxruntime's norms of a sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes.linear import MICROSOFT
from fx2onnx.irx.values import dims_of, dtype_of, known_ints
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
    operand_produced_by,
    produced_by,
    required,
    same_dims,
    scalar_of,
    sole_use,
    static_dims,
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


DTYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})


@dataclass(frozen=True, eq=False)
class SkipMatch(Match):
    x: ir.Value
    skip: ir.Value
    weights: tuple[ir.Value | None, ...]
    bias: ir.Value | None
    epsilon: float
    is_simplified: bool


class FuseSkipNorm(Rewrite[SkipMatch]):
    """``LayerNormalization(Add(x, skip), weight, bias)`` -> ``com.microsoft::SkipLayerNormalization(x, skip, weight, bias)``, whose last
    output is the sum; ``RMSNormalization`` -> ``SkipSimplifiedLayerNormalization``. ``x`` may be a sum with a constant row.

    Shapes:    x, skip [B, S, D], weight [D].
    Refuses:   other ranks, a sum that broadcasts, statistics that are read, computed weights, dtypes without a kernel.
    """

    roots: ClassVar = ("LayerNormalization", "RMSNormalization")
    since = 17
    moves_rounding = True

    def match(self, node: ir.Node) -> SkipMatch | Why:
        total = node.inputs[0]
        add = produced_by(total, "Add")
        if add is None or total is None or total.dtype not in DTYPES:
            return Why("it is not the norm of a sum of float32 or float16")
        dims = dims_or_none(total)
        if dims is None or len(dims) != 3 or attribute(node, "axis", -1) not in (-1, 2):
            return Why("it is not over the last of three axes")
        if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
            return Why("its statistics are read")
        weights = [operand(node, index) for index in range(1, len(node.inputs))]
        if not all(weight is None or (is_constant(weight) and weight.dtype == total.dtype) for weight in weights):
            return Why("its weights are no constants of the same dtype")
        x, skip = required(add, 0), required(add, 1)
        if not same_dims(dims_or_none(x), dims) or not same_dims(dims_or_none(skip), dims):
            return Why("the sum broadcasts")
        bias = None
        for first, second in ((x, skip), (skip, x)):
            found = _with_row(first)
            if found is not None:
                x, skip, bias = found[0], second, found[1]
                break
        is_read = total.is_graph_output() or len(total.uses()) > 1
        return SkipMatch(
            replaces=[node.outputs[0], total] if is_read else [node.outputs[0]],
            before=add,
            x=x,
            skip=skip,
            weights=tuple(weights),
            bias=bias,
            epsilon=attribute(node, "epsilon", 1e-5),
            is_simplified=node.op_type == "RMSNormalization",
        )

    def build(self, op: Emit, m: SkipMatch) -> Sequence[ir.Value]:
        typed = (dtype_of(m.x), dims_of(m.x))
        weights = list(m.weights) if m.is_simplified else [m.weights[0], m.weights[1] if len(m.weights) > 1 else None]
        inputs = [m.x, m.skip, *weights, m.bias]
        while inputs[-1] is None:
            inputs.pop()
        name = "SkipSimplifiedLayerNormalization" if m.is_simplified else "SkipLayerNormalization"
        count = 4 if len(op.result) > 1 else 1
        made = op.custom(MICROSOFT, name, inputs, [typed] * count, epsilon=float(m.epsilon))
        for unread in made[1:3]:
            unread.name = ""
        return [made[0], made[3]] if count > 1 else [made[0]]


def _with_row(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """The other operand and the row, where the value is the sum with a constant row that nobody else reads."""
    add = produced_by(value, "Add")
    if add is None or not sole_use(value):
        return None
    for index in (0, 1):
        row, other = required(add, index), required(add, 1 - index)
        width = (static_dims(row) or ())[-1:]
        if (
            (
                is_constant(row)
                and len(static_dims(row) or ()) == 1
                and same_dims(dims_or_none(other), dims_or_none(value))
            )
            and width == tuple(dims_of(value)[-1:])
            and row.dtype == value.dtype
        ):
            return other, row
    return None
