"""What is certain of a comparison of sizes whatever the sizes are: every symbol is >= 0, or within a range of its own, save
numbers that are no sizes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, TypeAlias

from fx2onnx.sizes.expr import Dim, Scalar, without_remainders
from fx2onnx.sizes.functions import Number
from fx2onnx.sizes.relation import COMPARE, Relation

Range: TypeAlias = tuple[Number, Number | None]
"""From a number on, up to another one where there is one."""
Ranges: TypeAlias = Mapping[str, Range | None]
"""None for a number of either sign."""
_COUNT: Range = (0, None)
_NONE: Ranges = {}
NONE: Set[str] = frozenset()


def certain(op: str, lhs: Any, rhs: Any, signed: Set[str] = NONE) -> bool | None:
    """The truth of a comparison whatever the sizes are (all symbols >= 0, save the ``signed``), or None."""
    gap = lhs - rhs
    ranges = dict.fromkeys(signed) if signed else _NONE
    known = known_sign(op, gap, ranges)
    if known is not None or not isinstance(gap, Dim):
        return known
    whole = without_remainders(gap)
    return None if whole is gap else known_sign(op, whole, ranges)


def known_sign(op: str, gap: Any, ranges: Ranges = _NONE) -> bool | None:
    """The truth of ``gap`` compared with 0."""
    if not isinstance(gap, Dim):
        return COMPARE[op](gap, 0)
    low, high = bounds(gap, ranges)
    if low is not None and low > 0:
        return op in ("ne", "gt", "ge")
    if high is not None and high < 0:
        return op in ("ne", "lt", "le")
    if low == high == 0:
        return op in ("eq", "le", "ge")
    if low == 0 and op in ("ge", "lt"):
        return op == "ge"
    if high == 0 and op in ("le", "gt"):
        return op == "le"
    return None


def bounds(dim: Scalar, ranges: Ranges) -> tuple[Number | None, Number | None]:
    """Lower and upper bound; atoms of unknown sign say nothing."""
    if not isinstance(dim, Dim):
        return dim, dim
    low: Number | None = dim.constant
    high: Number | None = dim.constant
    for monomial, factor in dim.terms.items():
        least: Number = 1
        most: Number | None = 1
        for atom in monomial:
            found = _range_of(atom, ranges)
            if found is None:
                return None, None
            least *= found[0]
            most = None if most is None or found[1] is None else most * found[1]
        lower, upper = (least, most) if factor > 0 else (most, least)
        low = None if low is None or lower is None else low + factor * lower
        high = None if high is None or upper is None else high + factor * upper
    return low, high


DEEPEST = 50
"""Operations inside each other, of whose sign nothing is said: that needs a look at all of them."""


def _range_of(atom: Any, ranges: Ranges) -> Range | None:
    """None where the atom may be negative."""
    if atom.op == "symbol":
        return ranges.get(atom.args[0], _COUNT)
    if atom.depth > DEEPEST:
        return None
    if atom.op in _NEVER_NEGATIVE:
        return _COUNT
    if atom.op == "mod" and type(atom.args[1]) is int:
        return (0, atom.args[1] - (not atom.is_real)) if atom.args[1] > 0 else None
    parts = [bounds(arg, ranges) for arg in atom.args]
    lows, highs = ([part[side] for part in parts] for side in (0, 1))
    if atom.op == "max":
        known = [low for low in lows if low is not None and low >= 0]
        return (max(known), None if None in highs else max(highs)) if known else None  # type: ignore[type-var]
    if atom.op not in _KEEPS_SIGN or any(low is None or low < 0 for low in lows):
        return None
    return _of_positive(atom, lows, highs)  # type: ignore[arg-type]


def _of_positive(atom: Any, lows: Sequence[Number], highs: Sequence[Number | None]) -> Range:
    if atom.op == "min":
        return min(lows), min((high for high in highs if high is not None), default=None)
    if atom.op in _MONOTONE:
        grows = _MONOTONE[atom.op]
        return grows(lows[0]), None if highs[0] is None else grows(highs[0])
    if atom.op in ("floordiv", "truediv") and not isinstance(atom.args[1], Dim) and atom.args[1]:
        divided = operator.floordiv if atom.op == "floordiv" else operator.truediv
        return divided(lows[0], atom.args[1]), None if highs[0] is None else divided(highs[0], atom.args[1])
    return _COUNT


_MONOTONE: dict[str, Callable[[Number], Number]] = {
    "float": float,
    "real": float,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "sqrt": math.sqrt,
}
_NEVER_NEGATIVE = frozenset({"abs", "bit_length", "exp"})
_KEEPS_SIGN = frozenset({"floordiv", "truediv", "mod", "min", "pow", *_MONOTONE})
"""Functions whose value is >= 0 where their arguments are."""


MOST_ELEMENTS = 1 << 31
"""Code asks whether an index fits into 32 bits."""


def goes_as_sample(relation: Relation) -> bool:
    """Whether sizes are compared with 0 or 1, which the sample stands for, or with as many elements as no tensor has."""
    numbers = [arg.constant if isinstance(arg, Dim) else arg for arg in relation.args if not isinstance(arg, Relation)]
    return relation.compares_with_zero_or_one() or any(abs(number) >= MOST_ELEMENTS for number in numbers)
