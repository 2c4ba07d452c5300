"""Decisions by a size of which one branch serves both: padding to a multiple, which pads nothing where there is nothing to pad.

Such decisions come in rows, one in each layer, and would double the paths each. So each is flipped once, with all others as
they were; where the program of one side is proved to give what that of the other gives, that side is taken in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fx2onnx.base.dims import Dim, Scalar, without_remainders
from fx2onnx.base.relations import Relation
from fx2onnx.base.size_sets import EVERY, SizeSet, where_true
from fx2onnx.capture.recording.choices import Branches, Choice, Decision, Key
from fx2onnx.capture.recording.joining import Path
from fx2onnx.capture.recording.same_programs import give_the_same

MANY = 3
"""Decisions by sizes in a run, from which on paths are too many to try."""
MOST_RUNS = 24
TRIED = 12
"""Sizes at which expressions are compared before it is proved that they are equal."""
OTHERS = ((1, 2, 3), (2, 3, 5), (3, 1, 2))
"""Numbers for other sizes: expressions are polynomials in these, of a degree of two at most."""

OneRun: TypeAlias = Callable[[Branches], tuple[object, Branches]]


def find_served(branches: Branches, path: object, run: OneRun) -> bool:
    """Note in ``branches.served`` how decisions go that one branch serves; whether there are any. ``path``: of a run that was
    made with ``branches``.
    """
    served, tried = branches.served, set[Key]()
    preferred = {decision.key: decision.holds for decision in branches.decisions}
    while isinstance(path, Path) and len(tried) < MOST_RUNS:
        left = [place for place, decision in enumerate(branches.decisions) if _may_be_served(decision, tried)]
        if not left:
            break
        decision = branches.decisions[left[0]]
        tried.add(decision.key)
        flipped = branches.but(left[0], Choice(not decision.holds))
        other, _ = run(_with(flipped, preferred))
        if not isinstance(other, Path):
            continue
        one, two = (path, other) if decision.holds else (other, path)
        side = serving_side(one, two, decision.test)
        if side is None:
            continue
        served[decision.key] = preferred[decision.key] = side
        path, branches = run(_with(branches.anew(), preferred))
    return bool(served)


def _with(branches: Branches, preferred: Mapping[Key, bool]) -> Branches:
    branches.preferred = dict(preferred)
    return branches


def _may_be_served(decision: Decision, tried: set[Key]) -> bool:
    """Whether it asks for a remainder, or whether there is one."""
    test = decision.test
    if not isinstance(test, Relation) or len(test.symbols()) != 1 or decision.key in tried:
        return False
    return test.op in ("eq", "ne") or (test.op in ("gt", "le") and test.args[1] == 0)


def serving_side(one: Path, two: Path, test: object) -> bool | None:
    """The answer to ``test`` whose program, ``one``'s for true, gives what the other's gives at the sizes of the other."""
    if not isinstance(test, Relation) or len(test.symbols()) != 1 or test.symbols() & one.shape_env.unbacked:
        return None
    (name,) = test.symbols()
    for side, general, special in ((True, one, two), (False, two, one)):
        within = Within(name, special.shape_env.sets.get(name, EVERY))
        if give_the_same(general.captured, special.captured, {}, within.written):
            return side
    return None


def served_by(one: Path, two: Path, side: bool, depth: int) -> Path:
    """The path whose program serves both, with what is taken for granted in either."""
    general, special = (one, two) if side else (two, one)
    decision = one.decisions[depth]
    captured = general.captured
    captured.assumptions = list(dict.fromkeys(captured.assumptions + special.captured.assumptions))
    captured.warnings = list(dict.fromkeys(captured.warnings + special.captured.warnings))
    captured.sizes = decision.sizes
    unknown = general.shape_env.next_unknown
    env = one.shape_env.joined(two.shape_env, decision.test, decision.sizes)
    env.next_unknown = max(unknown, env.next_unknown)
    return Path(captured, env, general.decisions[:depth])


@dataclass
class Within:
    """Expressions of sizes of which one, ``name``, is in a set: equal ones become one expression."""

    name: str
    sizes: SizeSet
    known: dict[Scalar, Scalar] = field(default_factory=dict)
    by_values: dict[object, list[Scalar]] = field(default_factory=dict)

    def written(self, dim: Scalar) -> Scalar:
        """The first expression, or the number, that is equal to ``dim`` at all the sizes."""
        if not isinstance(dim, Dim):
            return dim
        if dim not in self.known:
            self.known[dim] = self._found(dim)
        return self.known[dim]

    def _found(self, dim: Dim) -> Scalar:
        if self.name not in dim.symbols():
            return dim
        others = sorted(dim.symbols() - {self.name})
        if len(others) > len(OTHERS[0]) or not self.sizes.first(TRIED):
            return dim
        values = tuple(
            dim.evaluate({self.name: size, **dict(zip(others, numbers, strict=False))})
            for size in self.sizes.first(TRIED)
            for numbers in OTHERS
        )
        if not others and len(set(values)) == 1 and self._are_equal(dim, values[0]):
            return values[0]
        alike = self.by_values.setdefault((tuple(others), values), [])
        for known in alike:
            if self._are_equal(dim, known):
                return known
        alike.append(dim)
        return dim

    def _are_equal(self, one: Dim, other: Scalar) -> bool:
        """Proved: other sizes stand outside of functions, so a difference that is 0 at three numbers of each is 0."""
        gap = without_remainders(one - other)
        if not isinstance(gap, Dim):
            return gap == 0
        others = sorted(gap.symbols() - {self.name})
        if any(atom.depth and atom.symbols & set(others) for atom in gap.atoms()):
            return False
        if any(sum(atom.op == "symbol" and atom.args[0] in others for atom in monomial) > 2 for monomial in gap.terms):
            return False
        trials = (
            [{}]
            if not others
            else [dict.fromkeys(others, 1) | {name: number} for name in others for number in (1, 2, 3)]
        )
        return (len(others) < 2) and all(self._vanishes(gap.substitute(numbers)) for numbers in trials)

    def _vanishes(self, gap: Scalar) -> bool:
        if not isinstance(gap, Dim):
            return gap == 0
        true = where_true(Relation("eq", (gap, 0)))
        return true is not None and self.sizes & true == self.sizes
