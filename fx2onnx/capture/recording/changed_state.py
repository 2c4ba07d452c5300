"""The changes of forward that stay: tensors that it wrote into, and values that it put into attributes, lists and
dicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import torch
import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.capture.captured import GraphInput, Mutation, Weight, where_of
from fx2onnx.capture.python.held import Snapshot
from fx2onnx.capture.python.held_names import Change, Names
from fx2onnx.capture.python.inputs import Arguments
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.torchcompat.pytrees import flatten

_RANDOM = torch.Tag.nondeterministic_seeded


def mutations(
    tracer: Tracer,
    inputs: Iterable[GraphInput],
    snapshot: Snapshot | None,
    arguments: Arguments,
    given: Mapping[str, torch.Tensor],
) -> list[Mutation]:
    """Every change, under the name of what is changed; without a ``snapshot``, of inputs, parameters and buffers alone. ``given``
    was put into objects among the arguments before the run.
    """
    written = _written(tracer, inputs, {} if snapshot is None else Names(snapshot).tensors())
    in_objects = {leaf.name for leaf in arguments.leaves if leaf.places}
    written = [replace(each, kind="argument") if each.name in in_objects else each for each in written]
    assigned: list[Mutation] = []
    if snapshot is not None:
        changes = [each for each in Names(snapshot).changes() if given.get(each.name) is not each.after]
        own = [
            each._replace(name=arguments.name_of(each.name), kind="argument") if arguments.name_of(each.name) else each
            for each in changes
        ]
        assigned = _assigned(tracer, own, written)
    names = {mutation.name for mutation in assigned}
    return [*(mutation for mutation in written if mutation.name not in names), *assigned]


def _written(tracer: Tracer, inputs: Iterable[GraphInput], held: dict[str, torch.Tensor]) -> list[Mutation]:
    """Changes in place."""
    of_held = {id(tensor): name for name, tensor in reversed(held.items())}
    names = {graph_input.node: (graph_input.name, "input") for graph_input in inputs}
    names |= {weight.node: (weight.name, weight.kind) for weight in tracer.values.weights.values()}
    before = {weight.node: weight.tensor for weight in tracer.values.weights.values()}
    found = []
    for node, view in [*tracer.values.sources.items()]:
        name, kind = names[node]
        if id(view.memory) not in tracer.values.written:
            continue
        if kind == "constant":
            if id(view.tensor) not in of_held:
                continue
            name, kind = of_held[id(view.tensor)], "attribute"
            _rename(tracer, node, name)
        found.append(
            Mutation(name, kind, view.memory.present(), tracer.values.written[id(view.memory)], before.get(node))
        )
    return found


def _assigned(tracer: Tracer, changes: list[Change], written: list[Mutation]) -> list[Mutation]:
    """Changes of which object is where."""
    weights = {id(weight.tensor): weight for weight in tracer.values.weights.values()}
    state = {id(change.before) for change in changes} | {id(mutation.before) for mutation in written}
    kept = {weight.node for key, weight in weights.items() if key in state}
    found = []
    for change in changes:
        node = _node(tracer, change.after)
        if (
            change.kind == "attribute"
            and node is not None
            and id(change.before) not in weights
            and _is_memo(node, kept)
        ):
            continue  # computed from weights and sizes alone, as it will be again
        before = change.before if isinstance(change.before, torch.Tensor) else None
        weight = weights.get(id(before))
        if weight is not None and weight.kind == "constant":
            _rename(tracer, weight.node, change.name)
        where = None if node is None else where_of(node)
        found.append(Mutation(change.name, change.kind, node, where, before))
    return found


class Containers:
    """Lists, dicts and tuples among the arguments of one run, which gets copies of them, and the tensors in them before it."""

    def __init__(self, arguments: Arguments, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._given = args, kwargs
        self._names = [*arguments.values]
        self._before = dict(self._tensors())

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Those inside containers, by names such as ``cache['key']`` and ``cache[0]``."""
        for leaf in flatten(self._given, keeps_dataclasses=True)[0]:
            part, place, *inner = leaf.keys
            if inner and isinstance(leaf.value, torch.Tensor):
                name = self._names[int(place)] if part == 0 else str(place)
                yield name + "".join(f"[{key!r}]" for key in inner), leaf.value

    def changes(self, tracer: Tracer, outputs: Collection[torch.fx.Node]) -> list[Mutation]:
        """Tensors that the run put into them, and that are none of its ``outputs``: the file has no place for these."""
        found = []
        for name, tensor in self._tensors():
            node = None if tensor is self._before.get(name) else _node(tracer, tensor)
            if node is not None and node not in outputs:
                found.append(Mutation(name, "argument", None, where_of(node)))
        return found


def _node(tracer: Tracer, value: object) -> torch.fx.Node | None:
    if not isinstance(value, torch.Tensor):
        return None
    try:
        return tracer.values.node_of(value)
    except UserError:  # of another kind than operators take
        return None


def _is_memo(node: torch.fx.Node, state: set[torch.fx.Node]) -> bool:
    """Return whether neither inputs, nor what forward changes, nor random numbers lead to a value."""
    pending, seen = [node], set[torch.fx.Node]()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if current.op == "placeholder" or current in state or _RANDOM in getattr(current.target, "tags", ()):
            return False
        pending += current.all_input_nodes
    return True


def _rename(tracer: Tracer, node: torch.fx.Node, name: str) -> None:
    """Call a constant as the attribute that holds it."""
    if name not in tracer.values.weights:
        weights = [
            Weight(name, weight.tensor, node, weight.kind) if weight.node is node else weight
            for weight in tracer.values.weights.values()
        ]
        node.target = name
        tracer.values.weights = {weight.name: weight for weight in weights}
