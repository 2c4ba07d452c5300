"""``torch.cond``, ``while_loop``, ``scan`` and ``map``: their functions become nested graphs.

A nested graph refers to nodes of the graph around it directly, as ONNX subgraphs do. What one branch alone needs of sizes holds
for it, and for nobody who does not come there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch
import torch.fx

from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.recording.decisions import Test
from fx2onnx.capture.recording.nested import nested, writes_outside
from fx2onnx.capture.recording.size_checks import Relations, steps, with_checks
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import NeedsDecomposition, Values, dims_of, tensor_info
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.assumptions import Assumption, Condition, Guard
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import EVERY, where_true
from fx2onnx.torchcompat.dispatch import PreDispatchMode, SplitMode
from fx2onnx.torchcompat.graphs import RecordedGraph
from fx2onnx.torchcompat.operators import CUSTOM_FUNCTION, HIGHER_ORDER
from fx2onnx.torchcompat.pytrees import flatten

Function: TypeAlias = Callable[..., object]
"""A function that is given to a control-flow operator."""


@dataclass(slots=True, eq=False)
class Nested:
    """A nested graph: placeholders, and the nodes that it returns (its own or outer ones)."""

    graph: torch.fx.Graph
    inputs: list[torch.fx.Node]
    outputs: list[torch.fx.Node]
    infos: tuple[TensorInfo, ...]
    sizes: dict[str, int] | None = None
    """Sizes at which this branch is taken, where the example's are not such."""

    def __str__(self) -> str:
        return f"graph of {len(self.graph.nodes)} nodes"


