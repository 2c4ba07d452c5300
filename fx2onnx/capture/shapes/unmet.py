"""Errors about sizes: which sizes a program needs where it has none, or only one, of those that are declared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from fx2onnx.base.errors import UserError
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.assumptions import Condition
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import EVERY, where_true
from fx2onnx.sizes.solve import solved


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
    """Those that were asked for and did not hold at the sample's sizes, the last first."""
    for kind, what, holds in reversed(env.asked):
        if kind in ("guard", "check") and holds is False and isinstance(what, Relation) and what.op == "eq":
            yield what


def _unmet(env: ShapeEnv, text: str) -> tuple[str, Condition] | None:
    """Of the last equality that does not hold at the sample's sizes, the size in it that ``text``, an operator's error,
    names, and what the equality needs of it; None where only a single size would do.
    """
    relation = next(unmet_equalities(env), None)
    if relation is None or any(isinstance(arg, Relation) for arg in relation.args):
        return None
    gap = relation.args[0] - relation.args[1]
    for name in sorted(relation.symbols()):
        if isinstance(gap, Dim) and len(gap.symbols()) > 1:
            rest = gap.substitute({name: 1})
            gap = rest if isinstance(rest, Dim) and rest * Dim.symbol(name) == gap else gap
    if not isinstance(gap, Dim) or len(gap.symbols()) != 1:
        return None
    (name,) = gap.symbols()
    needs = Relation("eq", (gap, 0))
    sizes = where_true(needs)
    is_named = re.search(rf"\b{re.escape(name)}\b", text) is not None
    if sizes is None or sizes.is_single() or not is_named or name not in env.hints or env.hints[name] in sizes:
        return None
    return name, Condition(name, sizes, needs)


def with_sizes(error: UserError, env: ShapeEnv) -> UserError:
    """``error``, an operator's about shapes, with what it needs of a size, as far as that is found; E105 where the size is
    declared with a range that has no such size.
    """
    found = _unmet(env, error.why)
    if found is None:
        return error
    name, needed = found
    declared = next((each for each in env.conditions if each.name == name and each.where is None), None)
    if declared is not None and not env.supposed and not (declared.sizes & needed.sizes).first(1):
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
