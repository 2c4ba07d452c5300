"""What is done to a file's graph, in which order: steps that can be counted, left out and stopped at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.irx.inference import infer_types
from fx2onnx.optimize.fold_branches import fold_branches
from fx2onnx.optimize.fold_constants import FoldBudget, fold_constants
from fx2onnx.optimize.pipelines import (
    CLEAN,
    CLEANED,
    DEAD,
    EQUAL,
    FOLD,
    FUSE,
    RESTRUCTURE,
    WEIGHT_REWRITES,
    Pass,
    Rewrites,
    Stage,
    run,
)
from fx2onnx.optimize.redundant_nodes import merge_equal_weights
from fx2onnx.optimize.rewrites.file_forms import DropZeroState, PlainCast, SwapWhere
from fx2onnx.optimize.rewrites.fuse_norm import FuseBareLayerNorm
from fx2onnx.optimize.rewrites.layout import FixedTarget
from fx2onnx.optimize.rewrites.matmuls import MergeMatMuls
from fx2onnx.optimize.rewrites.neutral import DropZeroTerm
from fx2onnx.optimize.rewrites.pick_early import PickEarly
from fx2onnx.optimize.rewrites.windows import FoldConvAffine

ROUNDS = 4
"""Times that types are inferred and everything is tried again: what is folded tells more sizes."""

FOLD_VALUE_BYTES = 64 << 20
"""Results larger than this are not computed, even where the weights that they are made of go."""

GROWTH_BYTES = 64 << 10
"""How much results of constants may add to the file; where it gets larger than it was, nothing may."""

BRANCHES = Pass("fold_branches", fold_branches)
WEIGHTS = Pass("merge_equal_weights", merge_equal_weights)
EXACT = (FixedTarget(), DropZeroState(), SwapWhere(), PlainCast())
ROUNDED = (FoldConvAffine(), DropZeroTerm(), FuseBareLayerNorm())
"""What other exporters write: rewritten to the same numbers, and to the same up to rounding."""
FUSED = tuple(PickEarly(may_grow=False) if isinstance(each, PickEarly) else each for each in FUSE)
"""A file gets no more nodes."""
MERGED = (FOLD, EQUAL, DEAD, WEIGHTS, EQUAL)

LEVELS: dict[int, tuple[Stage, ...]] = {
    0: (DEAD,),
    1: (FOLD, BRANCHES, EQUAL, Rewrites("clean", (*CLEANED, *EXACT)), *MERGED, DEAD),
    2: (FOLD, BRANCHES, EQUAL, Rewrites("fuse", (*CLEAN, *WEIGHT_REWRITES, *FUSED, *EXACT, *ROUNDED)),
        *MERGED, Rewrites("join", (MergeMatMuls(), *CLEAN)), DEAD),
    3: (FOLD, BRANCHES, EQUAL, Rewrites("fuse", (*CLEAN, *WEIGHT_REWRITES, *FUSED, *EXACT, *ROUNDED)),
        Rewrites("restructure", (*RESTRUCTURE, *CLEAN)), FOLD, BRANCHES, EQUAL,
        *MERGED, Rewrites("join", (MergeMatMuls(), *CLEAN)), DEAD),
}  # fmt: skip
"""The levels of ``optimize.pipelines`` as they are done to files."""


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
    last: tuple[str, str] = ("", "")
    """The last edit: the rewrite or pass, and the node that it ended at."""


def stages_of(
    level: int, *, growth_bytes: int | None = None, without: Collection[str] = (), is_folding: bool = False
) -> list[Stage]:
    """The stages of a level for files, less the passes and rewrites ``without``.

    growth_bytes: how much folded constants may add to the file. is_folding: fold constants at any level.
    """
    if level not in LEVELS:
        raise UserError("E001", f"unknown optimization level {level!r}", next=f"one of {sorted(LEVELS)}")
    budget = FoldBudget(FOLD_VALUE_BYTES, GROWTH_BYTES if growth_bytes is None else growth_bytes)
    fold = Pass(FOLD.name, partial(fold_constants, budget=budget, fold_weights=True, by_any_kernel=True))
    stages = [_without(fold if stage is FOLD else stage, without) for stage in LEVELS[level]]
    if is_folding and fold not in stages:
        stages.insert(0, fold)
    return [stage for stage in stages if stage.name not in without]


def _without(stage: Stage, names: Collection[str]) -> Stage:
    if isinstance(stage, Pass):
        return stage
    return Rewrites(stage.name, tuple(each for each in stage.rewrites if each.name not in names))


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
        trace.last = outcome.last or ((stage.name, "") if outcome.total else trace.last)
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
    low, high = 0, trace.steps[good][1]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_wrong(Limit(good, middle)) else (middle, high)
    return Limit(good, high)
