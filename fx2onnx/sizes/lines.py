"""Lines between which an expression over one size stays, and the size from which on a relation of it repeats."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from fx2onnx.sizes.expr import MOST_REMEMBERED, Atom, Dim
from fx2onnx.sizes.relation import COMPARE, Relation

Reach: TypeAlias = tuple[int, int]
"""The size from which on something repeats, and its period."""


@dataclass(frozen=True, slots=True)
class Line:
    slope: Fraction
    low: Fraction
    high: Fraction
    start: int = 0
    period: int = 1

    def __add__(self, other: Line) -> Line:
        start, period = _joined((self.start, self.period), (other.start, other.period))
        return Line(self.slope + other.slope, self.low + other.low, self.high + other.high, start, period)

    def __mul__(self, factor: int) -> Line:
        low, high = sorted((self.low * factor, self.high * factor))
        return Line(self.slope * factor, low, high, self.start, self.period)

    def quotient(self, divisor: int) -> Line:
        low = (self.low - divisor + 1) / divisor
        return Line(self.slope / divisor, low, self.high / divisor, self.start, self.period * divisor)

    def remainder(self, divisor: int) -> Line:
        return Line(Fraction(0), Fraction(0), Fraction(divisor - 1), self.start, self.period * divisor)

    def settled_from(self) -> int:
        """The size from which on it keeps its sign, or repeats itself."""
        if not self.slope:
            return self.start
        return max(self.start, math.floor(max(abs(self.low), abs(self.high)) / abs(self.slope)) + 1)

    def larger(self, other: Line) -> Line:
        gap = self + other * -1
        if not gap.slope:
            return Line(self.slope, max(self.low, other.low), max(self.high, other.high), gap.start, gap.period)
        last = self if gap.slope > 0 else other
        return Line(last.slope, last.low, last.high, gap.settled_from(), gap.period)


def reach_of(relation: Relation) -> Reach | None:
    """The size from which on the truth of a relation of one symbol repeats, and the period; None where it is not along
    lines."""
    if not any(isinstance(arg, Relation) for arg in relation.args) and relation.op in COMPARE:
        one, other = (_line(arg) for arg in relation.args)
        if one is None or other is None:
            return None
        gap = one + other * -1
        return gap.settled_from(), gap.period
    reach: Reach = 0, 1
    for part in relation.args:
        found = reach_of(part) if isinstance(part, Relation) else (0, 1)
        if found is None:
            return None
        reach = _joined(reach, found)
    return reach


def _joined(one: Reach, other: Reach) -> Reach:
    return max(one[0], other[0]), math.lcm(one[1], other[1])


def _line(value: object) -> Line | None:
    if isinstance(value, int):
        return Line(Fraction(0), Fraction(value), Fraction(value))
    return None if not isinstance(value, Dim) or value.is_real else _line_of_sum(value)


@functools.lru_cache(MOST_REMEMBERED)
def _line_of_sum(value: Dim) -> Line | None:
    total = _line(int(value.constant))
    for monomial, factor in value.terms.items():
        part = _line_of_atom(monomial[0]) if len(monomial) == 1 else None
        if part is None or total is None:
            return None
        total = total + part * int(factor)
    return total


@functools.lru_cache(MOST_REMEMBERED)
def _line_of_atom(atom: Atom) -> Line | None:
    if not atom.depth:
        return Line(Fraction(1), Fraction(0), Fraction(0))
    if atom.op not in ("floordiv", "mod", "min", "max"):
        return None
    parts = [_line(arg) for arg in atom.args]
    one, divisor = parts[0], atom.args[-1]
    if one is None or None in parts:
        return None
    if atom.op in ("floordiv", "mod"):
        if not isinstance(divisor, int) or divisor < 1:
            return None
        return one.quotient(divisor) if atom.op == "floordiv" else one.remainder(divisor)
    sign = 1 if atom.op == "max" else -1
    result = one * sign
    for part in parts[1:]:
        if part is not None:
            result = result.larger(part * sign)
    return result * sign
