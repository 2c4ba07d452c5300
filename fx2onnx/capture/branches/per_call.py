"""Data-dependent and shape-dependent decisions within the call of a submodule: for each outcome the submodule runs, not the module.

Windows of attention decide in each of four stages by height and by width. Runs of the whole module would be 25, one within
another in the file; runs of a block are up to four, and what follows it is in the file once.

What makes it exact: the call gives tensors of one type on every path, which share no memory with others, and changes nothing else
that Python could see. Where it is not so, the module is run as a whole for each path.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeAlias, cast

import torch
import torch.fx

from fx2onnx.base.code_patch import put_name
from fx2onnx.base.stack_frames import drop_frames
from fx2onnx.capture.attempt import Attempt, Failed, Outcome, Recorded
from fx2onnx.capture.branches.explore import Aborted, Exploration, undecided
from fx2onnx.capture.branches.if_bodies import IfBodies
from fx2onnx.capture.branches.merge import Path
from fx2onnx.capture.branches.noop_guards import NoopGuards
from fx2onnx.capture.branches.numbering import is_same_weight
from fx2onnx.capture.branches.watch import Contents, RunBefore, SideEffectWatch, adopt, lasting_changes
from fx2onnx.capture.captured import Captured, GraphInput, GraphOutput, TensorInfo, Weight
from fx2onnx.capture.rare_roads import RunPlugin, road
from fx2onnx.capture.recording.control_flow import GraphCopy, operands
from fx2onnx.capture.recording.decisions import DecisionTrace, NoPathsPerCall
from fx2onnx.capture.recording.meta_cache import IMMEDIATE, TensorFacts, contiguous_strides
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import Memory, View
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.sizes.facts import SizeFacts
from fx2onnx.torchcompat.graphs import RecordedGraph
from fx2onnx.torchcompat.modules import ModuleTree
from fx2onnx.torchcompat.pytrees import pytree

Node: TypeAlias = torch.fx.Node
_NO_SAMPLE = torch.empty(0)
Function: TypeAlias = Callable[..., object]


def explore_calls(tracer: Tracer, attempt: Attempt, tree: ModuleTree) -> None:
    """Until ``Changes`` end, each call of a module of ``attempt.branching.per_call`` has the branches of its decisions to itself."""
    exploration = tracer.plugins["paths of calls"] = CallExploration(tracer, attempt, tree)
    for module in tree.modules:
        if type(module) in attempt.branching.per_call and module is not attempt.root:
            put_name(vars(module), "forward", exploration.forward_of(module))


class CallExploration(RunPlugin):
    """The calls of modules of ``attempt.branching.per_call`` in one run."""

    def __init__(self, tracer: Tracer, attempt: Attempt, tree: ModuleTree) -> None:
        super().__init__(tracer)
        self.attempt, self.tree = attempt, tree
        self._given: dict[int, tuple[Memory, type]] = {}
        """Memories, by id, that a call of a module of that class gives as its own on one path, and was given on another."""

    def keep(self, memory: Memory, kind: type) -> None:
        """A write into ``memory`` would be one into another memory, too, on some paths of a call."""
        self._given[id(memory)] = (memory, kind)

    def before_write(self, memory: Memory) -> None:
        if id(memory) in self._given:
            raise NoPathsPerCall(self._given[id(memory)][1], "what it may have been called with is written into")

    def forward_of(self, module: torch.nn.Module) -> Function:
        """The module's ``forward``, whose paths are followed one by one where they may be."""
        original, thread = module.forward, threading.get_ident()

        @functools.wraps(original)
        def forward(*args: object, **kwargs: object) -> object:
            if threading.get_ident() != thread or not self._may_open((args, kwargs)):
                return original(*args, **kwargs)
            result = _Call(self, type(module), original, args, kwargs).result()
            return original(*args, **kwargs) if result is None else result[0]

        return forward

    def _may_open(self, given: object) -> bool:
        tracer = self.tracer
        env, bodies = tracer.sizes, tracer.plugins.get("if bodies")
        is_plain = tracer.values.graph is tracer.values.root and tracer.keeps_both() and not tracer.quantized
        if not is_plain or env.decides_at or (isinstance(bodies, IfBodies) and bodies.are_open):
            return False
        return all(
            isinstance(leaf, torch.Tensor | torch.SymInt) or type(leaf) in IMMEDIATE
            for leaf in pytree.tree_leaves(given)
        )


