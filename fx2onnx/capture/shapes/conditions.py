"""A relation that has to hold, solved: the sizes of each symbol at which it does, as loose as they are found."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping

from fx2onnx.base.dims import Atom, Dim, Scalar, apply, innermost_first, without_remainders
from fx2onnx.base.relations import Relation
from fx2onnx.base.size_sets import SizeSet, where_true

Solution = dict[str, tuple[Relation, SizeSet]]
"""Of each symbol, the sizes at which the relation holds, and a relation that is true just there."""
MAX_MODULUS = 1 << 12
NEAR = 64
FAR = tuple(1 << power for power in range(7, 17))
"""Sizes of each symbol that are tried."""
MOST_TRIED = 10_000


def solved(relation: Relation, hints: Mapping[str, int]) -> Solution | None:
    """What a true relation needs of its symbols; None where only the sizes ``hints`` are known to do, or where it does not
    come down to single symbols.
    """
    names = sorted(relation.symbols())
    if not set(names) <= set(hints):
        return None
    if len(names) == 1:
        found = where_true(relation)
        return None if found is None or found.is_single() else {names[0]: (relation, found)}
    return _of_several(relation, names, hints) if relation.op == "eq" else None


def _of_several(relation: Relation, names: list[str], hints: Mapping[str, int]) -> Solution | None:
    """Remainders of sizes, of as few as do, with which both sides are the same polynomial."""
    if any(isinstance(arg, Relation) for arg in relation.args):
        return None
    gap = relation.args[0] - relation.args[1]
    if not isinstance(gap, Dim):
        return None
    moduli = {name: modulus for name in names if (modulus := _modulus(gap, name)) > 1}
    for chosen in ([name] for name in moduli):
        if _vanishes(gap, {name: moduli[name] for name in chosen}, hints):
            return _loosened(gap, {name: moduli[name] for name in chosen}, hints)
    return _loosened(gap, moduli, hints) if moduli and _vanishes(gap, moduli, hints) else None


def _vanishes(gap: Dim, moduli: Mapping[str, int], hints: Mapping[str, int]) -> bool:
    """Whether ``gap`` is 0 at all sizes that leave the remainders of the sample's."""
    return without_remainders(gap.substitute({
        name: Dim.symbol(name) * modulus + hints[name] % modulus for name, modulus in moduli.items()
    })) == 0  # fmt: skip


def _loosened(gap: Dim, moduli: dict[str, int], hints: Mapping[str, int]) -> Solution:
    """With the least moduli, each a divisor of the given one."""
    for name in list(moduli):
        for divisor in _divisors(moduli[name]):
            if _vanishes(gap, moduli | {name: divisor}, hints):
                moduli[name] = divisor
                break
    return {
        name: (relation, found)
        for name, modulus in moduli.items()
        if modulus > 1
        and (relation := Relation("eq", (Dim.symbol(name) % modulus, hints[name] % modulus)))
        and (found := where_true(relation)) is not None
    }


def declared(name: str, sizes: SizeSet) -> str:
    """How a user says that a size is one of ``sizes``, or of those around them."""
    least, most = sizes.first(1), sizes.last()
    bounds = [f"min={least[0]}"] if least and least[0] else []
    bounds += [f"max={most}"] if most is not None else []
    return f'Dim("{name}"{"".join(f", {bound}" for bound in bounds)})'


def sizes_where(relation: Relation, sets: Mapping[str, SizeSet], hints: Mapping[str, int]) -> dict[str, int]:
    """Sizes near ``hints`` at which the relation holds; none where they are not found."""
    names = sorted(sets)
    count = NEAR if len(names) < 3 else 8
    choices = itertools.product(*(
        [*sorted(sets[name].first(NEAR), key=_from(hints[name]))[:count], *(size for size in FAR if size in sets[name])]
        for name in names
    ))  # fmt: skip

    def distance(sizes: tuple[int, ...]) -> tuple[bool, int]:
        return min(sizes) < 2, sum(abs(size - hints[name]) for name, size in zip(names, sizes, strict=True))

    for sizes in sorted(itertools.islice(choices, MOST_TRIED), key=distance):
        found = dict(zip(names, sizes, strict=True))
        if relation.is_true_at(found):
            return found
    return {}


def _from(hint: int) -> Callable[[int], int]:
    return lambda size: abs(size - hint)


def simplified(dim: Dim, sets: Mapping[str, SizeSet]) -> Scalar:
    """``dim`` as it is written where its symbols are known to be multiples: ``H`` for ``2 * (H // 2)``."""
    steps = {name: sets[name].progression() for name in dim.symbols() & sets.keys()}
    steps = {name: (first, step) for name, (first, step) in steps.items() if step > 1}
    if not steps or all(atom.op == "symbol" for atom in dim.atoms()):
        return dim
    general = {name: Dim.symbol(name) * step + first % step for name, (first, step) in steps.items()}
    inside = dim.substitute(general)
    if not isinstance(inside, Dim):
        return inside
    if any(atom.depth for atom in inside.atoms()):
        return dim
    total: Scalar = inside.constant
    for monomial, factor in inside.terms.items():
        product: Scalar = 1
        for atom in monomial:
            name = str(atom.args[0])
            if name in steps:
                first, step = steps[name]
                common = math.gcd(int(factor), step)
                factor = factor // common
                product = product * apply("floordiv", Dim.symbol(name) - first % step, step // common)
            else:
                product = product * Dim.symbol(name)
        total = total + product * factor
    return total


def _divisors(number: int) -> Iterator[int]:
    return (divisor for divisor in range(1, number) if number % divisor == 0)


def _modulus(gap: Dim, name: str) -> int:
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
