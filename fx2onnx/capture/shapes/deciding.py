"""Python's decisions by dynamic sizes, and the numbers that it takes of them: one way of the file, both, or a condition."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set

from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation, line_of
from fx2onnx.capture.reasons import Reason, because, with_inputs
from fx2onnx.capture.shapes.shape_env import NOT_NUMPY, ShapeEnv
from fx2onnx.capture.shapes.size_math import from_one
from fx2onnx.sizes.assumptions import Guard, Specialization, put_shortly
from fx2onnx.sizes.bounds import bounds, certain, goes_as_sample
from fx2onnx.sizes.expr import Dim, Scalar
from fx2onnx.sizes.facts import SizesOfRun
from fx2onnx.sizes.following import follows_from
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import EVERY, SizeSet, interval, where_true
from fx2onnx.sizes.solve import declared
from fx2onnx.torchcompat.asked_code import (
    asked_by_numpy,
    asserted_by_user,
    calls_numpy,
    file_of_number,
    loops,
    refused_by_user,
)
from fx2onnx.torchcompat.caught_errors import is_caught
from fx2onnx.torchcompat.frames import user_location

MOST_NUMBERS = 5
"""The largest number of values of an expression for which all are in the file."""
_MOST_TRIED = 1000
"""Sizes at which a relation of real numbers is tried."""
MOST_UNROLLED = 128
"""Turns of a loop over a named size that a run without loops of the file goes through."""


LOOP_IN_TENSORS = (
    "say it in tensors (torch.arange, cumsum, a recurrent layer), or as a loop of the file: "
    "scan(turn, start, xs), where turn(carried, x) returns what it carries and what it adds to the list, "
    "or torch.while_loop(lambda t, h: t < n, lambda t, h: (t + 1, f(h)), (torch.tensor(0), h))"
)
NO_LOOP = "a loop over a dynamic size cannot be a loop of the file: "
_PARTS = ("aten::unbind", "aten::split", "aten::split_with_sizes", "aten::chunk")
"""Overloads that give as many tensors as a size says."""
_LIST_OF_MANY = re.compile(r"\]\s*\*|\*\s*\[")
"""A list that is repeated, in the text of a line."""
_FACTORS = (64, 16, 8, 4, 2, 1)
"""Factors of the example's sizes, up to or from which a range is proposed."""


def undeclared(env: SizesOfRun, relation: Relation, where: SourceLocation | None) -> UserError:
    """Python's decision by a size that is asked for by name."""
    names = ", ".join(sorted(relation.symbols()))
    ranges = _deciding(env, relation if env.hint(relation) else relation.negated())
    proposed = " and ".join(declared(name, sizes) for name, sizes in ranges.items()) or 'Dim("NAME", min=..., max=...)'
    return UserError(
        "E105",
        f"Python branches on the dynamic size {names}",
        where=where,
        why=f"whether {put_shortly(relation)} holds differs from size to size",
        next=(
            f"declare in dynamic_shapes sizes for which it has one answer, such as {proposed}",
            "or keep the decision in tensors: torch.where, or torch.cond for two branches",
        ),
    )


