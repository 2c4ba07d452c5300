"""Sets of sizes: where a relation of one symbol holds, exactly, and what is said of it to people.

An expression made of ``+ - * // % min max`` of one symbol and numbers is quasi-polynomial behind some size: it repeats its
form with a period. So the sizes at which a relation holds are a finite list and a periodic rest, which NumPy finds by
trying.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fx2onnx.sizes.expr import Atom, Dim, Scalar
from fx2onnx.sizes.lines import Reach, reach_of
from fx2onnx.sizes.relation import COMPARE, Relation

LARGEST = 1 << 17
"""Sizes that are tried at most; of an expression that needs more, nothing is said."""
LARGEST_DEPTH = 40
MOST_NAMED = 8
"""Sizes that are listed one by one."""

Values = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class SizeSet:
    """``size in members`` below ``start``; from there on the rest of ``members`` repeats."""

    start: int = 0
    members: bytes = b"\1"
    """A byte for each size, 1 for a member."""

    def __contains__(self, size: object) -> bool:
        if not isinstance(size, int) or size < 0:
            return False
        period = len(self.members) - self.start
        return bool(self.members[size if size < self.start else self.start + (size - self.start) % period])

    @property
    def period(self) -> int:
        return len(self.members) - self.start

    def array(self, count: int) -> npt.NDArray[np.bool_]:
        """Return whether 0, 1, ... ``count - 1`` are members."""
        listed = np.frombuffer(self.members, bool)
        if count <= len(listed):
            return listed[:count]
        rest = listed[self.start :]
        return np.concatenate([listed[: self.start], np.tile(rest, -(-(count - self.start) // len(rest)))])[:count]

    def __and__(self, other: SizeSet) -> SizeSet:
        """The sizes in both sets; more where a list of these would be too long (``both``)."""
        found = self.both(other)
        return self if found is None else found

    def __or__(self, other: SizeSet) -> SizeSet:
        """The sizes in either set; more where a list of these would be too long (``either``)."""
        found = self.either(other)
        return EVERY if found is None else found

    def both(self, other: SizeSet) -> SizeSet | None:
        """The sizes in both sets; None where a list of these would be too long."""
        if self == EVERY or other == EVERY:
            return other if self == EVERY else self
        start, count = self._lengths(other)
        return None if count > LARGEST else made_of(self.array(count) & other.array(count), start)

    def either(self, other: SizeSet) -> SizeSet | None:
        """The sizes in either set; None where a list of these would be too long."""
        start, count = self._lengths(other)
        return None if count > LARGEST else made_of(self.array(count) | other.array(count), start)

    def _lengths(self, other: SizeSet) -> tuple[int, int]:
        start = max(self.start, other.start)
        return start, start + math.lcm(self.period, other.period)

    def is_within(self, other: SizeSet) -> bool:
        """Return whether every member is one of ``other``; false where that is not found."""
        return self.both(other) == self

    def first(self, count: int) -> list[int]:
        """The least members, ``count`` at most."""
        return [int(size) for size in np.flatnonzero(self.array(self.start + self.period * count))[:count]]

    def is_single(self) -> bool:
        """Return whether the set has one member, or none."""
        return len(self.first(2)) < 2

    def progression(self) -> tuple[int, int]:
        """``first, step``: every member is ``first + n * step``."""
        return _progression(self)

    def last(self) -> int | None:
        """The largest member; None where there is no largest."""
        if any(self.members[self.start :]):
            return None
        found = np.flatnonzero(self.array(self.start))
        return int(found[-1]) if len(found) else -1

    def ends(self) -> tuple[int, int | None]:
        """The least and the largest member; None where there is no largest."""
        return next(iter(self.first(1)), 0), self.last()

    def described(self, name: str) -> str:
        """Conditions on ``name``, such as ``H % 8 == 0 and H >= 16``."""
        least, most = self.first(1), self.last()
        if not least:
            return f"no {name}"
        if self.is_single():
            return f"{name} == {least[0]}"
        low, (_, step) = least[0], self.progression()
        parts = [f"{name} % {step} == {low % step}"] if step > 1 else []
        count = self.start + 2 * self.period
        pattern = np.arange(count) % max(step, 1) == low % max(step, 1)
        if most is None and not self.array(count)[self.start :][pattern[self.start :]].all():
            rest = sorted({size % self.period for size in range(self.start, count) if size in self})
            pattern = np.isin(np.arange(count) % self.period, rest)
            parts = [f"{name} % {self.period} in ({', '.join(map(str, rest))})"]
        pattern &= (np.arange(count) >= low) & (np.arange(count) <= (count if most is None else most))
        missing = np.flatnonzero(pattern & ~self.array(count)).tolist()
        if (self.array(count) & ~pattern).any() or len(missing) > MOST_NAMED:
            return f"{name} in ({', '.join(map(str, self.first(MOST_NAMED)))}, ...)"
        if low > (low % step if step > 1 else 0):
            parts.append(f"{name} >= {low}")
        if most is not None:
            parts.append(f"{name} <= {most}")
        parts += [f"{name} != {size}" for size in missing]
        return " and ".join(parts) if parts else f"{name} >= 0"

    def as_symbol(self, name: str) -> Scalar:
        """An expression over ``name``, which is any number >= 0, whose values hold every member."""
        first, step = self.progression()
        return Dim.symbol(name) * step + first


@functools.lru_cache(1 << 10)
def _progression(sizes: SizeSet) -> tuple[int, int]:
    found = np.flatnonzero(sizes.array(sizes.start + 2 * sizes.period))
    return (int(found[0]), int(np.gcd.reduce(np.diff(found)))) if len(found) > 1 else (int(found[0]), 0)


EVERY = SizeSet()


def made_of(members: npt.NDArray[np.bool_], start: int) -> SizeSet:
    """The set with the shortest list; ``members[start:]`` repeats."""
    rest = members[start:]
    period = next(size for size in _divisors(len(rest)) if (rest[size:] == rest[:-size]).all())
    other = np.flatnonzero(members[:start] != members[period : start + period])
    start = int(other[-1]) + 1 if len(other) else 0
    return SizeSet(start, members[: start + period].tobytes())


def _divisors(number: int) -> list[int]:
    """The divisors of the number in order."""
    low = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*low, *(number // size for size in low)})


def interval(low: int, high: int | None) -> SizeSet:
    """``low <= size <= high``."""
    end = max(low, 0) if high is None else high + 1
    members = np.zeros(end + 1, bool)
    members[low : end if high is not None else None] = True
    return made_of(members, end)


def where_true(relation: Relation) -> SizeSet | None:
    """The sizes of the relation's one symbol at which it holds; None where that is not found."""
    names = relation.symbols()
    if len(names) != 1:
        return None
    return _where_true(relation) if relation.has_reals() else _where_true_of_integers(relation)


