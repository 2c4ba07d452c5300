"""Runs of operators on fake tensors with data-dependent sizes: torch asks about these sizes, and no example has
them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.reasons import with_inputs
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import dims_of
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.assumptions import Assumption
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.solve import Equalities
from fx2onnx.torchcompat.frames import user_location
from fx2onnx.torchcompat.operators import OpOverload

Result: TypeAlias = Any
"""The result of an operator."""
MOST_EQUALITIES = 8
"""The largest number of equalities of data-dependent sizes that one call of an operator needs."""
_OTHER_SIZES = ((2, 3, 5, 7), (7, 5, 3, 2), (4099, 8191, 16381, 32749), (32749, 16381, 8191, 4099))
"""Sizes in several orders, which decide nothing of a result whose type is the same at all of these."""

_MULTIPLES = ((2520, 5040, 7560, 12600), (12600, 7560, 5040, 2520), (2520,), (5040, 2520))
"""Sizes that are multiples of all numbers up to 10: an operator that raises at these needs something else than a
divisor."""


class Undecided(Exception):
    """The type of the result depends on the symbols ``names``."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = names


def run_at_unknown_sizes(tracer: Tracer, func: OpOverload, operator: Callable[[], Result]) -> Result:
    """The result of an operator, ``func`` with its arguments.

    Where it raises since sizes differ, these are equal: eager PyTorch would end there, too. Raises UserError E107 where the sizes
    of the result are other expressions at other sizes.
    """
    env = tracer.sizes
    guards = env.guards
    try:
        return _result(env, operator, tracer.values.where)
    except Undecided as cause:
        error = tracer.values.refuse(
            "E107",
            f"the type of {func}'s result depends on data-dependent sizes",
            why=f"it differs with {cause}",
            next="slice, split or pad by these sizes, whose results have an expression",
        )
        raise with_inputs(error, tracer.inputs_behind_sizes(cause.names)) from cause
    finally:
        made_up = {key for key in env.guards.keys() - guards.keys() if key[0].symbols() & env.unbacked}
        env.without_guards(made_up)  # made-up sizes decided these: nothing hangs on them


def _result(env: ShapeEnv, operator: Callable[[], Result], where: SourceLocation | None) -> Result:
    asked, equalities, assertions, unchecked = _noted(env)
    try:
        result = operator()
    except Exception:  # torch's operators raise whatever they like; raised on where no equality mends it
        found = _with_equal_sizes(env, operator, asked, where) or _at_other_sizes(env, operator, asked, where)
        if found is None:
            raise
        result, asked = found
    _note_bounds(env, operator, asked, where)
    taken = [relation for relation in env.unchecked if relation not in unchecked]
    other = _of_the_others(env, operator, taken) if taken else None
    if other is not None:
        env.know(equalities=equalities)
        env.assertions, env.unchecked = assertions, unchecked
        return other
    names = _open_symbols(env, asked)
    if names:
        _check_type(env, operator, result, names)
    _keep_from_one(env, operator, result, asked)
    return result


def _keep_from_one(env: ShapeEnv, operator: Callable[[], Result], result: Result, asked: int) -> None:
    """Take a size to be other than 1 if 1 would give a result of other sizes, unless an assumption says otherwise."""
    questions = (what for _, what, _ in env.asked[asked:] if isinstance(what, Relation) and 1 in what.args)
    sizes = {arg for what in questions for arg in what.args if isinstance(arg, Dim) and arg.symbols() & env.unbacked}
    for size in sizes:
        name = size.as_symbol()
        at = {**env.hints, name: 1} if name is not None else env.hints
        if name is None or not all(relation.is_true_at(at) for relation in env.unchecked):
            continue
        other = _tried(env, operator, {name: 1})
        if other is not None and _dims_at(other, at) != _dims_at(result, at):
            env.assume(Relation("ne", (size, 1)), user_location())


