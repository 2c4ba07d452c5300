"""Functions of one tensor that are one or two ONNX nodes: a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.dtypes import FLOATS, in_opmath, through
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.functions import erfc, expm1, log1p

aten = torch.ops.aten
Formula: TypeAlias = Callable[[Emit, ir.Value], ir.Value]

PLAIN: dict[str, str] = {
    "Abs": "abs absolute", "Neg": "neg negative _neg_view _neg_view_copy", "Exp": "exp", "Log": "log", "Sqrt": "sqrt",
    "Reciprocal": "reciprocal", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin arcsin", "Acos": "acos arccos",
    "Atan": "atan arctan", "Sinh": "sinh", "Cosh": "cosh", "Tanh": "tanh", "Asinh": "asinh arcsinh",
    "Acosh": "acosh arccosh", "Atanh": "atanh arctanh", "Erf": "erf special_erf", "Sigmoid": "sigmoid special_expit",
}  # fmt: skip
"""ONNX operator -> overloads that it is."""

ROUNDING: dict[str, str] = {"Ceil": "ceil", "Floor": "floor", "Round": "round"}
"""Operators as in PLAIN that change no integers."""

IDENTITIES = "positive alias detach detach_copy alias_copy lift lift_fresh lift_fresh_copy resolve_conj resolve_neg "
IDENTITIES += "conj conj_physical _conj _conj_physical real clone contiguous"
"""Overloads that give a real tensor back as it is."""


def _plain(op_type: str) -> Callable[[Emit, ir.Value], ir.Value]:
    def entry(op: Emit, self: ir.Value) -> ir.Value:
        dtype = op.result_dtype()
        value = op.cast(self, dtype)
        return value if op.is_bool(value) else through(op, op_type, value)

    return entry


def _rounding(op_type: str) -> Callable[[Emit, ir.Value], ir.Value]:
    def entry(op: Emit, self: ir.Value) -> ir.Value:
        return through(op, op_type, self) if op.is_float(self) else self

    return entry


def truncated(op: Emit, value: ir.Value) -> ir.Value:
    """Rounded towards zero; the sign of zero is kept."""
    if op.dtype(value) not in FLOATS:
        return value
    return through(op, "Mul", through(op, "Sign", value), through(op, "Floor", through(op, "Abs", value)))


def _erfc(op: Emit, value: ir.Value) -> ir.Value:
    dtype = op.dtype(value)
    return erfc(op, value) if dtype == ir.DataType.DOUBLE else op.Sub(op.const(1.0, dtype), op.Erf(value))


def _where_one(op: Emit, condition: ir.Value, number: float, value: ir.Value) -> ir.Value:
    return op.Where(condition, op.const(number, op.dtype(value)), value)


def _sinc(op: Emit, value: ir.Value) -> ir.Value:
    angle = op.Mul(value, math.pi)
    return _where_one(op, op.Equal(value, 0), 1.0, op.Div(op.Sin(angle), angle))


def _entr(op: Emit, value: ir.Value) -> ir.Value:
    """-x log x; 0 at 0, -inf below, NaN stays."""
    inside = _where_one(op, op.Equal(value, 0), 0.0, op.Neg(op.Mul(value, op.Log(value))))
    return _where_one(op, op.Less(value, 0), -math.inf, inside)


FORMULAS: dict[str, tuple[str, Formula]] = {
    "rsqrt": ("Sqrt, Reciprocal", lambda op, x: op.Reciprocal(op.Sqrt(x))),
    "exp2 special_exp2": ("Pow(2, x)", lambda op, x: op.Pow(op.const(2.0, op.dtype(x)), x)),
    "log2": ("Log / log 2", lambda op, x: op.Div(op.Log(x), math.log(2))),
    "log10": ("Log / log 10", lambda op, x: op.Div(op.Log(x), math.log(10))),
    "log1p special_log1p": ("Log(1 + x) with a correction", log1p),
    "expm1 special_expm1": ("Tanh(x / 2) (Exp(x) + 1)", expm1),
    "erfc special_erfc": ("1 - Erf; in float64 by rational functions", _erfc),
    "deg2rad": ("Mul", lambda op, x: op.Mul(x, math.pi / 180)),
    "rad2deg": ("Mul", lambda op, x: op.Mul(x, 180 / math.pi)),
    "sinc special_sinc": ("Sin(pi x) / (pi x), 1 at zero", _sinc),
    "special_entr": ("-x Log(x), 0 at 0, -inf below", _entr),
}
"""Overloads -> form and formula in the result's opmath dtype."""

