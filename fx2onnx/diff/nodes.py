"""The differences between two graphs node by node: added, removed and changed ones."""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from fx2onnx.diff.matching import Side, is_commutative, matched
from fx2onnx.diff.opened import GraphPart, nested, operator, scope, source, title, type_of


@dataclass(frozen=True, slots=True)
class NodeChange:
    """One thing that is otherwise in the second file: an ``attribute``, an ``input``, the ``dtype`` or ``shape`` of an
    output; None where one side has it not.
    """

    what: str
    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts that tell a reader which node is meant."""

    name: str
    op_type: str
    graph: str
    scope: str
    source: str


@dataclass(frozen=True, slots=True)
class ChangedNode:
    """A node of both files, as the first one names it."""

    node: NodeFacts
    other_name: str
    changes: list[NodeChange]


@dataclass(slots=True)
class NodeDifferences:
    """The differences of all graphs, also of those inside nodes."""

    matched: int = 0
    renamed: int = 0
    moved: int = 0
    """Nodes that stand before another one of their graph in one file and behind it in the other."""
    added: list[NodeFacts] = field(default_factory=list)
    removed: list[NodeFacts] = field(default_factory=list)
    changed: list[ChangedNode] = field(default_factory=list)
    outputs: list[NodeChange] = field(default_factory=list)
    """The graph outputs that come from another node."""
    weights: dict[tuple[ir.Value, ir.Value], str] = field(default_factory=dict)
    """Weights at the same input of a node of both files, and the name of the first such node."""


def compare_parts(one: Side, other: Side, first: GraphPart, second: GraphPart, found: NodeDifferences) -> None:
    """Add to ``found`` what differs. Inputs of the parts that are the same have the same token."""
    for side, part in ((one, first), (other, second)):
        side.weights.update(part.weights)
    pairs = matched((one, other), (first, second))
    for node, counterpart in pairs.items():
        for value, same in zip(node.outputs, counterpart.outputs, strict=False):
            one.tokens[value] = other.tokens[same] = one.number("pair", len(one.tokens))
    found.matched += len(pairs)
    found.renamed += sum(node.name != counterpart.name for node, counterpart in pairs.items())
    found.moved += _moved([(one.opened.places[node], other.opened.places[pairs[node]]) for node in pairs])
    taken = set(pairs.values())
    found.removed += [_facts(node, first) for node in first.nodes if node not in pairs]
    found.added += [_facts(node, second) for node in second.nodes if node not in taken]
    for node in first.nodes:
        if node in pairs:
            changes = _changes(one, other, node, pairs[node], found)
            if changes:
                found.changed.append(ChangedNode(_facts(node, first), pairs[node].name or "", changes))
            _compare_nested(one, other, node, pairs[node], found)
    outputs = _paired_outputs(first, second)
    _note_weights(one, other, outputs, "", found)
    for value, same in outputs:
        if not _is_same(one, other, value, same):
            where = f" of {first.where}" if first.where else ""
            found.outputs.append(NodeChange("output", f"{value.name}{where}", *_places(one, other, value, same)))


def _paired_outputs(first: GraphPart, second: GraphPart) -> list[tuple[ir.Value, ir.Value]]:
    """The pairs of outputs: of the model by name, where both have the same names; else by order."""
    names = {value.name: value for value in second.outputs}
    if not first.where and {value.name for value in first.outputs} == names.keys():
        return [(value, names[value.name]) for value in first.outputs]
    return list(zip(first.outputs, second.outputs, strict=False))


def _compare_nested(one: Side, other: Side, node: ir.Node, counterpart: ir.Node, found: NodeDifferences) -> None:
    graphs, others = dict(nested(node)), dict(nested(counterpart))
    for name in graphs.keys() & others.keys():
        first, second = (
            side.opened.part(graph, f"{name} of {title(holder)}")
            for side, graph, holder in ((one, graphs[name], node), (other, others[name], counterpart))
        )
        for value, same in zip(first.inputs, second.inputs, strict=False):
            one.tokens[value] = other.tokens[same] = one.number("pair", len(one.tokens))
        compare_parts(one, other, first, second, found)


def _changes(one: Side, other: Side, node: ir.Node, counterpart: ir.Node, found: NodeDifferences) -> list[NodeChange]:
    before, after = one.attributes_of(node), other.attributes_of(counterpart)
    changes = [
        NodeChange(
            "attribute",
            name,
            *(_shown(side.attribute(each, name)) for side, each in ((one, node), (other, counterpart))),
        )
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]
    graphs, others = dict(nested(node)), dict(nested(counterpart))
    changes += [
        NodeChange("attribute", name, "a graph" if name in graphs else None, "a graph" if name in others else None)
        for name in sorted(graphs.keys() ^ others.keys())
    ]
    changes += _changed_inputs(one, other, node, counterpart, found)
    for index, (value, same) in enumerate(zip(node.outputs, counterpart.outputs, strict=False)):
        (dtype, shape), (other_dtype, other_shape) = type_of(value), type_of(same)
        if dtype is not None and other_dtype is not None and dtype != other_dtype:
            changes.append(NodeChange("dtype", f"output {index}", dtype, other_dtype))
        if shape is not None and other_shape is not None and not _same_sizes(shape, other_shape):
            changes.append(NodeChange("shape", f"output {index}", shape, other_shape))
    count, other_count = (sum(1 for value in each.outputs if value.name) for each in (node, counterpart))
    return changes + ([NodeChange("outputs", "", count, other_count)] if count != other_count else [])


def _changed_inputs(
    one: Side, other: Side, node: ir.Node, counterpart: ir.Node, found: NodeDifferences
) -> list[NodeChange]:
    ours, theirs = _inputs(node), _inputs(counterpart)
    longest = max(len(ours), len(theirs))
    ours += [None] * (longest - len(ours))
    theirs += [None] * (longest - len(theirs))
    if (
        is_commutative(node)
        and longest == 2
        and not _agree(one, other, ours, theirs)
        and _agree(one, other, ours, theirs[::-1])
    ):
        theirs.reverse()
    pairs = list(zip(ours, theirs, strict=True))
    _note_weights(one, other, pairs, title(node), found)
    return [
        NodeChange("input", str(index), *_places(one, other, value, same))
        for index, (value, same) in enumerate(pairs)
        if not _is_same(one, other, value, same)
    ]


def _note_weights(
    one: Side, other: Side, pairs: Iterable[tuple[ir.Value | None, ir.Value | None]], name: str, found: NodeDifferences
) -> None:
    for value, same in pairs:
        if value is not None and same is not None and value in one.weights and same in other.weights:
            found.weights.setdefault((value, same), name)


def _inputs(node: ir.Node) -> list[ir.Value | None]:
    """The inputs of the node, without what is left out at the end."""
    inputs = list(node.inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    return inputs


def _agree(one: Side, other: Side, ours: Iterable[ir.Value | None], theirs: Iterable[ir.Value | None]) -> bool:
    """Return whether they are the same, and weights of the same numbers."""
    return all(
        _is_same(one, other, value, same)
        and (value not in one.weights or same not in other.weights or _same_weight(one, other, value, same))
        for value, same in zip(ours, theirs, strict=True)
    )


def _same_weight(one: Side, other: Side, value: ir.Value | None, same: ir.Value | None) -> bool:
    assert value is not None
    assert same is not None
    return one.weight(one.weights[value], with_content=True) == other.weight(other.weights[same], with_content=True)


def _is_same(one: Side, other: Side, value: ir.Value | None, same: ir.Value | None) -> bool:
    """Return whether two values come from the same place. Any two weights do: their numbers are compared later."""
    if value is None or same is None:
        return value is same
    if value in one.weights and same in other.weights:
        return True
    token = one.tokens.get(value)
    return token is not None and token == other.tokens.get(same)


def _places(one: Side, other: Side, value: ir.Value | None, same: ir.Value | None) -> list[str | None]:
    """The producers of two values, in words that differ."""
    places = [_place(one, value), _place(other, same)]
    if places[0] == places[1] and value is not None and same is not None:
        nodes = (value.producer(), same.producer())
        places = [f"{place} ({operator(node)})" if node else place for place, node in zip(places, nodes, strict=True)]
    return places


def _place(side: Side, value: ir.Value | None) -> str | None:
    """The producer of a value, in words."""
    if value is None:
        return None
    if value in side.weights:
        return f"weight {value.name}"
    node = value.producer()
    if node is None:
        return f"input {value.name}"
    which = f" (output {value.index()})" if value.index() else ""
    return f"{title(node)}{which}"


def _facts(node: ir.Node, part: GraphPart) -> NodeFacts:
    return NodeFacts(title(node), operator(node), part.where, scope(node), source(node))


def _shown(value: Hashable) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return list(value) if isinstance(value, tuple) else value


def _same_sizes(shape: list[int | str | None], other: list[int | str | None]) -> bool:
    """Names of sizes are the exporter's inside the graph: one stands for the other there."""
    pairs = list(zip(shape, other, strict=False))
    return len(shape) == len(other) and all(
        one == two or not (isinstance(one, int) or isinstance(two, int)) for one, two in pairs
    )


def _moved(places: list[tuple[int, int]]) -> int:
    """The number of nodes that have to move so that the others stand in one order: all but the longest run that rises
    on both sides."""
    ends: list[int] = []
    for _, place in sorted(places):
        at = bisect.bisect_left(ends, place)
        ends[at : at + 1] = [place]
    return len(places) - len(ends)
