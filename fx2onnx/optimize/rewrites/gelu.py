"""Gelu: in one operator of ONNX, and with its bias in one of onnxruntime."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes.linear import MICROSOFT
from fx2onnx.irx.values import dims_of, dtype_of
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    dims_or_none,
    is_constant,
    produced_by,
    required,
    scalar_of,
    sole_use,
    static_dims,
)

RELATIVE_TOLERANCE = 1e-6
"""The constants are float32 roundings of the formula's."""
CUBIC = 0.044715


@dataclass(frozen=True, eq=False)
class GeluMatch(Match):
    x: ir.Value
    approximate: str


class FuseGelu(Rewrite[GeluMatch]):
    """``0.5 * x * (1 + Erf(x / sqrt(2)))`` -> ``Gelu(x)``;
    ``0.5 * x * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`` -> ``Gelu(x, approximate="tanh")``.

    The factors may stand in any order.

    Refuses:   other constants, other than float32 and float64, the tanh form in float64, opset below 20.
    Source:    ONNX Gelu-20; transformers' ``NewGELUActivation``.
    """

    roots: ClassVar = ("Mul", "Div")
    since = 20
    moves_rounding = True

    def match(self, node: ir.Node) -> GeluMatch | Why:
        result = node.outputs[0]
        if result.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            return Why("not float32 or float64")
        if not any(produced_by(value, "Add", "Mul") for value in node.inputs):
            return Why("no factor is 1 + erf or 1 + tanh")
        number, factors = _product(result, is_root=True)
        if len(factors) != 2 or not _close(number, 0.5):
            return Why("the product is not 0.5 * x * y")
        for x, cdf in (factors, factors[::-1]):
            inner = _other_than_one(cdf)
            erf, tanh = produced_by(inner, "Erf"), produced_by(inner, "Tanh")
            if erf is not None and _is_scaled(erf.inputs[0], x, math.sqrt(0.5)):
                return GeluMatch(x, "none")
            if tanh is not None and _is_cubic(tanh.inputs[0], x):
                if result.dtype == ir.DataType.DOUBLE:
                    return Why("onnxruntime has Tanh in float64, and no Gelu")
                return GeluMatch(x, "tanh")
        return Why("no factor is 1 + erf or 1 + tanh of the other")

    def build(self, op: Emit, m: GeluMatch) -> ir.Value:
        return op.Gelu(m.x, approximate=m.approximate)


def _close(number: float | None, wanted: float) -> bool:
    return number is not None and math.isclose(number, wanted, rel_tol=RELATIVE_TOLERANCE)


MAX_PRODUCTS = 8
"""One behind the other; the patterns have 3: ``0.044715 * x * x * x``. A long chain of products is not walked to its end
from each of them.
"""


def _product(value: ir.Value, is_root: bool = False, room: int = MAX_PRODUCTS) -> tuple[float, list[ir.Value]]:
    """The constant and the other factors of a product, through every Mul and Div that nobody else reads, ``room`` of them
    one behind the other at most: what begins further away is one factor.
    """
    number = scalar_of(value)
    if number is not None:
        return number, []
    node = produced_by(value, "Mul", "Div")
    if node is None or not room or not (is_root or sole_use(value)) or node.inputs[0] is None or node.inputs[1] is None:
        return 1.0, [value]
    left, right = _product(node.inputs[0], room=room - 1), _product(node.inputs[1], room=room - 1)
    if node.op_type == "Mul":
        return left[0] * right[0], left[1] + right[1]
    return (left[0] / right[0], left[1]) if not right[1] and right[0] else (1.0, [value])


def _other_than_one(value: ir.Value | None) -> ir.Value | None:
    """``y`` where ``value`` is ``Add(y, 1)``."""
    node = produced_by(value, "Add")
    if node is None:
        return None
    for index in (0, 1):
        if _close(scalar_of(node.inputs[index]), 1.0):
            return node.inputs[1 - index]
    return None


def _is_scaled(value: ir.Value | None, x: ir.Value, factor: float) -> bool:
    if value is None:
        return False
    number, factors = _product(value)
    return factors == [x] and _close(number, factor)


def _is_cubic(value: ir.Value | None, x: ir.Value) -> bool:
    """Return whether the value is ``sqrt(2 / pi) * (x + 0.044715 * x**3)``, or with x taken out."""
    if value is None:
        return False
    number, factors = _product(value)
    if not _close(number, math.sqrt(2 / math.pi)):
        return False
    if len(factors) == 2 and x in factors:
        squared = _other_than_one(factors[1 - factors.index(x)])
        return squared is not None and _is_power(squared, x, 2)
    add = produced_by(factors[0], "Add") if len(factors) == 1 else None
    if add is None or x not in add.inputs:
        return False
    cubed = add.inputs[1 - list(add.inputs).index(x)]
    return cubed is not None and _is_power(cubed, x, 3)


def _is_power(value: ir.Value, x: ir.Value, exponent: int) -> bool:
    """Return whether the value is ``0.044715 * x ** exponent``."""
    number, factors = _product(value)
    power = produced_by(factors[0], "Pow") if len(factors) == 1 else None
    if power is not None and power.inputs[0] is x and scalar_of(power.inputs[1]) == exponent:
        return _close(number, CUBIC)
    return _close(number, CUBIC) and factors == [x] * exponent


@dataclass(frozen=True, eq=False)
class BiasGeluMatch(Match):
    x: ir.Value
    bias: ir.Value | None
    is_tanh: bool


class FuseBiasGelu(Rewrite[BiasGeluMatch]):
    """``Gelu(Add(x, bias))`` -> ``com.microsoft::BiasGelu(x, bias)``; its tanh form, with a bias or not -> ``FastGelu``.

    Refuses:   dtypes other than float32, a bias that is no constant row; without one, the exact form, which ONNX has itself.
    """

    roots: ClassVar = ("Gelu",)
    since = 20
    moves_rounding = True

    def match(self, node: ir.Node) -> BiasGeluMatch | Why:
        x = required(node, 0)
        is_tanh = attribute(node, "approximate", "none") == "tanh"
        if x.dtype != ir.DataType.FLOAT or not dims_or_none(x):
            return Why("it is not of float32")
        add = produced_by(x, "Add")
        if add is not None and sole_use(x):
            for index in (0, 1):
                bias, other = required(add, index), required(add, 1 - index)
                sizes = static_dims(bias)
                is_row = sizes is not None and len(sizes) == 1 and sizes == tuple((dims_or_none(other) or ())[-1:])
                if is_constant(bias) and is_row:
                    return BiasGeluMatch(other, bias, is_tanh)
        return BiasGeluMatch(x, None, True) if is_tanh else Why("nothing constant is added in front of it")

    def build(self, op: Emit, m: BiasGeluMatch) -> ir.Value:
        operands = [m.x] if m.bias is None else [m.x, m.bias]
        name = "FastGelu" if m.is_tanh else "BiasGelu"
        return op.custom(MICROSOFT, name, operands, [(dtype_of(m.x), dims_of(m.x))])[0]