NATIVE_FORMULAS = frozenset({"rsqrt", "deg2rad", "rad2deg"})
"""Formulas whose second rounding in half precision is within one unit: no casts around them."""


def _formula(name: str, formula: Formula) -> Callable[[Emit, ir.Value], ir.Value]:
    def native(op: Emit, self: ir.Value) -> ir.Value:
        return formula(op, op.cast(self, op.result_dtype()))

    def entry(op: Emit, self: ir.Value) -> ir.Value:
        return in_opmath(op, formula, self)

    return native if name in NATIVE_FORMULAS else entry


def _sign(op: Emit, self: ir.Value) -> ir.Value:
    """The sign of each number; 0 for NaN, as in PyTorch."""
    if op.is_bool(self):
        return self
    sign = through(op, "Sign", self)
    return _where_one(op, through(op, "IsNaN", self), 0.0, sign) if op.is_float(self) else sign


def _square(op: Emit, self: ir.Value) -> ir.Value:
    value = op.cast(self, op.result_dtype())
    return through(op, "Mul", value, value)


def _false(op: Emit, like: ir.Value) -> ir.Value:
    return op.expand(op.const(np.array(False)), op.dims(like))


def _equals(number: float) -> Formula:
    def entry(op: Emit, self: ir.Value) -> ir.Value:
        return through(op, "Equal", self, op.const(number, op.dtype(self))) if op.is_float(self) else _false(op, self)

    return entry


def _isreal(op: Emit, self: ir.Value) -> ir.Value:
    return op.expand(op.const(np.array(True)), op.dims(self))


def _signbit(op: Emit, self: ir.Value) -> ir.Value:
    if op.is_bool(self):
        return _false(op, self)
    negative = through(op, "Less", self, op.const(0, op.dtype(self)))
    if not op.is_float(self):
        return negative
    return op.Or(negative, op.Less(op.Reciprocal(self), 0))


OTHERS: dict[str, tuple[str, Callable[[Emit, ir.Value], ir.Value]]] = {
    "sign sgn": ("Sign; 0 for NaN", _sign),
    "trunc fix": ("Sign(x) Floor(Abs(x))", truncated),
    "frac": ("Mod(x, 1, fmod=1)", lambda op, x: op.Mod(x, 1, fmod=1)),
    "square": ("Mul(x, x)", _square),
    IDENTITIES: ("nothing", lambda op, x: x),
    "isnan": ("IsNaN", lambda op, x: through(op, "IsNaN", x) if op.is_float(x) else _false(op, x)),
    "isinf": ("IsInf", lambda op, x: through(op, "IsInf", x) if op.is_float(x) else _false(op, x)),
    "isfinite": ("Abs(x) < inf", lambda op, x: op.Less(op.Abs(x), math.inf) if op.is_float(x) else _isreal(op, x)),
    "isposinf": ("x == inf", _equals(math.inf)),
    "isneginf": ("x == -inf", _equals(-math.inf)),
    "isreal": ("true", _isreal),
    "signbit": ("x < 0 or 1 / x < 0", _signbit),
}


for _op_type, _names in PLAIN.items():
    register_shared(_plain(_op_type), _op_type, *overloads_of(_names))
for _op_type, _names in ROUNDING.items():
    register_shared(_rounding(_op_type), _op_type, *overloads_of(_names))
for _names, (_form, _entry) in FORMULAS.items():
    register_shared(_formula(_names, _entry), _form, *overloads_of(_names))
for _names, (_form, _entry) in OTHERS.items():
    register_shared(_entry, _form, *overloads_of(_names))