def _deciding(env: SizesOfRun, at_sample: Relation) -> dict[str, SizeSet]:
    """Ranges of the sizes in which they are decided by as at the example's; none where none are found."""
    names = sorted(at_sample.symbols())
    if len(names) == 1:
        sizes = where_true(at_sample)
        return {} if sizes is None else {names[0]: sizes}
    for is_upper in (True, False):
        for factor in _FACTORS:
            hints = {name: env.hints.get(name, 1) for name in names}
            ranges = {
                name: interval(1, size * factor) if is_upper else interval(max(size // factor, 1), None)
                for name, size in hints.items()
            }
            known = env.facts
            for name, sizes in ranges.items():
                known = known.narrowed(name, sizes)
            if known.is_settled(at_sample):
                return ranges
    return {}


@answers_for_caller
def refused(env: ShapeEnv, relation: Relation) -> bool:
    """torch's Python raises where ``relation`` is true: elsewhere it is not."""
    fits = relation.negated()
    if relation.symbols() & env.unbacked and env.facts.as_one(relation) is not True:
        env.assume(fits, user_location())
        return False
    is_taken = env.guarded(fits, by_python=True, ends_run=fits.is_bound())
    if not is_taken:
        env.asked.append(("check", fits, False))
    return not is_taken


@answers_for_caller
def decided(env: ShapeEnv, relation: Relation, is_needed: bool = False) -> bool:
    """Python's shape-dependent decision: one way in this run, where both are to be in the file. ``is_needed``: else the
    way of the example inputs is a condition.
    """
    tracer = env.tracer()
    if tracer is None or not tracer.keeps_both(is_needed) or env.is_either_way(relation):
        return env.guarded(relation, by_python=not is_needed, by_user=not is_needed, ends_run=is_needed)
    known = env.facts.is_settled(relation)
    if known is None and _is_otherwise_at_zero_only(env, relation):
        known = bool(env.hint(relation))
        if not is_needed:
            _note_way(env, relation if known else relation.negated(), (relation, known))
    if known is not None:
        env.asked.append(("guard", relation, known))
        return known
    if asserted_by_user() or _goes_one_way(env, relation):
        return env.guarded(relation, by_python=not is_needed, by_user=not is_needed, ends_run=is_needed)
    if refused_by_user() and not env.hint(relation):
        env.note(relation.negated(), user_location())
        return False
    error = undeclared(env, relation, user_location())
    if tracer.may_have_arrays and asked_by_numpy():
        raise because(Reason.ARRAY, error)
    holds: bool = tracer.truth(relation, error, is_needed)
    env.suppose(relation if holds else relation.negated())
    return holds


@answers_for_caller
def _note_way(env: ShapeEnv, true: Relation, key: tuple[Relation, bool]) -> None:
    """Note Python's way where there is some of something, unless the run ends where there is none."""
    ends = asserted_by_user() or refused_by_user()
    if env.takes_notes and key not in env.guards and not ends and true.sizes_beside_none():
        env.note_guard(Guard(true, user_location(), True, env.during), key[1], key[0])


@answers_for_caller
def _is_otherwise_at_zero_only(env: ShapeEnv, relation: Relation) -> bool:
    """Return whether the example's answer is that of all sizes but 0."""
    true = relation if env.hint(relation) else relation.negated()
    return len(relation.symbols()) == 1 and env.facts.excludes_zero_only(true)


@answers_for_caller
def one_of(env: ShapeEnv, ways: Mapping[int, Relation]) -> int:
    """The number whose relation holds, as one does at every size: a decision for each, the example's first."""
    env.asked_few = True
    at_sample = next(number for number, relation in ways.items() if env.hint(relation))
    *others, last = sorted(ways, key=lambda number: abs(number - at_sample))
    return next((number for number in others if decided(env, ways[number], is_needed=True)), last)


@answers_for_caller
def few(env: ShapeEnv, dim: Dim) -> Mapping[int, Relation] | None:
    """The few numbers that an expression may be, such as ``min(n, 3)``."""
    tracer = env.tracer()
    is_left = env.decides_at or not env.takes_notes or tracer is None or not tracer.keeps_both(is_needed=True)
    if is_left or dim.as_symbol() is not None:
        return None
    low, high = bounds(dim, {name: env.facts.sets[name].ends() for name in dim.symbols() & env.facts.sets.keys()})
    if dim.is_real or low is None or high is None or high - low >= MOST_NUMBERS:
        return None
    return {number: Relation("eq", (dim, number)) for number in range(int(low), int(high) + 1)}


@answers_for_caller
def _goes_one_way(env: ShapeEnv, relation: Relation) -> bool:
    """Return whether a size in the relation became a plain number before, as a key of a dict does that is then compared with others; or
    whether it goes as at the example's sizes; or whether no sizes are found that go the other way.
    """
    fixed = {dim.as_symbol() for dim in env.specializations}
    if goes_as_sample(relation) or relation.symbols() & fixed:
        return True
    return not env.sizes_where(relation.negated() if env.hint(relation) else relation)


@answers_for_caller
def specialized(env: ShapeEnv, dim: Dim) -> int:
    """The plain number at the example's sizes, remembered as a specialization."""
    where, tracer = user_location(), env.tracer()
    if dim.symbols() & env.unbacked:
        open = tracer.plugin("loops").open if tracer is not None and tracer.branching.has_loops else []
        number = open[-1].plan.tried_number(dim) if open else None
        if number is not None:
            return int(number)
        error = UserError(
            "E104",
            "Python needs a data-dependent number",
            where=where,
            why=env.known_at_run(dim),
            next=_ways_without_number(where),
        )
        raise because(
            Reason.TURNS if loops() or env.during in _PARTS else Reason.PLAIN_NUMBER,
            with_inputs(error, env.inputs_behind(dim.symbols())),
        )
    files = file_of_number()
    ways = None if files - env.keeps_numbers_in else few(env, dim)
    if ways is not None:
        number = one_of(env, ways)
        env.asked.append(("specialize", dim, number))
        return number
    env.numbers_in |= files
    number = int(dim.evaluate(env.hints))
    env.asked.append(("specialize", dim, number))
    done = Specialization(dim, number, where, loops(), calls_numpy())
    if done.is_turns and number > MOST_UNROLLED:
        _refuse_unrolled(env, done)
    if dim not in env.specializations:
        env.specializations = {**env.specializations, dim: done}
    return number


def has_turns(env: ShapeEnv, names: Set[str]) -> bool:
    """Return whether Python looped as often as one of these sizes says."""
    return any(done.is_turns and done.size.symbols() & names for done in env.specializations.values())


_FROM_LIST = (
    "where it picks from a list of numbers, make it a tensor: torch.tensor(numbers)[i] in the place of numbers[i]"
)


def _ways_without_number(where: SourceLocation | None) -> list[str]:
    """The steps to take where Python needs a data-dependent number."""
    line = line_of(where.file, where.line) if where is not None else ""
    if _LIST_OF_MANY.search(line):
        return [
            "where it is the length of a list of one number, use a tensor: torch.full((n,), 1.0) in the place of [1.0] * n",
            _FROM_LIST,
        ]
    steps = [
        "where it chooses one of several, as the key of a dict does: if and elif on the tensor x, torch.where, or "
        "torch.stack(them)[x]",
        "where it is the key of a cache, compute the table each time, or once for the largest number and slice it",
        "or keep it a tensor, or pass it as an argument of forward",
    ]
    if loops() or re.search(r"\b(for|while)\b", line):
        turns = (
            "where it counts the turns of a loop, go through the tensor and not through its tolist(), and collect with append in a "
            "list: a dict, or an element out[i] of a list made before, holds no number of turns; or write the loop with "
            "torch.while_loop"
        )
        return [turns, _FROM_LIST, *steps[1:]]
    if calls_numpy():
        steps.insert(0, NOT_NUMPY)
    return steps


def _refuse_unrolled(env: ShapeEnv, turns: Specialization) -> None:
    """Raises UserError E105 for a loop of many turns that a run with loops of the file may do better."""
    tracer, names = env.tracer(), turns.size.symbols()
    if tracer is None or not names <= tracer.looped or env.facts.is_settled(turns.relation) is not None:
        return
    error = UserError(
        "E105",
        f"Python loops as often as {put_shortly(turns.size)} says, which is {turns.value} for the example inputs",
        where=turns.where,
        why="so many turns are not unrolled",
        next=f"make the size static (leave {', '.join(sorted(names))} out of dynamic_shapes)",
    )
    raise because(Reason.TURNS, error)


@answers_for_caller
def is_met(env: ShapeEnv, sign: str, one: Scalar, other: Scalar) -> bool:
    """Return whether a need of Python's arithmetic, which raises an error elsewhere, is met at the example's sizes;
    at the others it is a condition, or checked in the file.
    """
    known = env.certain(sign, one, other)
    if known is not None or certain(sign, from_one(one), from_one(other), env.facts.signed):
        return known is not False
    relation = Relation(sign, (one, other))
    error = ZeroDivisionError if sign == "ne" else ValueError
    if relation.symbols() & env.unbacked:
        env.assume(relation, user_location(), error=error)
        return True
    known = env.facts.is_settled(relation)
    if known is None:
        known = _follows_on_the_way(env, relation)
    if known is not None:
        return known
    if relation.at(env.decides_at) is False:
        return False
    return decided(env, relation) if is_caught(error) else env.check(relation)


@answers_for_caller
def _follows_on_the_way(env: ShapeEnv, relation: Relation) -> bool | None:
    """The truth of a relation where Python decided by sizes as it did on its way."""
    before = [*env.facts.supposed, *(guard.relation for guard in env.guards.values())]
    known = follows_from(before, relation)
    names = relation.symbols()
    if known is not None or len(names) != 1:
        return known
    (name,) = names
    true, left = where_true(relation), EVERY
    for sizes in (where_true(each) for each in before if each.symbols() == names):
        left = left if sizes is None else left & sizes
    if true is not None:
        return True if left & true == left else None
    excluded = [size for size in range(1, _MOST_TRIED) if relation.at({name: size}) is False]  # of real numbers
    return True if excluded and not any(size in left for size in excluded) else None
