"""Bounds and signs of expressions of sizes: what is certain of a comparison whatever the sizes are."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Set
from typing import Any, TypeAlias

from fx2onnx.sizes.expr import EVALUATE, Dim, Number, Scalar, without_remainders
from fx2onnx.sizes.relation import COMPARE, Relation

Range: TypeAlias = tuple[Number | None, Number | None]
"""The least and the largest number, None where there is none."""
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
    known = None if whole is gap else known_sign(op, whole, ranges)
    return _sign_in(op, *_bounds_without_quotients(gap, ranges)) if known is None else known


def _bounds_without_quotients(gap: Dim, ranges: Ranges) -> tuple[Number | None, Number | None]:
    """Lower and upper bound of a sum with multiples of quotients: ``4 * (x // 4)`` is from ``x - 3`` to ``x``."""
    rest: Any = gap
    low: Number = 0
    high: Number = 0
    atom: Any
    for (atom, *others), factor in gap.terms.items():
        if others or atom.op != "floordiv" or atom.is_real or type(atom.args[1]) is not int:
            continue
        dividend, divisor = atom.args
        if isinstance(dividend, Dim) and divisor > 0 and factor % divisor == 0:
            share = factor // divisor
            rest = rest + dividend * share - Dim({(atom,): factor})
            low -= max(share, 0) * (divisor - 1)
            high -= min(share, 0) * (divisor - 1)
    if rest is gap:
        return None, None
    least, most = bounds(rest, ranges)
    return None if least is None else least + low, None if most is None else most + high


def known_sign(op: str, gap: Any, ranges: Ranges = _NONE) -> bool | None:
    """The truth of ``gap`` compared with 0."""
    if not isinstance(gap, Dim):
        return COMPARE[op](gap, 0)
    return _sign_in(op, *bounds(gap, ranges))


def _sign_in(op: str, low: Number | None, high: Number | None) -> bool | None:
    """The truth of a number within these bounds compared with 0."""
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
        least: Number | None = 1
        most: Number | None = 1
        for place, atom in enumerate(monomial):
            found = _range_of(atom, ranges)
            if found is None or (len(monomial) > 1 and (found[0] is None or found[0] < 0)):
                return None, None
            least = found[0] if not place else least * found[0]  # type: ignore[operator]
            most = None if most is None or found[1] is None else most * found[1]
        lower, upper = (least, most) if factor > 0 else (most, least)
        low = None if low is None or lower is None else low + factor * lower
        high = None if high is None or upper is None else high + factor * upper
    return low, high


DEEPEST = 50
"""Operations inside each other, of whose sign nothing is said: that needs a look at all of them."""


def _range_of(atom: Any, ranges: Ranges) -> Range | None:
    """None where the atom may be negative, unless it is a minimum or a maximum."""
    if not atom.depth:
        return ranges.get(atom.text, _COUNT)
    if atom.depth > DEEPEST:
        return None
    if atom.op in _NEVER_NEGATIVE:
        return _COUNT
    if atom.op == "mod" and type(atom.args[1]) is int:
        return (0, atom.args[1] - (not atom.is_real)) if atom.args[1] > 0 else None
    parts = [bounds(arg, ranges) for arg in atom.args]
    lows, highs = ([part[side] for part in parts] for side in (0, 1))
    if atom.op == "max":
        return max((low for low in lows if low is not None), default=None), None if None in highs else max(highs)  # type: ignore[type-var]
    if atom.op == "min":
        return None if None in lows else min(lows), min((high for high in highs if high is not None), default=None)  # type: ignore[type-var]
    if atom.op not in _KEEPS_SIGN or any(low is None or low < 0 for low in lows):
        return None
    return _of_positive(atom, lows, highs)  # type: ignore[arg-type]


def _of_positive(atom: Any, lows: Sequence[Number], highs: Sequence[Number | None]) -> Range:
    if atom.op in _MONOTONE:
        grows = _MONOTONE[atom.op]
        return grows(lows[0]), None if highs[0] is None else grows(highs[0])
    if atom.op in ("floordiv", "truediv") and not isinstance(atom.args[1], Dim) and atom.args[1]:
        divided = operator.floordiv if atom.op == "floordiv" else operator.truediv
        return divided(lows[0], atom.args[1]), None if highs[0] is None else divided(highs[0], atom.args[1])
    return _COUNT


_MONOTONE = {name: EVALUATE[name] for name in ("float", "real", "floor", "ceil", "trunc", "round", "sqrt")}
"""Functions that grow with their operand."""
_NEVER_NEGATIVE = frozenset({"abs", "bit_length", "exp", "next_smooth"})
_KEEPS_SIGN = frozenset({"floordiv", "truediv", "mod", "pow", *_MONOTONE})
"""Functions whose value is >= 0 where their arguments are."""


MOST_ELEMENTS = 1 << 31
"""Code asks whether an index fits into 32 bits."""


def goes_as_sample(relation: Relation) -> bool:
    """Return whether sizes are compared with 0 or 1, which the example stands for, or with as many elements as no
    tensor has."""
    numbers = [arg.constant if isinstance(arg, Dim) else arg for arg in relation.args if not isinstance(arg, Relation)]
    return relation.compares_with_zero_or_one() or any(abs(number) >= MOST_ELEMENTS for number in numbers)
