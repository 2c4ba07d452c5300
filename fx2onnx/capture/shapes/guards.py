"""Guards of sizes that a run took for granted: which of it matters, what other sizes break, what two paths together need, and which sizes a failed run asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.assumptions import Condition, Guard
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import EVERY, SizeSet, interval, where_true
from fx2onnx.sizes.solve import solved


def is_about(relation: Relation, env: ShapeEnv) -> bool:
    """Return whether the relation holds for some sizes near the example's, and not for those that are smaller."""
    if env.facts.is_settled(relation) is True:
        return False
    names = relation.symbols()
    true = where_true(relation) if len(names) == 1 else None
    if true is not None:
        (name,) = names
        return true.last() is not None and not interval(2, max(env.hints[name], 2)).is_within(true)
    corners = itertools.product(*({2, env.hints[name]} for name in names))
    return not all(relation.is_true_at(dict(zip(names, corner, strict=True))) for corner in corners)


def holds_around(relation: Relation, hints: Mapping[str, int]) -> bool:
    """Return whether each of several sizes may also be one more, or one less: a number rounds what they decide together."""
    names = relation.symbols()
    around = [[{**hints, name: hints[name] + step} for step in (1, -1)] for name in names & set(hints)]
    return len(around) == len(names) > 1 and all(any(map(relation.is_true_at, sizes)) for sizes in around)


_STEPS = [1 << power for power in range(1, 15)]


def sizes_above_one(env: ShapeEnv, hints: Mapping[str, int]) -> dict[str, int]:
    """Larger numbers for the symbols of sizes that are 1 for a kernel; none where there is no such size.

    Powers of 2 are added, so that what is left over in windows of such a size stays what it is in the example inputs;
    multiples are tried where the conditions that the run found allow none of these.
    """
    larger: dict[str, int] = {}
    for size in _ones(env):
        for name in sorted(size.symbols() & set(hints)):
            known, here = env.facts.sets.get(name, EVERY), hints[name]
            steps = [here + step for step in _STEPS] + [here * times for times in range(2, 2 + len(_STEPS))]
            found = [other for other in steps if size.evaluate({**hints, name: other}) > 1]
            chosen = next((other for other in found if other in known), next(iter(found), 0))
            larger[name] = max(larger.get(name, 0), chosen)
    return {name: other for name, other in larger.items() if other}


def _ones(env: ShapeEnv) -> Iterator[Dim]:
    for guard in env.guards.values():
        relation = guard.relation
        if not guard.by_user and relation.op == "eq":
            for size, other in (relation.args, relation.args[::-1]):
                is_derived = isinstance(size, Dim) and size.as_symbol() is None
                if is_derived and other == 1 and not size.symbols() & env.unbacked:
                    yield size


def user_guards_hold_at(env: ShapeEnv, hints: Mapping[str, int]) -> bool:
    """Return whether the module's own code decided everything, and took the numbers, as it does at the sizes ``hints``."""
    numbers = (done.relation for done in env.specializations.values() if done.size.symbols() <= set(hints))
    return not any(guard.by_user for guard in _false_at(env, hints).values()) and all(
        relation.is_true_at(hints) for relation in numbers
    )


def kernels_differ_at(env: ShapeEnv, hints: Mapping[str, int]) -> frozenset[tuple[Relation, bool]]:
    """The guards that kernels decide otherwise at the sizes ``hints``, for which the program is right, too."""
    return frozenset(key for key, guard in _false_at(env, hints).items() if not guard.by_user)


def _false_at(env: ShapeEnv, hints: Mapping[str, int]) -> dict[tuple[Relation, bool], Guard]:
    return {
        key: guard
        for key, guard in env.guards.items()
        if guard.relation.symbols() <= set(hints) and not guard.relation.is_true_at(hints)
    }


def needed_beside(declared: Condition, env: ShapeEnv, hints: Mapping[str, int]) -> str:
    """The other condition of the run that leaves a declared range only one size; empty if there is none."""
    name, needed = declared.name, EVERY
    for relation in [
        *(done.relation for done in env.specializations.values()),
        *(g.relation for g in env.guards.values()),
    ]:
        found = (solved(relation, hints) or {}).get(name) if relation.op == "eq" else None
        if found is not None:
            needed &= found[1]
    if needed == EVERY or needed.is_single() or not (needed & declared.sizes).is_single():
        return ""
    return f"it is declared with {declared.expression}, where only {hints[name]} has {needed.described(name)}"


def unmet_equalities(env: ShapeEnv) -> Iterator[Relation]:
    """The equalities that were asked for and did not hold at the example's sizes, the last first."""
    for kind, what, holds in reversed(env.asked):
        if kind in ("guard", "check") and holds is False and isinstance(what, Relation) and what.op == "eq":
            yield what


