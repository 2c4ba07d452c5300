"""The error of a size that is asked for by name and cannot be dynamic."""

from __future__ import annotations

from fx2onnx.base.errors import UserError
from fx2onnx.capture.attempt import Attempt
from fx2onnx.capture.shapes.guards import needed_beside
from fx2onnx.capture.shapes.shape_env import LOOP_IN_TENSORS, ShapeEnv
from fx2onnx.sizes.assumptions import Specialization, put_shortly
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.sets import where_true
from fx2onnx.sizes.solve import declared


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
        return _looping(name, change, env)
    range_given = attempt.range_of(name)
    narrowed = "" if range_given is None else needed_beside(range_given, env, attempt.sizes.hints)
    return UserError(
        "E105",
        f"the dynamic size {name} is used as the fixed number {change.value}",
        where=change.where,
        why=narrowed or "Python or an operator there needs a plain number, so the graph holds only for that size",
        next=(
            *([] if narrowed else _of_others(attempt, name, change.value)),
            f"make the size static (leave {name} out of dynamic_shapes)",
            f"or declare {name} with wider bounds"
            if narrowed
            else "or keep it symbolic: no loop over it, no key of a dict, no list of its length",
        ),
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


def _looping(name: str, change: Specialization, env: ShapeEnv) -> UserError:
    """The error of Python looping as often as a size says."""
    turns = next(each for each in env.specializations.values() if each.is_turns and name in each.size.symbols())
    sizes = where_true(turns.relation) if len(turns.size.symbols()) == 1 else None
    is_range = sizes is not None and not sizes.is_single()
    return UserError(
        "E105",
        f"the dynamic size {name} is used as the fixed number {change.value}",
        where=change.where,
        why=f"Python loops there as often as {put_shortly(turns.size)} says, which is {turns.value} in the sample",
        next=(
            LOOP_IN_TENSORS,
            f"or make the size static (leave {name} out of dynamic_shapes)",
            *([f"or declare the range with so many turns: {declared(name, sizes)}"] if is_range and sizes else []),
        ),
    )