MOST_SETS = 1 << 10
"""The number of sets that are remembered, of some bytes each, rarely of many kB: runs of one module for several branches need the same."""


@functools.lru_cache(MOST_SETS)
def _where_true_of_integers(relation: Relation) -> SizeSet | None:
    """``2`` and ``2.0`` are equal, and what is known of real numbers is less."""
    return _where_true(relation)


def _where_true(relation: Relation) -> SizeSet | None:
    (name,) = relation.symbols()
    reach = reach_of(relation) or _reach_of_any(relation)
    if reach is None or sum(reach) > LARGEST:
        return None
    start, count = reach[0], sum(reach)
    trial = _Trial(name, np.arange(count, dtype=np.int64))
    with np.errstate(all="ignore"):
        truth = np.broadcast_to(trial.truth(relation), count) & trial.is_defined
    return made_of(truth, start)


def _reach_of_any(relation: Relation) -> Reach | None:
    form = _Form()
    form.of_relation(relation)
    return (form.start, form.period) if form.is_known else None


class _Form:
    """With which period an expression repeats its form, and from which size on: behind the last root of any difference whose
    sign decides (of a comparison, ``min`` or ``max``), which lies below the sum of its coefficients over the least of them.
    """

    def __init__(self) -> None:
        self.period, self.bound, self.degree, self.is_known = 1, 0, 1, True
        self.scale = 1
        """The least common multiple of the divisors of coefficients. A remainder has none: it does not grow."""
        self.power = 1
        """2 where sizes are divided by sizes: the quotient of two lines comes near its limit behind a product of constants."""

    @property
    def start(self) -> int:
        scale = self.scale if self.power == 1 else self.period
        return int(self.bound**self.power * scale**self.degree) + self.period * (self.degree + 1)

    def of_relation(self, relation: Relation) -> None:
        parts = []
        for arg in relation.args:
            if isinstance(arg, Relation):
                self.of_relation(arg)
            else:
                parts.append(self._of(arg))
        self.period = math.lcm(self.period, *(period for period, _ in parts))
        self.bound = max(self.bound, sum(total for _, total in parts))

    def _of(self, value: object) -> tuple[int, int]:
        """The period, and a bound of the sum of the coefficients."""
        if not isinstance(value, Dim):
            if isinstance(value, float) and not value.is_integer():
                self.is_known = False
            return 1, abs(int(value))  # type: ignore[call-overload]
        if value.is_real or not self.is_known:
            self.is_known = False
            return 1, 1
        period, total = 1, abs(int(value.constant))
        for monomial, factor in value.terms.items():
            product = abs(int(factor))
            self.degree = max(self.degree, len(monomial))
            for atom in monomial:
                one, bound = self._of_atom(atom)
                period, product = math.lcm(period, one), product * bound
            total += product
        self.is_known &= period <= LARGEST
        return period, total

    def _of_atom(self, atom: Atom) -> tuple[int, int]:
        if not atom.depth:
            return 1, 1
        if atom.depth > LARGEST_DEPTH or atom.op not in _NUMPY:
            self.is_known = False
            return 1, 1
        parts = [self._of(arg) for arg in atom.args]
        period = math.lcm(*(one for one, _ in parts))
        if atom.op in ("min", "max", "abs"):
            self.bound = max(self.bound, sum(total for _, total in parts))
            return period, max(total for _, total in parts)
        divisor = atom.args[-1]
        if isinstance(divisor, Dim):
            self.power, self.bound = 2, max(self.bound, parts[0][1] + parts[1][1])
            period *= math.prod(abs(int(factor)) for factor in divisor.terms.values())
            return period, parts[1][1] if atom.op == "mod" else parts[0][1] + 1
        if not isinstance(divisor, int) or divisor < 1:
            self.is_known = False
            return 1, 1
        if atom.op == "mod":
            return period * divisor, divisor
        self.scale = math.lcm(self.scale, period * divisor)
        return period * divisor, parts[0][1] + 1


