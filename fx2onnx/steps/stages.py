"""The stages for a file's graph, in order, and the form in which it is written: steps that can be left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.metadata import OF_EXPORTERS
from fx2onnx.irx.edit import graphs_of
from fx2onnx.irx.inference import STANDARD, infer_types
from fx2onnx.irx.private_names import drop_initializer, is_read
from fx2onnx.optimize.driver import AppliedEdit
from fx2onnx.optimize.fold_constants import FoldBudget, fold_branches, fold_constants
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
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.text import parse_dim

ROUNDS = 4
"""Times that types are inferred and everything is tried again: what is folded tells more sizes."""

FOLD_VALUE_BYTES = 64 << 20
"""Results larger than this are not computed, even where the weights that they are made of go."""

GROWTH_BYTES = 64 << 10
"""The bytes that results of constants may add to the file; if it would get larger than it was, nothing may."""

BRANCHES = Pass("fold_branches", fold_branches)
WEIGHTS = Pass("merge_equal_weights", merge_equal_weights)
EXACT = (FixedTarget(), DropZeroState(), SwapWhere(), PlainCast())
ROUNDED = (FoldConvAffine(), DropZeroTerm(), FuseBareLayerNorm())
"""Rewrites of what other exporters write that give the same numbers up to rounding."""
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
    """The point at which to stop: after so many whole steps, and, in the next one, after so many edits."""

    steps: int
    edits: int = 0


@dataclass
class StageTrace:
    """The record of the stages: the steps in order with their edits, and why rewrites refused."""

    steps: list[tuple[str, int]] = field(default_factory=list)
    edits: Counter[str] = field(default_factory=Counter)
    refusals: dict[str, Counter[str]] = field(default_factory=dict)
    applied: list[AppliedEdit] = field(default_factory=list)
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
) -> StageTrace:
    """Run the stages, again and again until nothing changes. Raises what rewrites raise."""
    trace = StageTrace()
    for stage in _endless(model, stages, trace):
        index = len(trace.steps)
        if limit is not None and index >= limit.steps and not (index == limit.steps and limit.edits):
            break
        stop = limit.edits if limit is not None and index == limit.steps else None
        before = _computed(model) if isinstance(stage, Pass) else []
        outcome = run(model, [stage], stop_after=stop, check=check, explain=explain)
        if before and outcome.applied:
            after = {*_computed(model)}
            outcome.applied[-1].gone = [name for name in before if name not in after]
        trace.steps.append((stage.name, outcome.total))
        trace.edits += outcome.edits
        trace.applied += outcome.applied
        trace.last = outcome.last or ((stage.name, "") if outcome.total else trace.last)
        for name, refused in outcome.refusals.items():
            trace.refusals[name] = refused  # of the last round: what still stands
    return trace


def _computed(model: ir.Model) -> list[str]:
    """The names of the values that nodes make."""
    return [value.name for graph in graphs_of(model) for node in graph for value in node.outputs if value.name]


def _endless(model: ir.Model, stages: Collection[Stage], trace: StageTrace) -> Iterator[Stage]:
    for _ in range(ROUNDS):
        before = trace.edits.total()
        infer_types(model)
        yield from stages
        if trace.edits.total() == before:
            return


def guilty_step(trace: StageTrace, is_wrong: Callable[[Limit], bool]) -> Limit | None:
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


@dataclass
class FileInterface:
    """Declared types of the outputs by name, and whether the file gives types of values between nodes."""

    outputs: dict[str, tuple[Any, ir.Shape | None]]
    names: frozenset[str]
    has_types: bool

    @staticmethod
    def of(model: ir.Model) -> FileInterface:
        """The interface of a model before it is rewritten."""
        dims = [dim for value in (*model.graph.inputs, *model.graph.outputs) for dim in value.shape or ()]
        names = frozenset(str(dim.value) for dim in dims if not isinstance(dim, int) and dim.value is not None)
        inner = [value for node in model.graph for value in node.outputs if not value.is_graph_output()]
        typed = sum(value.type is not None and value.shape is not None for value in inner)
        outputs = {value.name or "": (value.type, value.shape) for value in model.graph.outputs}
        return FileInterface(outputs, names, bool(inner) and 2 * typed > len(inner))

    def restore(self, model: ir.Model, *, keeps_types: bool) -> None:
        """Give outputs what the file said of them, where it is not wrong, and values between nodes what is certain; outputs of steps keep
        their shapes, which are those of none where a loop takes no step.
        """
        main = set(model.graph.inputs) | set(model.graph.outputs)
        steps: set[ir.Value] = set()
        for node in (node for graph in graphs_of(model) for node in graph if node.op_type in ("Loop", "Scan")):
            steps.update(node.attributes["body"].as_graph().outputs)
        for graph in graphs_of(model):
            for node in graph:
                for value in node.outputs:
                    if value in main:
                        continue
                    if node.domain in STANDARD and not (keeps_types and self.has_types) and value not in steps:
                        value.type, value.shape = None, None
                    elif value.shape is not None:
                        value.shape = self._plain(value.shape)
        for value in model.graph.initializers.values():
            if not value.is_graph_input():  # the weight itself says its type
                value.type, value.shape = None, None
        for value in model.graph.outputs:
            kind, shape = self.outputs.get(value.name or "", (None, None))
            if kind is not None and (value.dtype is None or value.dtype == kind.dtype):  # 16 bits are others
                value.type = kind
            value.shape = self._joined(shape, value.shape)

    def _plain(self, shape: ir.Shape) -> ir.Shape:
        """The shape without names that only stand for something unknown: those of the interface stay, and what is
        computed from them."""
        return ir.Shape([dim if isinstance(dim, int) or self._is_told(str(dim.value)) else None for dim in shape])

    def _is_told(self, text: str) -> bool:
        read = parse_dim(text)
        return text in self.names or (isinstance(read, Dim) and read.symbols() <= self.names)

    def _joined(self, declared: ir.Shape | None, inferred: ir.Shape | None) -> ir.Shape | None:
        if inferred is None:
            return declared
        if declared is None or len(declared) != len(inferred):
            return self._plain(inferred)
        return ir.Shape([own if isinstance(own, int) else told for told, own in zip(declared, inferred, strict=True)])


MOST_BYTES = 64
"""Larger ones are not stored again in each body that reads them."""


def store_inside(model: ir.Model) -> None:
    """Give each body its own small constants; those that nobody reads outside leave the main graph."""
    main = model.graph.initializers
    taken = {value.name for graph in graphs_of(model) for node in graph for value in node.outputs} | set(main)
    for graph in list(graphs_of(model))[1:]:
        inside: dict[ir.Value, ir.Value] = {}
        for node in graph:
            for index, value in enumerate(node.inputs):
                if value is None or value.graph is not model.graph or not _is_small(value):
                    continue
                if value not in inside:
                    name = f"{value.name}.inside"
                    while name in taken:
                        name += "_"
                    taken.add(name)
                    inside[value] = ir.Value(name=name, const_value=value.const_value)
                    graph.initializers[name] = inside[value]
                node.replace_input_with(index, inside[value])
        for value in inside:
            if not is_read(value):
                drop_initializer(value)


def _is_small(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and not value.is_graph_input() and tensor.nbytes <= MOST_BYTES


def leave_out_origins(model: ir.Model) -> int:
    """Remove metadata and texts of nodes, values and graphs, and notes of exporters on the model. Returns of how many objects."""
    count = 0
    for graph in graphs_of(model):
        weights = graph.initializers.values()
        for each in (graph, *graph, *graph.inputs, *weights, *(value for node in graph for value in node.outputs)):
            count += bool(each.metadata_props or each.doc_string)
            each.metadata_props.clear()
            each.doc_string = None
    notes = [key for key in model.metadata_props if key.startswith(OF_EXPORTERS)]
    for key in notes:
        del model.metadata_props[key]
    return count + len(notes)
