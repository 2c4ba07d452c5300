"""Facts on sizes behind a decision of which both branches are in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.assumptions import Condition, Guard
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import EVERY, SizeSet, interval, where_true


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