@dataclasses.dataclass
class _Result:
    """The results of a path, besides the nodes."""

    structure: pytree.TreeSpec
    values: list[tuple[object] | None]
    """None for each tensor."""
    kinds: list[TensorFacts]
    known: SizeFacts | None = None
    """The facts on sizes at the end of the path."""


class _Call:
    """One call, on all its paths."""

    def __init__(
        self,
        exploration: CallExploration,
        kind: type,
        function: Function,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        self._exploration = exploration
        self._tracer: Tracer = exploration.tracer
        self._kind, self._function, self._args, self._kwargs = kind, function, args, kwargs
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        nodes = dict.fromkeys(map(self._tracer.values.node_of, tensors))
        self._inputs = [node for node in nodes if node.op != "get_attr"]
        self._given: list[Memory] = []
        """Memories that a path gives although the call got them."""
        self._unbacked = self._tracer.sizes.unbacked
        self._constants: list[Weight] = []
        """The constants of all paths; equal ones are one."""
        self._results: list[_Result] = []
        self._runs = 0
        self._held = Contents(exploration.tree.modules, args, kwargs)

    def result(self) -> tuple[object] | None:
        """The result of the call; None where it has no branch, so that it needs no paths."""
        copies = self._copies()
        path = Exploration(self._run, self._exploration.attempt).explored(undecided(self._exploration.attempt))
        if not isinstance(path, Path):
            raise self._refused(
                f"a path through it ends: {path.failed.error if isinstance(path, Aborted) else path.error}"
            )
        if self._runs == 1:
            return None
        kinds = [self._of_all(place) for place in range(len(path.captured.outputs))]
        nodes = self._grafted(path.captured, kinds)
        adopt(self._tracer.sizes, path.shape_env)
        self._exploration.notes += path.captured.assumptions
        tensors = iter([self._tensor(node, kind) for node, kind in zip(nodes, kinds, strict=True)])
        first = self._results[0]
        leaves = [next(tensors) if value is None else value[0] for value in first.values]
        made = [self._tracer.values.view_of(leaf).memory for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for memory in (*self._given, *(made if self._given else ())):
            self._exploration.keep(memory, self._kind)
        for memory in made if self._copies() > copies else ():
            self._tracer.plugin("no-op guards").keep(memory)
        return (pytree.tree_unflatten(leaves, first.structure),)

    def _copies(self) -> int:
        """The number of tensors that were copied without need."""
        guards = self._tracer.plugins.get("no-op guards")
        return guards.count if isinstance(guards, NoopGuards) else 0

    def _refused(self, why: str) -> NoPathsPerCall:
        return NoPathsPerCall(self._kind, why)

    def _run(self, attempt: Attempt, trace: DecisionTrace) -> Outcome:
        tracer, why = self._tracer, ""
        attempt.request.budget.spend(attempt.change, runs=0)
        self._runs += 1
        watch = SideEffectWatch(lasting_changes(self._exploration.tree.modules))
        before = RunBefore(tracer, trace, watch)
        try:
            watch.begin()
            try:
                result = self._function(*self._args, **self._kwargs)
            finally:
                watch.end()
            why = watch.seen or before.changed() or ("a module is changed" if self._held.changed() else "")
            captured = None if why else self._standalone(tracer.values.graph, result, before, trace)
        except Exception as error:  # forward is the user's code; the run of the whole module says what of it counts
            captured, why = None, f"{type(error).__name__}: {str(error)[:200]}"
            if error is trace.undecided:  # a decision by data, which has no first answer
                return Failed(attempt, error)
            if trace.decisions and not any(decision.is_by_sizes for decision in trace.decisions):
                return Failed(attempt, road("a failed run").of_path(error))
            drop_frames(error)
        finally:
            env = before.restore()
        if captured is None:
            raise self._refused(why)
        captured.sizes = env.sizes()
        self._results[-1].known = env.facts
        return Recorded(attempt, captured, env)

    def _standalone(self, graph: torch.fx.Graph, result: object, before: RunBefore, trace: DecisionTrace) -> Captured:
        """The path as a program whose inputs are the values that the call got."""
        tracer = self._tracer
        leaves, structure = pytree.tree_flatten(result)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        tensors = [self._own(tensor, graph, before) for tensor in tensors]
        outputs = [tracer.values.node_of(tensor) for tensor in tensors]
        values = [None if isinstance(leaf, torch.Tensor) else (self._number(leaf),) for leaf in leaves]
        kinds = [tracer.types.type_of(tensor) for tensor in tensors]
        given = [size for kind in kinds for size in kind.sizes] + [unwrap(value[0]) for value in values if value]
        if _symbols(given) & tracer.sizes.unbacked:
            raise self._refused("it gives a data-dependent size")
        self._compare(_Result(structure, values, kinds))
        copied = GraphCopy(RecordedGraph())
        inputs = []
        for index, node in enumerate(self._inputs):
            placeholder = copied.graph.placeholder(f"in_{index}")
            placeholder.meta = dict(node.meta)
            copied.seen[node] = placeholder
            inputs.append(GraphInput(f"in_{index}", node.meta["val"], placeholder, _NO_SAMPLE, ""))
        weights: dict[str, Weight] = {}
        by_node = {weight.node: self._canonical(weight) for weight in tracer.values.weights.values()}
        for node in graph.nodes:
            for operand in operands(node):
                if operand in copied.seen or operand.graph is not tracer.values.root:
                    continue
                weight = by_node.get(operand)
                if weight is None:
                    raise self._refused("it uses a tensor that it was not called with")
                if weight.name not in weights:
                    made = copied.graph.create_node("get_attr", weight.name)
                    made.meta = dict(weight.node.meta)
                    weights[weight.name] = dataclasses.replace(weight, node=made)
                copied.seen[operand] = weights[weight.name].node
        copied.add(graph.nodes)
        if any(_symbols(_sizes_in(node)) & self._unbacked for node in copied.seen):
            raise self._refused("it uses a data-dependent size of what is around it")
        for decision in trace.decisions:
            if isinstance(decision.test, Node) and decision.test not in copied.seen:
                raise self._refused("it decides by a tensor that it was not called with")
            decision.test = copied.mapped(decision.test)
        given = [GraphOutput(f"out_{index}", copied.seen[node], "") for index, node in enumerate(outputs)]
        symbols = {
            name: dataclasses.replace(symbol, node=copied.seen[symbol.node])
            for name, symbol in tracer.values.symbols.items()
            if symbol.node in copied.seen
        }
        return Captured(copied.graph, inputs, given, weights, symbols, [], "fake")

    def _own(self, tensor: torch.Tensor, graph: torch.fx.Graph, before: RunBefore) -> torch.Tensor:
        """A tensor that was made on the path: a copy of one that was there before, which is not written into later."""
        tracer = self._tracer
        memory, node = tracer.values.view_of(tensor).memory, tracer.values.node_of(tensor)
        if node.graph is graph and before.is_new(memory):
            return tensor
        if node.graph is not graph and node not in self._inputs and node.op != "get_attr":
            raise self._refused("it gives a tensor that was there before")
        self._given.append(memory)
        copied: torch.Tensor = torch.ops.aten.clone.default(tensor)
        return copied

    def _number(self, leaf: object) -> object:
        value = unwrap(leaf)
        if type(value) not in IMMEDIATE and not isinstance(value, Dim):
            raise self._refused(f"it gives a {type(leaf).__name__}")
        return leaf

    def _compare(self, result: _Result) -> None:
        """Every path gives the same except for the numbers in its tensors."""
        self._results.append(result)
        first = self._results[0]
        if first.structure != result.structure or len(first.values) != len(result.values):
            raise self._refused("its paths give different structures")
        for one, other in zip(first.values, result.values, strict=True):
            is_tensor = one is None and other is None
            if not is_tensor and (one is None or other is None or unwrap(one[0]) != unwrap(other[0])):
                raise self._refused("its paths give different numbers")

    def _of_all(self, place: int) -> TensorFacts:
        """The type of a result, as it is written on one of the paths and right on all. Slices to sizes that are not known count as
        contiguous; they do on all paths where they do on one.
        """
        kinds = [result.kinds[place] for result in self._results]
        for kind in dict.fromkeys(kinds):
            is_contiguous = kind.strides == contiguous_strides(kind.sizes)
            if all(_is_as(kind, each.kinds[place], each.known, is_contiguous) for each in self._results):
                return kind
        joined = self._with_sizes_of_operands(kinds)
        if joined is not None:
            return joined
        raise self._refused(f"its paths give different types, {' and '.join(map(str, dict.fromkeys(kinds)))}")

    def _with_sizes_of_operands(self, kinds: list[TensorFacts]) -> TensorFacts | None:
        """The type whose sizes are those of operands of the call, where each path pads or cuts to these in its own way."""
        first = kinds[0]
        shapes = {(kind.dtype, len(kind.sizes), kind.device) for kind in kinds}
        if len(shapes) > 1 or any(kind.strides != contiguous_strides(kind.sizes) for kind in kinds):
            return None
        given = [dim for node in self._inputs for dim in node.meta["val"].dims]
        sizes = []
        for own in zip(*(kind.sizes for kind in kinds), strict=True):
            pairs = [(each.known, size) for each, size in zip(self._results, own, strict=True)]
            fits = (
                size
                for size in (*own, *given)
                if all(one == size or (known is not None and known.holds("eq", one, size)) for known, one in pairs)
            )
            sizes.append(next(fits, None))
        if any(size is None for size in sizes):
            return None
        found = cast(tuple[DimLike, ...], tuple(sizes))
        return first._replace(sizes=found, strides=cast(tuple[DimLike, ...], contiguous_strides(found)))

    def _canonical(self, weight: Weight) -> Weight:
        """A constant of another path that has the same numbers, if there is one."""
        if weight.kind != "constant":
            return weight
        for known in self._constants:
            if known.name == weight.name or is_same_weight(dataclasses.replace(known, name=weight.name), weight):
                return known
        self._constants.append(weight)
        return weight

    def _grafted(self, captured: Captured, kinds: list[TensorFacts]) -> list[Node]:
        """Add the nodes to those of the run; those that the outputs are now."""
        tracer = self._tracer
        copied = GraphCopy(tracer.values.graph)
        for graph_input, node in zip(captured.inputs, self._inputs, strict=True):
            copied.seen[graph_input.node] = node
        for weight in captured.weights.values():
            copied.seen[weight.node] = tracer.values.weights[weight.name].node
        copied.add(captured.graph.nodes)
        if not torch.is_grad_enabled():
            tracer.values.without_grad.update(copied.seen.values())
        for name, symbol in captured.symbols.items():
            tracer.values.symbols.setdefault(name, dataclasses.replace(symbol, node=copied.seen[symbol.node]))
        nodes = [output.value for output in captured.outputs]
        found = [copied.seen[node] for node in nodes if isinstance(node, Node)]
        known = self._tracer.sizes.hints.keys()
        for node, kind in zip(found, kinds, strict=True):
            if not _are_known(node.meta["val"].dims, known):  # of paths that say it in different ways
                if not _are_known(kind.sizes, known):
                    raise self._refused("its paths give different sizes")
                _set_sizes(node, kind.sizes)
        if not all(
            _are_known(_sizes_in(copy), known) for copy in copied.seen.values() if copy.graph is tracer.values.graph
        ):
            raise self._refused("it goes on with what its paths give in different sizes")
        return found

    def _tensor(self, node: Node, kind: TensorFacts) -> torch.Tensor:
        tracer = self._tracer
        info: TensorInfo = node.meta["val"]
        tensor = tracer.types.fresh(kind._replace(offset=0))
        tracer.values.add_view(View(Memory(node, info), (), node, info, 0, tensor))
        return tensor


def _are_known(dims: Iterable[object], symbols: Collection[str]) -> bool:
    return all(dim.symbols() <= set(symbols) for dim in dims if isinstance(dim, Dim))


def _set_sizes(node: Node, sizes: tuple[DimLike, ...]) -> None:
    """Say the sizes of a result of a node in another way, also where it is one of several of another node."""
    node.meta["val"] = dataclasses.replace(node.meta["val"], dims=tuple(sizes))
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        several, place = node.args[0], cast(int, node.args[1])
        infos = list(several.meta["val"])
        infos[place] = node.meta["val"]
        several.meta["val"] = tuple(infos)


def _symbols(sizes: Iterable[object]) -> frozenset[str]:
    return frozenset[str]().union(*(size.symbols() for size in sizes if isinstance(size, Dim)))


def _sizes_in(node: Node) -> Iterator[object]:
    """The sizes of a node's results, and those among its arguments."""
    infos = node.meta.get("val")
    for info in infos if isinstance(infos, tuple) else (infos,):
        if isinstance(info, TensorInfo):
            yield from info.dims
    yield from pytree.tree_leaves((node.args, node.kwargs))


def _is_as(kind: TensorFacts, other: TensorFacts, known: SizeFacts | None, with_any_strides: bool) -> bool:
    """Return whether two types are the same at the sizes of a path."""
    if kind == other:
        return True
    pairs = [*zip(kind.sizes, other.sizes, strict=False)]
    if not with_any_strides:
        pairs += zip(kind.strides, other.strides, strict=False)
    is_alike = (kind.dtype, len(kind.sizes), kind.device) == (other.dtype, len(other.sizes), other.device)
    return is_alike and known is not None and all(one == two or known.holds("eq", one, two) for one, two in pairs)
