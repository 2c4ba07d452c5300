"""What is done to a file's graph, in which order: steps that can be counted, left out and stopped at."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.file_optimizer.compute import compute
from fx2onnx.irx.inference import infer_types
from fx2onnx.optimize.fold_branches import fold_branches
from fx2onnx.optimize.fold_constants import FoldBudget, fold_constants
from fx2onnx.optimize.merge_weights import merge_equal_weights
from fx2onnx.optimize.pipelines import CLEAN, DEAD, EQUAL, FOLDED, LEVELS, NO_EQUAL, Pass, Rewrites, Stage, run
from fx2onnx.optimize.rewrite import Rewrite
from fx2onnx.optimize.rewrites.drop_zero_state import DropZeroState
from fx2onnx.optimize.rewrites.drop_zero_term import DropZeroTerm
from fx2onnx.optimize.rewrites.fixed_target import FixedTarget
from fx2onnx.optimize.rewrites.fold_conv_affine import FoldConvAffine
from fx2onnx.optimize.rewrites.fuse_norm import FuseBareLayerNorm
from fx2onnx.optimize.rewrites.merge_matmuls import MergeMatMuls
from fx2onnx.optimize.rewrites.pick_early import PickEarly
from fx2onnx.optimize.rewrites.plain_where import PlainCast, SwapWhere

ROUNDS = 4
"""Times that types are inferred and everything is tried again: what is folded tells more sizes."""

FOLD_VALUE_BYTES = 64 << 20
"""Results larger than this are not computed, even where the weights that they are made of go."""

GROWTH_BYTES = 64 << 10
"""How much results of constants may add to the file; where it gets larger than it was, nothing may."""

BRANCHES = Pass("fold_branches", fold_branches, requires=FOLDED, breaks=FOLDED | NO_EQUAL)
WEIGHTS = Pass("merge_equal_weights", merge_equal_weights)
EXACT = (FixedTarget(), DropZeroState(), SwapWhere(), PlainCast())
ROUNDED = (FoldConvAffine(), DropZeroTerm(), FuseBareLayerNorm())
JOIN = Rewrites("join", (MergeMatMuls(), *CLEAN))
OF_FILES: dict[int, tuple[Rewrite[Any], ...]] = {1: EXACT, 2: (*EXACT, *ROUNDED), 3: (*EXACT, *ROUNDED)}
"""Rewrites for what other exporters write, beside those of each level."""


@dataclass(frozen=True)
class Limit:
    """Where to stop: after so many whole steps, and, in the next one, after so many edits."""

    steps: int
    edits: int = 0


@dataclass
class Trace:
    """What was done: the steps in order with their edits, and why rewrites refused."""

    steps: list[tuple[str, int]] = field(default_factory=list)
    edits: Counter[str] = field(default_factory=Counter)
    refusals: dict[str, Counter[str]] = field(default_factory=dict)
    last: str = ""
    """The last edit."""


def stages_of(
    level: int, *, growth_bytes: int | None = None, without: Collection[str] = (), is_folding: bool = False
) -> list[Stage]:
    """The stages of a level for files, less the passes and rewrites ``without``.

    growth_bytes: how much folded constants may add to the file. is_folding: fold constants at any level.
    """
    if level not in LEVELS:
        raise UserError("E001", f"optimisation level {level!r} is not known", next=f"one of {sorted(LEVELS)}")
    budget = FoldBudget(FOLD_VALUE_BYTES, GROWTH_BYTES if growth_bytes is None else growth_bytes)
    fold = Pass(
        "fold_constants", partial(fold_constants, budget=budget, fold_weights=True, compute=compute), ensures=FOLDED,
        breaks=NO_EQUAL,
    )  # fmt: skip
    stages: list[Stage] = []
    for stage in LEVELS[level]:
        if isinstance(stage, Rewrites):
            added = OF_FILES.get(level, ()) if stage.name != "restructure" else ()
            kept = [_of_files(each) for each in (*stage.rewrites, *added) if each.name not in without]
            stages.append(dataclasses.replace(stage, rewrites=tuple(kept), requires=frozenset()))
        else:
            stages.append(fold if stage.name == fold.name else dataclasses.replace(stage, requires=frozenset()))
            if stage.name == fold.name:
                stages.append(dataclasses.replace(BRANCHES, requires=frozenset()))
    if level:
        equal = dataclasses.replace(EQUAL, requires=frozenset())
        joined = (
            []
            if level < 2
            else [dataclasses.replace(JOIN, rewrites=tuple(r for r in JOIN.rewrites if r.name not in without))]
        )
        stages[-1:] = [fold, equal, DEAD, WEIGHTS, equal, *joined, DEAD]
    elif is_folding:
        stages.insert(0, fold)
    return [stage for stage in stages if stage.name not in without]


def _of_files(rewrite: Rewrite[Any]) -> Rewrite[Any]:
    """As it is done to files, which get no more nodes."""
    return PickEarly(may_grow=False) if isinstance(rewrite, PickEarly) else rewrite


def rewrite(
    model: ir.Model,
    stages: Collection[Stage],
    *,
    limit: Limit | None = None,
    check: bool = False,
    explain: bool = False,
) -> Trace:
    """Run the stages, again and again until nothing changes. Raises what rewrites raise."""
    trace = Trace()
    for stage in _endless(model, stages, trace):
        index = len(trace.steps)
        if limit is not None and index >= limit.steps and not (index == limit.steps and limit.edits):
            break
        stop = limit.edits if limit is not None and index == limit.steps else None
        outcome = run(model, [stage], stop_after=stop, check=check, explain=explain)
        trace.steps.append((stage.name, outcome.total))
        trace.edits += outcome.edits
        trace.last = outcome.last or (stage.name if outcome.total else trace.last)
        for name, refused in outcome.refusals.items():
            trace.refusals[name] = refused  # of the last round: what still stands
    return trace


def _endless(model: ir.Model, stages: Collection[Stage], trace: Trace) -> Iterator[Stage]:
    for _ in range(ROUNDS):
        before = trace.edits.total()
        infer_types(model)
        yield from stages
        if trace.edits.total() == before:
            return


def guilty_step(trace: Trace, is_wrong: Callable[[Limit], bool]) -> Limit | None:
    """The first limit at which the model is wrong, by bisection over steps and then over the edits of one; None where it is
    wrong before any step.
    """
    if is_wrong(Limit(0)):
        return None
    good, bad = 0, len(trace.steps)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if is_wrong(Limit(middle)) else (middle, bad)
    name, edits = trace.steps[good]
    del name
    low, high = 0, edits
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_wrong(Limit(good, middle)) else (middle, high)
    return Limit(good, high)
