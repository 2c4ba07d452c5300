"""Sizes that lead into a branch which the example inputs do not take, and at which it runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.capture.attempt import Attempt, Failed, Outcome, Recorded
from fx2onnx.capture.recording.decisions import Decision, DecisionTrace
from fx2onnx.capture.shapes.guards import sizes_above_one
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.facts import SizesOfRun
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.solve import modulus_of

Run: TypeAlias = Callable[[Attempt, DecisionTrace], Outcome]
MOST_TRIALS = 12
"""Runs that look for sizes of a branch that fails: each takes as long as a run without dynamic sizes."""
MOST_TRIED = 4096
"""Combinations of sizes that are looked at for these runs."""
_SIZES = (32, 64, 16, 8, 4, 2, 48, 12, 128, 512, 3, 1, 7, 5, 96, 24, 6, 9, 10, 2048)
"""Sizes that are tried in a branch that fails, multiples of many numbers first."""


def is_of_eager(failed: Failed) -> bool:
    """True if an operator raised, as it may do in eager PyTorch."""
    return isinstance(failed.error, UserError) and failed.error.code == "E101" and failed.error.__cause__ is not None


def sizes_of_branch(run: Run, failed: Failed, env: ShapeEnv, decision: Decision) -> dict[str, int] | None:
    """Sizes that lead into the branch that was not taken on a path, which ``env`` is of, and at which it runs; none where eager
    PyTorch ends at all that were tried; None where that is not known.
    """
    test, attempt = decision.test, failed.attempt
    if not isinstance(test, Relation) or env.unbacked:
        return None
    taken, other = (test, test.negated()) if decision.holds else (test.negated(), test)
    relations = [*(each for each in env.facts.supposed if each != taken), other]
    ended = False
    for sizes in itertools.islice(_leading_there(env, decision.sizes, relations, failed.unmet), MOST_TRIALS):
        outcome = run(attempt.at_sizes(sizes), DecisionTrace((), by_sizes=False))
        if isinstance(outcome, Recorded):
            if not _gives_nothing(outcome):
                return sizes
        elif not is_of_eager(outcome):
            return None
        ended = True
    return {} if ended else None


def sizes_without_ones(env: ShapeEnv, decision: Decision) -> dict[str, int]:
    """Larger sizes that lead into a branch, where kernels found parts of sizes to be 1 in it, which ``env`` is of; else none."""
    test = decision.test
    larger = sizes_above_one(env, env.sizes()) if isinstance(test, Relation) and not env.unbacked else {}
    if not larger or not isinstance(test, Relation):
        return {}
    at_larger = SizesOfRun({**env.hints, **larger}, env.facts)
    found = at_larger.sizes_where(test.negated() if decision.holds else test)
    return {**env.sizes(), **larger, **found} if found and any(found[name] > env.hints[name] for name in found) else {}


def _gives_nothing(done: Recorded) -> bool:
    """True if all results are empty: operators check little of tensors without elements, and what they would need is not seen."""
    nodes = [output.value for output in done.captured.outputs if isinstance(output.value, torch.fx.Node)]
    return bool(nodes) and all(0 in node.meta["val"].dims for node in nodes)


def _leading_there(
    env: ShapeEnv, hints: Mapping[str, int], relations: Sequence[Relation], unmet: Sequence[Relation]
) -> Iterator[dict[str, int]]:
    names = sorted(frozenset().union(*(relation.symbols() for relation in relations)) & hints.keys())
    declared = {condition.name: condition.sizes for condition in env.facts.conditions if condition.where is None}
    choices = [
        [
            size
            for size in dict.fromkeys(
                [*_multiples(unmet, name), hints[name] * 2, hints[name] * 4, hints[name], *_SIZES]
            )
            if name not in declared or size in declared[name]
        ]
        for name in names
    ]
    for chosen in itertools.islice(itertools.product(*choices), MOST_TRIED):
        sizes = {**hints, **dict(zip(names, chosen, strict=True))}
        if all(relation.is_true_at(sizes) for relation in relations):
            yield sizes


def _multiples(unmet: Sequence[Relation], name: str) -> Iterator[int]:
    """Multiples of each number that has to divide the size ``name``, by the equalities that did not hold: sizes to try."""
    for relation in unmet:
        if name in relation.symbols() and not any(isinstance(arg, Relation) for arg in relation.args):
            gap = relation.args[0] - relation.args[1]
            modulus = modulus_of(gap, name) if isinstance(gap, Dim) else 1
            if modulus > 1:
                yield from (modulus, modulus * 2, modulus * 8)