_NUMPY: dict[str, Callable[..., Values]] = {
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "max": np.maximum,
    "min": np.minimum,
    "abs": np.abs,
}


class _Trial:
    """Expressions at many sizes of one symbol."""

    def __init__(self, name: str, sizes: Values) -> None:
        self.name, self.sizes = name, sizes
        self.is_defined: Any = np.bool_(True)
        """A mask of the sizes at which nothing is divided by 0."""

    def _values(self, value: Any) -> Any:
        if not isinstance(value, Dim):
            return value
        total: Any = value.constant
        for monomial, factor in value.terms.items():
            product: Any = factor
            for atom in monomial:
                product = product * self._of_atom(atom)
            total = total + product
        return total

    def _of_atom(self, atom: Atom) -> Any:
        if not atom.depth:
            return self.sizes
        args = [self._values(arg) for arg in atom.args]
        if atom.op in ("floordiv", "mod"):
            self.is_defined = self.is_defined & (args[1] != 0)
        return _NUMPY[atom.op](*args)

    def truth(self, relation: Relation) -> Any:
        if relation.op in COMPARE and not any(isinstance(arg, Relation) for arg in relation.args):
            return COMPARE[relation.op](*map(self._values, relation.args))
        parts = [self.truth(arg) if isinstance(arg, Relation) else np.bool_(arg) for arg in relation.args]
        if relation.op in COMPARE:
            return COMPARE[relation.op](*parts)
        if relation.op == "not":
            return ~parts[0]
        joined = np.logical_and if relation.op == "and" else np.logical_or
        return joined.reduce(np.broadcast_arrays(*parts))
