"""Conditions on sizes that one branch of the file alone asks for: they hold for it, and for nobody who does not come there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.recording.size_checks import Relations, steps
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.assumptions import Assumption, Condition
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import EVERY, where_true


@dataclass(frozen=True)
class Noted:
    """What was noted of sizes up to some point, or by another run."""

    conditions: Collection[Condition]
    guards: Collection[tuple[Relation, bool]]

    @classmethod
    def by(cls, env: ShapeEnv) -> Noted:
        return cls(set(env.facts.conditions), set(env.guards))


def taken_out(env: ShapeEnv, others: Noted) -> Relations:
    """What ``env`` states and ``others`` do not, as far as nodes can check it, with the lines; it is stated no more."""
    taken: dict[Relation, SourceLocation | None] = {}
    names: set[str] = set()
    left = [*env.facts.conditions]
    for condition in env.facts.conditions:
        if condition not in others.conditions and steps(condition.relation):
            taken[condition.relation] = condition.where
            names.add(condition.name)
            left.remove(condition)
    for key, guard in list(env.guards.items()):
        is_needed = guard.relation.op == "eq" and 1 not in guard.relation.args
        is_stated = is_needed or guard.is_stated or guard.relation in env.facts.stated
        if is_stated and key not in others.guards and steps(guard.relation):
            taken[guard.relation] = guard.where
            del env.guards[key]
    env.know(conditions=dict.fromkeys(left))
    for name in names:
        _say_anew(env, name)
    return taken


def note_checked(env: ShapeEnv, relations: Relations) -> None:
    """Say that a branch checks them."""
    for relation, where in relations.items():
        env.assertions[Assumption(f"{relation}, where a branch by data needs it", where, "assertion")] = False


def _say_anew(env: ShapeEnv, name: str) -> None:
    """For which sizes the run is after all that is left."""
    sizes = EVERY
    for condition in env.facts.conditions:
        sizes = sizes & condition.sizes if condition.name == name else sizes
    for relation in env.facts.supposed:
        true = where_true(relation) if relation.symbols() == {name} else None
        sizes = sizes if true is None else sizes & true
    found = {} if sizes == EVERY else {name: sizes}
    others, written = (
        {key: each for key, each in sets.items() if key != name} for sets in (env.facts.sets, env.facts.written_for)
    )
    env.know(sets={**others, **found}, written_for={**written, **found})
