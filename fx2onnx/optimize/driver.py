"""The driver of rewrites: the only place that edits. One queue of nodes, rewrites looked up by operator."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from fx2onnx.base.errors import FAULTS, InternalError, RewriteFailed
from fx2onnx.base.events import details
from fx2onnx.irx.edit import can_replace, graphs_with_rows, merged_origin, remove_unread, replace
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.names import emitter_of
from fx2onnx.irx.values import dims_of, set_type
from fx2onnx.optimize.check import check_model
from fx2onnx.optimize.rewrite import Match, Removal, Rewrite, Why, is_rounded

EDITS_PER_NODE = 20
"""More edits than this many times the nodes mean that two rewrites undo each other."""


@dataclass
class EditBudget:
    """Edits that may still be made, over all stages of a pipeline; None is no limit."""

    left: int | None = None

    @property
    def is_spent(self) -> bool:
        return self.left is not None and self.left <= 0

    def spend(self) -> None:
        if self.left is not None:
            self.left -= 1


@dataclass
class AppliedEdit:
    """One edit by a rewrite or pass."""

    rule: str
    version: int
    made: list[str] = field(default_factory=list)
    """The values that it made anew."""
    gone: list[str] = field(default_factory=list)
    """The values that are no more since."""

    def as_list(self) -> list[str]:
        """The rule, and each value with its mark: ``+`` made anew, ``-`` taken away, ``=`` both: replaced."""
        marks = [("=" if name in self.gone else "+") + name for name in self.made]
        return [self.rule, *marks, *(f"-{name}" for name in self.gone if name not in self.made)]


@dataclass
class Outcome:
    """The outcome of the rewrites: edits of each rewrite and pass, and, where asked for, each one's refusals."""

    edits: Counter[str] = field(default_factory=Counter)
    refusals: dict[str, Counter[str]] = field(default_factory=dict)
    """Sentences by rewrite, counted."""
    applied: list[AppliedEdit] = field(default_factory=list)
    last: tuple[str, str] | None = None
    """The last edit: the rewrite, and the node it ended at."""

    @property
    def total(self) -> int:
        return self.edits.total()


