"""What an attempt's outcome says about the next attempt: one thing is changed, or the outcome is the last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fx2onnx.base.assumptions import Guard, Specialization
from fx2onnx.base.dims import Dim, DimLike
from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.base.relations import Relation
from fx2onnx.base.tracebacks import empty_frames
from fx2onnx.capture.attempt import Attempt, Failed, Outcome, Reason, Recorded, own_run_failed
from fx2onnx.capture.fallback import export_may_help
from fx2onnx.capture.shapes import zero_one
from fx2onnx.capture.shapes.dynamic import hints_of
from fx2onnx.capture.shapes.shape_env import ShapeEnv

MAX_SPECIALIZATIONS = 16
"""Each costs a run of the module; a module that specializes more sizes than this is refused."""


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
    attempt, error = failed.attempt, failed.error
    if failed.reason is Reason.COMPOSITE:
        return replace(attempt, whole=False, change="composite operators are recorded by what they consist of")
    if failed.reason is Reason.GRADIENTS:
        return replace(attempt, gradients=True, change="gradients are on, since forward takes some")
    if failed.library_code is not None:
        change = f"{failed.library_code.co_qualname} takes its branch for traced code"
        return replace(attempt, traced=attempt.traced | {failed.library_code}, change=change)
    if failed.sizes and attempt.splits_by_sizes and not _must_be_declared(failed):
        return replace(attempt, splits_by_sizes=False, change="Python decides by sizes as it does at the sample's")
    if attempt.without_larger is not None and isinstance(error, UserError):
        return _settled(attempt.without_larger)
    if attempt.without_numbers is not None:
        done = attempt.without_numbers
        return _after_run(replace(done, attempt=replace(done.attempt, keeps_numbers=False)))
    if attempt.first_failure is not None:
        return Failed(attempt, attempt.first_failure)
    if attempt.options.rung == "auto" and export_may_help(failed):
        return replace(start, strategy="export", first_failure=error, change=own_run_failed(error))
    return failed


def _must_be_declared(failed: Failed) -> bool:
    """Whether a size that is asked for by name has to get a range: branches that the file cannot have both."""
    error = failed.error
    return isinstance(error, UserError) and error.code == "E105" and not failed.sizes <= failed.attempt.optional


def _after_run(done: Recorded) -> Attempt | Outcome:
    """A size that Python specializes becomes static, or is refused; a size that kernels find to be 1 gets a larger one."""
    attempt, env = done.attempt, done.shape_env
    files = env.numbers_in - attempt.numbers_in
    if files and env.specializations and attempt.keeps_numbers and attempt.strategy == "fake":
        what = f"int and float of sizes are sizes in {', '.join(sorted(files))}"
        return replace(attempt, numbers_in=attempt.numbers_in | files, without_numbers=done, change=what)
    if attempt.without_larger is not None:
        change = _specialized(env, {**attempt.hints, **attempt.larger})
        is_better = change is None or change.size.as_symbol() not in attempt.larger
        if not (is_better and zero_one.user_guards_hold_at(env, attempt.hints)):
            return _settled(attempt.without_larger)
    else:
        change = _specialized(env, attempt.hints)
        larger = zero_one.sizes_above_one(env, attempt.hints) if change is not None else {}
        if larger:
            sizes = ", ".join(f"{name} = {size}" for name, size in larger.items())
            return replace(attempt, larger=larger, without_larger=done, change=f"with the sizes {sizes}")
    return _settled(done)


def _settled(done: Recorded) -> Attempt | Outcome:
    """With the conditions under which the program is right for more than the sample's sizes; with a size that is right alone
    as a number.
    """
    change = _specialized(done.shape_env, done.attempt.hints, ranges=True) or _unlike_sample(done)
    return _with_assumptions(done) if change is None else _specializing(done.attempt, change)


def _unlike_sample(done: Recorded) -> Specialization | None:
    """A sample's size of 0 or 1 that conditions found at a larger size exclude."""
    sizes, sets = hints_of(done.attempt.arguments), done.shape_env.sets
    for name, condition in ((condition.name, condition) for condition in done.shape_env.conditions):
        if sizes.get(name, 0) not in sets[name]:
            return Specialization(Dim.symbol(name), sizes[name], condition.where)
    return None


def _specializing(attempt: Attempt, change: Specialization) -> Attempt | Failed:
    """With the size as a number, unless it must not become one or there are too many such sizes (UserError E105); with fewer
    sizes, where others do as well.
    """
    name = str(change.size.as_symbol())
    if isinstance(change.value, int):
        change = replace(change, value=hints_of(attempt.arguments).get(name, change.value))
    if isinstance(change.value, int) and name not in attempt.optional:
        error = UserError(
            "E105",
            f"the dynamic size {name} is used as the fixed number {change.value}",
            where=change.where,
            why="Python or an operator there needs a plain number, so the graph holds only for that size",
            next=(
                f"make the size static (leave {name} out of dynamic_shapes)",
                "or keep it symbolic: no loop over it, no key of a dict, x.select(0, n) in the place of x[n]",
            ),
        )
        return Failed(attempt, attempt.first_failure or error)
    following = attempt.specialized(change)
    if len(following.specializations) < MAX_SPECIALIZATIONS:
        return following
    why = "; ".join(map(str, following.specializations))
    what = f"more than {MAX_SPECIALIZATIONS} dynamic sizes are specialized by the module"
    return Failed(attempt, attempt.first_failure or UserError("E105", what, why=why))


def _with_assumptions(done: Recorded) -> Recorded:
    """With what the graph takes for granted about sizes."""
    attempt, env = done.attempt, done.shape_env
    may_differ = zero_one.kernels_differ_at(env, attempt.hints) if attempt.larger else frozenset()
    done.captured.assumptions += [
        *attempt.specializations,
        *env.noted_conditions(),
        *env.assertions,
        *(
            guard
            for key, guard in env.guards.items()
            if key not in may_differ
            and env.is_settled(guard.relation) is None
            and (guard.by_user or not _is_harmless(guard, env))
        ),
    ]
    return done


def _specialized(env: ShapeEnv, hints: Mapping[str, int], *, ranges: bool = False) -> Specialization | None:
    """A symbol that the run forced to a number (or to another symbol), and the line that did it; with ``ranges`` only where
    no other number does, which is noted.
    """
    for done in env.specializations.values():
        if ranges and env.require(done.relation, done.where, bounded=True):
            continue
        for name in sorted(done.size.symbols() & set(hints)):
            return Specialization(Dim.symbol(name), hints[name], done.where)
    for guard in env.guards.values():
        relation = guard.relation
        if relation.op != "eq" or any(isinstance(arg, Relation) for arg in relation.args) or env.is_settled(relation):
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


def _is_harmless(guard: Guard, env: ShapeEnv) -> bool:
    """Whether the relation is true at every size of a varied list: true of torch's checks for 0, 1 and strides."""
    if not guard.by_user and guard.during in _CHOOSES_KERNELS:
        return True
    return env.holds_at_ordinary_sizes(guard.relation)


_CHOOSES_KERNELS = frozenset(f"aten::{name}" for name in ("conv1d", "conv2d", "conv3d", "convolution"))
"""Overloads that look at sizes to choose a kernel; their result's shape follows a formula whatever they choose."""
