"""What an attempt's outcome says about the next attempt: one thing is changed, or the outcome is the last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.base.tracebacks import empty_frames
from fx2onnx.capture.attempt import Attempt, Failed, Outcome, Reason, Recorded, own_run_failed
from fx2onnx.capture.baking import inputs_to_bake
from fx2onnx.capture.fallback import export_may_help
from fx2onnx.capture.options import BAKE_AUTO
from fx2onnx.capture.python.file_names import may_keep_number, names_of_file
from fx2onnx.capture.recording.size_checks import check_outputs
from fx2onnx.capture.refused_sizes import refused_size
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

MAX_SETTLING_RUNS = 16
"""Each run of the module settles at least one dynamic size, and all that operators find to be equal."""


def diagnosed(outcome: Outcome, start: Attempt) -> Attempt | Outcome:
    """The next attempt after all since ``start``; the outcome, or an earlier one, where nothing is left to change."""
    if isinstance(outcome, Failed):
        following = _after_failure(outcome, start)
        if isinstance(following, Attempt):
            empty_frames(outcome.error)
        return following
    with record("settle dynamic sizes"):
        return _after_run(outcome)


def _after_failure(failed: Failed, start: Attempt) -> Attempt | Outcome:
    following = _after_own_failure(failed, start)
    return _baking(following) or following if isinstance(following, Failed) else following


def _baking(failed: Failed) -> Attempt | None:
    """With the inputs fixed whose numbers Python needs, where that is left to the capture and none of them has dynamic sizes."""
    attempt, error = failed.attempt, failed.error
    more = [name for name in inputs_to_bake(error) if name not in attempt.bake]
    leaves = {leaf.name: leaf for leaf in attempt.arguments.leaves}
    if attempt.options.bake != BAKE_AUTO or not more or any(leaves[name].axes for name in more):
        return None
    assert isinstance(error, UserError)
    where = f"   ({error.where})" if error.where else ""
    lines = [f"{name} is fixed to the sample's values: {error.what}; {error.why}{where}" for name in more]
    return replace(
        attempt,
        bake=(*attempt.bake, *more),
        baked_for=(*attempt.baked_for, *lines),
        strategy="fake" if attempt.options.rung == "auto" else attempt.strategy,
        program=None,
        first_failure=None,
        splits_by_sizes=True,
        larger={},
        without_larger=None,
        change=f"with the sample's values of {', '.join(more)}",
    ).at_sample()


def _after_own_failure(failed: Failed, start: Attempt) -> Attempt | Outcome:
    failed = _with_plain_numbers(failed)
    attempt, error = failed.attempt, failed.error
    if failed.reason in _NUMBERS and isinstance(error, UserError) and may_keep_number(error.where):
        files = attempt.numbers_in | names_of_file(error.where)
        if attempt.program is attempt.root and files != attempt.numbers_in and attempt.keeps_numbers:
            change = "int(x), float(x) and y[:x] of a number that only the data tells take that number"
            return replace(attempt, numbers_in=files, wants_number=attempt.wants_number or failed, change=change)
    if failed.reason is Reason.INDEX and attempt.program is attempt.root:
        return replace(attempt, takes_indices=True, change="tensors are indexed with sizes")
    if failed.reason is Reason.COMPOSITE:
        return replace(attempt, whole=False, change="composite operators are recorded by what they consist of")
    if failed.reason is Reason.WRITTEN:
        return replace(attempt, runs_idle=False, change="every test is a decision")
    if failed.reason is Reason.NO_BRANCH:
        return replace(attempt, has_bodies=False, change=f"every test by data is a decision: {error}")
    if failed.reason is Reason.GRADIENTS:
        return replace(attempt, gradients=True, change="gradients are on, since forward takes some")
    if failed.library_code is not None:
        change = f"{failed.library_code.co_qualname} takes its branch for traced code"
        return replace(attempt, traced=attempt.traced | {failed.library_code}, change=change)
    files = failed.numbers_in - attempt.numbers_in
    if files and attempt.keeps_numbers and attempt.strategy == "fake":
        return replace(attempt, numbers_in=attempt.numbers_in | files, change=_numbers_are_sizes(files))
    if failed.sizes and attempt.splits_by_sizes and not _must_be_declared(failed):
        change = "Python decides by sizes as it does at the sample's"
        return replace(attempt, splits_by_sizes=False, split_failure=error, change=change)
    if attempt.without_larger is not None and isinstance(error, UserError):
        return _settled(attempt.without_larger)
    if attempt.without_numbers is not None:
        done = attempt.without_numbers
        return _after_run(replace(done, attempt=replace(done.attempt, keeps_numbers=False)))
    if attempt.first_failure is not None:
        return Failed(attempt, attempt.first_failure)
    can_be_own = attempt.numbers_in and attempt.keeps_numbers and attempt.wants_number is None
    if can_be_own and not (failed.sizes and _must_be_declared(failed)):
        return replace(start, keeps_numbers=False, change="int and float are Python's own")
    if _is_of_sizes(failed):
        other = _FOR_ONE[attempt.for_one]
        return replace(start, for_one=other, change=f"with sizes of {other} in the place of 0 and 1").at_sample()
    fixed = _fixed_at_sample(failed)
    if fixed is not None:
        return attempt.specialized(fixed)
    if attempt.options.rung == "auto" and export_may_help(failed):
        return replace(start, strategy="export", first_failure=error, change=own_run_failed(error))
    return failed


_FOR_ONE = {2: 3, 3: 8}
"""What else is tried in the place of a sample's size of 0 or 1, where the module takes no such size."""