class Driver:
    """Applies rewrites until none matches.

    check: check the whole graph after each edit. explain: keep the refusals. budget: stop when it is spent.
    """

    def __init__(
        self,
        model: ir.Model,
        rewrites: Iterable[Rewrite[Any]],
        outcome: Outcome,
        *,
        check: bool = False,
        explain: bool = False,
        budget: EditBudget | None = None,
    ) -> None:
        self.model = model
        self.outcome = outcome
        self.check = check
        self.explain = explain
        self.budget = budget or EditBudget()
        self.opset = model.graph.opset_imports.get("", 0)
        self._by_root: dict[str, list[Rewrite[Any]]] = {}
        for rewrite in rewrites:
            if rewrite.since <= self.opset:
                for root in rewrite.roots:
                    self._by_root.setdefault(root, []).append(rewrite)
        self._op: Emit | None = None
        self._spans = details()
        self._queue: deque[ir.Node] = deque()
        self._queued: dict[ir.Node, Sequence[Rewrite[Any]]] = {}
        """The rewrites of each node in the queue."""
        self._edits = 0

    def run(self) -> None:
        """One visit of every node that is a root, then of those around each edit."""
        by_root = self._by_root
        for _, rows in graphs_with_rows(self.model):
            for node, domain, op_type, _, _ in rows:
                if found := by_root.get(f"{domain}::{op_type}" if domain else op_type):
                    self._queued[node] = found
        self._queue.extend(self._queued)
        limit, budget = EDITS_PER_NODE * len(self._queue) + 100, self.budget
        while self._queue and (budget.left is None or not budget.is_spent):
            node = self._queue.popleft()
            rewrites = self._queued.pop(node)
            if node.graph is None:
                continue
            self._visit(node, rewrites)
            if self._edits > limit and self.outcome.last is not None:
                raise RewriteFailed(*self.outcome.last, InternalError("E900", "the rewrites do not end"))

    def _push(self, nodes: Iterable[ir.Node]) -> None:
        for node in nodes:
            if node in self._queued:
                continue
            rewrites = self._by_root.get(f"{node.domain}::{node.op_type}" if node.domain else node.op_type)
            if rewrites is not None:
                self._queued[node] = rewrites
                self._queue.append(node)

    def _visit(self, node: ir.Node, rewrites: Sequence[Rewrite[Any]]) -> None:
        """Match and apply, until a rewrite does not refuse."""
        apply = self._apply if self._spans is None else self._apply_timed
        for rewrite in rewrites:
            try:
                found = rewrite.match(node)
                if isinstance(found, Why):
                    refused: Why | None = found
                elif not isinstance(rewrite, Removal) and not _are_typed(found.replaces or node.outputs[:1]):
                    refused = Why("the type of the result is not known")
                elif rewrite.moves_rounding and self._is_rounded(found.replaces or node.outputs[:1]):
                    refused = Why("the result is rounded or compared")
                else:
                    refused = apply(rewrite, node, found)
            except FAULTS as error:
                raise RewriteFailed(rewrite.name, node.name or "", error) from error
            if refused is None:
                return
            if self.explain:
                self.outcome.refusals.setdefault(rewrite.name, Counter())[str(refused)] += 1

    def _is_rounded(self, values: Sequence[ir.Value]) -> bool:
        return any(is_rounded(value, self.model.graph) for value in values)

    def _apply_timed(self, rewrite: Rewrite[Any], root: ir.Node, match: Match) -> Why | None:
        assert self._spans is not None
        start_ns = time.perf_counter_ns()
        try:
            return self._apply(rewrite, root, match)
        finally:
            self._spans.detail(f"apply {rewrite.name}", start_ns)

    def _apply(self, rewrite: Rewrite[Any], root: ir.Node, match: Match) -> Why | None:
        graph = root.graph
        assert graph is not None
        olds = list(match.replaces) if match.replaces is not None else [root.outputs[0]]
        places = [old.name or "" for old in olds]
        op = self._op
        if op is None:
            op = self._op = emitter_of(self.model)  # it allots names free in the whole model
        op.builder.nodes = []
        op.origin = {}
        op.scope = (root.name or "").rpartition("/")[0]
        op.result = tuple((old.dtype, dims_of(old)) for old in olds if old.dtype is not None and old.shape is not None)
        built = rewrite.build(op, match)
        news, fresh = [built] if isinstance(built, ir.Value) else list(built), op.builder.nodes
        for domain, version in op.builder.opset_imports.items():
            self.model.graph.opset_imports.setdefault(domain, version)
        made = {value for node in fresh for value in node.outputs}
        kept = [(new, new.name) for new in news if new not in made]
        pairs = list(zip(olds, news, strict=True))
        if kept and not all(can_replace(old, new) for old, new in pairs if new not in made):
            return Why("the result is a graph output and its source is none")
        if fresh:
            self._insert(graph, match.before or root, fresh)
        neighbours: list[ir.Node] = []
        for old, new in pairs:
            self._settle(old, new, new in made)
            neighbours += replace(old, new)
        producers = [producer for old in olds if (producer := old.producer()) is not None and producer is not root]
        removed = remove_unread([*dict.fromkeys(producers), root])
        if fresh:
            self._mark(rewrite, fresh, removed)
        neighbours += fresh
        for node in fresh:
            neighbours += [
                producer for value in node.inputs if value is not None and (producer := value.producer()) is not None
            ]
        self._push(neighbours)
        self._edits += 1
        self.outcome.edits[rewrite.name] += 1
        gone = [value.name for node in removed for value in node.outputs if value.name]
        gone += [name for new, name in kept if name and name != new.name]  # an operand that is an output now
        self.outcome.applied.append(AppliedEdit(rewrite.name, rewrite.version, places, gone))
        self.outcome.last = (rewrite.name, root.name or "")
        self.budget.spend()
        if self.check:
            check_model(self.model, f"after edit {self.outcome.total}")
        return None

    def _insert(self, graph: ir.Graph, before: ir.Node, fresh: Sequence[ir.Node]) -> None:
        """Put the new nodes and the constants they read into the graph. Constants live in the main graph."""
        home = self.model.graph.initializers
        for node in fresh:
            for value in node.inputs:
                if value is not None and value.const_value is not None and value.graph is None:
                    assert value.name is not None
                    home[value.name] = value
        graph.insert_before(before, fresh)

    def _settle(self, old: ir.Value, new: ir.Value, is_fresh: bool) -> None:
        """The new value has the old one's dtype and dims, and its name where it is new."""
        if new.const_value is not None and new.graph is None and new.name is not None:
            self.model.graph.initializers[new.name] = new
        dtype, new_dtype = old.dtype, new.dtype
        if dtype is not None and new_dtype is not None and dtype != new_dtype:
            raise InternalError("E900", f"it turns {old.name} from {dtype} into {new_dtype}")
        if old.shape is not None and new.shape is not None and (dims := dims_of(old)) != (new_dims := dims_of(new)):
            if len(dims) != len(new_dims) or any(
                a != b for a, b in zip(dims, new_dims, strict=True) if isinstance(a, int) and isinstance(b, int)
            ):
                raise InternalError("E900", f"it turns {old.name} from {dims} into {new_dims}")
            if is_fresh and dtype is not None:
                set_type(new, dtype, dims)
        if is_fresh and not old.is_graph_output():
            new.name, old.name = old.name, None

    def _mark(self, rewrite: Rewrite[Any], fresh: Sequence[ir.Node], removed: Sequence[ir.Node]) -> None:
        """New nodes come from where the removed ones came from; full metadata also says by which rewrite."""
        origin = merged_origin(reversed(removed))
        if "aten" in origin:
            origin["rewrite"] = rewrite.name
        for node in fresh:
            node.metadata_props.update(origin)


def _are_typed(values: Iterable[ir.Value]) -> bool:
    return all(value.dtype is not None and value.shape is not None for value in values)


def apply(model: ir.Model, *rewrites: Rewrite[Any], check: bool = True, explain: bool = False) -> Outcome:
    """Run these rewrites alone: for tests and tools."""
    outcome = Outcome()
    Driver(model, rewrites, outcome, check=check, explain=explain).run()
    return outcome
