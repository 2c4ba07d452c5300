"""Operators in the place of others."""

from __future__ import annotations

from studies.sabotage.harms.registry import HARMS, at
from studies.sabotage.sketch import Site, Sketch


def _other(sketch: Sketch, values: dict[str, str]) -> Site | None:
    node = sketch.node_of(*values)
    if node is None:
        return None
    before, node.op_type = node.op_type, values[node.op_type]
    if node.op_type != before:
        del node.attribute[:]
    return at(node, f"was {before}")


def _replacing(name: str, values: dict[str, str]) -> None:
    HARMS[name] = lambda sketch: _other(sketch, values)


_replacing("operator_of_two", {"Add": "Sub", "Sub": "Add", "Mul": "Div", "Div": "Mul", "Max": "Min", "Min": "Max"})
_replacing("comparison_at_the_border", {"Less": "LessOrEqual", "LessOrEqual": "Less", "Greater": "GreaterOrEqual", "GreaterOrEqual": "Greater"})  # fmt: skip
_replacing("comparison_turned", {"Less": "Greater", "Greater": "Less", "GreaterOrEqual": "LessOrEqual", "LessOrEqual": "GreaterOrEqual"})  # fmt: skip
_replacing("logic", {"And": "Or", "Or": "And", "Xor": "Or"})
_replacing("whole_numbers", {"Floor": "Ceil", "Ceil": "Floor", "Round": "Floor"})
_replacing("activation", {"Relu": "Softplus", "Sigmoid": "HardSigmoid", "Tanh": "Softsign", "Gelu": "Relu", "Erf": "Tanh", "Sin": "Cos", "Cos": "Sin", "Exp": "Softplus", "Silu": "Relu", "HardSwish": "Relu", "LeakyRelu": "Relu", "Softplus": "Relu", "Abs": "Neg", "Sqrt": "Log"})  # fmt: skip
_replacing("pooling", {"MaxPool": "AveragePool", "GlobalAveragePool": "GlobalMaxPool"})
