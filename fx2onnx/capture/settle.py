"""The consequences of a run that came to its end: the conditions of its program, or another attempt."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from fx2onnx.base.errors import UserError
from fx2onnx.capture import rare
from fx2onnx.capture.attempt import Attempt, Enlarged, Failed, Outcome, Recorded
from fx2onnx.capture.recording.size_checks import check_outputs
from fx2onnx.capture.shapes.dynamic import hints_of
from fx2onnx.capture.shapes.guards import (
    holds_around,
    is_about,
    is_decisive,
    kernels_differ_at,
    sizes_above_one,
    user_guards_hold_at,
)
from fx2onnx.capture.shapes.shape_env import ShapeEnv, undeclared
from fx2onnx.sizes.assumptions import Guard, Specialization
from fx2onnx.sizes.bounds import goes_as_sample
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.sizes.relation import Relation


def after_run(done: Recorded) -> Attempt | Outcome:
    """A size that Python specializes becomes static, or is refused; a size that kernels find to be 1 gets a larger one."""
    attempt, env, hints = done.attempt, done.shape_env, done.attempt.sizes.hints
    if attempt.keeps_more_sizes(env):
        following = numbers_stay_sizes(attempt, env.numbers_in)
        return replace(following, numbers=replace(following.numbers, baseline=done))
    enlarged, baseline = attempt.enlarged.hints, attempt.enlarged.baseline
    if baseline is not None:
        change = _specialized(env, {**hints, **enlarged})
        if not user_guards_hold_at(env, hints):
            return settled(baseline)
        if change is not None and change.size.as_symbol() in enlarged:
            found = settled(done)  # a condition that the sample meets, too
            return found if isinstance(found, Recorded) else settled(baseline)
    else:
        change = _specialized(env, hints)
        larger = sizes_above_one(env, hints) if change is not None else {}
        if larger:
            sizes = ", ".join(f"{name} = {size}" for name, size in larger.items())
            return replace(attempt, enlarged=Enlarged(larger, done), change=f"with the sizes {sizes}")
    return settled(done)


def numbers_stay_sizes(attempt: Attempt, files: Set[str]) -> Attempt:
    """The attempt with ``int`` and ``float`` of sizes as sizes in further ``files``."""
    change = f"int and float of sizes are sizes in {', '.join(sorted(files - attempt.numbers.files))}"
    return replace(attempt, numbers=replace(attempt.numbers, files=attempt.numbers.files | files), change=change)


def settled(done: Recorded) -> Attempt | Outcome:
    """The program with the conditions under which it is right for more than the sample's sizes; an attempt with a size that is right alone
    as a number.
    """
    named = done.attempt.sizes.hints.keys() - done.attempt.request.optional
    change = _specialized(done.shape_env, done.attempt.sizes.hints, ranges=True, named=named) or _unlike_sample(done)
    one_way = _decided_one_way(done) if change is None else None
    if one_way is not None:
        return Failed(done.attempt, one_way)
    return _with_assumptions(done) if change is None else _specializing(done.attempt, change, done.shape_env)


def _decided_one_way(done: Recorded) -> UserError | None:
    """The error of Python deciding by a size that is asked for by name, where the branch for other sizes cannot be captured."""
    attempt, env = done.attempt, done.shape_env
    for guard in env.guards.values() if attempt.branching.failure is not None else ():
        relation = guard.relation
        is_named = bool((relation.symbols() & set(attempt.sizes.hints)) - attempt.request.optional)
        is_question = guard.by_user and relation.op != "eq" and not goes_as_sample(relation)
        if is_named and is_question and env.facts.is_settled(relation) is None:
            return _with_reason(undeclared(env, relation, guard.where), attempt.request.untranslated)
    return None


def _with_reason(error: UserError, reason: UserError | None) -> UserError:
    """``error``, with what could not be translated in a branch."""
    if reason is None:
        return error
    place = f" ({reason.where})" if reason.where else ""
    why = f"{error.why}, and a branch cannot be translated: [{reason.code}] {reason.what}{place}"
    return UserError(error.code, error.what, where=error.where, why=why, next=error.next)


def _unlike_sample(done: Recorded) -> Specialization | None:
    """A sample's size of 0 or 1 that excludes what was found at a larger size: a condition, or an equality that an operator took."""
    sizes, sets = hints_of(done.attempt.arguments), done.shape_env.facts.sets
    for name, condition in ((condition.name, condition) for condition in done.shape_env.facts.conditions):
        if name in sizes and sizes[name] not in sets[name]:
            return Specialization(Dim.symbol(name), sizes[name], condition.where)
    small = [name for name in sorted(sizes) if sizes[name] < 2]
    for guard in done.shape_env.guards.values() if small else ():
        names = guard.relation.symbols()
        is_equality = not guard.by_user and guard.relation.op == "eq" and names <= sizes.keys()
        if is_equality and not guard.relation.is_true_at(sizes) and is_decisive(guard, done.shape_env):
            for name in (each for each in small if each in names):
                return Specialization(Dim.symbol(name), sizes[name], guard.where)
    return None