def _is_of_sizes(failed: Failed) -> bool:
    """Whether the module failed where another size stands for a sample's size of 0 or 1."""
    attempt, error = failed.attempt, failed.error
    is_of_forward = isinstance(error, UserError) and error.code == "E101" and attempt.for_one in _FOR_ONE
    return is_of_forward and any(size < 2 for size in hints_of(attempt.arguments).values())


def _fixed_at_sample(failed: Failed) -> Specialization | None:
    """A size nobody asked for by name that is 0 or 1 in the sample, and that no larger one may take the place of."""
    attempt, error = failed.attempt, failed.error
    if not isinstance(error, UserError) or error.code != "E101":
        return None
    sizes = hints_of(attempt.arguments)
    small = sorted(name for name in attempt.optional if sizes.get(name, 2) < 2)
    asked = [name for relation in failed.unmet for name in small if name in relation.symbols()]
    name = next(iter(asked or small), None)
    return None if name is None else Specialization(Dim.symbol(name), sizes[name], error.where)


def _numbers_are_sizes(files: Iterable[str]) -> str:
    return f"int and float of sizes are sizes in {', '.join(sorted(files))}"


def _with_plain_numbers(failed: Failed) -> Failed:
    """With what failed where ``int(x)`` is a plain number, in the place of an error of the module's or of ours, which may be due to
    its being none.
    """
    first, error = failed.attempt.wants_number, failed.error
    is_of_run = failed.reason in _ABOUT_THE_RUN
    if first is None or is_of_run or (isinstance(error, UserError) and error.code != "E101"):
        return failed
    return replace(failed, error=first.error, reason=first.reason)


_ABOUT_THE_RUN = (Reason.COMPOSITE, Reason.WRITTEN, Reason.NO_BRANCH, Reason.GRADIENTS, Reason.INDEX)
_NUMBERS = (Reason.PLAIN_NUMBER, Reason.REAL_NUMBER)


def _must_be_declared(failed: Failed) -> bool:
    """Whether a size that is asked for by name has to get a range: branches that the file cannot have both."""
    error = failed.error
    return isinstance(error, UserError) and error.code == "E105" and not failed.sizes <= failed.attempt.optional


def _after_run(done: Recorded) -> Attempt | Outcome:
    """A size that Python specializes becomes static, or is refused; a size that kernels find to be 1 gets a larger one."""
    attempt, env = done.attempt, done.shape_env
    if attempt.mends_numbers(env):
        more = attempt.numbers_in | env.numbers_in
        files = more - attempt.numbers_in
        return replace(attempt, numbers_in=more, without_numbers=done, change=_numbers_are_sizes(files))
    if attempt.without_larger is not None:
        change = _specialized(env, {**attempt.hints, **attempt.larger})
        if not user_guards_hold_at(env, attempt.hints):
            return _settled(attempt.without_larger)
        if change is not None and change.size.as_symbol() in attempt.larger:
            settled = _settled(done)  # a condition that the sample meets, too
            return settled if isinstance(settled, Recorded) else _settled(attempt.without_larger)
    else:
        change = _specialized(env, attempt.hints)
        larger = sizes_above_one(env, attempt.hints) if change is not None else {}
        if larger:
            sizes = ", ".join(f"{name} = {size}" for name, size in larger.items())
            return replace(attempt, larger=larger, without_larger=done, change=f"with the sizes {sizes}")
    return _settled(done)