def _with_equal_sizes(
    env: ShapeEnv, operator: Callable[[], Result], asked: int, where: SourceLocation | None
) -> tuple[Result, int] | None:
    """The result, and how many questions were asked before the run that gave it; None where the operator raises whatever is
    equal.
    """
    _, equalities, assertions, unchecked = _noted(env)
    for _ in range(MOST_EQUALITIES):
        relations = list(_differing(env, asked))
        if not relations:
            break
        needed = next((relation for relation in reversed(relations) if _ends_run(env, operator, relation)), None)
        if needed is None:
            break
        env.assume(needed, where)
        asked = len(env.asked)
        with contextlib.suppress(Exception):  # torch's operators raise whatever they like
            return operator(), asked
    env.know(equalities=equalities)
    env.assertions, env.unchecked = assertions, unchecked
    return None


def _note_bounds(env: ShapeEnv, operator: Callable[[], Result], asked: int, where: SourceLocation | None) -> None:
    """Take those bounds for true that the made-up sizes keep and without which the operator raises."""
    for _, what, answer in env.asked[asked:]:
        if not isinstance(what, Relation) or not what.symbols() & env.unbacked:
            continue
        true = what if answer else what.negated()
        if not true.is_bound() or true.compares_with_zero_or_one():
            continue
        if (env.during, true) in env.tried:
            env.leans |= env.tried[env.during, true]
            continue
        ends_run = env.certain(true.op, *true.args) is None and _ends_run(env, operator, true)
        env.tried = {**env.tried, (env.during, true): ends_run}
        if ends_run:
            env.assume(true, where)


def _at_other_sizes(
    env: ShapeEnv, operator: Callable[[], Result], asked: int, where: SourceLocation | None
) -> tuple[Result, int] | None:
    """The same where the operator raises whenever one comparison of sizes is false, as it is of the made-up ones: it is true, and
    the made-up sizes are others from then on.
    """
    found = [what for _, what, _ in env.asked[asked:] if isinstance(what, Relation) and what.symbols() & env.unbacked]
    names = sorted(frozenset().union(*(relation.symbols() & env.unbacked for relation in found)))
    for sizes in _OTHER_SIZES:
        tried = {name: sizes[place % len(sizes)] for place, name in enumerate(names)}
        if not names or _tried(env, operator, tried) is None:
            continue
        for relation in reversed(found):
            needed = relation.negated() if relation.is_true_at(env.hints) else relation
            if needed.is_bound() and needed.is_true_at({**env.hints, **tried}) and _ends_run(env, operator, needed):
                env.assume(needed, where)
                env.hints = {**env.hints, **tried}
                asked = len(env.asked)
                return operator(), asked
    return None


def _noted(
    env: ShapeEnv,
) -> tuple[int, Equalities, Mapping[Assumption, bool], Mapping[Relation, SourceLocation | None]]:
    """The number of questions that were asked, and the assumptions."""
    return len(env.asked), env.facts.equalities, env.assertions, env.unchecked


def _of_the_others(env: ShapeEnv, operator: Callable[[], Result], taken: Sequence[Relation]) -> Result:
    """The result where each of the equalities ``taken`` is of a size that is broadcast to a plain number, which it is or 1: the
    engine needs that, too, and its result has that number. None where one is another thing.
    """
    of_one, of_number = dict(env.hints), dict(env.hints)
    pairs = [each.args if isinstance(each.args[0], Dim) else each.args[::-1] for each in taken if each.op == "eq"]
    for unknown, number in pairs:
        if not isinstance(unknown, Dim) or type(number) is not int or number < 2:
            return None
        names = unknown.symbols() & env.unbacked
        of_one.update(dict.fromkeys(names, 1))
        of_number.update(dict.fromkeys(names, number))
    is_broadcast = all((size.evaluate(of_one), size.evaluate(of_number)) == (1, number) for size, number in pairs)
    if len(pairs) < len(taken) or not is_broadcast:
        return None
    result, other = (_tried(env, operator, sizes) for sizes in (of_one, of_number))
    is_same = result is not None and other is not None and _dims_at(result, of_number) == _dims_at(other, of_number)
    return result if is_same else None


