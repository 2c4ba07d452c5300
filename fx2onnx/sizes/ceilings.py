"""Sizes written so that they are right whether something is a multiple of a number or not: ``4 * ceil(n / 4)`` for ``n + 4 - n % 4``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fx2onnx.sizes.expr import Atom, Dim, Scalar, apply, atom_of, innermost_first, rewritten
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import SizeSet
from fx2onnx.sizes.solve import simplified

Rewrite: TypeAlias = Callable[[Scalar], Scalar]

_QUOTIENT = Dim.unbacked(-1)
"""A whole number, of which nothing else is known."""


@dataclass(frozen=True, slots=True)
class Multiple:
    """``size`` is ``divisor`` times something where a test holds, and is not where it does not; or the other way round."""

    size: Dim
    divisor: int
    where_it_holds: bool


def multiple_of(test: Relation) -> Multiple | None:
    """The size and the divisor that a test such as ``n % 4 == 0`` is about; None for other tests."""
    if test.op not in _SAYS_MULTIPLE or len(test.args) != 2:
        return None
    left, right = test.args
    atom = left.only_atom() if isinstance(left, Dim) else None
    if type(right) is not int or atom is None or atom.op != "mod" or atom.is_real:
        return None
    size, divisor = atom.args
    if not isinstance(size, Dim) or type(divisor) is not int or divisor < 2:
        return None
    holds = (_SAYS_EVEN if divisor == 2 else _SAYS_MULTIPLE)[test.op].get(right)
    return None if holds is None else Multiple(size, divisor, holds)


_SAYS_MULTIPLE: dict[str, dict[int, bool]] = {
    "eq": {0: True}, "le": {0: True}, "lt": {1: True}, "ne": {0: False}, "gt": {0: False}, "ge": {1: False},
}  # fmt: skip
"""True if the remainder is 0 where the comparison holds, by the sign of a comparison and the number that a remainder is
compared with."""
_SAYS_EVEN = {**_SAYS_MULTIPLE, "eq": {0: True, 1: False}, "ne": {0: False, 1: True}}


@dataclass(frozen=True, slots=True)
class Way:
    """A form of sizes, in which they have the values for a size that is no multiple."""

    rewrite: Rewrite
    width: Scalar = 1
    """The width of a pad that this way has in the place of 1."""


def ways_to_write(multiple: Multiple, sets: Mapping[str, SizeSet]) -> list[Way]:
    """The ways to write a multiple: as it is, and with what is no multiple said by the next one, where it is written as
    in the test or for ``sets``."""
    ways = [Way(lambda value: value)]
    for size in dict.fromkeys((multiple.size, simplified(multiple.size, sets))):
        if isinstance(size, Dim):
            ways += [Way(_with_ceilings(each, multiple.divisor)) for each in (size, -size)]
            ways += _of_odd(size) if multiple.divisor == 2 else []
    return ways


def _of_odd(size: Dim) -> list[Way]:
    """An odd size is one less than the next even one, and 1 is what it leaves."""
    found = _solved(size, 2 * _QUOTIENT - 1)
    if found is None:
        return []
    atom, odd = found
    half = {str(_QUOTIENT): -apply("floordiv", -size, 2)}
    meant = odd.substitute(half) if isinstance(odd, Dim) else odd
    rewrite = _memoized(lambda value: rewritten(value, lambda inner: meant if inner == atom else None))
    return [Way(rewrite, apply("mod", size, 2))]


def _with_ceilings(size: Scalar, divisor: int) -> Rewrite:
    """The rewrite by ``ceil(size / divisor)``, which is one more than the quotient."""
    quotient = apply("floordiv", size, divisor)
    ceiling: Scalar = -apply("floordiv", -size, divisor)
    remainder = apply("mod", size, divisor)
    atom, more = _atom_and_rest(quotient)
    left = remainder.only_atom() if isinstance(remainder, Dim) else None

    def rule(inner: Atom) -> Scalar | None:
        if inner == left:
            return size - divisor * (ceiling - 1)
        return ceiling - 1 - more if inner == atom else None

    return _memoized(lambda value: rewritten(value, rule))


def _atom_and_rest(value: Scalar) -> tuple[Atom | None, Scalar]:
    """``atom, rest`` with ``value == atom + rest`` and a number ``rest``; no atom where there is not one alone."""
    if not isinstance(value, Dim):
        return None, value
    return Dim(value.terms).only_atom(), value.constant


def where_it_is_one(multiple: Multiple, sets: Mapping[str, SizeSet]) -> Rewrite:
    """Sizes as they are where ``multiple`` is one, and symbols in ``sets``."""
    forms = {name: sizes.as_symbol(name) for name, sizes in sets.items() if sizes.progression()[1] != 1}
    others = {name: sizes for name, sizes in sets.items() if name not in forms}
    size = multiple.size.substitute(forms)
    found = _solved(size, multiple.divisor * _QUOTIENT) if isinstance(size, Dim) else None

    def rule(inner: Atom) -> Scalar | None:
        if found is None or inner == found[0]:
            return None if found is None else found[1]
        further = _further_divisor(inner, found[0])
        return None if further is None else apply("floordiv", found[1], further)

    def by_remainders(inner: Atom) -> Scalar | None:
        value = Dim({(inner,): 1})
        known = simplified(value, others) if others and inner.symbols <= others.keys() else value
        return None if known == value else known

    def written(value: Scalar) -> Scalar:
        value = rewritten(value.substitute(forms) if isinstance(value, Dim) else value, rule)
        return rewritten(rewritten(value, by_remainders), _quotients)

    return _memoized(written)


def _quotients(atom: Atom) -> Scalar | None:
    """Quotients and remainders of one size by one number in one form: by quotients whose factors lie between 0 and the divisor, and
    ``n - n // 2`` for ``(n + 1) // 2``.
    """
    if atom.op not in ("floordiv", "mod"):
        return None
    value, divisor = atom.args
    if not isinstance(value, Dim) or value.is_real or type(divisor) is not int or divisor < 2:
        return None
    common = math.gcd(divisor, *value.terms.values())  # type: ignore[arg-type]
    constant, by = value.constant // common, divisor // common
    whole: Scalar = constant // by
    rest: Scalar = 0
    for monomial, factor in value.terms.items():
        times, left = divmod(factor // common, by)
        whole = whole + Dim({monomial: 1}) * times
        rest = rest + Dim({monomial: 1}) * left
    if by == 2 and constant % 2:
        quotient = whole + rest - _plain_quotient(rest, 2)
    else:
        quotient = whole + _plain_quotient(rest + constant % by, by)
    return quotient if atom.op == "floordiv" else value - divisor * quotient


def _plain_quotient(value: Scalar, divisor: int) -> Scalar:
    return Dim({(atom_of("floordiv", (value, divisor)),): 1}) if isinstance(value, Dim) else value // divisor


def _further_divisor(inner: Atom, atom: Atom) -> int | None:
    """4 where ``inner`` is ``n // 16`` and ``atom`` is ``n // 4``, as ``n // 16 == n // 4 // 4``."""
    if inner.op != "floordiv" or atom.op != "floordiv" or inner.args[0] != atom.args[0]:
        return None
    larger, divisor = inner.args[1], atom.args[1]
    if not isinstance(larger, int) or not isinstance(divisor, int) or divisor < 1 or larger % divisor:
        return None
    return larger // divisor


def _solved(size: Dim, equals: Scalar) -> tuple[Atom, Scalar] | None:
    """An atom of ``size``, and what it is where ``size == equals``."""
    candidates = [
        (monomial[0], factor) for monomial, factor in size.terms.items() if len(monomial) == 1 and factor in (1, -1)
    ]
    for atom, factor in sorted(candidates, key=lambda pair: -pair[0].depth):
        rest = size - factor * Dim({(atom,): 1})
        if not isinstance(rest, Dim) or not (atom.symbols & rest.symbols()):
            return atom, factor * (equals - rest)
    return None


def _memoized(rewrite: Rewrite) -> Rewrite:
    known: dict[Dim, Scalar] = {}

    def remembered(value: Scalar) -> Scalar:
        if not isinstance(value, Dim):
            return value
        found = known.get(value)
        if found is None:
            is_real = value.is_real or any(atom.is_real for atom in innermost_first(value))
            found = known[value] = value if is_real else rewrite(value)  # other steps might round otherwise
        return found

    return remembered
