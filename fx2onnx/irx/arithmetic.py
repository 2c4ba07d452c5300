"""Symbolic size expressions as ONNX scalars: shape reads and a few arithmetic nodes, shared through the size cache."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import InternalError
from fx2onnx.irx.builder import Emitter, Key
from fx2onnx.irx.values import dims_of, dtype_of
from fx2onnx.sizes.expr import DEEP, Atom, Dim, Scalar, innermost_first, smooth_numbers

INT64, DOUBLE = ir.DataType.INT64, ir.DataType.DOUBLE
MOST_BITS = 48
"""The number of bits of a size that are looked at."""


def emit_scalar(op: Emitter, dim: Dim) -> ir.Value:
    """The expression as a rank-0 value: int64, or float64 where it is real."""
    if any(atom.depth > DEEP for atom in dim.atoms()):
        # The inner ones first, so that the outer ones find them made.
        for atom in innermost_first(dim, lambda atom: Key("atom", rest=(atom,)) in op.builder.emitted):
            _emit_atom(op, atom)
    dtype = DOUBLE if dim.is_real else INT64
    total: ir.Value | None = None
    for monomial, factor in dim.terms.items():
        product: ir.Value | None = None
        for atom in monomial:
            operand = _as(op, _emit_atom(op, atom), dtype)
            product = operand if product is None else op.node("Mul", product, operand)
        assert product is not None
        if factor == -1:
            product = op.node("Neg", product)
        elif factor != 1:
            product = op.node("Mul", product, op.const(factor, dtype))
        total = product if total is None else op.node("Add", total, product)
    assert total is not None
    return op.node("Add", total, op.const(dim.constant, dtype)) if dim.constant else total


def _as(op: Emitter, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    return value if dtype_of(value) == dtype else op.node("Cast", value, to=dtype)


def _emit_atom(op: Emitter, atom: Atom) -> ir.Value:
    key = Key("atom", rest=(atom,))
    found = op.builder.emitted.get(key)
    if found is None:
        found = _emit_operation(op, atom) if atom.depth else _emit_symbol(op, atom)
        op.builder.emitted[key] = found
    return found


def _emit_symbol(op: Emitter, symbol: Atom) -> ir.Value:
    source = op.builder.symbols.get(symbol.text)
    if source is None:
        return _solved(op, symbol)
    value, axis = source
    if axis is None:
        return _as(op, value, INT64)
    return op.node("Squeeze", op.size_of_axis(value, axis), axes=[0])


def _solved(op: Emitter, symbol: Atom) -> ir.Value:
    """A size that inputs have only a multiple of, or plus a number: ``(size - c) / k`` of an axis of ``k * name + c``."""
    for value in op.builder.inputs:
        for axis, dim in enumerate(dims_of(value)):
            if not isinstance(dim, Dim) or dim.terms.keys() != {(symbol,)}:
                continue
            (factor,) = dim.terms.values()
            size = op.node("Squeeze", op.size_of_axis(value, axis), axes=[0])
            if dim.constant:
                size = op.node("Sub", size, op.const(dim.constant, INT64))
            return size if factor == 1 else op.node("Div", size, op.const(factor, INT64))
    raise InternalError("E900", f"no value gives the size {symbol}")


def _floordiv(op: Emitter, top: ir.Value, bottom: ir.Value) -> ir.Value:
    """Integer division that rounds down, as Python's; ONNX's rounds towards zero. (top - top mod bottom) / bottom."""
    if dtype_of(top) == DOUBLE:  # a whole number, up to rounding
        return op.node("Round", op.node("Div", op.node("Sub", top, _mod(op, top, bottom)), bottom))
    return op.node("Div", op.node("Sub", top, op.node("Mod", top, bottom)), bottom)


def _truediv(op: Emitter, top: ir.Value, bottom: ir.Value) -> ir.Value:
    return op.node("Div", _as(op, top, DOUBLE), _as(op, bottom, DOUBLE))


def _mod(op: Emitter, top: ir.Value, bottom: ir.Value) -> ir.Value:
    """The remainder with the sign of ``bottom``; of real numbers ONNX has that of ``top``."""
    if dtype_of(top) != DOUBLE:
        return op.node("Mod", top, bottom)
    rest = op.node("Mod", top, bottom, fmod=1)
    is_opposite = op.node("Less", op.node("Mul", rest, bottom), op.const(0.0, DOUBLE))
    return op.node("Where", is_opposite, op.node("Add", rest, bottom), rest)


def _pow(op: Emitter, base: ir.Value, exponent: ir.Value) -> ir.Value:
    """``Pow``, which has no integers below opset 12."""
    if op.opset >= 12 or dtype_of(base) == DOUBLE:
        return op.node("Pow", base, exponent)
    return _as(op, op.node("Pow", _as(op, base, DOUBLE), _as(op, exponent, DOUBLE)), INT64)


_POWERS = np.int64(1) << np.arange(MOST_BITS, dtype=np.int64)


def _bit_length(op: Emitter, value: ir.Value) -> ir.Value:
    """The number of powers of two that are not above the size: 0 for 0. A number below 0 counts without its sign, as in
    Python."""
    above = op.node("Less", op.node("Abs", value), op.const(_POWERS))
    return op.node("Sub", op.const(np.int64(MOST_BITS)), _sum(op, _as(op, above, INT64)))


def _next_smooth(op: Emitter, value: ir.Value, greatest: ir.Value) -> ir.Value:
    """The first number of the list that is not below ``value``."""
    numbers = op.const(np.array(smooth_numbers(int(greatest.const_value.numpy())), np.int64))  # type: ignore[union-attr]
    return op.node("Gather", numbers, _sum(op, _as(op, op.node("Less", numbers, value), INT64)))


def _bitand(op: Emitter, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """Bit by bit, which every opset has: the sum of ``2**i * bit(lhs, i) * bit(rhs, i)``."""
    powers, two = op.const(_POWERS), op.const(np.int64(2))
    bits = [op.node("Mod", _floordiv(op, side, powers), two) for side in (lhs, rhs)]
    return _sum(op, op.node("Mul", powers, op.node("Mul", *bits)))


def _sum(op: Emitter, values: ir.Value) -> ir.Value:
    if op.opset >= 13:
        return op.node("ReduceSum", values, op.const(np.array([0], np.int64)), keepdims=0)
    return op.node("ReduceSum", values, axes=[0], keepdims=0)


def _logarithm(base: int) -> Callable[[Emitter, ir.Value], ir.Value]:
    """``log(n) / log(base)``; where ``n`` is a power of ``base``, exactly its exponent."""

    def emit(op: Emitter, value: ir.Value) -> ir.Value:
        real = _as(op, value, DOUBLE)
        found = op.node("Div", op.node("Log", real), op.const(math.log(base), DOUBLE))
        nearest = op.node("Round", found)
        is_power = op.node("Equal", op.node("Pow", op.const(float(base), DOUBLE), nearest), real)
        return op.node("Where", is_power, nearest, found)

    return emit


def _real(op_type: str) -> Callable[[Emitter, ir.Value], ir.Value]:
    return lambda op, value: op.node(op_type, _as(op, value, DOUBLE))


def _extremum(op: Emitter, op_type: str, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """``Max`` or ``Min``, which have no integers below opset 12."""
    if op.opset >= 12 or dtype_of(lhs) == DOUBLE:
        return op.node(op_type, lhs, rhs)
    return op.node("Where", op.node("Greater" if op_type == "Max" else "Less", lhs, rhs), lhs, rhs)


def _to_int(op_type: str) -> Callable[[Emitter, ir.Value], ir.Value]:
    def emit(op: Emitter, value: ir.Value) -> ir.Value:
        return _as(op, value if op_type == "Cast" else op.node(op_type, value), INT64)

    return emit


_OPERATIONS: dict[str, Callable[..., ir.Value]] = {
    "floordiv": _floordiv,
    "mod": _mod,
    "max": lambda op, a, b: _extremum(op, "Max", a, b),
    "min": lambda op, a, b: _extremum(op, "Min", a, b),
    "truediv": _truediv,
    "pow": _pow,
    "bitand": _bitand,
    "bit_length": _bit_length,
    "next_smooth": _next_smooth,
    "log2": _logarithm(2),
    "log10": _logarithm(10),
    **{name.lower(): _real(name) for name in ("Sqrt", "Log", "Exp", "Sin", "Cos", "Tanh", "Atan")},
    "float": lambda op, a: _as(op, a, DOUBLE),
    "real": lambda op, a: _as(op, a, DOUBLE),
    "floor": _to_int("Floor"),
    "ceil": _to_int("Ceil"),
    "trunc": _to_int("Cast"),
    "round": _to_int("Round"),
    "abs": lambda op, a: op.node("Abs", a),
}


def _emit_operation(op: Emitter, atom: Atom) -> ir.Value:
    operands = [_operand(op, arg) for arg in atom.args]  # type: ignore[arg-type]
    if len(operands) > 1 and any(dtype_of(value) == DOUBLE for value in operands):
        operands = [_as(op, value, DOUBLE) for value in operands]
    return _OPERATIONS[atom.op](op, *operands)


def _operand(op: Emitter, arg: Scalar) -> ir.Value:
    if isinstance(arg, Dim):
        return op.size(arg, DOUBLE if arg.is_real else INT64)
    return op.const(arg, DOUBLE if isinstance(arg, float) else INT64)
