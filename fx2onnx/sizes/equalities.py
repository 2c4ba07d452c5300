"""Sizes that are equal though their expressions are not: what operators need, as polynomials that are 0."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from fx2onnx.sizes.expr import Dim, Monomial, Scalar, apply

MOST_STEPS = 64
"""Replacements in one expression; equalities that go round in circles end there."""


@dataclass
class Equalities:
    """Each equality replaces one of its terms by the others: ``u3 == u0`` a symbol, ``u0*u1*u2 == 24`` a product."""

    symbols: dict[str, Scalar] = field(default_factory=dict)
    products: dict[Monomial, Scalar] = field(default_factory=dict)
    zeros: set[Dim] = field(default_factory=set)
    """Expressions that are 0 and have no term with the factor 1."""

    def __bool__(self) -> bool:
        return bool(self.symbols or self.products or self.zeros)

    def facts(self) -> Iterator[tuple[frozenset[str], object]]:
        """Each equality, behind the symbols in it."""
        for name, value in self.symbols.items():
            yield _symbols(value) | {name}, (name, value)
        for monomial, value in self.products.items():
            yield _symbols(value).union(*(atom.symbols for atom in monomial)), (monomial, value)
        for zero in self.zeros:
            yield zero.symbols(), zero

    def copy(self) -> Equalities:
        return Equalities(dict(self.symbols), dict(self.products), set(self.zeros))

    def add(self, one: Scalar, other: Scalar, replaceable: frozenset[str]) -> None:
        """From now on the two are equal. A symbol of ``replaceable`` is replaced in preference to another, a new one to an old."""
        gap = self.reduced(one - other)
        if not isinstance(gap, Dim) or gap.is_real:
            return
        gap = apply("floordiv", gap, math.gcd(int(gap.constant), *map(int, gap.terms.values())))
        assert isinstance(gap, Dim)
        name = self._symbol_of(gap, replaceable)
        if name is not None:
            rest = _solved(gap, next(m for m in gap.terms if _name_of(m) == name))
            self.symbols = {
                known: value.substitute({name: rest}) if isinstance(value, Dim) else value
                for known, value in self.symbols.items()
            }
            self.symbols[name] = rest
            return
        units = [monomial for monomial, factor in gap.terms.items() if abs(factor) == 1]
        if units:
            lead = max(units, key=lambda monomial: (len(monomial), [atom.text for atom in monomial]))
            self.products[lead] = _solved(gap, lead)
        else:
            self.zeros |= {gap, -gap}

    def _symbol_of(self, gap: Dim, replaceable: frozenset[str]) -> str | None:
        """A symbol that is a term with the factor 1 or -1 and occurs in no other term."""
        found = []
        for monomial, factor in gap.terms.items():
            name = _name_of(monomial)
            others = [atom for other in gap.terms if other != monomial for atom in other]
            if name is not None and abs(factor) == 1 and not any(name in atom.symbols for atom in others):
                found.append(name)
        return max(found, key=lambda name: (name in replaceable, len(name), name), default=None)

    def reduced(self, value: Scalar) -> Scalar:
        """``value`` with every replacement made."""
        for _ in range(MOST_STEPS):
            if not isinstance(value, Dim):
                return value
            before = value
            if self.symbols and value.symbols() & self.symbols.keys():
                value = value.substitute(self.symbols)
            if self.products and isinstance(value, Dim):
                value = self._without_products(value)
            if value == before:
                return 0 if before in self.zeros else before
        return value

    def _without_products(self, value: Dim) -> Scalar:
        for monomial, factor in value.terms.items():
            for lead, rest in self.products.items():
                others = _without(monomial, lead)
                if others is not None:
                    return value - Dim({monomial: factor}) + rest * factor * (Dim({others: 1}) if others else 1)
        return value


def _symbols(value: Scalar) -> frozenset[str]:
    return value.symbols() if isinstance(value, Dim) else frozenset()


def _name_of(monomial: Monomial) -> str | None:
    return monomial[0].text if len(monomial) == 1 and monomial[0].op == "symbol" else None


def _solved(gap: Dim, monomial: Monomial) -> Scalar:
    """What ``monomial``, of factor 1 or -1, is where ``gap`` is 0."""
    factor = gap.terms[monomial]
    return (gap - Dim({monomial: factor})) * -factor


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    others = list(monomial)
    for atom in divisor:
        if atom not in others:
            return None
        others.remove(atom)
    return tuple(others)
