"""The consequences of a run that came to its end: the conditions of its program, or another attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import cast

from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.attempt import Attempt, Enlarged, Failed, Outcome, Recorded
from fx2onnx.capture.op_table import Op
from fx2onnx.capture.python.file_names import names_of_file
from fx2onnx.capture.rare_roads import road
from fx2onnx.capture.recording.decisions import Branching
from fx2onnx.capture.recording.size_checks import check_outputs
from fx2onnx.capture.shapes.dynamic import hints_of
from fx2onnx.capture.shapes.guards import (
    holds_around,
    is_about,
    kernels_differ_at,
    sizes_above_one,
    user_guards_hold_at,
)
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.assumptions import Guard, Specialization
from fx2onnx.sizes.bounds import certain
from fx2onnx.sizes.expr import Atom, Dim, Scalar, rewritten
from fx2onnx.sizes.relation import Relation


def after_run(done: Recorded) -> Attempt | Outcome:
    """A size that Python specializes becomes static, or is refused; a size that kernels find to be 1 gets a larger one."""
    attempt, env, hints = done.attempt, done.shape_env, done.attempt.sizes.hints
    if attempt.keeps_more_sizes(env):
        following = numbers_stay_sizes(attempt, env.numbers_in)
        return replace(following, numbers=replace(following.numbers, baseline=done))
    if may_have_arrays(attempt) and any(found.is_numpys for found in env.specializations.values()):
        return with_arrays(done, next(found.where for found in env.specializations.values() if found.is_numpys))
    enlarged, baseline = attempt.enlarged.hints, attempt.enlarged.baseline
    if baseline is not None:
        change = _specialized(env, {**hints, **enlarged})
        if not user_guards_hold_at(env, hints):
            return settled(baseline)
        if change is not None and change.size.as_symbol() in enlarged:
            found = settled(done)  # a condition that the example meets, too
            return found if isinstance(found, Recorded) else settled(baseline)
    else:
        change = _specialized(env, hints)
        if change is not None and change.is_turns and change.size.symbols() & attempt.may_have_loops():
            return with_loops(done)
        larger = sizes_above_one(env, hints) if change is not None else {}
        if larger:
            sizes = ", ".join(f"{name} = {size}" for name, size in larger.items())
            return replace(attempt, enlarged=Enlarged(larger, done), change=f"with the sizes {sizes}")
    return settled(done)


def numbers_stay_sizes(attempt: Attempt, files: Set[str]) -> Attempt:
    """The attempt with ``int`` and ``float`` of sizes as sizes in further ``files``."""
    change = f"int and float of sizes are sizes in {', '.join(sorted(files - attempt.numbers.files))}"
    return replace(attempt, numbers=replace(attempt.numbers, files=attempt.numbers.files | files), change=change)


def may_have_arrays(attempt: Attempt) -> bool:
    """Return whether a run in which NumPy's arrays are tensors is still to be tried."""
    return attempt.is_own_run and attempt.numbers.without_arrays is None


def with_arrays(outcome: Recorded | Failed, where: SourceLocation | None) -> Attempt:
    """The attempt in which NumPy's arrays are tensors, in the file of that line and those of the modules, instead of one with this outcome."""
    before = outcome.attempt.numbers
    files = before.files | names_of_file(where)
    numbers = replace(before, files=files, takes_indices=True, has_arrays=True, without_arrays=outcome)
    fresh = replace(outcome.attempt, numbers=numbers, branching=Branching(), enlarged=Enlarged())
    return replace(fresh, change="NumPy's arrays are tensors").at_sample()