def _dims_at(value: Result, sizes: Mapping[str, int]) -> object:
    """The numbers that the sizes of tensors are."""
    if isinstance(value, list | tuple):
        return [_dims_at(part, sizes) for part in value]
    if not isinstance(value, torch.Tensor):
        return value
    return [dim.evaluate(sizes) if isinstance(dim, Dim) else dim for dim in dims_of(value)]


def _ends_run(env: ShapeEnv, operator: Callable[[], Result], relation: Relation) -> bool:
    """Return whether the operator raises at other sizes at which ``relation`` is not true, which there are."""
    names, raises = sorted(relation.symbols() & env.unbacked), False
    for sizes in (*_OTHER_SIZES, *_MULTIPLES):
        tried = {name: sizes[place % len(sizes)] for place, name in enumerate(names)}
        if not relation.is_true_at({**env.hints, **tried}):
            if _tried(env, operator, tried) is not None:
                return False
            raises = True
    return raises


def _tried(env: ShapeEnv, operator: Callable[[], Result], sizes: Mapping[str, int]) -> Result:
    """The result at these sizes, of which nothing is noted; None where the operator raises."""
    with env.tried_at(sizes), contextlib.suppress(Exception):  # no such sizes
        return operator()
    return None


def _open_relations(env: ShapeEnv, since: int) -> Iterator[tuple[Relation, bool]]:
    """The relations on data-dependent sizes that kernels asked for, and their answers; a size of 0 or 1 is asked for on
    the way.
    """
    for _, what, answer in env.asked[since:]:
        relation = what if isinstance(what, Relation) else Relation("eq", (what, answer))
        if not relation.symbols() & env.unbacked or {0, 1} & set(relation.args):
            continue
        is_comparison = not any(isinstance(arg, Relation) for arg in relation.args)
        if not is_comparison or env.certain(relation.op, *relation.args) is None:
            yield relation, bool(answer) if relation is what else True


def _differing(env: ShapeEnv, since: int) -> Iterator[Relation]:
    """The equalities that kernels asked for and that were answered with no."""
    for relation, answer in _open_relations(env, since):
        if relation.op in ("eq", "ne") and answer == (relation.op == "ne"):
            yield Relation("eq", relation.args)


def _open_symbols(env: ShapeEnv, since: int) -> frozenset[str]:
    return frozenset().union(*(relation.symbols() & env.unbacked for relation, _ in _open_relations(env, since)))


def _check_type(env: ShapeEnv, operator: Callable[[], Result], result: Result, names: frozenset[str]) -> None:
    for sizes in _OTHER_SIZES:
        tried = {name: sizes[place % len(sizes)] for place, name in enumerate(sorted(names))}
        other = _tried(env, operator, tried)
        if other is None or _same_sizes(env, result, other):
            continue
        at = {**env.hints, **tried}  # an expression that is 1 there is a plain 1 to a kernel
        if 1 not in _numbers(_dims_at(other, at)) or _dims_at(result, at) != _dims_at(other, at):
            raise Undecided(names)


def _numbers(dims: object) -> list[object]:
    """All numbers in nested lists of sizes."""
    return [number for part in dims for number in _numbers(part)] if isinstance(dims, list) else [dims]


def _same_sizes(env: ShapeEnv, one: Result, other: Result) -> bool:
    if isinstance(one, torch.Tensor):
        sizes = dims_of(one), dims_of(other)
        return len(sizes[0]) == len(sizes[1]) and all(
            first == second or env.certain("eq", first, second) for first, second in zip(*sizes, strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(_same_sizes(env, *pair) for pair in zip(one, other, strict=True))
    return True