def operands(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The operands of a node, those that its nested graphs take from outside among them."""
    found = list(node.all_input_nodes)
    for arg in node.args:
        if isinstance(arg, Nested):
            found += [operand for inner in arg.graph.nodes for operand in operands(inner)] + arg.outputs
        elif isinstance(arg, list | tuple):
            found += [part for part in arg if isinstance(part, torch.fx.Node)]
    return found


class GraphCopy:
    """Nodes copied into ``graph``, nested graphs too. ``keeps_names``: the copies are called as what they are copies of."""

    def __init__(self, graph: torch.fx.Graph, *, keeps_names: bool = False) -> None:
        self.graph, self._keeps_names = graph, keeps_names
        self.seen: dict[torch.fx.Node, torch.fx.Node] = {}
        """The copy of each node, or what else takes its place."""
        self.shares_others = False
        """Nodes that nothing stands for stand for themselves, as they are of the same graph."""

    def add(self, nodes: Iterable[torch.fx.Node], graph: torch.fx.Graph | None = None) -> None:
        """Copy those that nothing stands for yet, into ``graph`` where it is given."""
        for node in nodes:
            if node not in self.seen:
                self.seen[node] = self.copied(node, graph)

    def copied(self, node: torch.fx.Node, graph: torch.fx.Graph | None = None) -> torch.fx.Node:
        """A copy of ``node``, which stands for it only where ``seen`` says so."""
        name = node.name if self._keeps_names else None
        args, kwargs = self.mapped(node.args), self.mapped(node.kwargs)
        made = (self.graph if graph is None else graph).create_node(node.op, node.target, args, kwargs, name)
        made.meta = dict(node.meta)
        return made

    def mapped(self, value: Any, rewritten: Callable[[object], Any] = lambda leaf: leaf) -> Any:
        """``value`` with what stands for its nodes, and copies of its nested graphs; other parts are ``rewritten``."""

        def of_leaf(leaf: object) -> Any:
            if isinstance(leaf, torch.fx.Node):
                return self.seen.get(leaf, leaf) if self.shares_others else self.seen[leaf]
            return self._nested(leaf) if isinstance(leaf, Nested) else rewritten(leaf)

        return torch.fx.node.map_aggregate(value, of_leaf)

    def _nested(self, nested: Nested) -> Nested:
        graph = RecordedGraph()
        self.add(nested.graph.nodes, graph)
        inputs, outputs = ([self.seen[node] for node in nodes] for nodes in (nested.inputs, nested.outputs))
        return Nested(graph, inputs, outputs, nested.infos, nested.sizes)


def _as_tensor(tracer: Tracer, value: object) -> torch.Tensor:
    """A tensor for a number among the operands of control flow."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, torch.SymInt | int | float | bool):
        dtype = torch.bool if isinstance(value, bool) else torch.float32 if isinstance(value, float) else torch.int64
        with tracer.mode:
            made: torch.Tensor = torch.ops.aten.scalar_tensor.default(value, dtype=dtype)
        return made
    raise tracer.values.refuse("E107", f"control flow handles a {type(value).__name__}", next="give and return tensors")


def record_nested(
    tracer: Tracer, function: Function, operands: Sequence[torch.Tensor]
) -> tuple[Nested, Callable[[list[Any]], Any]]:
    """Run ``function`` on fakes of the operands' types into a graph of its own. Returns it, and what rebuilds the function's
    result from a flat list.
    """
    with nested(tracer.values) as graph:
        fakes = [tracer.values.new_fake(dims_of(operand), operand.dtype, operand.device) for operand in operands]
        inputs = [tracer.values.add_input(f"arg_{index}", fake) for index, fake in enumerate(fakes)]
        with tracer.mode:
            result = function(*fakes)
        if any(tracer.values.view_of(fake).memory.version for fake in fakes):
            raise writes_outside(tracer.values)
        leaves, rebuild = flatten(result)
        values = [_as_tensor(tracer, leaf.value) for leaf in leaves]
        nodes = [tracer.values.node_of(value) for value in values]
        infos = tuple(map(tensor_info, values))
    return Nested(graph, inputs, nodes, infos), rebuild


def _results(tracer: Tracer, name: str, args: tuple[object, ...], infos: Sequence[TensorInfo]) -> list[torch.Tensor]:
    """Add the node of a control-flow operator; its results are new tensors."""
    fakes = [tracer.values.new_fake(info.dims, info.dtype) for info in infos]
    tracer.finish(HIGHER_ORDER[name], (), (args, {}), tuple(fakes))
    return fakes


@dataclass(frozen=True)
class Noted:
    """The facts on sizes that were noted up to some point, or by another run."""

    conditions: Collection[Condition]
    guards: Collection[tuple[Relation, bool]]

    @classmethod
    def by(cls, env: ShapeEnv) -> Noted:
        return cls(set(env.facts.conditions), set(env.guards))


def taken_out(env: ShapeEnv, others: Noted) -> Relations:
    """The relations that ``env`` states and ``others`` do not, as far as nodes can check them, with the lines; ``env``
    states them no more.
    """
    taken: dict[Relation, SourceLocation | None] = {}
    names: set[str] = set()
    left = [*env.facts.conditions]
    for condition in env.facts.conditions:
        if condition not in others.conditions and steps(condition.relation):
            taken[condition.relation] = condition.where
            names.add(condition.name)
            left.remove(condition)
    checked: set[tuple[Relation, bool]] = set()
    for key, guard in env.guards.items():
        is_needed = guard.relation.op == "eq" and 1 not in guard.relation.args
        is_stated = is_needed or guard.is_stated or guard.relation in env.facts.stated
        if is_stated and key not in others.guards and steps(guard.relation):
            taken[guard.relation] = guard.where
            checked.add(key)
    env.without_guards(checked)
    env.know(conditions=dict.fromkeys(left))
    for name in names:
        _say_anew(env, name)
    return taken


def note_checked(env: ShapeEnv, relations: Relations) -> None:
    """Say in the report that a branch checks ``relations``."""
    for relation, where in relations.items():
        env.note_assertion(
            Assumption(f"{relation}, where a branch by data needs it", where, "assertion"), is_learnt=False
        )


def _say_anew(env: ShapeEnv, name: str) -> None:
    """Note for which values of the size the run is after all conditions that are left."""
    sizes = EVERY
    for condition in env.facts.conditions:
        sizes = sizes & condition.sizes if condition.name == name else sizes
    for relation in env.facts.supposed:
        true = where_true(relation) if relation.symbols() == {name} else None
        sizes = sizes if true is None else sizes & true
    found = {} if sizes == EVERY else {name: sizes}
    others, written = (
        {key: each for key, each in sets.items() if key != name} for sets in (env.facts.sets, env.facts.written_for)
    )
    env.know(sets={**others, **found}, written_for={**written, **found})


def _branch(
    tracer: Tracer, function: Function, operands: Sequence[torch.Tensor], test: object, *, is_then: bool = True
) -> tuple[Nested, Callable[[list[Any]], Any]]:
    """One side of ``torch.cond``. What only it needs of sizes holds where they lead to it, or is checked in it."""
    env = tracer.sizes
    before = Noted.by(env)
    nested, rebuild = record_nested(tracer, function, operands)
    needed = taken_out(env, before)
    if isinstance(test, Relation) and not test.symbols() & env.unbacked:
        for relation, where in needed.items():
            unless = Relation("or", (test.negated() if is_then else test, relation))
            env.note_guard(Guard(unless, where, by_user=True, ends_run=True))
    elif nested.outputs:
        nested.outputs[0] = with_checks(nested.graph, nested.outputs[0], tracer.values.symbols, needed)
        note_checked(env, needed)
    return nested, rebuild


def cond(
    tracer: Tracer,
    pred: torch.Tensor | torch.SymBool,
    true_fn: Function,
    false_fn: Function,
    operands: Sequence[object] = (),
) -> object:
    """``torch.cond`` -> If. Both branches must return the same dtypes and shapes, as torch itself demands."""
    leaves, rebuild_operands = flatten(tuple(operands))
    tensors = [leaf.value for leaf in leaves]

    def on_flat(function: Function) -> Function:
        return lambda *values: function(*rebuild_operands(list(values)))

    test = pred.node.value if isinstance(pred, torch.SymBool) else tracer.values.node_of(pred)
    then, rebuild = _branch(tracer, on_flat(true_fn), tensors, test)
    otherwise, _ = _branch(tracer, on_flat(false_fn), tensors, test, is_then=False)
    if [(info.dtype, len(info.dims)) for info in then.infos] != [(i.dtype, len(i.dims)) for i in otherwise.infos]:
        raise tracer.values.refuse(
            "E107",
            "the branches of torch.cond return different types",
            why=f"{', '.join(map(str, then.infos))} and {', '.join(map(str, otherwise.infos))}",
            next="make both branches return tensors of the same dtype and shape",
        )
    pairs = zip(then.infos, otherwise.infos, strict=True)
    infos = [TensorInfo(one.dtype, joined_dims(one, two, tracer.sizes.new_unbacked)) for one, two in pairs]
    nodes = [tracer.values.node_of(tensor) for tensor in tensors]
    results = _results(tracer, "cond", (test, then, otherwise, nodes), infos)
    for result in results:
        tracer.values.tie_symbols(tracer.values.view_of(result).node)
    return rebuild(results)


def record_cond(
    values: Values, test: Test, sides: Sequence[tuple[torch.fx.Graph, list[torch.fx.Node]]], types: Sequence[TensorInfo]
) -> list[torch.fx.Node]:
    """The values of one of two recorded graphs, as an ``If``: of the first where the test holds."""
    infos = tuple(types)
    nested = [Nested(graph, [], nodes, infos) for graph, nodes in sides]
    node = values.call(HIGHER_ORDER["cond"], (test, *nested, []), {}, infos)
    return [values.call(operator.getitem, (node, place), {}, info) for place, info in enumerate(infos)]


def decides_by_sizes(graph: torch.fx.Graph) -> bool:
    """Return whether it holds a branch by a comparison of sizes."""
    return any(
        isinstance(arg, Relation) or (isinstance(arg, Nested) and decides_by_sizes(arg.graph))
        for node in graph.nodes
        if node.target in HIGHER_ORDER.values()
        for arg in node.args
    )


def joined_dims(one: TensorInfo, two: TensorInfo, new_unbacked: Callable[[], Dim]) -> tuple[DimLike, ...]:
    """The sizes of a value that comes from either branch: one in which they differ is known only at run time."""
    return tuple(left if left == right else new_unbacked() for left, right in zip(one.dims, two.dims, strict=True))


def while_loop(
    tracer: Tracer,
    cond_fn: Function,
    body_fn: Function,
    carried_inputs: Sequence[object],
    additional_inputs: Sequence[object] = (),
) -> tuple[torch.Tensor, ...]:
    """``torch.while_loop`` -> Loop."""
    carried = [_as_tensor(tracer, value) for value in carried_inputs]
    extra = [_as_tensor(tracer, value) for value in additional_inputs]
    test, _ = record_nested(tracer, cond_fn, [*carried, *extra])
    body, _ = record_nested(tracer, body_fn, [*carried, *extra])
    infos = tuple(map(tensor_info, carried))
    if body.infos != infos:
        raise tracer.values.refuse(
            "E107",
            "the body of torch.while_loop changes the type of what it carries",
            why=f"{', '.join(map(str, infos))} become {', '.join(map(str, body.infos))}",
            next="keep dtype and shape of every carried tensor",
        )
    nodes = [tracer.values.node_of(tensor) for tensor in carried]
    others = [tracer.values.node_of(tensor) for tensor in extra]
    return tuple(_results(tracer, "while_loop", (test, body, nodes, others), infos))


def scan(
    tracer: Tracer,
    combine_fn: Function,
    init: Sequence[object],
    xs: Sequence[torch.Tensor],
    additional_inputs: Sequence[object] = (),
) -> list[torch.Tensor]:
    """``scan`` along axis 0 -> Scan: ``combine_fn(*carry, *slices, *additional)`` gives new carry and one output a step. ``map``
    carries nothing.
    """
    carry = [_as_tensor(tracer, value) for value in init]
    extra = [_as_tensor(tracer, value) for value in additional_inputs]
    slices = [tracer.values.new_fake(dims_of(tensor)[1:], tensor.dtype, tensor.device) for tensor in xs]
    body, _ = record_nested(tracer, combine_fn, [*carry, *slices, *extra])
    length = dims_of(xs[0])[0]
    infos = list(body.infos[: len(carry)])
    infos += [TensorInfo(info.dtype, (length, *info.dims)) for info in body.infos[len(carry) :]]
    nodes, *args = ([tracer.values.node_of(tensor) for tensor in group] for group in (carry, xs, extra))
    return record_scan(tracer, body, nodes, *args, infos=infos)


def record_scan(
    tracer: Tracer,
    body: Nested,
    carry: list[torch.fx.Node],
    xs: list[torch.fx.Node],
    extra: Sequence[torch.fx.Node] = (),
    *,
    infos: Sequence[TensorInfo],
    is_left: bool = False,
    begins: torch.fx.Node | None = None,
) -> list[torch.Tensor]:
    """Add the node of a scan whose body is recorded. ``infos``: the types of its results. ``is_left``: the last output of the body
    says whether there is another turn, and ``begins``, where it is given, whether there is a first. Without ``xs`` the body takes
    the number of the turn in the place of slices.
    """
    go_on = [True if begins is None else begins] if is_left else []
    return _results(tracer, "scan", (body, carry, xs, [*extra], *go_on), infos)


_HANDLERS: dict[str, Function] = {
    "cond": cond,
    "while_loop": while_loop,
    "scan": scan,
    "map_impl": lambda tracer, function, xs, pos_args=(), **_: scan(tracer, function, (), xs, pos_args),
}


@lru_cache(maxsize=1)
def register() -> None:
    """Give torch's higher-order operators their implementations under our modes, once in a process."""
    for name, handler in _HANDLERS.items():

        def rule(
            mode: PreDispatchMode | SplitMode, *args: object, _handler: Function = handler, **kwargs: object
        ) -> object:
            tracer = mode._handler().__self__
            tracer.values.mark()
            return _handler(tracer, *args, **kwargs)

        for kind in (PreDispatchMode, SplitMode):
            HIGHER_ORDER[name].py_impl(kind)(rule)
    CUSTOM_FUNCTION.py_impl(PreDispatchMode)(_refuse_whole)


def _refuse_whole(*_: object, **__: object) -> object:
    raise NeedsDecomposition
