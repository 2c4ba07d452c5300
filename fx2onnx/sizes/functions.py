"""The operations of symbolic sizes that are no polynomial: what each gives for plain numbers, and what is known of it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

Number: TypeAlias = int | float

EVALUATE: dict[str, Callable[..., Number]] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "max": max,
    "min": min,
    "truediv": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "sqrt": math.sqrt,
    "float": float,
    "real": float,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "abs": abs,
    "bitand": operator.and_,
    "bit_length": lambda a: int(a).bit_length(),
    "log2": math.log2,
    "log10": math.log10,
    "log": math.log,
    "exp": math.exp,
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
}


class Undefined(ZeroDivisionError):
    """An operation has no value for these numbers: ``1 / 0``, ``sqrt(-1)``, ``exp(1000)``."""


def evaluated(op: str, *args: Number) -> Number:
    """``op`` of plain numbers. Raises Undefined."""
    try:
        value = EVALUATE[op](*args)
    except (ArithmeticError, ValueError) as error:
        raise Undefined(f"{op} of {', '.join(map(str, args))}: {error}") from error
    if isinstance(value, complex):
        raise Undefined(f"{op} of {', '.join(map(str, args))} is no real number")
    return value


INFIX = {"floordiv": " // ", "mod": " % ", "truediv": " / ", "pow": " ** "}
APPROXIMATE = frozenset({"log2", "log10", "log", "exp", "sin", "cos", "tanh"})
"""Real functions whose last bit may differ between two libraries: what rounds such a value is not exact at every size."""
REAL_OPS = APPROXIMATE | {"truediv", "sqrt", "float", "real"}
"""``real`` is a real number as it was rounded, whose terms further arithmetic leaves together."""
REAL_OF_REAL = frozenset({"pow", "floordiv", "mod", "max", "min", "abs"})
"""Operations that are real numbers where an operand is."""
ARITY = {op: 2 if op in ("floordiv", "mod", "max", "min", "truediv", "pow", "bitand") else 1 for op in EVALUATE}


def dyadic(number: Any) -> tuple[int, int]:
    """``number`` as a fraction whose denominator is a power of two; every real number of a computer is one."""
    return (number, 1) if isinstance(number, int) else number.as_integer_ratio()
