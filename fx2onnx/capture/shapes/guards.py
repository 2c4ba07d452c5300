"""Guards of sizes that a run took for granted: which of it matters, what other sizes break, what two paths together need, and which sizes a failed run asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from fx2onnx.base.errors import UserError
from fx2onnx.capture.overloads.op_table import Op
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.assumptions import Condition, Guard
from fx2onnx.sizes.bounds import certain
from fx2onnx.sizes.expr import Atom, Dim, Scalar, rewritten
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import EVERY, SizeSet, interval, where_true
from fx2onnx.sizes.solve import solved


def is_about(relation: Relation, env: ShapeEnv) -> bool:
    """Whether the relation holds for some sizes near the sample's, and not for those that are smaller."""
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
    """Whether each of several sizes may also be one more, or one less: a number rounds what they decide together."""
    names = relation.symbols()
    around = [[{**hints, name: hints[name] + step} for step in (1, -1)] for name in names & set(hints)]
    return len(around) == len(names) > 1 and all(any(map(relation.is_true_at, sizes)) for sizes in around)


def is_decisive(guard: Guard, env: ShapeEnv) -> bool:
    """Whether the guard says what no condition says, and other sizes may break."""
    is_asked = guard.by_user or guard.ends_run or not _is_harmless(guard, env)
    return is_asked and env.facts.is_settled(guard.relation) is None


def _is_harmless(guard: Guard, env: ShapeEnv) -> bool:
    """Whether the relation is true at every size of a varied list: true of torch's checks for strides. At capture, the sample's
    size stands for 0 and 1.
    """
    if not guard.by_user and (guard.during in Op.CHOOSES_KERNEL.names or (guard.during, guard.relation.op) == _IS_ALL):
        return True
    forms = [guard.relation] if guard.by_user else [guard.relation, _of_quotients(guard.relation)]
    return any(env.holds_at_ordinary_sizes(form, least=2) for form in forms)


def _of_quotients(relation: Relation) -> Relation:
    """With a size of its own for each quotient: that there is one window, as one size, decides nothing for kernels."""
    found: dict[Atom, Dim] = {}

    def rule(atom: Atom) -> Scalar | None:
        if atom.op != "floordiv" or atom.is_real:
            return None
        sign = -1 if certain("le", atom.args[0], 0) else 1
        return sign * found.setdefault(atom, Dim.symbol(f"quotient{len(found)}"))

    args = tuple(_of_quotients(arg) if isinstance(arg, Relation) else rewritten(arg, rule) for arg in relation.args)
    return Relation(relation.op, args)


_IS_ALL = ("aten::slice", "ne")
"""Whether a slice takes all of an axis says how its memory lies."""


_LARGEST_STEP = 1 << 14


def sizes_above_one(env: ShapeEnv, hints: Mapping[str, int]) -> dict[str, int]:
    """Larger numbers for the symbols of sizes that are 1 for a kernel; none where there is no such size.

    Powers of 2 are added, so that what is left over in windows of such a size stays what it is in the sample.
    """
    larger: dict[str, int] = {}
    for size in _ones(env):
        for name in sorted(size.symbols() & set(hints)):
            step = 2
            while step <= _LARGEST_STEP and size.evaluate({**hints, name: hints[name] + step}) <= 1:
                step *= 2
            if step <= _LARGEST_STEP:
                larger[name] = max(larger.get(name, 0), hints[name] + step)
    return larger


def _ones(env: ShapeEnv) -> Iterator[Dim]:
    for guard in env.guards.values():
        relation = guard.relation
        if not guard.by_user and relation.op == "eq":
            for size, other in (relation.args, relation.args[::-1]):
                is_derived = isinstance(size, Dim) and size.as_symbol() is None
                if is_derived and other == 1 and not size.symbols() & env.unbacked:
                    yield size


def user_guards_hold_at(env: ShapeEnv, hints: Mapping[str, int]) -> bool:
    """Whether the module's own code decided everything, and took the numbers, as it does at the sizes ``hints``."""
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
    one.specializations = other.specializations | one.specializations
    one.numbers_in |= other.numbers_in
    one.asked_few |= other.asked_few
    one.keeps_ones = False
    one.assertions |= other.assertions
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
        is_one = env.keeps_ones and 1 in needed.args
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
    """Whether a single size of the branch meets the need. Sizes that kernels find to be 1 are tried as larger ones."""
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


def needed_beside(declared: Condition, env: ShapeEnv, hints: Mapping[str, int]) -> str:
    """Why a size that has a range is a fixed number: what else the run needs of it leaves one size; empty where it is not so."""
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
    """The equalities that were asked for and did not hold at the sample's sizes, the last first."""
    for kind, what, holds in reversed(env.asked):
        if kind in ("guard", "check") and holds is False and isinstance(what, Relation) and what.op == "eq":
            yield what


def _unmet(env: ShapeEnv) -> tuple[str, Condition] | None:
    """A size in the operands of the operator that raised, and what the last equality that does not hold at the sample's sizes
    needs of it; None where only a single size would do.
    """
    relation = next(unmet_equalities(env), None)
    if relation is None or any(isinstance(arg, Relation) for arg in relation.args):
        return None
    gap = relation.args[0] - relation.args[1]
    for name in sorted(relation.symbols()):
        if isinstance(gap, Dim) and len(gap.symbols()) > 1:
            rest = gap.substitute({name: 1})
            gap = rest if isinstance(rest, Dim) and rest * gap.leaf(name) == gap else gap
    if not isinstance(gap, Dim) or len(gap.symbols()) != 1:
        return None
    (name,) = gap.symbols()
    needs = Relation("eq", (gap, 0))
    sizes = where_true(needs)
    if sizes is None or sizes.is_single() or name not in env.failed_with or env.hints.get(name, 0) in sizes:
        return None
    return name, Condition(name, sizes, needs)


def with_sizes(error: UserError, env: ShapeEnv) -> UserError:
    """``error``, an operator's about shapes, with what it needs of a size, as far as that is found; E105 where the size is
    declared with a range that has no such size.
    """
    found = _unmet(env)
    if found is None:
        return error
    name, needed = found
    declared = next((each for each in env.facts.conditions if each.name == name and each.where is None), None)
    if declared is not None and not env.facts.supposed and not (declared.sizes & needed.sizes).first(1):
        return UserError(
            "E105",
            f"of the sizes that {name} is declared with, the module takes none",
            where=error.where,
            why=f"it is declared with {declared.expression}, and {needed.expression} is needed there: {error.why}",
            next="declare it with other bounds, and give a sample within them",
        )
    return UserError(
        error.code,
        error.what,
        where=error.where,
        module_path=error.module_path,
        why=f"{error.why}; {name} is {env.hints[name]}, needed is {needed.expression}",
        next=(f"give a sample with {needed.expression}", *error.next),
    )