def settled(done: Recorded) -> Attempt | Outcome:
    """The program with the conditions under which it is right for more than the example's sizes; an attempt with a size
    that is right alone as a number.
    """
    named = done.attempt.sizes.hints.keys() - done.attempt.request.optional
    change = _specialized(done.shape_env, done.attempt.sizes.hints, ranges=True, named=named) or _unlike_sample(done)
    if change is not None:
        if done.attempt.may_have_loops():
            return with_loops(done)
        sizes = road("sizes that not every number fits")
        return cast(Attempt | Failed, sizes.specializing(done.attempt, change, done.shape_env))
    sets, own_failure = done.shape_env.facts.sets, done.attempt.program.own_failure
    if own_failure is not None and any(len(sets[name].first(2)) < 2 for name in named if name in sets):
        return Failed(done.attempt, own_failure)
    one_way = None
    if done.attempt.branching.failure is not None:
        one_way = road("sizes that not every number fits").decided_one_way(done)
    return _with_assumptions(done) if one_way is None else Failed(done.attempt, one_way)


def with_loops(outcome: Recorded | Failed, has_exits: bool = False) -> Attempt:
    """The attempt in which loops over sizes are loops of the file, instead of one with this outcome. ``has_exits``: those of a fixed
    length in which data decides, too.
    """
    branching = outcome.attempt.branching
    unrolled = branching.unrolled or outcome
    if has_exits:
        where = getattr(getattr(outcome, "error", None), "where", None)
        branching = replace(branching, branches=branching.branches | {where})
    branching = replace(branching, has_loops=True, has_exits=has_exits, has_bodies=True, unrolled=unrolled)
    numbers = replace(outcome.attempt.numbers, takes_indices=True)
    return replace(
        outcome.attempt, branching=branching, numbers=numbers, change="loops over sizes are loops of the file"
    )


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


def _with_assumptions(done: Recorded) -> Recorded:
    """The program with all that it takes for granted about sizes."""
    attempt, env = done.attempt, done.shape_env
    captured = done.captured
    may_differ = kernels_differ_at(env, attempt.sizes.hints) if attempt.enlarged.hints else frozenset()
    guards = [
        replace(guard, ends_run=guard.ends_run or guard.relation in env.facts.stated or _ties_sizes(guard))
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
                env.note_guard(Guard(done.relation, done.where, by_user=True))
                continue
        for name in sorted(done.size.symbols() & set(hints)):
            return replace(done, size=Dim.symbol(name), value=hints[name])
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
        change = road("sizes that not every number fits").solved_for_one(gap, hints)
        if change is not None:
            return Specialization(Dim.symbol(change[0]), change[1], guard.where)
    return None


def _ties_sizes(guard: Guard) -> bool:
    """Return whether an operator took two expressions of several sizes as equal. Where they are not, eager PyTorch ends the run, or
    broadcasts a 1, for which the graph has other sizes.
    """
    relation = guard.relation
    if relation.op != "eq" or guard.by_user or len(relation.symbols()) < 2:
        return False
    gap = relation.args[0] - relation.args[1]
    return not isinstance(gap, Dim) or not _says_one(gap)


def _says_one(gap: Dim) -> bool:
    """Return whether ``gap`` is 0 where a product of sizes is 1, as of ``a*b - a``: kernels ask that, and the graph is right for others, too."""
    terms = dict(gap.terms) | ({(): gap.constant} if gap.constant else {})
    if len(terms) != 2:
        return False
    (one, factor), (other, negative) = terms.items()
    atoms = Counter(one), Counter(other)
    return abs(factor) == abs(negative) and (atoms[0] <= atoms[1] or atoms[1] <= atoms[0])


def is_decisive(guard: Guard, env: ShapeEnv) -> bool:
    """Return whether the guard says what no condition says, and other sizes may break."""
    is_asked = guard.by_user or guard.ends_run or not _is_harmless(guard, env)
    return is_asked and env.facts.is_settled(guard.relation) is None


def _is_harmless(guard: Guard, env: ShapeEnv) -> bool:
    """Return whether the relation is true at every size of a varied list: true of torch's checks for strides. At
    capture, the example's size stands for 0 and 1.
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
"""The question whether a slice takes all of an axis, which also tells the memory layout of the result."""
