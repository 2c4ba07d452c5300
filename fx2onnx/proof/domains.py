"""Operands for which an operator has no number: NaN, a division by 0, and an index out of range, by the bounds of the operands.

The checks need no bounds of the result, so they also find what may go wrong at an operator without a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fx2onnx.proof.nodes import Array
from fx2onnx.proof.spans import Call, Interval, reaches_zero

_DOMAINS = {
    "Log": (0.0, np.inf), "Sqrt": (0.0, np.inf), "Acos": (-1.0, 1.0), "Asin": (-1.0, 1.0), "Atanh": (-1.0, 1.0), "Acosh": (1.0, np.inf),
}  # fmt: skip
_POLES = {"Log": "-inf", "Atanh": "an infinity"}
"""The result at the ends of the domain, where it is no number."""


def check_domain(call: Call) -> None:
    """Note what some input causes at an operator."""
    found = _CHECKS.get(call.op_type)
    if found is not None:
        found(call)


def _inside(call: Call) -> None:
    x, (low, high) = call.span(0), _DOMAINS[call.op_type]
    least, most = x.lowest.min(initial=np.inf), (x.high + x.error).max(initial=-np.inf)
    told = "a negative number" if low == 0 else f"a number outside of {low:g} to {high:g}"
    told += f" gives NaN: {_ends(x)}"
    if least < low or most > high:
        call.notes.append(("nan", f"{call.op_type} of {told}"))
    elif call.op_type in _POLES and (least == low or most == high < np.inf):
        end = low if least == low else high
        call.notes.append(("division", f"{call.op_type} of {end:g} gives {_POLES[call.op_type]}"))


def _shared(call: Call) -> None:
    """Minus infinity everywhere has no largest number."""
    x = call.span(0)
    axis = int(call.attrs.get("axis", -1))
    if (np.isneginf(x.low) & np.isfinite(x.error)).all(axis).any():
        call.notes.append(("nan", f"{call.op_type} of minus infinity alone gives NaN: a mask may hide all of a row"))


def _divided(call: Call) -> None:
    x = call.span(0 if call.op_type == "Reciprocal" else 1)
    if reaches_zero(x).any():
        call.notes.append(("division", f"a divisor can be 0: {_ends(x)}"))


def _ends(x: Interval) -> str:
    """The bounds of an operand, and how far rounding may move it where they alone do not show the fault."""
    low, high, off = (float(each.max(initial=-np.inf)) for each in (-x.low, x.high, x.error))
    told = f"it is from {-low:.6g} to {high:.6g}"
    return told if off <= 1e-3 * min(abs(low), abs(high)) else f"{told}, and rounding may move it by {off:.3g}"


def _raised(call: Call) -> None:
    x, exponent = call.span(0), call.span(1)
    least = np.broadcast_to(exponent.low, np.broadcast_shapes(x.low.shape, exponent.low.shape))
    is_whole = exponent.value is not None and bool((exponent.low == np.rint(exponent.low)).all())
    if (x.lowest < 0).any() and not is_whole:
        call.notes.append(
            ("nan", f"a power of a negative number that is no integer gives NaN: it is from {x.low.min():.6g}")
        )
    elif (np.broadcast_to(reaches_zero(x), least.shape) & (least < 0)).any():
        call.notes.append(("division", f"a power below 0 of 0 is infinite: it is from {x.low.min():.6g}"))


def _picked(call: Call) -> None:
    """Check each index against the axis that it counts in."""
    data, places = call.span(0).low.shape, call.span(1)
    if not places.low.size:
        return
    if call.op_type.endswith("ND"):
        start = int(call.attrs.get("batch_dims", 0))
        rows: Array = np.asarray(data[start : start + places.low.shape[-1]])
    else:
        rows = np.asarray([data[int(call.attrs.get("axis", 0)) % len(data)]])
    outside = (places.low < -rows) | (places.high > rows - 1)
    if outside.any():
        low, high, size = (np.broadcast_to(each, outside.shape)[outside] for each in (places.low, places.high, rows))
        told = f"{low.min():.0f} to {high.max():.0f} of {size.min()} rows"
        call.notes.append(("index", f"an index is out of range: {told}"))


_CHECKS: dict[str, Callable[[Call], None]] = {
    **dict.fromkeys(_DOMAINS, _inside),
    **dict.fromkeys(("Div", "Mod", "Reciprocal"), _divided),
    "Pow": _raised,
    **dict.fromkeys(("Softmax", "LogSoftmax"), _shared),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"), _picked),
}


_DIVISORS = {"Div": 1, "Mod": 1, "Reciprocal": 0}
"""The place of the operand that must not be 0."""


def is_seen(op_type: str, kind: str, outputs: list[Any], operands: list[Any]) -> bool:
    """Return whether the numbers of one run show the fault at this operator: what it was given does not have it already."""
    if kind == "division" and op_type in _DIVISORS:
        divisor = operands[_DIVISORS[op_type]]
        return isinstance(divisor, np.ndarray) and bool((divisor == 0).any())
    return seen_fault(outputs, operands) is not None


def seen_fault(outputs: list[Any], operands: list[Any]) -> tuple[str, str] | None:
    """The fault that the numbers of one run show: NaN of numbers, or an infinity of finite ones."""
    floats = [[_wide(each) for each in arrays if _is_float(each)] for arrays in (outputs, operands)]
    if not floats[1]:
        return None
    for kind, test, told in (
        ("nan", np.isnan, "gives NaN"),
        ("overflow", lambda each: ~np.isfinite(each), "gives an infinity"),
    ):
        made, given = (any(bool(test(each).any()) for each in arrays) for arrays in floats)
        if made and not given:
            return kind, told
    return None


def _is_float(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind not in "OUSbiuc"


def _wide(array: Array) -> Array:
    return array.astype(np.float64)
