"""The changes of forward that stay: tensors that it wrote into, and values that it put into attributes, lists and
dicts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import replace

import torch
import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.capture.captured import OF_CALLER, GraphInput, Mutation, Weight, where_of
from fx2onnx.capture.python.held import Snapshot
from fx2onnx.capture.python.held_names import NUMBERS, Change, Names
from fx2onnx.capture.python.inputs import Arguments
from fx2onnx.capture.python.module_state import memory_of
from fx2onnx.capture.python.stand_ins import SYMBOLIC
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.shapes.symnode import is_of_data
from fx2onnx.torchcompat.pytrees import flatten, is_dataclass

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
    held = {} if snapshot is None else Names(snapshot).tensors()
    written = _written(tracer, inputs, held)
    _refuse_overlapping(tracer, written, held)
    _warn_of_overlapping(tracer, written, {each.name: each.sample for each in inputs})
    in_objects = {leaf.name for leaf in arguments.leaves if leaf.place}
    written = [replace(each, kind="argument") if each.name in in_objects else each for each in written]
    assigned: list[Mutation] = []
    if snapshot is not None:
        changes = [
            each
            for each in Names(snapshot).changes()
            if given.get(each.name) is not each.after
            and (
                type(each.after) not in SYMBOLIC or type(each.before) in NUMBERS or is_of_data(each.after, tracer.sizes)
            )
        ]
        own = [
            each._replace(name=arguments.name_of(each.name), kind="argument") if arguments.name_of(each.name) else each
            for each in changes
        ]
        assigned = _assigned(tracer, own, written)
        _note_shared(assigned, held, {each.name for each in changes})
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
        weight = before.get(node)
        after = view.memory.present() if weight is None else tracer.values.node_of(weight)
        if after is not node:  # its .data may have been put back
            found.append(Mutation(name, kind, after, tracer.values.written[id(view.memory)], weight))
    return found


def _refuse_overlapping(tracer: Tracer, written: Collection[Mutation], held: Mapping[str, torch.Tensor]) -> None:
    """Raise UserError E103 where forward writes into memory of which the module holds another tensor, too: as a view of a buffer."""
    own = defaultdict(list)
    for weight in tracer.values.weights.values() if written else ():
        own[memory_of(weight.tensor)].append(weight)
    for mutation in written:
        before = mutation.before
        memory = None if before is None else memory_of(before)
        for weight in own[memory] if memory else ():
            if before is not None and weight.tensor is not before and _overlap(weight.tensor, before):
                name = next((name for name, tensor in held.items() if tensor is weight.tensor), weight.name)
                raise UserError(
                    "E103",
                    f"forward writes into {mutation.name}, which shares memory with {name}",
                    where=mutation.where,
                    why="the file has each as a tensor of its own",
                    next="take the view in forward, from the tensor that is written, instead of keeping both",
                )


def _warn_of_overlapping(tracer: Tracer, written: Iterable[Mutation], samples: Mapping[str, torch.Tensor]) -> None:
    """Say that forward writes into an argument that shares memory with another one: the file has two inputs."""
    for mutation in written:
        own = samples.get(mutation.name)
        for name, sample in samples.items():
            if own is not None and name != mutation.name and memory_of(own) and _overlap(own, sample):
                where = "" if mutation.where is None else f"   ({mutation.where})"
                tracer.warnings.append(
                    f"forward writes into {mutation.name}, which shares memory with {name}; in the file they are two inputs{where}"
                )


def _overlap(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Return whether an element of one tensor may lie where one of the other does."""
    if memory_of(one) != memory_of(two):
        return False
    (begin, end), (other_begin, other_end) = _extent(one), _extent(two)
    return begin < other_end and other_begin < end


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its memory from its first element to behind its last one."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    begin = int(tensor.storage_offset())
    return begin * tensor.element_size(), (begin + reach + 1 if tensor.numel() else begin) * tensor.element_size()


def _note_shared(assigned: list[Mutation], held: Mapping[str, torch.Tensor], changed: Container[str]) -> None:
    """Set ``also`` of each change of the module whose tensor stays in another place, too."""
    unchanged = {id(tensor): name for name, tensor in reversed([*held.items()]) if name not in changed}
    for place, each in enumerate(assigned):
        if each.before is not None and each.kind not in OF_CALLER:
            assigned[place] = replace(each, also=unchanged.get(id(each.before)))


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
        self._objects = {id(value) for _, value in arguments.objects()}
        self._before = dict(self._tensors())

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors inside containers, by names such as ``cache['key']`` and ``cache[0]``."""
        for leaf in flatten(self._given, self._is_object)[0]:
            part, place, *inner = leaf.keys
            if inner and isinstance(leaf.value, torch.Tensor):
                name = self._names[int(place)] if part == 0 else str(place)
                yield name + "".join(f"[{key!r}]" for key in inner), leaf.value

    def _is_object(self, value: object) -> bool:
        return is_dataclass(value) or id(value) in self._objects

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