def _settled(done: Recorded) -> Attempt | Outcome:
    """With the conditions under which the program is right for more than the sample's sizes; with a size that is right alone
    as a number.
    """
    named = done.attempt.hints.keys() - done.attempt.optional
    change = _specialized(done.shape_env, done.attempt.hints, ranges=True, named=named) or _unlike_sample(done)
    one_way = _decided_one_way(done) if change is None else None
    if one_way is not None:
        return Failed(done.attempt, one_way)
    return _with_assumptions(done) if change is None else _specializing(done.attempt, change, done.shape_env)


def _decided_one_way(done: Recorded) -> UserError | None:
    """That Python decides by a size that is asked for by name, where the branch for other sizes cannot be captured."""
    attempt, env = done.attempt, done.shape_env
    for guard in env.guards.values() if attempt.split_failure is not None else ():
        relation = guard.relation
        is_named = bool((relation.symbols() & set(attempt.hints)) - attempt.optional)
        is_question = guard.by_user and relation.op != "eq" and not goes_as_sample(relation)
        if is_named and is_question and env.facts.is_settled(relation) is None:
            return _with_reason(undeclared(env, relation, guard.where), attempt.untranslated)
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
    """With the size as a number, unless it must not become one or there are too many such sizes (UserError E105); with fewer
    sizes, where others do as well.
    """
    if env.asked_few and attempt.keeps_few:
        change_of_few = "how many of a few there are is as at the sample's sizes"
        return replace(attempt, keeps_few=False, larger={}, without_larger=None, change=change_of_few)
    change = _at_sample(change, hints_of(attempt.arguments))
    name = str(change.size.as_symbol())
    error = refused_size(attempt, name, change, env)
    if error is not None:
        return Failed(attempt, attempt.first_failure or error)
    following = _with_equal_sizes(attempt.specialized(change), env)
    if attempt.settling_runs + 1 < MAX_SETTLING_RUNS:
        return replace(following, settling_runs=attempt.settling_runs + 1)
    why = "; ".join(map(str, following.specializations))
    what = f"after {MAX_SETTLING_RUNS} runs of the module it still specializes dynamic sizes"
    return Failed(attempt, attempt.first_failure or UserError("E105", what, why=why))


def _with_equal_sizes(attempt: Attempt, env: ShapeEnv) -> Attempt:
    """Also with the other sizes that nobody asked for by name and that operators of the same run found to be equal, or a number:
    each would be the change of one more run.
    """
    for guard in env.guards.values():
        relation, known = guard.relation, {str(done.size.as_symbol()): done.value for done in attempt.specializations}
        if relation.op != "eq" or guard.by_user or not relation.symbols() <= attempt.optional or relation.has_reals():
            continue
        gap = relation.args[0] - relation.args[1]
        while isinstance(gap, Dim) and gap.symbols() & known.keys():
            gap = gap.substitute(known)
        if not isinstance(gap, Dim) or len(gap.terms) > 2 or (len(gap.terms) == 2 and gap.constant):
            continue
        solved = _solved(gap, attempt.hints)
        if solved is None or any(atom.op != "symbol" for atom in gap.atoms()) or not gap.is_at(attempt.hints, 0):
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
    """With what the graph takes for granted about sizes."""
    attempt, env = done.attempt, done.shape_env
    captured = done.captured
    may_differ = kernels_differ_at(env, attempt.hints) if attempt.larger else frozenset()
    guards = [
        replace(guard, ends_run=guard.ends_run or guard.relation in env.facts.stated)
        for key, guard in env.guards.items()
        if key not in may_differ and is_decisive(guard, env)
    ]
    captured.assumptions += [*attempt.specializations, *env.facts.noted_conditions(), *env.assertions, *guards]
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
