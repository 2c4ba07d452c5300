"""A relation that has to hold, solved: the sizes of each symbol at which it does, as loose as they are found; and sizes that are equal though their expressions are not."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fx2onnx.sizes.expr import Atom, Dim, Monomial, Scalar, apply, innermost_first, without_remainders
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import SizeSet, where_true

Solution = dict[str, tuple[Relation, SizeSet]]
"""A relation that says at which sizes of a symbol the solved relation holds, and the set of these sizes, by symbol."""
MAX_MODULUS = 1 << 12
MOST_REMAINDERS = 64
"""The largest modulus of which all remainders are tried."""
MOST_CLASSES = 4
"""The largest number of remainders for which it is tried whether a size is written alike for all."""
NEAR = 64
FAR = tuple(1 << power for power in range(7, 17))
"""Sizes of each symbol that are tried."""
AROUND = 10
MOST_TRIED = 10_000
PROBES = 60
"""Sets of sizes at which a relation of several sizes is compared with its solution."""


_QUOTIENTS = (5, 11)
"""The multiples of a modulus, plus what is left of it, at which it is tried first whether a difference is 0."""
MOST_REMEMBERED = 1 << 12
"""Answers: runs of one module for several branches ask for the same."""


def solved(relation: Relation, hints: Mapping[str, int]) -> Solution | None:
    """The sizes of each symbol that a true relation needs; None where only the sizes ``hints`` are known to do, or where it does not
    come down to single symbols.
    """
    names = sorted(relation.symbols())
    if not set(names) <= set(hints):
        return None
    if len(names) == 1:
        found = where_true(relation)
        return None if found is None or found.is_single() else {names[0]: (relation, found)}
    if relation.op != "eq" or any(isinstance(arg, Relation) for arg in relation.args):
        return None
    gap = relation.args[0] - relation.args[1]
    return _of_several(gap, tuple((name, hints[name]) for name in names)) if isinstance(gap, Dim) else None


@functools.lru_cache(MOST_REMEMBERED)
def _of_several(gap: Dim, at: tuple[tuple[str, int], ...]) -> Solution | None:
    """Remainders of sizes, of as few as do, with which ``gap`` is 0 as a polynomial."""
    hints = dict(at)
    moduli = {name: modulus for name in hints if (modulus := modulus_of(gap, name)) > 1}
    for chosen in [[name] for name in moduli] + [list(moduli)]:
        wanted = {name: moduli[name] for name in chosen}
        remainders = {name: hints[name] % modulus for name, modulus in wanted.items()}
        if wanted and _vanishes(gap, wanted, remainders):
            return _loosened(gap, wanted, remainders)
    return None


def is_looser(relation: Relation, solution: Solution, hints: Mapping[str, int]) -> bool:
    """Return whether a relation whose quotients are of several sizes at once, such as ``2 * (H * W // 2) == H * W``, holds at sizes near
    ``hints`` that its solution leaves out.
    """
    if not any(len(atom.symbols) > 1 and atom.op in ("floordiv", "mod") for atom in _atoms(relation)):
        return False
    names = sorted(relation.symbols())
    draw = random.Random(0)
    for _ in range(PROBES):
        sizes = {name: max(hints[name] + draw.randint(-AROUND, AROUND), 2) for name in names}
        if relation.is_true_at(sizes) and any(sizes[name] not in held for name, (_, held) in solution.items()):
            return True
    return False


def _atoms(relation: Relation) -> Iterator[Atom]:
    for arg in relation.args:
        if isinstance(arg, Dim):
            yield from innermost_first(arg)


def _vanishes(gap: Dim, moduli: Mapping[str, int], remainders: Mapping[str, int]) -> bool:
    """Return whether ``gap`` is 0 at all sizes that leave these remainders."""
    if any(_is_other_than_zero(gap, moduli, remainders, quotient) for quotient in _QUOTIENTS):
        return False
    return without_remainders(gap.substitute({
        name: Dim.symbol(name) * modulus + remainders[name] for name, modulus in moduli.items()
    })) == 0  # fmt: skip


def _is_other_than_zero(gap: Dim, moduli: Mapping[str, int], remainders: Mapping[str, int], quotient: int) -> bool:
    """Return whether ``gap`` is not 0 at one such set of sizes: less work than to find that it is 0 at all."""
    sizes = dict.fromkeys(gap.symbols(), quotient)
    sizes |= {name: quotient * modulus + remainders[name] for name, modulus in moduli.items()}
    with contextlib.suppress(ZeroDivisionError):  # no such sizes
        return gap.evaluate(sizes) != 0
    return False


def _loosened(gap: Dim, moduli: dict[str, int], remainders: Mapping[str, int]) -> Solution:
    """With the least moduli, each a divisor of the given one; of small ones, with all remainders that do."""
    if all(modulus <= MOST_REMAINDERS for modulus in moduli.values()):
        found = {name: [remainder] for name, remainder in remainders.items()}
        for name, modulus in moduli.items():
            for remainder in range(modulus):
                others = itertools.product(*({**found, name: [remainder]}).values())
                if remainder not in found[name] and all(
                    _vanishes(gap, moduli, dict(zip(found, other, strict=True))) for other in others
                ):
                    found[name].append(remainder)
        sets = {name: (modulus, found[name]) for name, modulus in moduli.items()}
    else:
        for name in list(moduli):
            for divisor in _divisors(moduli[name]):
                if _vanishes(gap, moduli | {name: divisor}, remainders):
                    moduli[name] = divisor
                    break
        sets = {name: (modulus, [remainders[name] % modulus]) for name, modulus in moduli.items()}
    relations = {name: _leaves(gap.leaf(name), *each) for name, each in sets.items() if each[0] > len(each[1])}
    return {name: (each, held) for name, each in relations.items() if (held := where_true(each)) is not None}


def _leaves(size: Dim, modulus: int, remainders: list[int]) -> Relation:
    """``size`` leaves one of the remainders; by the least modulus that says so."""
    for divisor in _divisors(modulus):
        left = {remainder % divisor for remainder in remainders}
        if len(left) * (modulus // divisor) == len(remainders):
            return _leaves(size, divisor, sorted(left))
    relations = tuple(Relation("eq", (size % modulus, remainder)) for remainder in sorted(remainders))
    return relations[0] if len(relations) == 1 else Relation("or", relations)


def declared(name: str, sizes: SizeSet) -> str:
    """The declaration by which a user says that a size is one of ``sizes``, or of those around them."""
    least, most = sizes.first(1), sizes.last()
    first, step = sizes.progression()
    if step > 1 and most is None and sizes.first(8) == [first + place * step for place in range(8)]:
        quotient, rest = divmod(first, step)
        bound = f", min={quotient}" if quotient else ""
        return f'{step} * Dim("{name}_over_{step}"{bound})' + (f" + {rest}" if rest else "")
    bounds = [f"min={least[0]}"] if least and least[0] else []
    bounds += [f"max={most}"] if most is not None else []
    return f'Dim("{name}"{"".join(f", {bound}" for bound in bounds)})'


def sizes_where(
    relation: Relation, sets: Mapping[str, SizeSet], hints: Mapping[str, int], beside: Sequence[Relation] = ()
) -> dict[str, int]:
    """Sizes near ``hints`` at which the relation holds, and those ``beside`` it; none where they are not found."""
    return dict(_sizes_where(relation, tuple(sorted(sets.items())), tuple(sorted(hints.items())), tuple(beside)))


@functools.lru_cache(MOST_REMEMBERED)
def _sizes_where(
    relation: Relation,
    by_name: tuple[tuple[str, SizeSet], ...],
    at: tuple[tuple[str, int], ...],
    beside: tuple[Relation, ...],
) -> dict[str, int]:
    sets, hints = dict(by_name), dict(at)
    names = list(sets)
    count = NEAR if len(names) < 3 else 8
    choices = itertools.product(*(
        [
            *sorted(sets[name].first(NEAR), key=_from(hints[name]))[:count],
            *(size for size in _tried_at(hints[name], len(names)) if size in sets[name]),
        ]
        for name in names
    ))  # fmt: skip

    def distance(sizes: tuple[int, ...]) -> tuple[bool, int]:
        return min(sizes) < 2, sum(_from(hints[name])(size) for name, size in zip(names, sizes, strict=True))

    for sizes in sorted(itertools.islice(choices, MOST_TRIED), key=distance):
        found = dict(zip(names, sizes, strict=True))
        if relation.is_true_at(found) and all(each.is_true_at({**hints, **found}) for each in beside):
            return found
    return {}


def _tried_at(hint: int, names: int) -> list[int]:
    """Sizes beyond the first; of up to two symbols those around the hint, too."""
    around = [hint * 2, hint // 2, *range(hint - AROUND, hint + AROUND)] if names < 3 else []
    return sorted({*FAR, *(size for size in around if size > NEAR)})


def _from(hint: int) -> Callable[[int], int]:
    """The way to a size; the way down counts more, since parts of a small size are 1 sooner."""
    return lambda size: size - hint if size > hint else 3 * (hint - size)


def simplified(dim: Dim, sets: Mapping[str, SizeSet]) -> Scalar:
    """``dim`` as it is written where its symbols are known to be multiples: ``H`` for ``2 * (H // 2)``; or to leave few remainders:
    ``7 * (H // 28)`` for ``H // 4``.
    """
    names = sorted(dim.symbols() & sets.keys())
    return _simplified(dim, tuple((name, sets[name]) for name in names)) if names else dim


@functools.lru_cache(MOST_REMEMBERED)
def _simplified(dim: Dim, by_name: tuple[tuple[str, SizeSet], ...]) -> Scalar:
    classes = {name: each for name, sizes in by_name if (each := _classes(sizes)) is not None}
    if not classes or not any(atom.depth for atom in dim.atoms()):
        return dim
    inside: Scalar | None = None
    for chosen in itertools.product(*(remainders for _, remainders in classes.values())):
        general = {
            name: dim.leaf(name) * modulus + remainder
            for (name, (modulus, _)), remainder in zip(classes.items(), chosen, strict=True)
        }
        found = dim.substitute(general)
        if inside is not None and found != inside:
            return dim
        inside = found
    if not isinstance(inside, Dim):
        return dim if inside is None else inside
    if any(atom.depth for atom in inside.atoms()):
        return dim
    total: Scalar = inside.constant
    for monomial, factor in inside.terms.items():
        product: Scalar = 1
        for atom in monomial:
            name = atom.text
            modulus, remainders = classes.get(name, (1, [0]))
            common = math.gcd(int(factor), modulus) if len(remainders) == 1 else 1
            factor = factor // common
            product = product * apply("floordiv", Dim({(atom,): 1}) - remainders[0], modulus // common)
        total = total + product * factor
    return total


@functools.lru_cache(MOST_REMEMBERED)
def _classes(sizes: SizeSet) -> tuple[int, list[int]] | None:
    """A modulus and the few remainders that members leave, counted on from the first behind the widest gap (29, 30, 31, 32 by 32);
    None where there are many.
    """
    first, step = sizes.progression()
    if step > 1:
        return step, [first % step]
    if step == 0 or sizes.start > MAX_MODULUS or not 1 < sizes.period <= MOST_REMAINDERS:
        return None
    members = sizes.first(1 + sizes.start + MOST_CLASSES)
    remainders = sorted({size % sizes.period for size in members})
    if len(remainders) > MOST_CLASSES:
        return None
    gaps = [(one - other) % sizes.period for one, other in zip(remainders, remainders[-1:] + remainders, strict=False)]
    first = remainders[gaps.index(max(gaps))]
    return sizes.period, sorted(first + (remainder - first) % sizes.period for remainder in remainders)


def _divisors(number: int) -> Iterator[int]:
    return (divisor for divisor in range(1, number) if number % divisor == 0)


def modulus_of(gap: Dim, name: str) -> int:
    """The product of the divisors above ``name`` where they lie inside each other, and the least common multiple of such."""
    found: dict[Atom, int] = {}
    product = 1
    for atom in innermost_first(gap):
        inside = (
            [found[part] for arg in atom.args if isinstance(arg, Dim) for part in arg.atoms()] if atom.depth else []
        )
        divisor = atom.args[-1] if atom.op in ("floordiv", "mod") and name in atom.symbols else 1
        found[atom] = max(inside, default=1) * (divisor if isinstance(divisor, int) else 1)
        product = max(product, found[atom])
    return product if product <= MAX_MODULUS else 1


MOST_STEPS = 64
"""Replacements in one expression; equalities that go round in circles end there."""


@dataclass(frozen=True)
class Equalities:
    """Each equality replaces one of its terms by the others: ``u3 == u0`` a symbol, ``u0*u1*u2 == 24`` a product."""

    symbols: Mapping[str, Scalar] = field(default_factory=dict)
    products: Mapping[Monomial, Scalar] = field(default_factory=dict)
    zeros: frozenset[Dim] = frozenset()
    """Expressions that are 0 and have no term with the factor 1."""

    def facts(self) -> Iterator[tuple[frozenset[str], object]]:
        """Each equality, behind the symbols in it."""
        for name, value in self.symbols.items():
            yield _symbols(value) | {name}, (name, value)
        for monomial, value in self.products.items():
            yield _symbols(value).union(*(atom.symbols for atom in monomial)), (monomial, value)
        for zero in self.zeros:
            yield zero.symbols(), zero

    def adding(self, one: Scalar, other: Scalar, replaceable: frozenset[str]) -> Equalities:
        """These equalities, and that the two are equal. A symbol of ``replaceable`` is replaced in preference to
        another, a new one to an old."""
        gap = self.reduced(one - other)
        if not isinstance(gap, Dim) or gap.is_real:
            return self
        gap = apply("floordiv", gap, math.gcd(int(gap.constant), *map(int, gap.terms.values())))
        assert isinstance(gap, Dim)
        name = self._symbol_of(gap, replaceable)
        if name is not None:
            rest = _solved(gap, next(m for m in gap.terms if _name_of(m) == name))
            others = {
                known: value.substitute({name: rest}) if isinstance(value, Dim) else value
                for known, value in self.symbols.items()
            }
            return replace(self, symbols={**others, name: rest})
        units = [monomial for monomial, factor in gap.terms.items() if abs(factor) == 1]
        if units:
            lead = max(units, key=lambda monomial: (len(monomial), [atom.text for atom in monomial]))
            return replace(self, products={**self.products, lead: _solved(gap, lead)})
        return replace(self, zeros=self.zeros | {gap, -gap})

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


NO_EQUALITIES = Equalities()
"""The equalities of a run that has none."""


def _symbols(value: Scalar) -> frozenset[str]:
    return value.symbols() if isinstance(value, Dim) else frozenset()


def _name_of(monomial: Monomial) -> str | None:
    return monomial[0].text if len(monomial) == 1 and not monomial[0].depth else None


def _solved(gap: Dim, monomial: Monomial) -> Scalar:
    """The value of ``monomial``, whose factor is 1 or -1, where ``gap`` is 0."""
    factor = gap.terms[monomial]
    return (gap - Dim({monomial: factor})) * -factor


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    others = list(monomial)
    for atom in divisor:
        if atom not in others:
            return None
        others.remove(atom)
    return tuple(others)
