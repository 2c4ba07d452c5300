"""The rewrites and passes of each level, in order. ``LEVELS`` is the one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from fx2onnx.base.errors import FAULTS, RewriteFailed, UserError
from fx2onnx.base.events import record
from fx2onnx.optimize.check import check_model
from fx2onnx.optimize.driver import AppliedEdit, Driver, EditBudget, Outcome
from fx2onnx.optimize.fold_constants import fold_constants
from fx2onnx.optimize.fold_weights import fold_weight_formulas
from fx2onnx.optimize.redundant_nodes import merge_equal_nodes, remove_dead_nodes
from fx2onnx.optimize.rewrite import Rewrite
from fx2onnx.optimize.rewrites.fuse_norm import FuseLayerNorm, FuseLayerNormBias, FuseRMSNorm, FuseSkipNorm
from fx2onnx.optimize.rewrites.gelu import FuseBiasGelu, FuseGelu
from fx2onnx.optimize.rewrites.heads import FuseHeadBias, FuseHeadScale, FusePackedBias, PackHeads, SplitProduct
from fx2onnx.optimize.rewrites.layout import (
    FoldWeightTranspose,
    FuseTransposeGemm,
    MergeReshapes,
    MergeTransposes,
    MoveReshapeUp,
)
from fx2onnx.optimize.rewrites.linear_layers import ArrangeWeights, FoldBatchNorm, FuseMatMulAdd, UnflattenGemm
from fx2onnx.optimize.rewrites.matmuls import FoldMatMulScale, FuseMatMulScale, FuseMatMulTranspose, MergeMatMuls
from fx2onnx.optimize.rewrites.neutral import CancelInvolution, DivideByRoot, DropNeutralOperand, RemoveNoop, SkipExpand
from fx2onnx.optimize.rewrites.pick_early import PickEarly
from fx2onnx.optimize.rewrites.quantized import FoldZeroPoint, RemoveRequantize
from fx2onnx.optimize.rewrites.slices import GridGather, MergeConcats, MergeSlices, SliceSplat, SplitGathers
from fx2onnx.optimize.rewrites.windows import FusePad, SwapReluMaxPool
from fx2onnx.semantics.folding import Function


@dataclass(frozen=True)
class Pass:
    """A pass over the whole graph."""

    name: str
    function: Callable[..., int]
    takes: frozenset[str] = frozenset()
    """Keywords of ``run`` that the function takes."""
    version: int = 1


@dataclass(frozen=True)
class Rewrites:
    """Rewrites that the driver applies together until none matches."""

    name: str
    rewrites: tuple[Rewrite[Any], ...]


Stage = Pass | Rewrites

DEAD = Pass("remove_dead_nodes", remove_dead_nodes)
FOLD = Pass("fold_constants", fold_constants, takes=frozenset({"fold_weights", "functions"}))
EQUAL = Pass("merge_equal_nodes", merge_equal_nodes)
FORMULAS = Pass("fold_weight_formulas", fold_weight_formulas, takes=frozenset({"keep_weights"}))

CLEAN = (
    RemoveNoop(),
    DropNeutralOperand(),
    CancelInvolution(),
    MergeReshapes(),
    MergeTransposes(),
    MergeConcats(),
    MergeSlices(),
)
CLEANED = (*CLEAN, FoldWeightTranspose(), FoldZeroPoint())
WEIGHT_REWRITES = (FoldWeightTranspose(), FoldZeroPoint(), FoldBatchNorm(), ArrangeWeights())
FUSE = (
    *(FuseGelu(), FuseLayerNorm(), FuseLayerNormBias(), FuseRMSNorm(), FuseMatMulAdd(), FuseTransposeGemm()),
    *(FusePad(), UnflattenGemm(), MoveReshapeUp(), SplitGathers(), GridGather(), SliceSplat(), SkipExpand()),
    *(DivideByRoot(), SwapReluMaxPool(), RemoveRequantize(), PickEarly()),
)
CONTRIB = (
    *(FuseSkipNorm(), FuseBiasGelu(), PackHeads(), FuseHeadScale(), FuseHeadBias(), FusePackedBias()),
    *(FuseMatMulTranspose(), FuseMatMulScale()),
)
"""onnxruntime's own operators, where they are asked for."""
RESTRUCTURE = (FoldMatMulScale(), MergeMatMuls())