def joined(one: ShapeEnv, other: ShapeEnv, test: object, sizes: Mapping[str, int]) -> ShapeEnv:
    """``one``, with what is known where a run went as it where ``test`` holds, and as ``other`` where it does not. ``sizes``:
    those before it was decided.
    """
    is_by_sizes = isinstance(test, Relation) and not test.symbols() & (one.unbacked | other.unbacked)
    names = one.facts.sets.keys() | other.facts.sets.keys()
    if is_by_sizes and isinstance(test, Relation):
        ways = ((one, other, test.negated()), (other, one, test))
        guards = {
            key: guard
            for env, another, past in reversed(ways)
            for key, guard in _guards(env, another, past, sizes).items()
        }
        conditions = {each: None for each in one.facts.conditions if each in other.facts.conditions}
        for env, another, past in ways:
            for each in env.facts.conditions:
                if each not in another.facts.conditions:
                    _state(_unless(each, past, another.facts.sets), conditions, guards)
        sets = {name: one.facts.sets.get(name, EVERY) | other.facts.sets.get(name, EVERY) for name in names}
    else:
        guards = _unsettled(other) | _unsettled(one)
        conditions = {**one.facts.conditions, **other.facts.conditions}
        sets = {name: one.facts.sets.get(name, EVERY) & other.facts.sets.get(name, EVERY) for name in names}
    one.hints = {**other.hints, **one.hints, **sizes}
    one.guards = guards
    one.know(
        unbacked=one.unbacked | other.unbacked,
        signed=one.facts.signed | other.facts.signed,
        sets=sets,
        written_for=sets,
        conditions=conditions,
        stated=one.facts.stated | other.facts.stated,
        supposed={relation: None for relation in one.facts.supposed if relation in other.facts.supposed},
    )
    one.specializations = {**other.specializations, **one.specializations}
    one.numbers_in |= other.numbers_in
    one.asked_few |= other.asked_few
    one.has_size_one_kernels = False
    one.assertions = {**one.assertions, **other.assertions}
    return one


def sets_beside(one: ShapeEnv, other: ShapeEnv) -> dict[str, SizeSet]:
    """The sizes that either run is for."""
    return {
        name: one.facts.sets[name] | other.facts.sets[name] for name in one.facts.sets.keys() & other.facts.sets.keys()
    }


def _unsettled(env: ShapeEnv) -> dict[tuple[Relation, bool], Guard]:
    return {key: guard for key, guard in env.guards.items() if env.facts.is_settled(guard.relation) is None}


def _guards(
    env: ShapeEnv, another: ShapeEnv, past: Relation, sizes: Mapping[str, int]
) -> dict[tuple[Relation, bool], Guard]:
    """The guards of a branch; one that is needed there alone is for where ``past`` does not hold."""
    found: dict[tuple[Relation, bool], Guard] = {}
    for key, guard in _unsettled(env).items():
        needed = guard.relation
        is_about_others = len(needed.symbols()) > 1 or not needed.symbols() <= past.symbols()
        is_one = env.has_size_one_kernels and 1 in needed.args
        says_more = needed.op == "eq" and (is_about_others or is_one or _is_for_one_size(needed, env))
        is_stated = guard.is_stated or needed in env.facts.stated
        is_needed, is_of_branch = says_more or is_stated, key not in another.guards
        is_broken = needed.symbols() <= sizes.keys() and not needed.is_true_at(sizes)
        if is_of_branch and (is_needed or is_broken) and not needed.symbols() & env.unbacked:
            needed = Relation("or", (past, needed))
            found[needed, True] = replace(guard, relation=needed, by_user=is_needed, ends_run=is_needed)
        else:
            found[key] = guard
    return found


def _is_for_one_size(needed: Relation, env: ShapeEnv) -> bool:
    """Return whether a single size of the branch meets the need. Sizes that kernels find to be 1 are tried as larger ones."""
    true = None if 1 in needed.args else where_true(needed)
    if true is None:
        return False
    (name,) = needed.symbols()
    return (env.facts.sets.get(name, EVERY) & true & interval(1, None)).is_single()


def _unless(condition: Condition, past: Relation, sets: Mapping[str, SizeSet]) -> Condition | Guard:
    """For a branch alone: where ``past`` holds, as it does for the sizes in ``sets``, nobody comes there."""
    relation = Relation("or", (past, condition.relation))
    sizes: SizeSet | None = None
    if {condition.name} == past.symbols():
        true = where_true(past)
        others = sets.get(condition.name, EVERY)
        if true is not None:
            sizes = condition.sizes.either(others if others.is_within(true) else true)
    if sizes is None:
        return Guard(relation, condition.where, by_user=True, ends_run=True)
    return replace(condition, sizes=sizes, relation=relation)


def _state(
    found: Condition | Guard, conditions: dict[Condition, None], guards: dict[tuple[Relation, bool], Guard]
) -> None:
    if isinstance(found, Guard):
        guards[found.relation, True] = found
    elif found.sizes != EVERY:
        conditions[found] = None
