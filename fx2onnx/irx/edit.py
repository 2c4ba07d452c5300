"""Editing onnx_ir graphs: replace a value, remove what became unread, merge where nodes came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from fx2onnx.irx.private_names import (
    Row,
    drop_initializer,
    has_reader,
    is_read,
    nodes_of_own_kind,
    rows_of,
    set_inputs,
    take_out,
)
from fx2onnx.irx.schema import GRAPH_BEARING

ORIGIN_KEYS = ("source", "aten", "fx")


def graphs_of(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph and the graphs nested in it (If, Loop, Scan), outer ones first."""
    pending = [model.graph]
    while pending:
        graph = pending.pop()
        yield graph
        for node in nodes_of_own_kind(graph, GRAPH_BEARING):
            pending += nested_graphs(node)


def graphs_with_rows(model: ir.Model) -> Iterator[tuple[ir.Graph, list[Row]]]:
    """``graphs_of``, each with the rows of its nodes, for passes that add no nested graphs while they look."""
    pending = [model.graph]
    while pending:
        graph = pending.pop()
        rows = rows_of(graph)
        for node, domain, op_type, _, _ in rows:
            if op_type in GRAPH_BEARING or domain:
                pending += nested_graphs(node)
        yield graph, rows


def nested_graphs(node: ir.Node) -> list[ir.Graph]:
    """The graphs that are attributes of ``node``."""
    if node.op_type not in GRAPH_BEARING and not node.domain:
        return []
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            found += attribute.as_graphs()
    return found


def can_replace(old: ir.Value, new: ir.Value) -> bool:
    """Return whether ``replace`` may be called: a graph output can only become a value that a node of its graph makes, and
    that is not an output itself.
    """
    if not old.is_graph_output():
        return True
    producer, old_producer = new.producer(), old.producer()
    return (
        producer is not None
        and old_producer is not None
        and producer.graph is old_producer.graph
        and not new.is_graph_output()
    )


def replace(old: ir.Value, new: ir.Value) -> list[ir.Node]:
    """Let all readers of ``old`` read ``new``; a graph output keeps its name. Returns the readers."""
    readers = replace_inputs([(old, new)])
    if old.is_graph_output():
        producer = old.producer()
        assert producer is not None
        assert producer.graph is not None
        outputs = producer.graph.outputs
        name = old.name
        for _ in range(outputs.count(old)):
            outputs[outputs.index(old)] = new
        old.name = None
        new.name = name
    return readers


def replace_inputs(pairs: Iterable[tuple[ir.Value, ir.Value]]) -> list[ir.Node]:
    """Let all nodes that read the first value of a pair read the second. Returns these nodes."""
    changes: dict[ir.Node, dict[int, ir.Value | None]] = {}
    for old, new in pairs:
        for user, index in old.uses():
            changes.setdefault(user, {})[index] = new
    for user, inputs in changes.items():
        set_inputs(user, inputs)
    return list(changes)


def remove_unread(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Remove those of ``nodes`` that nobody reads, then what only they read, weights included. Returns the removed."""
    pending, removed = list(nodes), []
    while pending:
        node = pending.pop()
        if node.graph is None or has_reader(node):
            continue
        nested = nested_graphs(node)
        read = [*dict.fromkeys(node.inputs)]
        read += [value for graph in nested for each in graph.all_nodes() for value in each.inputs]
        take_out(node)
        for graph in nested:
            _release(graph)
        removed.append(node)
        for value in read:
            if value is None:
                continue
            producer = value.producer()
            if producer is not None:
                pending.append(producer)
            elif not is_read(value):
                drop_initializer(value)
    return removed


def _release(graph: ir.Graph) -> None:
    """Nodes of a graph that is gone no longer read anything."""
    for node in graph.all_nodes():
        set_inputs(node, dict.fromkeys(range(len(node.inputs))))


def merged_origin(nodes: Iterable[ir.Node]) -> dict[str, str]:
    """The origin of the nodes, each place once: ``{"source": "model.py:3; model.py:7"}``."""
    origin: dict[str, dict[str, None]] = {}
    for node in nodes:
        given = node.metadata_props
        for key in ORIGIN_KEYS if given else ():
            text = given.get(key)
            if text:
                origin.setdefault(key, {}).update(dict.fromkeys(text.split("; ")))
    return {key: "; ".join(places) for key, places in origin.items()}
