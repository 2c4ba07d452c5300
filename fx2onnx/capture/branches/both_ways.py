"""``if`` and ``else`` in a turn of a loop, recorded one after the other in one run of the turn: both ways give variables tensors and
numbers, which are joined where they meet.

Behind the statements of the first way, the variables are as before, and Python goes on at the line of the second way. So n such
statements cost n branches, where paths through the turn would be 2**n.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import NamedTuple

import torch
import torch.fx

from fx2onnx.capture.branches.statements import Conditional, read_later
from fx2onnx.capture.python.data_numbers import DataNumber
from fx2onnx.capture.python.held import MISSING, is_equal_number
from fx2onnx.capture.python.places import set_variables
from fx2onnx.capture.recording.decisions import IsNoBranch
from fx2onnx.capture.recording.nested import ValuesBefore
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import Memory, View, dims_of
from fx2onnx.capture.registry import load_family
from fx2onnx.capture.shapes.symnode import sym_int

Node = torch.fx.Node
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, DataNumber)


class EndedWay(NamedTuple):
    """One way, which was run to its end."""

    graph: torch.fx.Graph
    values: Mapping[str, object]
    """The variables that it gave other values."""
    tensors: Mapping[str, torch.Tensor]
    """The tensors of these variables, also of numbers."""
    written: Mapping[int, tuple[Memory, Node, int]]
    """The memories that it wrote into, by their ids, with what they hold behind it, and their versions."""


@dataclass(slots=True)
class TwoValues:
    """A variable that has one of two values."""

    name: str
    values: tuple[object, object]
    tensors: tuple[torch.Tensor, torch.Tensor]


def ended(
    tracer: Tracer, frame: FrameType, before: Mapping[str, object], graph: torch.fx.Graph, memories: ValuesBefore
) -> EndedWay:
    """The way that ends here; memories hold what they held before it. Raises IsNoBranch where it leaves something else than tensors and
    numbers.
    """
    now, later = frame.f_locals, read_later(frame)
    changed = {name: now.get(name, MISSING) for name in sorted({*before, *now} & later)}
    values = {name: value for name, value in changed.items() if value is not before.get(name, MISSING)}
    tensors = {name: _as_tensor(tracer, name, value) for name, value in values.items()}
    written = {id(memory): (memory, memory.present(), memory.version) for memory, _ in memories.written()}
    if not written.keys() <= memories.memories.keys():
        raise IsNoBranch("a weight is written")
    for memory, _, _ in written.values():
        _, memory.node, memory.version = memories.memories[id(memory)]
    return EndedWay(graph, values, tensors, written)


def goes_on_at(frame: FrameType, before: Mapping[str, object], statement: Conditional) -> Conditional:
    """The other way, at whose first line Python goes on, with the variables as before."""
    other = replace(statement, body=statement.orelse, orelse=())
    set_variables(frame, before)
    frame.f_lineno = other.body[0].lineno  # type: ignore[misc]
    return other


def pairs_of(tracer: Tracer, before: Mapping[str, object], one: EndedWay, two: EndedWay) -> list[TwoValues]:
    """The variables that one of two ways gave another value, with the values on both."""
    pairs = []
    for name in sorted({*one.values, *two.values}):
        values = [way.values.get(name, before.get(name, MISSING)) for way in (one, two)]
        if is_equal_number(*values):
            continue
        tensors = [way.tensors.get(name) for way in (one, two)]
        tensors = [
            _as_tensor(tracer, name, value) if has is None else has for has, value in zip(tensors, values, strict=True)
        ]
        pairs.append(TwoValues(name, tuple(values), _alike(tracer, (one, two), name, values, tensors)))  # type: ignore[arg-type]
    return pairs


def _alike(
    tracer: Tracer, ways: tuple[EndedWay, EndedWay], name: str, values: list[object], tensors: list[torch.Tensor]
) -> object:
    """The tensors of both ways, of which a number has the dtype of the tensor on the other one."""
    is_tensor = [isinstance(value, torch.Tensor) for value in values]
    if is_tensor[0] is not is_tensor[1]:
        number, graph = is_tensor.index(False), tracer.values.graph
        dtype = tensors[1 - number].dtype
        if not dtype.is_floating_point and tensors[number].dtype is not dtype:
            raise IsNoBranch(f"the variable {name} is a number on one way, and a tensor on the other")
        tracer.values.graph = ways[number].graph
        tensors[number] = tensors[number].to(dtype)
        tracer.values.graph = graph
    if tensors[0].dtype is not tensors[1].dtype or [*dims_of(tensors[0])] != [*dims_of(tensors[1])]:
        raise IsNoBranch(f"the variable {name} has two types")
    if any(tensor.stride() != torch.empty_like(tensor).stride() for tensor in tensors if tensor.dim() > 1):
        raise IsNoBranch(f"the variable {name} has two types")
    return tuple(tensors)


def write(before: ValuesBefore, ways: tuple[EndedWay, EndedWay], nodes: Mapping[int, Node]) -> None:
    """Have each memory that one of two ways wrote into hold the node of its value on both."""
    for key, node in nodes.items():
        memory, _, version = before.memories[key]
        memory.node = node
        memory.version = 1 + max(version, *(way.written[key][2] for way in ways if key in way.written))


def put(
    tracer: Tracer, frame: FrameType, pairs: list[TwoValues], nodes: list[Node], before: ValuesBefore
) -> list[Memory]:
    """Give each variable the value that it has of both. Returns the memories that may be one in eager PyTorch, which nothing may write
    into.
    """
    values, fixed = tracer.values, list[Memory]()
    held = [[values.view_of(one).memory for one in pair.values if isinstance(one, torch.Tensor)] for pair in pairs]
    counts = Counter(id(memory) for row in held for memory in row)
    for pair, node, memories in zip(pairs, nodes, held, strict=False):
        info = node.meta["val"]
        tensor = values.new_fake(info.dims, info.dtype, pair.tensors[0].device)
        values.views[id(tensor)] = View(Memory(node, info), (), node, info, 0, tensor)
        if any(id(memory) in before.memories or counts[id(memory)] > 1 for memory in memories):
            fixed += [values.views[id(tensor)].memory, *memories]
        joined: object = tensor
        if not any(isinstance(value, torch.Tensor) for value in pair.values):
            number_of = load_family("overloads.unbacked_scalars").number_of
            if info.dtype != torch.bool:
                joined = sym_int(tracer.sizes, number_of(tracer, node)) if info.dtype == torch.int64 else tensor.item()
        set_variables(frame, {**frame.f_locals, pair.name: joined})
    return fixed


def _as_tensor(tracer: Tracer, name: str, value: object) -> torch.Tensor:
    if not isinstance(value, (torch.Tensor, *_NUMBERS)):
        raise IsNoBranch(f"the variable {name} is neither a tensor nor a number on one way")
    return tracer.plugin("loops").as_tensor(value)  # type: ignore[no-any-return]
