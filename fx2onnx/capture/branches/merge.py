"""Two runs of a module that part at a decision, merged into one program: what follows it becomes the branches of an If."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.base.source import line_of
from fx2onnx.capture.branches.numbering import one_for_both
from fx2onnx.capture.captured import Captured, GraphOutput, Mutation, Symbol, TensorInfo, Weight, symbols_of
from fx2onnx.capture.reasons import baking_step
from fx2onnx.capture.recording.control_flow import GraphCopy, Nested, Noted, note_checked, taken_out
from fx2onnx.capture.recording.decisions import Decision
from fx2onnx.capture.recording.size_checks import check_outputs
from fx2onnx.capture.shapes.guards import joined as sizes_of_both
from fx2onnx.capture.shapes.guards import sets_beside
from fx2onnx.capture.shapes.shape_env import BOUNDED, KEEP_BOTH, ShapeEnv
from fx2onnx.sizes.assumptions import Assumption
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.graphs import RecordedGraph
from fx2onnx.torchcompat.operators import HIGHER_ORDER

Node: TypeAlias = torch.fx.Node

_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}
"""The dtype in which a number of Python's is an output."""


@dataclass(slots=True)
class Path:
    """One run, or several joined."""

    captured: Captured
    shape_env: ShapeEnv
    decisions: list[Decision]


def unjoined(error: UserError, why: str, *steps: str) -> UserError:
    """``error``, saying why both branches cannot be in one file; ``steps`` to take before all others."""
    found = UserError(
        error.code,
        error.what,
        where=error.where,
        module_path=error.module_path,
        node=error.node,
        why=f"{error.why}; {why}",
        next=[*steps, *(step for step in error.next if step != KEEP_BOTH)],
    )
    found.inputs = error.inputs
    return found


def on_one_way(error: BaseException, decisions: Sequence[Decision]) -> BaseException:
    """The error of a path; it says behind which decision, unless the example inputs are known to go that way."""
    chosen = [each for each in decisions if not each.is_as_sample()]
    if not chosen or not isinstance(error, UserError) or error.code != "E101":
        return error
    decision, kind = chosen[-1], "sizes" if chosen[-1].is_by_sizes else "data"
    place = decision.where
    is_while = place is not None and line_of(place.file, place.line).lstrip().startswith("while ")
    found = UserError(
        "E101",
        f"the module failed on one way of a decision by {kind}, while it was run on fake tensors",
        where=error.where,
        module_path=error.module_path,
        why=f"{error.why}; the file has both ways of the decision at {decision.where}",
        next=(
            *([BOUNDED] if is_while else []),
            "check that the module runs in eager PyTorch with inputs that lead to this line",
            *([baking_step(decision.error.inputs)] if decision.error.inputs else []),
        ),
    )
    found.__cause__ = error.__cause__
    return found


