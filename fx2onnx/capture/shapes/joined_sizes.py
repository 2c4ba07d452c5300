"""What is known of sizes behind a decision of Python's, of which both branches are in the file."""

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
    names = one.sets.keys() | other.sets.keys()
    if is_by_sizes and isinstance(test, Relation):
        ways = ((one, other, test.negated()), (other, one, test))
        guards = {
            key: guard
            for env, another, past in reversed(ways)
            for key, guard in _guards(env, another, past, sizes).items()
        }
        conditions = {each: None for each in one.conditions if each in other.conditions}
        for env, another, past in ways:
            for each in env.conditions:
                if each not in another.conditions:
                    _state(_unless(each, past, another.sets), conditions, guards)
        sets = {name: one.sets.get(name, EVERY) | other.sets.get(name, EVERY) for name in names}
    else:
        guards = _unsettled(other) | _unsettled(one)
        conditions = one.conditions | other.conditions
        sets = {name: one.sets.get(name, EVERY) & other.sets.get(name, EVERY) for name in names}
    one.hints = {**other.hints, **one.hints, **sizes}
    one.unbacked |= other.unbacked
    one.signed |= other.signed
    one.guards, one.sets, one.conditions = guards, sets, conditions
    one.written_for = dict(sets)
    one.specializations = other.specializations | one.specializations
    one.numbers_in |= other.numbers_in
    one.asked_few |= other.asked_few
    one.stated |= other.stated
    one.keeps_ones = False
    one.assertions |= other.assertions
    one.supposed = {relation: None for relation in one.supposed if relation in other.supposed}
    one.learnt()
    return one


def sets_beside(one: ShapeEnv, other: ShapeEnv) -> dict[str, SizeSet]:
    """The sizes that either run is for."""
    return {name: one.sets[name] | other.sets[name] for name in one.sets.keys() & other.sets.keys()}


def _unsettled(env: ShapeEnv) -> dict[tuple[Relation, bool], Guard]:
    return {key: guard for key, guard in env.guards.items() if env.is_settled(guard.relation) is None}


def _guards(
    env: ShapeEnv, another: ShapeEnv, past: Relation, sizes: Mapping[str, int]
) -> dict[tuple[Relation, bool], Guard]:
    """What was taken for granted in a branch; what is needed there alone is for where ``past`` does not hold."""
    found: dict[tuple[Relation, bool], Guard] = {}
    for key, guard in _unsettled(env).items():
        needed = guard.relation
        is_about_others = len(needed.symbols()) > 1 or not needed.symbols() <= past.symbols()
        is_one = env.keeps_ones and 1 in needed.args
        says_more = needed.op == "eq" and (is_about_others or is_one or _is_for_one_size(needed, env))
        is_stated = guard.is_stated or needed in env.stated
        is_needed, is_of_branch = says_more or is_stated, key not in another.guards
        is_broken = needed.symbols() <= sizes.keys() and not needed.is_true_at(sizes)
        if is_of_branch and (is_needed or is_broken) and not needed.symbols() & env.unbacked:
            needed = Relation("or", (past, needed))
            found[needed, True] = replace(guard, relation=needed, by_user=is_needed, ends_run=is_needed)
        else:
            found[key] = guard
    return found


def _is_for_one_size(needed: Relation, env: ShapeEnv) -> bool:
    """Whether a single size of the branch's does. What kernels find to be 1 is looked at where it is more."""
    true = None if 1 in needed.args else where_true(needed)
    if true is None:
        return False
    (name,) = needed.symbols()
    return (env.sets.get(name, EVERY) & true & interval(1, None)).is_single()


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
