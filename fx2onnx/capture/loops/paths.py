"""The paths through one turn of a loop: at a data-dependent decision the turn is run once for each outcome, and the
runs are joined.

Each outcome begins a graph of its own within that of the turn. Runs with the same outcomes so far record the same nodes, which stand
for each other where two of them are joined into an ``If``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import torch
import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.captured import Symbol
from fx2onnx.capture.python.held import Value
from fx2onnx.capture.reasons import Reason, because
from fx2onnx.capture.recording.control_flow import GraphCopy, record_cond
from fx2onnx.capture.recording.decisions import Test
from fx2onnx.capture.shapes.guards import joined
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.assumptions import Assumption
from fx2onnx.sizes.relation import Relation

MOST_DECISIONS = 4
"""Decisions on a path through a turn: for more of them, both ways of each are run one after the other, where they may be."""
MOST_PATHS = 64
"""Paths through a turn: each is a run of the turn, and they lie within each other in the file."""

MOST_RUNS = 160
"""Runs of the turns of a loop: each plan of what they hand on takes one for each path."""


@dataclass(frozen=True)
class Decided:
    """A decision on a path."""

    test: Test
    holds: bool
    nodes: int
    """The number of nodes of its graph before it."""
    where: SourceLocation | None


@dataclass(eq=False)
class PathEnd:
    """One path, or several joined."""

    decisions: list[Decided]
    graphs: list[torch.fx.Graph]
    """The graph of the turn, and one behind each decision, within the one before."""
    inputs: Mapping[Hashable, torch.fx.Node]
    outputs: Mapping[Hashable, torch.fx.Node]
    may_differ: frozenset[Hashable]
    """The outputs whose sizes may differ from path to path."""
    symbols: dict[str, Symbol]
    env: ShapeEnv | None = None
    """The facts of sizes at its end; None while it runs."""


@dataclass(eq=False)
class TurnPaths:
    """The paths of the turn that runs, for one plan of what turns hand on."""

    loop: Value
    decisions: list[Decided] = field(default_factory=list)
    graphs: list[torch.fx.Graph] = field(default_factory=list)
    _choices: list[bool] = field(default_factory=list)
    _pending: list[PathEnd] = field(default_factory=list)
    """Paths whose last decision was not run the other way yet."""
    _count: int = 0
    _next_symbol: int = 0
    """The least number of a symbol that no path has."""

    def begin(self) -> None:
        """A path begins."""
        self.loop.runs += 1
        if self.loop.runs > MOST_RUNS:
            raise self._refused(f"they took more than {MOST_RUNS} runs of it")
        self.decisions, self.graphs = [], [torch.fx.Graph()]

    @property
    def has_several(self) -> bool:
        return bool(self.decisions or self._pending)

    def decide(self, test: Test) -> bool | None:
        """The outcome of a data-dependent decision on this path; None within a graph of an operator."""
        values, env, depth = self.loop.tracer.values, self.loop.tracer.sizes, len(self.decisions)
        if values.graph is not self.graphs[-1]:
            return None
        values.settle()
        if depth >= MOST_DECISIONS and not self.loop.tracer.branching.joins_branches:
            raise because(Reason.PATHS_OF_TURN, self._refused(f"there are more than {MOST_DECISIONS} on a path"))
        holds = self._choices[depth] if depth < len(self._choices) else True
        if depth == len(self._choices) - 1:
            env.next_unbacked = max(env.next_unbacked, self._next_symbol)
        self.decisions.append(Decided(test, holds, len(values.graph.nodes), values.where))
        values.graph = torch.fx.Graph()
        self.graphs.append(values.graph)
        if isinstance(test, Relation):
            env.know(supposed={**env.facts.supposed, test if holds else test.negated(): None})
        return holds

    def ended(self, end: PathEnd) -> PathEnd | None:
        """All paths joined, the last of which ends here; None where there is another one to run."""
        env = self.loop.tracer.sizes
        self._count += 1
        self._next_symbol = max(self._next_symbol, env.next_unbacked)
        if len(end.decisions) < len(self._choices):
            raise self._refused("Python does not come to the same decisions in each of its runs")
        while end.decisions:
            if not self._pending or len(self._pending[-1].decisions) != len(end.decisions):
                if self._count >= MOST_PATHS:
                    raise self._refused(f"it has more than {MOST_PATHS} paths")
                end.env = env.kept()
                self._pending.append(end)
                *before, last = end.decisions
                self._choices = [*(each.holds for each in before), not last.holds]
                return None
            end = self._joined(self._pending.pop(), end)
        return end

    def _refused(self, why: str) -> UserError:
        error: UserError = self.loop.loops.refused(f"a turn has branches by data, and {why}")
        return error

    def _joined(self, one: PathEnd, two: PathEnd) -> PathEnd:
        """The path ``two``, which runs, with an ``If`` in the place of the last decision, whose other branch is ``one``."""
        values, env, last = self.loop.tracer.values, self.loop.tracer.sizes, two.decisions[-1]
        copy = GraphCopy(two.graphs[0])
        copy.shares_others = True
        if one.inputs.keys() != two.inputs.keys() or one.outputs.keys() != two.outputs.keys():
            raise self._refused("these read different values of the turn before")
        copy.seen |= {node: two.inputs[key] for key, node in one.inputs.items()}
        for level, (first, second) in enumerate(zip(one.decisions, two.decisions, strict=True)):
            nodes, its = [*one.graphs[level].nodes], [*two.graphs[level].nodes]
            same = [*zip(nodes[: first.nodes], its[: second.nodes], strict=False)]
            if first.nodes != second.nodes or any(a.target is not b.target for a, b in same if a.op == "call_function"):
                raise self._refused("another run of it does something else before one of them")
            copy.seen |= dict(same)
            copy.add(nodes[first.nodes :], two.graphs[level])
        graph = torch.fx.Graph()
        copy.add(one.graphs[-1].nodes, graph)
        values.graph = two.graphs[-2]
        outputs = dict(two.outputs)
        pairs = {key: (copy.seen.get(node, node), outputs[key]) for key, node in one.outputs.items()}
        pairs = {key: pair for key, pair in pairs.items() if pair[0] is not pair[1]}
        types = [self.loop.exits.either(*pair, key in two.may_differ) for key, pair in pairs.items()]
        sides = [(its, [pair[at] for pair in pairs.values()]) for at, its in enumerate((graph, two.graphs[-1]))]
        if last.holds:
            sides.reverse()
        with values.at(last.where):
            outputs |= zip(pairs, record_cond(values, last.test, sides, types) if pairs else (), strict=True)
        joined(env, one.env, last.test, {})  # type: ignore[arg-type]
        symbols = {
            name: dataclasses.replace(symbol, node=copy.seen.get(symbol.node, symbol.node))
            for name, symbol in one.symbols.items()
        }
        note = Assumption("both branches of a decision by data are in the file", last.where)
        self.loop.loops.notes += [] if note in self.loop.loops.notes else [note]
        return PathEnd(
            two.decisions[:-1], two.graphs[:-1], two.inputs, outputs, two.may_differ, {**symbols, **two.symbols}
        )