class Merge:
    """Two paths that part at decision ``depth``, as one graph. ``at``: sizes at which alone the second path is taken."""

    def __init__(self, one: Path, two: Path, depth: int, error: UserError, at: Mapping[str, int] | None = None) -> None:
        self._one, self._two, self._error = one, two, error
        self._at = at or {}
        if not depth < min(len(one.decisions), len(two.decisions)):
            raise unjoined(error, "Python does not come to it in each run of forward")
        self._decision = one.decisions[depth]
        self._depth = depth
        self._graph: torch.fx.Graph = RecordedGraph()
        self._copy = GraphCopy(self._graph, keeps_names=True)
        """The node of the merged graph for a node of either path."""
        self._weights: dict[str, Weight] = {}
        self._symbols: dict[str, Symbol] = {}
        self._unknowns = max(one.shape_env.next_unbacked, two.shape_env.next_unbacked)
        by = self._decision.test
        kind = "sizes" if isinstance(by, Relation) and not by.symbols() & one.shape_env.unbacked else "data"
        self._notes = [Assumption(f"both branches of a decision by {kind} are in the file", self._decision.where)]
        self.is_one_program = False
        """True if both branches go on with the same nodes, so that the file is no larger."""

    def path(self) -> Path:
        self._use_one_for_both()
        self._keep_conditions_apart()
        one, two = self._one.captured, self._two.captured
        self._heads()
        suffixes = self._prefix()
        self.is_one_program = self._are_alike(*suffixes)
        if self.is_one_program:
            graphs: list[torch.fx.Graph] = [RecordedGraph(), RecordedGraph()]
            for first, second in zip(*suffixes, strict=True):
                self._copy.seen[first] = self._copy.seen[second] = self._copy.copied(first)
        else:
            graphs = [self._suffix(nodes) for nodes in suffixes]
        for captured in (one, two):
            for name, symbol in captured.symbols.items():
                if name not in self._symbols and symbol.node in self._copy.seen:
                    self._symbols[name] = replace(symbol, node=self._copy.seen[symbol.node])
        outputs, mutations = self._ends(graphs)
        joined = Captured(
            graph=self._graph,
            inputs=[replace(graph_input, node=self._copy.seen[graph_input.node]) for graph_input in one.inputs],
            outputs=outputs,
            weights=self._weights,
            symbols=self._symbols,
            mutations=mutations,
            strategy=one.strategy,
            warnings=list(dict.fromkeys(one.warnings + two.warnings)),
            assumptions=list(dict.fromkeys([*self._notes, *one.assumptions, *two.assumptions])),
            restore=one.restore,
            sizes=self._decision.sizes,
            baked=one.baked,
            states_guards=one.states_guards,
        )
        decisions = self._one.decisions[: self._depth]
        for decision in decisions:
            decision.test = self._copy.mapped(decision.test)
        env = sizes_of_both(self._one.shape_env, self._two.shape_env, self._decision.test, self._decision.sizes)
        env.next_unbacked = self._unknowns
        return Path(joined, env, decisions)

    def _use_one_for_both(self) -> None:
        """Let one path stand for both if, with other sizes, it does what both do."""
        if not isinstance(self._decision.test, Relation):
            return
        one, two = self._one.captured, self._two.captured
        sets = sets_beside(self._one.shape_env, self._two.shape_env)
        serving = one_for_both(self._decision.test, one, two, self._decision.calls, sets)
        if serving is not None:
            self._one, self._two = (replace(path, captured=serving) for path in (self._one, self._two))
            self._notes = []

    def _keep_conditions_apart(self) -> None:
        """Check in each path of a data-dependent branch what that path alone needs of sizes."""
        test, one, two = self._decision.test, self._one, self._two
        if isinstance(test, Relation) and not test.symbols() & one.shape_env.unbacked:
            return
        for path, other in ((one, two), (two, one)):
            needed, captured = taken_out(path.shape_env, Noted.by(other.shape_env)), path.captured
            check_outputs(captured.graph, captured.outputs, captured.symbols, needed)
            note_checked(path.shape_env, needed)

    def _refused(self, why: str) -> UserError:
        return unjoined(self._error, why)

    def _heads(self) -> None:
        """Inputs and weights."""
        one, two = self._one.captured, self._two.captured
        for first, second in zip(one.inputs, two.inputs, strict=True):
            self._copy.seen[first.node] = self._copy.seen[second.node] = self._copy.copied(first.node)
        for weight in one.weights.values():
            self._add_weight(weight, weight.name)
        shared = list(one.weights.values())[: self._decision.weights]
        own = {id(weight.tensor): weight for weight in one.weights.values()}
        for index, weight in enumerate(two.weights.values()):
            same = shared[index] if index < len(shared) else one.weights.get(weight.name) or own.get(id(weight.tensor))
            if same is not None and (index < len(shared) or same.tensor is weight.tensor):
                self._copy.seen[weight.node] = self._copy.seen[same.node]
                continue
            name, taken = weight.name, {**one.weights, **self._weights}
            while name in taken:
                name += "_"
            self._add_weight(weight, name)

    def _add_weight(self, weight: Weight, name: str) -> None:
        node = self._graph.create_node("get_attr", name)
        node.meta = dict(weight.node.meta)
        self._copy.seen[weight.node] = node
        self._weights[name] = replace(weight, name=name, node=node)

    def _prefix(self) -> list[list[Node]]:
        """Copy the calls before the decision; give those that follow it, path by path."""
        calls = [
            [node for node in path.captured.graph.nodes if node.op == "call_function"]
            for path in (self._one, self._two)
        ]
        count = self._decision.calls
        other = self._two.decisions[self._depth]
        if (other.calls, other.weights) != (count, self._decision.weights):
            raise self._refused("another run of forward came to it another way")
        for first, second in zip(calls[0][:count], calls[1][:count], strict=True):
            if first.target is not second.target or first.meta["val"] != second.meta["val"]:
                raise self._refused(f"another run of forward called {second.target} in the place of {first.target}")
            self._copy.seen[first] = self._copy.seen[second] = self._copy.copied(first)
        return [nodes[count:] for nodes in calls]

    def _are_alike(self, one: Sequence[Node], two: Sequence[Node]) -> bool:
        """Return whether both paths do the same after the decision."""
        same = dict(self._copy.seen)

        def of_both(leaf: Any) -> Any:
            return same.get(leaf, leaf) if isinstance(leaf, Node) else leaf

        for first, second in zip(one, two, strict=False):
            args = [torch.fx.node.map_aggregate((node.args, node.kwargs), of_both) for node in (first, second)]
            if first.target is not second.target or first.meta["val"] != second.meta["val"]:
                return False
            if not _are_same(*args) or any(isinstance(part, Nested) for part in first.args):
                return False
            same[first] = same[second] = first
        return len(one) == len(two)

    def _suffix(self, nodes: Sequence[Node]) -> torch.fx.Graph:
        """The nodes as a graph of their own."""
        graph = RecordedGraph()
        self._copy.add(nodes, graph)
        return graph

    def _ends(self, graphs: Sequence[torch.fx.Graph]) -> tuple[list[GraphOutput], list[Mutation]]:
        one, two = self._one.captured, self._two.captured
        if [output.name for output in one.outputs] != [output.name for output in two.outputs]:
            names = [", ".join(output.name for output in captured.outputs) for captured in (one, two)]
            why = f"the branches return different structures ({names[0]}; {names[1]})"
            raise unjoined(
                self._error, why, "return as many tensors in each branch, or one padded or concatenated tensor"
            )
        changed = {mutation.name: mutation for captured in (two, one) for mutation in captured.mutations}
        before = {weight.name: weight.node for weight in self._weights.values()}
        before |= {graph_input.name: self._copy.seen[graph_input.node] for graph_input in one.inputs}
        values = ([self._copy.mapped(output.value) for output in captured.outputs] for captured in (one, two))
        pairs: list[tuple[object, object]] = list(zip(*values, strict=True))
        ends = {name: self._both_ends(name, mutation, before) for name, mutation in changed.items()}
        pairs += [pair for pair in ends.values() if pair is not None]
        chosen = self._chosen(graphs, pairs)
        outputs = [replace(output, value=value) for output, value in zip(one.outputs, chosen, strict=False)]
        nodes = iter(chosen[len(outputs) :])
        return outputs, [
            replace(each, node=None if ends[name] is None else next(nodes)) for name, each in changed.items()
        ]

    def _both_ends(self, name: str, mutation: Mutation, before: Mapping[str, Node]) -> tuple[Node, Node] | None:
        """The tensors that a change leaves on both paths; None where one path has no tensor for it, or another kind of
        tensor.
        """
        found = []
        for captured in (self._one.captured, self._two.captured):
            own = next((each for each in captured.mutations if each.name == name), None)
            if own is not None and own.node is not None:
                found.append(self._copy.seen[own.node])
            elif own is None and name in before:
                found.append(before[name])
            elif own is None and mutation.before is not None:
                found.append(self._head_of(mutation.before, name))
        if len(found) != 2 or found[0].meta["val"] != found[1].meta["val"]:
            return None
        return found[0], found[1]

    def _head_of(self, tensor: torch.Tensor, name: str) -> Node:
        """The node of a real tensor that no path read."""
        same = next((weight for weight in self._weights.values() if weight.tensor is tensor), None)
        if same is not None:
            return same.node
        node = self._graph.create_node("get_attr", name)
        node.meta["val"] = TensorInfo(tensor.dtype, tuple(tensor.shape))
        self._weights[name] = Weight(name, tensor, node, "constant")
        return node

    def _chosen(self, graphs: Sequence[torch.fx.Graph], pairs: Sequence[tuple[object, object]]) -> list[Any]:
        """The If, and for each pair the value that comes from either branch; a value that both have is that value."""
        places: dict[tuple[Node, Node], int] = {}
        pairs = [self._as_nodes(graphs, *pair) for pair in pairs]
        for first, second in pairs:
            if isinstance(first, Node) and isinstance(second, Node):
                if first is not second:
                    places.setdefault((first, second), len(places))
            elif not _are_same(first, second):
                raise self._refused(f"the branches return the numbers {first} and {second}; return a tensor instead")
        if not places:
            return [first for first, _ in pairs]
        infos = [self._joined(first.meta["val"], second.meta["val"]) for first, second in places]
        ends = [
            [self._widened(graph, pair[side], info) for pair, info in zip(places, infos, strict=True)]
            for side, graph in enumerate(graphs)
        ]
        sides = [
            Nested(graph, [], nodes, tuple(node.meta["val"] for node in nodes), path.captured.sizes)
            for graph, nodes, path in zip(graphs, ends, (self._one, self._two), strict=True)
        ]
        meta = {"where": self._decision.where, "module": ""}
        args: Any = (self._copy.mapped(self._decision.test), *sides, [])
        node = self._graph.call_function(HIGHER_ORDER["cond"], args)
        node.meta = {**meta, "val": tuple(infos)}
        parts = []
        for index, info in enumerate(infos):
            part = self._graph.call_function(operator.getitem, (node, index))
            part.meta = {**meta, "val": info}
            parts.append(part)
            for symbol in symbols_of(part):
                self._symbols.setdefault(symbol.name, symbol)
        return [parts[places[pair]] if pair in places else pair[0] for pair in pairs]

    def _as_nodes(self, graphs: Sequence[torch.fx.Graph], first: Any, second: Any) -> tuple[object, object]:
        """Two numbers of one kind that differ as nodes of the branches; others as they are."""
        dtypes = {_number_of(one) for one in (first, second)}
        dtype = next(iter(dtypes))
        is_known = isinstance(first, Node) and isinstance(second, Node)
        if len(dtypes) > 1 or dtype is None or is_known or _are_same(first, second):
            return first, second
        made = []
        for graph, number in zip(graphs, (first, second), strict=True):
            if not isinstance(number, Node):
                kind = torch.ops.aten.scalar_tensor.default if isinstance(number, Dim) else torch.ops.aten.full.default
                args: Any = (number,) if isinstance(number, Dim) else ([], number)
                number = graph.call_function(kind, args, {"dtype": dtype})
                number.meta = {"where": self._decision.where, "module": "", "val": TensorInfo(dtype, ())}
            made.append(number)
        return made[0], made[1]

    def _joined(self, one: TensorInfo, two: TensorInfo) -> TensorInfo:
        """The type of a value that comes from either branch; of two integer types, the one that holds both."""
        dtypes = {one.dtype, two.dtype}
        if (len(dtypes) > 1 and not dtypes <= _INTEGERS) or len(one.dims) != len(two.dims):
            step = "give both ways one dtype, as torch.tensor(numbers, dtype=torch.int64) does: without dtype= an empty list is float32"
            if len(one.dims) != len(two.dims):
                step = "give both ways tensors of as many axes"
            raise unjoined(self._error, f"the branches return different types, {one} and {two}", step)
        with no_dispatch():
            dtype = torch.promote_types(one.dtype, two.dtype)
        if len(dtypes) > 1:
            what = f"{dtype} from either branch of a decision by data: {one} and {two}"
            self._notes.append(Assumption(what, self._decision.where))
        return TensorInfo(dtype, tuple(map(self._size, one.dims, two.dims)))

    def _size(self, left: DimLike, right: DimLike) -> DimLike:
        """A size of a value that comes from either branch: one in which they differ is known only at run time."""
        if left == right or (self._at and isinstance(left, Dim) and left.is_at(self._at, right)):
            return left
        return self._unknown()

    def _widened(self, graph: torch.fx.Graph, node: Node, joined: TensorInfo) -> Node:
        """The result ``node`` of a branch, cast to the integer type that holds both branches' values where it needs
        one.
        """
        info = node.meta["val"]
        if info.dtype == joined.dtype:
            return node
        cast = graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": joined.dtype})
        cast.meta = dict(node.meta) | {"val": TensorInfo(joined.dtype, info.dims)}
        return cast

    def _unknown(self) -> Dim:
        self._unknowns += 1
        return Dim.unbacked(self._unknowns - 1)


def _are_same(one: object, other: object) -> bool:
    """Return whether numbers, or arguments of calls, are of one type and equal, and zeros of one sign."""
    return type(one) is type(other) and one == other and str(one) == str(other)


def _number_of(value: object) -> torch.dtype | None:
    """The dtype of a number, or of a node of one; None for anything else."""
    if isinstance(value, Dim):
        return torch.float64 if value.is_real else torch.int64
    if isinstance(value, Node):
        return value.meta["val"].dtype if not value.meta["val"].dims else None
    return _NUMBERS.get(type(value))