def _specializing(attempt: Attempt, change: Specialization, env: ShapeEnv) -> Attempt | Failed:
    """The attempt with the size as a number, unless it must not become one (UserError E105); with fewer decisions, where those do."""
    if env.asked_few and attempt.branching.by_counts:
        return replace(
            attempt,
            branching=replace(attempt.branching, by_counts=False),
            enlarged=Enlarged(),
            change="how many of a few there are is as at the sample's sizes",
        )
    change = _at_sample(change, hints_of(attempt.arguments))
    error = rare.refused_size(attempt, str(change.size.as_symbol()), change, env)
    if error is not None:
        return Failed(attempt, attempt.program.own_failure or error)
    return _with_equal_sizes(attempt.specialized(change), env)


def _with_equal_sizes(attempt: Attempt, env: ShapeEnv) -> Attempt:
    """Also with the other sizes that nobody asked for by name and that operators of the same run found to be equal, or a number:
    each would be the change of one more run.
    """
    for guard in env.guards.values():
        relation, known = (
            guard.relation,
            {str(done.size.as_symbol()): done.value for done in attempt.sizes.specializations},
        )
        if (
            relation.op != "eq"
            or guard.by_user
            or not relation.symbols() <= attempt.request.optional
            or relation.has_reals()
        ):
            continue
        gap = relation.args[0] - relation.args[1]
        while isinstance(gap, Dim) and gap.symbols() & known.keys():
            gap = gap.substitute(known)
        if not isinstance(gap, Dim) or len(gap.terms) > 2 or (len(gap.terms) == 2 and gap.constant):
            continue
        solved = _solved(gap, attempt.sizes.hints)
        if solved is None or any(atom.op != "symbol" for atom in gap.atoms()) or not gap.is_at(attempt.sizes.hints, 0):
            continue
        attempt = attempt.specialized(Specialization(Dim.symbol(solved[0]), solved[1], guard.where))
    return attempt


def _at_sample(change: Specialization, sizes: Mapping[str, int]) -> Specialization:
    """The number that the sample has; of two sizes that are one, but differ in the sample, that of the one that is 0 or 1."""
    name = str(change.size.as_symbol())
    if isinstance(change.value, int):
        return replace(change, value=sizes.get(name, change.value))
    other = change.value.as_symbol()
    if other is not None and sizes.get(name) != sizes.get(other):
        small = next((each for each in (name, other) if sizes.get(each, 2) < 2), None)
        if small is not None:
            return replace(change, size=Dim.symbol(small), value=sizes[small])
    return change


def _with_assumptions(done: Recorded) -> Recorded:
    """The program with all that it takes for granted about sizes."""
    attempt, env = done.attempt, done.shape_env
    captured = done.captured
    may_differ = kernels_differ_at(env, attempt.sizes.hints) if attempt.enlarged.hints else frozenset()
    guards = [
        replace(guard, ends_run=guard.ends_run or guard.relation in env.facts.stated)
        for key, guard in env.guards.items()
        if key not in may_differ and is_decisive(guard, env)
    ]
    captured.assumptions += [*attempt.sizes.specializations, *env.facts.noted_conditions(), *env.assertions, *guards]
    checked = {
        each.relation: each.where
        for each in guards
        if each.relation.symbols() & env.unbacked or (each.is_stated and each.relation.has_reals())
    }
    if checked:
        check_outputs(captured.graph, captured.outputs, captured.symbols, checked)
    return done


def _specialized(
    env: ShapeEnv, hints: Mapping[str, int], *, ranges: bool = False, named: Set[str] = frozenset()
) -> Specialization | None:
    """A symbol that the run forced to a number (or to another symbol), and the line that did it; with ``ranges`` only where
    no other number does, which is noted, or where Python loops as often as a size says that is ``named``.
    """
    for done in env.specializations.values():
        if ranges and not (done.is_turns and done.size.symbols() & named and is_about(done.relation, env)):
            if env.require(done.relation, done.where, bounded=True):
                continue
            if holds_around(done.relation, hints):
                env.guards[done.relation, True] = Guard(done.relation, done.where, by_user=True)
                continue
        for name in sorted(done.size.symbols() & set(hints)):
            return Specialization(Dim.symbol(name), hints[name], done.where, done.is_turns)
    for guard in env.guards.values():
        relation = guard.relation
        if (
            relation.op != "eq"
            or any(isinstance(arg, Relation) for arg in relation.args)
            or env.facts.is_settled(relation)
        ):
            continue
        gap = relation.args[0] - relation.args[1]
        if not isinstance(gap, Dim):
            continue
        if ranges and env.require(relation, guard.where, bounded=True):
            continue
        change = _solved(gap, hints)
        if change is not None:
            return Specialization(Dim.symbol(change[0]), change[1], guard.where)
    return None


def _solved(gap: Dim, hints: Mapping[str, int]) -> tuple[str, DimLike] | None:
    """``gap == 0`` solved for one symbol, where that is possible without a remainder and does not hang on the data."""
    names = sorted(gap.symbols() & set(hints))
    if gap.symbols() - set(hints):
        return None
    plain = [
        (str(monomial[0].args[0]), factor)
        for monomial, factor in gap.terms.items()
        if len(monomial) == 1 and monomial[0].op == "symbol"
    ]
    if len(names) == 1:
        return names[0], hints[names[0]]
    for name, factor in plain:
        rest = gap - factor * Dim.symbol(name)
        if abs(factor) == 1 and isinstance(rest, Dim) and name not in rest.symbols() and name in hints:
            return name, rest * -int(factor)  # type: ignore[return-value]
    return None