LEVELS: dict[int, tuple[Stage, ...]] = {
    0: (DEAD,),
    1: (FOLD, EQUAL, Rewrites("clean", CLEANED), DEAD),
    2: (FOLD, EQUAL, FORMULAS, Rewrites("fuse", (*CLEAN, *WEIGHT_REWRITES, *FUSE)), DEAD),
    3: (FOLD, EQUAL, FORMULAS, Rewrites("fuse", (*CLEAN, *WEIGHT_REWRITES, *FUSE)), Rewrites("restructure", (*RESTRUCTURE, *CLEAN)),
        FOLD, EQUAL, DEAD),
}  # fmt: skip
"""-O0: what is read. -O1: nothing but cleaning: what is left is the same operations on the same numbers (a folded Cos is
PyTorch's in an export, rounded once elsewhere; a runtime's may be a unit off). -O2 (default): other operators and weights
for the same numbers up to rounding. -O3: weights joined or scaled."""

DEFAULT_LEVEL = 2
PICKED: tuple[Stage, ...] = (Rewrites("picked parts", (SplitProduct(), PickEarly())),)
"""The stage behind a level, which leaves no dead nodes: of products in parts no more rows than are wanted, where
weights are constants that a runtime may cut when it opens the file.
"""
FUSED: tuple[Stage, ...] = (DEAD, *LEVELS[2], Rewrites("contrib", CONTRIB), DEAD)
"""Level 2 for a runtime with onnxruntime's own operators."""


def run(
    model: ir.Model,
    level: int | Sequence[Stage] = DEFAULT_LEVEL,
    *,
    keep_weights: bool = False,
    fold_weights: bool = False,
    functions: Mapping[str, Function] | None = None,
    check: bool = False,
    explain: bool = False,
    stop_after: int | None = None,
) -> Outcome:
    """Optimize the model in place.

    level: a key of ``LEVELS``, or stages of one's own.
    keep_weights: leave every weight as the module has it (for files whose weights are fed or referred to).
    fold_weights: fold small weights as well (models read from a file hold their constants as such).
    functions: what folds ``Cos`` and other operators whose last bit differs between libraries (``fold_constants``).
    check: check the whole graph after each edit. explain: keep the refusals. stop_after: number of edits by rewrites to
    make at most; passes are skipped once it is spent.
    Raises: UserError E001 for an unknown level; RewriteFailed where a rewrite or a pass does, or a check after it.
    """
    stages = level if isinstance(level, list | tuple) else LEVELS.get(level)  # type: ignore[arg-type]
    if stages is None:
        raise UserError("E001", f"unknown optimization level {level!r}", next=f"one of {sorted(LEVELS)}")
    outcome, budget = Outcome(), EditBudget(stop_after)
    keywords: dict[str, Any] = {"fold_weights": fold_weights, "functions": functions, "keep_weights": keep_weights}
    for stage in stages:
        if budget.is_spent:
            continue
        with record(stage.name):
            if isinstance(stage, Pass):
                try:
                    count = stage.function(model, **{name: keywords[name] for name in stage.takes})
                except FAULTS as error:
                    raise RewriteFailed(stage.name, "", error) from error
                outcome.edits[stage.name] += count
                outcome.applied += [AppliedEdit(stage.name, stage.version)] if count else []
            else:
                chosen = [item for item in stage.rewrites if not (keep_weights and item.changes_weights)]
                Driver(model, chosen, outcome, check=check, explain=explain, budget=budget).run()
        if check:
            check_model(model, f"after {stage.name}")
    return outcome


def run_default(
    model: ir.Model,
    *,
    keep_weights: bool = False,
    functions: Mapping[str, Function] | None = None,
    fused: bool = False,
) -> dict[str, int]:
    """Run the default level, or ``FUSED``; returns the number of edits of each pass and rewrite."""
    level = FUSED if fused else DEFAULT_LEVEL
    return dict(run(model, level, keep_weights=keep_weights, functions=functions).edits)
