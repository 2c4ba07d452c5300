"""Dynamic sizes that not every number fits: they become numbers or other sizes, or the capture is refused (E105)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.capture.attempt import Attempt, Enlarged, Failed, Recorded, RunProgram, own_run_failed
from fx2onnx.capture.recording.decisions import Branching
from fx2onnx.capture.shapes.deciding import LOOP_IN_TENSORS, NO_LOOP, undeclared
from fx2onnx.capture.shapes.dynamic import hints_of, is_fresh_name
from fx2onnx.capture.shapes.guards import needed_beside
from fx2onnx.capture.shapes.shape_env import DATA_DECIDES, ShapeEnv
from fx2onnx.sizes.assumptions import Specialization, put_shortly
from fx2onnx.sizes.bounds import goes_as_sample
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.sizes.sets import where_true
from fx2onnx.sizes.solve import declared


def specializing(attempt: Attempt, change: Specialization, env: ShapeEnv) -> Attempt | Failed:
    """The attempt with the size as a number, unless it must not become one (UserError E105); with fewer decisions, where those do."""
    if env.asked_few and attempt.branching.by_counts:
        return replace(
            attempt,
            branching=replace(attempt.branching, by_counts=False),
            enlarged=Enlarged(),
            change="how many of a few there are is as at the sample's sizes",
        )
    change = _at_sample(change, hints_of(attempt.arguments))
    error = refused_size(attempt, str(change.size.as_symbol()), change, env)
    if (
        error is not None
        and change.is_numpys
        and not attempt.numbers.has_arrays
        and attempt.is_own_run
        and attempt.options.strategy == "auto"
    ):
        return replace(
            attempt,
            program=RunProgram("export", own_failure=error),
            branching=Branching(),
            enlarged=Enlarged(),
            change=own_run_failed(error),
        ).at_sample()
    if error is not None:
        return Failed(attempt, attempt.program.own_failure or error)
    return _with_equal_sizes(attempt.specialized(change), env)


def _with_equal_sizes(attempt: Attempt, env: ShapeEnv) -> Attempt:
    """The attempt with the other sizes that nobody asked for by name and that operators of the same run found to be
    equal, or a number: each would be the change of one more run.
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
        solved = solved_for_one(gap, attempt.sizes.hints)
        if solved is None or any(atom.op != "symbol" for atom in gap.atoms()) or not gap.is_at(attempt.sizes.hints, 0):
            continue
        attempt = attempt.specialized(Specialization(Dim.symbol(solved[0]), solved[1], guard.where))
    return attempt


def _at_sample(change: Specialization, sizes: Mapping[str, int]) -> Specialization:
    """The number that the example has; of two sizes that are one, but differ in the example inputs, that of the one
    that is 0 or 1."""
    name = str(change.size.as_symbol())
    if isinstance(change.value, int):
        return replace(change, value=sizes.get(name, change.value))
    other = change.value.as_symbol()
    if other is not None and sizes.get(name) != sizes.get(other):
        small = next((each for each in (name, other) if sizes.get(each, 2) < 2), None)
        if small is not None:
            return replace(change, size=Dim.symbol(small), value=sizes[small])
    return change


def solved_for_one(gap: Dim, hints: Mapping[str, int]) -> tuple[str, DimLike] | None:
    """``gap == 0`` solved for one symbol, where that is possible without a remainder and does not hang on the data; for one
    without a name of the user's, if there is one.
    """
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
    for name, factor in sorted(plain, key=lambda pair: not is_fresh_name(pair[0])):
        rest = gap - factor * Dim.symbol(name)
        if abs(factor) == 1 and isinstance(rest, Dim) and name not in rest.symbols() and name in hints:
            return name, rest * -int(factor)  # type: ignore[return-value]
    return None


def decided_one_way(done: Recorded) -> UserError | None:
    """The error of Python deciding by a size that is asked for by name, where the branch for other sizes cannot be captured."""
    attempt, env = done.attempt, done.shape_env
    for guard in env.guards.values():
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


def refused_size(attempt: Attempt, name: str, change: Specialization, env: ShapeEnv) -> UserError | None:
    """A size that the user asked for by name is not to be a number; two that are declared are not to be one."""
    if isinstance(change.value, Dim):
        others = change.value.symbols()
        if not {name, *others} <= attempt.request.declared:
            return None
        is_one = change.value.as_symbol() is not None
        return UserError(
            "E105",
            f"the size {name} is declared as one of its own, and has to be equal to {change.value}",
            where=change.where,
            why="the code there works for no other sizes",
            next=f"give both axes the torch.export.Dim {change.value}"
            if is_one
            else f"declare {name} as {change.value}",
        )
    if name in attempt.request.optional:
        return None
    if change.is_turns:
        return _looping(attempt, name, change, env)
    range_given = attempt.range_of(name)
    narrowed = "" if range_given is None else needed_beside(range_given, env, attempt.sizes.hints)
    is_pythons = any(name in each.size.symbols() for each in env.specializations.values())
    weights = _weights_with(attempt, change.value)
    symbolic = "or keep it symbolic: no loop over it, no key of a dict, no list of its length"
    return UserError(
        "E105",
        f"the dynamic size {name} is used as the fixed number {change.value}",
        where=change.where,
        why=narrowed
        or "Python or an operator there needs a plain number, so the graph holds only for that size"
        + weights
        + no_loop_since(attempt.branching.loop_failure),
        next=(
            *([] if narrowed or is_pythons else _of_others(attempt, name, change.value)),
            *([] if narrowed or is_pythons else _sliced(attempt, name, change.value)),
            f"make the size static (leave {name} out of dynamic_shapes)",
            *([f"or declare {name} with wider bounds"] if narrowed else [] if weights else [symbolic]),
        ),
    )


