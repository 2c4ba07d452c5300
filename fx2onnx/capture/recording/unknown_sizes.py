"""How an operator runs on fakes some of whose sizes only the data tells: torch asks about sizes, and no sample has them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fx2onnx.base.relations import Relation
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.recording.tensor_tracker import dims_of
from fx2onnx.capture.shapes.shape_env import ShapeEnv

MOST_EQUALITIES = 8
"""That one call of an operator needs of sizes that only the data tells."""
_OTHER_SIZES = ((2, 3, 5, 7), (7, 5, 3, 2), (4099, 8191, 16381, 32749), (32749, 16381, 8191, 4099))
"""In what order sizes lie decides nothing of a result whose type is the same at all of these."""


class Undecided(Exception):
    """The type of the result depends on the symbols ``names``."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = names


def run_at_unknown_sizes(env: ShapeEnv, operator: Callable[[], Any], where: SourceLocation | None) -> Any:
    """What the operator gives.

    Where it raises since sizes differ, these are equal: eager PyTorch would end there, too. Raises Undecided where the sizes
    of the result are other expressions at other sizes.
    """
    asked = len(env.asked)
    try:
        result = operator()
    except Exception:  # torch's operators raise whatever they like; raised on where no equality mends it
        found = _with_equal_sizes(env, operator, asked, where)
        if found is None:
            raise
        result, asked = found
    names = _open_symbols(env, asked)
    if names:
        _check_type(env, operator, result, names)
    return result


def _with_equal_sizes(
    env: ShapeEnv, operator: Callable[[], Any], asked: int, where: SourceLocation | None
) -> tuple[Any, int] | None:
    """The result, and how many questions were asked before the run that gave it; None where the operator raises whatever is
    equal.
    """
    equalities, assertions = env.equalities.copy(), dict(env.assertions)
    for _ in range(MOST_EQUALITIES):
        relations = list(_differing(env, asked))
        if not relations:
            break
        env.take_for_true(relations[-1], where)
        asked = len(env.asked)
        with contextlib.suppress(Exception):  # torch's operators raise whatever they like
            return operator(), asked
    env.equalities, env.assertions = equalities, assertions
    return None


def _open_relations(env: ShapeEnv, since: int) -> Iterator[tuple[Relation, bool]]:
    """What kernels asked of sizes that only the data tells, and their answers; a size of 0 or 1 is asked for on the way."""
    for _, what, answer in env.asked[since:]:
        relation = what if isinstance(what, Relation) else Relation("eq", (what, answer))
        if not relation.symbols() & env.unbacked or {0, 1} & set(relation.args):
            continue
        is_comparison = not any(isinstance(arg, Relation) for arg in relation.args)
        if not is_comparison or env.certain(relation.op, *relation.args) is None:
            yield relation, bool(answer) if relation is what else True


def _differing(env: ShapeEnv, since: int) -> Iterator[Relation]:
    """The equalities that kernels asked for, and were told no."""
    for relation, answer in _open_relations(env, since):
        if relation.op in ("eq", "ne") and answer == (relation.op == "ne"):
            yield Relation("eq", relation.args)


def _open_symbols(env: ShapeEnv, since: int) -> frozenset[str]:
    return frozenset().union(*(relation.symbols() & env.unbacked for relation, _ in _open_relations(env, since)))


def _check_type(env: ShapeEnv, operator: Callable[[], Any], result: Any, names: frozenset[str]) -> None:
    hints, equalities = env.hints, env.equalities
    env.takes_notes = False
    try:
        for sizes in _OTHER_SIZES:
            env.hints = hints | {name: sizes[place % len(sizes)] for place, name in enumerate(sorted(names))}
            env.equalities = equalities.copy()
            other = result
            with contextlib.suppress(Exception):  # no such sizes
                other = operator()
            if not _same_sizes(env, result, other):
                raise Undecided(names)
    finally:
        env.hints, env.equalities, env.takes_notes = hints, equalities, True


def _same_sizes(env: ShapeEnv, one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        sizes = dims_of(one), dims_of(other)
        return len(sizes[0]) == len(sizes[1]) and all(
            first == second or env.certain("eq", first, second) for first, second in zip(*sizes, strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(_same_sizes(env, *pair) for pair in zip(one, other, strict=True))
    return True
