"""Facts about the sizes of one run: sets of sizes that a program is for, and relations that were supposed on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fx2onnx.base.source import SourceLocation
from fx2onnx.sizes.assumptions import Condition
from fx2onnx.sizes.bounds import bounds, certain, known_sign
from fx2onnx.sizes.ceilings import multiple_of
from fx2onnx.sizes.expr import Dim, DimLike, Scalar, apply, without_remainders
from fx2onnx.sizes.following import follows_from
from fx2onnx.sizes.relation import COMPARE, Relation
from fx2onnx.sizes.sets import EVERY, SizeSet, interval, where_true
from fx2onnx.sizes.solve import NO_EQUALITIES, Equalities, is_looser, simplified, sizes_where, solved

FAR = 10_000
"""The number of sizes at which something holds that are tried."""


@dataclass(frozen=True)
class SizeFacts:
    """Knowledge of the sizes of a run at some point. A change gives another object: a snapshot is a reference that is kept."""

    unbacked: frozenset[str] = frozenset()
    """Symbols whose number depends on data."""
    signed: frozenset[str] = frozenset()
    """Symbols of data that may be less than 0: numbers of tensors that were not used as a size so far."""
    equalities: Equalities = NO_EQUALITIES
    """Equalities of sizes that depend on data, which operators or Python needed."""
    sets: Mapping[str, SizeSet] = field(default_factory=dict)
    """The sizes of a symbol for which the program is; every size where there is no entry."""
    written_for: Mapping[str, SizeSet] = field(default_factory=dict)
    """``sets`` except for what was supposed to be odd: ``n % 2`` stays as it is, so that one program serves both."""
    conditions: Mapping[Condition, None] = field(default_factory=dict)
    """The conditions that made the sets smaller, in order."""
    stated: frozenset[Relation] = frozenset()
    """Relations of several sizes that have to hold and are stated as they are, since no conditions of single sizes say it."""
    supposed: Mapping[Relation, None] = field(default_factory=dict)
    """Relations that hold in this run, as Python decided by them and both branches are to be in the file."""

    settled: dict[Relation, bool | None] = field(default_factory=dict, init=False, compare=False, repr=False)
    """The truth of comparisons at all those sizes, as far as it was asked."""
    written: dict[Dim, Scalar] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Expressions as they are written for those sizes, as far as they were asked."""
    remembered: dict[tuple[object, ...], Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Sums, products and comparisons of sizes, by the operation and the two, as far as they were asked."""
    steps: dict[str, tuple[int, int]] = field(default_factory=dict, init=False, compare=False, repr=False)
    """The progressions of ``sets``, as far as they were asked."""
    by_names: dict[frozenset[str], frozenset[object]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """The answers of ``about``, as far as they were asked."""

    @classmethod
    def declared(cls, conditions: Iterable[Condition]) -> SizeFacts:
        """The facts at the start of a run whose sizes are declared with ``conditions``, one for each size."""
        conditions = dict.fromkeys(conditions)
        sets = {condition.name: condition.sizes for condition in conditions}
        return cls(sets=sets, written_for=sets, conditions=conditions)

    def narrowed(self, name: str, sizes: SizeSet, *, is_written: bool = True) -> SizeFacts:
        """The facts of a program that is for these sizes only."""
        sets = {**self.sets, name: self.sets.get(name, EVERY) & sizes}
        written_for = self.written_for
        if is_written:
            written_for = {**written_for, name: written_for.get(name, EVERY) & sizes}
        return replace(self, sets=sets, written_for=written_for)

    def supposing(self, relation: Relation) -> SizeFacts:
        """The facts of a run that is for sizes at which the relation holds."""
        names, after = relation.symbols(), self
        true = where_true(relation) if len(names) == 1 else None
        if true is not None:
            (name,) = names
            multiple = multiple_of(relation)
            is_written = multiple is None or multiple.where_it_holds or multiple.divisor > 2
            after = self.narrowed(name, true, is_written=is_written)
            after = replace(after, sets={**after.sets, name: _without_zero(after.sets[name])})
        return replace(after, supposed={**self.supposed, relation: None})

    def certain(self, op: str, lhs: Scalar, rhs: Scalar) -> bool | None:
        """The truth of a comparison at all sizes for which the program is, or None."""
        known = certain(op, lhs, rhs, self.signed)
        if known is None and self.equalities is not NO_EQUALITIES:
            known = self._certain_by_data(op, lhs, rhs)
        return self.is_settled(Relation(op, (lhs, rhs))) if known is None and self.sets else known

    def holds(self, op: str, lhs: Scalar, rhs: Scalar) -> bool:
        """Return whether a comparison is certain to be true, also by what was supposed alone."""
        return bool(self.certain(op, lhs, rhs) or self.is_settled(Relation(op, (lhs, rhs))))

    def about(self, names: frozenset[str]) -> frozenset[object]:
        """Everything that answers about sizes of ``names`` hang on, besides the hints: what is known of these, and of those that
        equalities and suppositions tie to them.
        """
        if not (self.sets or self.supposed or self.signed) and self.equalities is NO_EQUALITIES:
            return frozenset()
        known = self.by_names.get(names)
        if known is None:
            about = [*((each.symbols(), each) for each in self.supposed), *self.equalities.facts()]
            tied, before = names, frozenset[str]()
            while tied != before:
                before, tied = tied, tied.union(*(each for each, _ in about if each & tied))
            own = [(name, sets[name]) for sets in (self.sets, self.written_for) for name in tied & sets.keys()]
            known = frozenset((*own, *(fact for each, fact in about if each & tied), *(tied & self.signed)))
            self.by_names[names] = known
        return known

    def simplified(self, dim: Dim) -> Scalar:
        """``dim`` as it is written for the sizes for which the program is."""
        known = self.written.get(dim)
        if known is None:
            known = self.written[dim] = simplified(dim, self.written_for)
        return known

    def is_settled(self, relation: Relation) -> bool | None:
        """The truth of the relation at all sizes for which the program is, where it has not the same at every size."""
        has_sets = bool(self.sets) and bool(relation.symbols() & self.sets.keys())
        if not has_sets and not self.supposed:
            return None
        if relation not in self.settled:
            known = follows_from(self.supposed, relation) if relation.op in COMPARE else None
            self.settled[relation] = self._settled(relation) if known is None and has_sets else known
        return self.settled[relation]

    def _settled(self, relation: Relation) -> bool | None:
        names = relation.symbols()
        gap: object = None
        signed = dict.fromkeys(self.signed)
        if relation.op in COMPARE and not any(isinstance(arg, Relation) for arg in relation.args):
            gap = form = relation.args[0] - relation.args[1]
            if isinstance(gap, Dim):
                general = {name: self.sets[name].as_symbol(name) for name in names & self.sets.keys()}
                form = without_remainders(gap.substitute(general))
            known = known_sign(relation.op, form, signed)
            if known is None and len(names) > 1:
                ends = {name: self.sets[name].ends() for name in names & self.sets.keys()}
                known = known_sign(relation.op, gap, {**signed, **ends})
            if known is not None:
                return known
            if isinstance(gap, Dim) and gap.symbols() < names:  # what stands on both sides decides nothing
                return self.is_settled(Relation(relation.op, (gap, 0)))
        true = where_true(relation) if len(names) == 1 else None
        if true is None:
            short = simplified(gap, self.sets) if isinstance(gap, Dim) else gap
            return None if short is gap else known_sign(relation.op, short, signed)
        inside = self.sets[next(iter(names))]
        both = inside.both(true)
        return None if both is None else True if both == inside else None if both.first(1) else False

    def _certain_by_data(self, op: str, lhs: Any, rhs: Any) -> bool | None:
        """The truth of a comparison after all that was found to be equal, or None."""
        gap = self.equalities.reduced(lhs - rhs)
        known = certain(op, gap, 0, self.signed)
        if known is None:
            gap = self.equalities.reduced(without_remainders(gap))
            known = known_sign(op, gap, dict.fromkeys(self.signed))
        return self.is_settled(Relation(op, (gap, 0))) if known is None else known

    def as_one(self, relation: Relation) -> bool | None:
        """The answer to kernels that compare a size with a number which data makes 1 or 0, as in ``x[:, n : n + 1]``: that of 1,
        which eager PyTorch broadcasts; at 0 it mostly ends the run. None for other sizes.
        """
        compare, args = COMPARE.get(relation.op), relation.args
        if not self.unbacked:
            return None
        if relation.op == "or":
            return True if any(isinstance(arg, Relation) and self.as_one(arg) for arg in args) else None
        sizes = [arg for arg in args if isinstance(arg, Dim)]
        if compare is None or len(sizes) != 1 or sizes[0].as_symbol() or not sizes[0].symbols() & self.unbacked:
            return None
        others = [arg for arg in args if type(arg) is int]
        if len(others) != 1 or others[0] < 1 or bounds(sizes[0], dict.fromkeys(self.signed)) != (0, 1):
            return None
        return bool(compare(*(1 if arg is sizes[0] else arg for arg in args)))

    def quotient(self, top: DimLike, bottom: DimLike) -> DimLike:
        """``top // bottom``, as a sum of products where equalities make it one."""
        plain = apply("floordiv", top, bottom)
        known = plain if _is_plain(plain) else apply("floordiv", *map(self.equalities.reduced, (top, bottom)))
        return known if _is_plain(known) else plain  # type: ignore[return-value]

    def excludes_zero_only(self, relation: Relation) -> bool:
        """Return whether the relation, of one symbol, holds at all sizes for which the program is, except for 0."""
        true = where_true(relation)
        if true is None:
            return False
        (name,) = relation.symbols()
        return _without_zero(self.sets.get(name, EVERY)).is_within(true)

    def sizes_against(self, relation: Relation) -> list[dict[str, int]]:
        """Up to three sizes of its one symbol, of those for which the program is, at which the relation does not hold."""
        (name,) = relation.symbols()
        false = where_true(relation.negated())
        sizes = false and _without_zero(self.sets.get(name, EVERY) & false)
        found = [size for size in sizes.first(64) if size] if sizes else []
        return [{name: size} for size in dict.fromkeys([*found[:2], *found[-1:]])]

    def noted_conditions(self) -> list[Condition]:
        """The conditions of the report: one for each size and line."""
        noted: dict[tuple[str, SourceLocation | None], Condition] = {}
        apart: list[Condition] = []
        for condition in _without_repeated_bounds([*self.conditions]):
            key = condition.name, condition.where
            before = noted.get(key)
            sizes = condition.sizes if before is None else before.sizes.both(condition.sizes)
            if sizes is None:
                apart.append(condition)
            elif before is None:
                noted[key] = condition
            else:
                both = Relation("and", (before.relation, condition.relation))
                noted[key] = replace(condition, sizes=sizes, relation=both)
        return [*noted.values(), *apart]


@dataclass
class SizesOfRun:
    """The sizes at which a run decides, and what is known of them so far."""

    hints: Mapping[str, int] = field(default_factory=dict)
    facts: SizeFacts = field(default_factory=SizeFacts)
    chosen: Mapping[str, int] = field(default_factory=dict)
    """The sizes at which the run goes on behind the last decision, where they are not to be looked for."""
    hinted: dict[Dim | Relation, object] = field(default_factory=dict)
    """Values at the example's sizes, as far as they were asked."""
    hinted_for: dict[str, int] = field(default_factory=dict)
    """The sizes for which these are."""

    @property
    def unbacked(self) -> frozenset[str]:
        """Symbols whose number depends on data."""
        return self.facts.unbacked

    def know(self, **parts: Any) -> None:
        """From here on, these parts of the facts are others."""
        self.facts = replace(self.facts, **parts)

    def narrow(self, name: str, sizes: SizeSet) -> None:
        """From here on the program is for these sizes only."""
        self.facts = self.facts.narrowed(name, sizes)

    def suppose(self, relation: Relation) -> None:
        """From here on, this run is for sizes at which the relation holds; hints are such sizes."""
        self.facts = self.facts.supposing(relation)
        self.hints = {**self.hints, **(self.chosen or self.sizes_where(relation))}

    def equate(self, relation: Relation) -> bool:
        """From now on the sides of an equality of sizes, of which data decides some, are equal; whether it is one."""
        if relation.op != "eq" or any(isinstance(arg, Relation | float) for arg in relation.args):
            return False
        if not relation.symbols() & self.facts.unbacked:
            return False
        one, other = relation.args
        self.know(equalities=self.facts.equalities.adding(one, other, self.facts.unbacked))
        return True

    def require(self, relation: Relation, where: SourceLocation | None, *, bounded: bool) -> bool:
        """Note what a relation that has to hold needs of single sizes; whether there is a choice of such sizes.

        bounded: also where that is an upper bound. What kernels decide at the example's sizes alone, such as that there
        is one window, need not hold of the program.
        """
        if relation in self.facts.stated:
            return True
        found = solved(relation, self.hints)
        if found and is_looser(relation, found, self.hints):
            self.know(stated=self.facts.stated | {relation})
            return True
        for name, (true, sizes) in (found or {}).items():
            before = self.facts.sets.get(name, EVERY)
            after = before & sizes
            is_bounded = sizes.last() is not None and not bounded
            if is_bounded or after.is_single() or self.hints[name] not in after:
                return False
            if not before.is_within(sizes):
                self.narrow(name, sizes)
                self.know(conditions={**self.facts.conditions, Condition(name, sizes, true, where): None})
        return found is not None

    def hint(self, value: Any) -> Any:
        """The value at the example's sizes. torch asks for the same with each tensor that it makes."""
        if not isinstance(value, Dim | Relation):
            return value
        if self.hinted_for != self.hints:
            self.hinted_for, self.hinted = dict(self.hints), {}
        if isinstance(value, Dim) and value.is_real:
            return value.evaluate(self.hints)  # equal to one of integers
        found = self.hinted.get(value)
        if found is None:
            found = value.evaluate(self.hints) if isinstance(value, Dim) else value.holds(self.hints)
            self.hinted[value] = found
        return found

    def sizes_where(self, relation: Relation) -> dict[str, int]:
        """Sizes near the hints at which the relation holds; none where none are found."""
        names = relation.symbols()
        if self.hint(relation):
            return {name: self.hints[name] for name in names}
        sets = {name: self.facts.sets.get(name, EVERY) for name in names}
        true = where_true(relation) if len(names) == 1 else None
        if true is not None:
            (name,) = names
            both = sets[name].both(true)
            if both is None:  # they meet late, if at all
                met = next((size for size in true.first(FAR) if size > 1 and size in sets[name]), None)
                return {} if met is None else {name: met}
            sets[name] = both
        beside = [
            each for each in self.facts.supposed if each.symbols() & names and each.symbols() <= self.hints.keys()
        ]
        return sizes_where(relation, sets, self.hints, beside) or sizes_where(relation, sets, self.hints)

    def sizes(self) -> dict[str, int]:
        """The sizes at which this run decides, of the symbols that no data decides."""
        return {name: size for name, size in self.hints.items() if name not in self.facts.unbacked}


def _without_repeated_bounds(conditions: list[Condition]) -> list[Condition]:
    """Without bounds that follow from other conditions: ``n >= 2`` where ``n % 8 == 0``. Size 0 is nobody's case."""
    left = list(conditions)
    for condition in conditions:
        if condition.where is None or not condition.relation.is_bound():
            continue
        others = EVERY
        for other in left:
            if other is not condition and other.name == condition.name:
                others &= other.sizes
        if others != EVERY and _without_zero(others).is_within(condition.sizes):
            left.remove(condition)
    return left


def _is_plain(value: Scalar) -> bool:
    return not isinstance(value, Dim) or not any(atom.depth for atom in value.atoms())


def _without_zero(sizes: SizeSet) -> SizeSet:
    """Without the size 0, of which eager PyTorch makes little, where there are others."""
    others = sizes & interval(1, None)
    return others if others.first(1) else sizes