def no_loop_since(failure: BaseException | None) -> str:
    """The end of a reason: why the loop cannot be a loop of the file."""
    if not isinstance(failure, UserError):
        return ""
    where = f" ({failure.where})" if failure.where else ""
    if failure.code == "E104":
        is_branch = failure.what == DATA_DECIDES[1]
        text = "a branch in it depends on tensor data" if is_branch else "Python needs a data-dependent number in it"
    else:
        text = failure.what.removeprefix(NO_LOOP) if failure.code == "E105" else f"[{failure.code}] {failure.what}"
    return f"; that cannot be a loop of the file, since {text}{where}"


def steps_since(failure: BaseException | None) -> tuple[str, ...]:
    """The steps to take where Python loops as often as a size says, and that cannot be a loop of the file."""
    is_of_loop = isinstance(failure, UserError) and failure.what.startswith(NO_LOOP)
    return tuple(failure.next) if is_of_loop else (LOOP_IN_TENSORS,)  # type: ignore[union-attr]


def _weights_with(attempt: Attempt, size: int) -> str:
    """The end of a sentence that names the weights which have that size."""
    having = [f"{name} {list(weight.shape)}" for name, weight in _tensors_of(attempt, size)]
    return f"; weights of that size: {', '.join(having[:4])}" if having else ""


def _tensors_of(attempt: Attempt, size: int) -> list[tuple[str, torch.Tensor]]:
    """The parameters and buffers of that size, by name; none for 1, which broadcasts."""
    named = chain(attempt.root.named_parameters(), attempt.root.named_buffers()) if size != 1 else ()
    return [(name, tensor) for name, tensor in named if size in tensor.shape]


def _sliced(attempt: Attempt, name: str, size: int) -> list[str]:
    """Advice to take as much of a table as the input is long, where a module of the user's own has a tensor of that size."""
    tables = [
        f"{each}[{':, ' * list(tensor.shape).index(size)}:"
        for each, tensor in _tensors_of(attempt, size)
        if tensor.dim() > 1
        and not type(attempt.root.get_submodule(each.rpartition(".")[0])).__module__.startswith("torch.")
    ]
    places = [
        f"{leaf.path}.shape[{axis}]"
        for leaf in attempt.arguments.leaves
        for axis, dim in leaf.axes.items()
        if isinstance(dim, Dim) and name in dim.symbols()
    ]
    return (
        [f"where it is a table, take as much of it as the input has: {tables[0]}{places[0]}]"]
        if tables and places
        else []
    )


def _of_others(attempt: Attempt, name: str, size: object) -> list[str]:
    """Advice to name static axes of that size of other inputs, too, where there are such."""
    same = [
        f"axis {axis} of {leaf.path}"
        for leaf in attempt.arguments.leaves
        if not any(isinstance(dim, Dim) and name in dim.symbols() for dim in leaf.axes.values())
        for axis, length in enumerate(leaf.tensor.shape)
        if axis not in leaf.axes and length == size and length > 1
    ]
    return [f"name {name} in dynamic_shapes for {' and '.join(same)}, too, if these are one size"] if same else []


def _looping(attempt: Attempt, name: str, change: Specialization, env: ShapeEnv) -> UserError:
    """The error of Python looping as often as a size says."""
    turns = next(each for each in env.specializations.values() if each.is_turns and name in each.size.symbols())
    sizes = where_true(turns.relation) if len(turns.size.symbols()) == 1 else None
    is_range = sizes is not None and not sizes.is_single()
    return UserError(
        "E105",
        f"the dynamic size {name} is used as the fixed number {change.value}",
        where=change.where,
        why=f"Python loops there as often as {put_shortly(turns.size)} says, which is {turns.value} for the example inputs"
        + no_loop_since(attempt.branching.loop_failure),
        next=(
            *steps_since(attempt.branching.loop_failure),
            f"or make the size static (leave {name} out of dynamic_shapes)",
            *([f"or declare the range with so many turns: {declared(name, sizes)}"] if is_range and sizes else []),
        ),
    )
