"""Redundant nodes and weights: those that are equal become one, those that nobody reads go."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.data_file import pieces_of
from fx2onnx.irx.edit import can_replace, graphs_with_rows, remove_unread, replace
from fx2onnx.irx.private_names import Row, drop_initializer, has_reader, is_read
from fx2onnx.irx.schema import COMMUTATIVE, is_random
from fx2onnx.optimize.rewrite import operand
from fx2onnx.optimize.weights import is_literal, lacks_data

PIECE_BYTES = 1 << 20


def merge_equal_weights(model: ir.Model) -> int:
    """Returns how many weights were replaced by another one of the same dtype, shape and numbers.

    Refuses:   weights that feeds can replace, or that are graph outputs; strings.
    Cost:      only weights of one dtype and shape are read, piece by piece.
    """
    alike: dict[Hashable, list[ir.Value]] = defaultdict(list)
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or lacks_data(tensor) or value.is_graph_input() or value.is_graph_output():
            continue
        if tensor.dtype != ir.DataType.STRING and tensor.nbytes:
            alike[tensor.dtype, tuple(tensor.shape)].append(value)
    merged = 0
    for values in alike.values():
        first: dict[bytes, ir.Value] = {}
        for value in values if len(values) > 1 else ():
            same = first.setdefault(_digest(value.const_value), value)
            if same is not value:
                replace(value, same)
                drop_initializer(value)
                merged += 1
    return merged


def _digest(tensor: ir.TensorProtocol | None) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces_of(tensor, PIECE_BYTES):
        memory = np.empty(piece.length, np.uint8)
        made = piece.make(memory)
        digest.update((memory if made is None else made).data)
    return digest.digest()


SMALL_BYTES = 1024
"""Constants above this are not compared by content."""


_COMPARED = frozenset(
    {
        *(ir.AttributeType.FLOAT, ir.AttributeType.INT, ir.AttributeType.STRING, ir.AttributeType.TENSOR),
        *(ir.AttributeType.FLOATS, ir.AttributeType.INTS, ir.AttributeType.STRINGS),
    }
)


def merge_equal_nodes(model: ir.Model) -> int:
    """Returns how many nodes and constants were merged into an earlier equal one.

    Refuses: random operators, Dropout in training mode, custom domains, nodes with graphs inside, a node of another
    graph, two that are both graph outputs. Weights of the module stay apart, whatever they hold.
    """
    merged = _merge_constants(model)
    for _, rows in list(graphs_with_rows(model)):
        merged += _merge_nodes(rows)
    return merged


def _merge_constants(model: ir.Model) -> int:
    found: dict[Hashable, ir.Value] = {}
    merged = 0
    for value in list(model.graph.initializers.data.values()):
        tensor = value.const_value
        if tensor is None or not is_literal(tensor) or tensor.nbytes > SMALL_BYTES or value.is_graph_input():
            continue
        if value.is_graph_output():
            continue
        key = (tensor.dtype, tuple(tensor.shape), tensor.tobytes())
        first = found.setdefault(key, value)
        if first is not value:
            replace(value, first)
            drop_initializer(value)
            merged += 1
    return merged


def _merge_nodes(rows: Iterable[Row]) -> int:
    beside: dict[Hashable, ir.Node] = {}
    found: dict[Hashable, ir.Node] = {}
    merged = 0
    for node, _, op_type, _, _ in rows:
        other = beside.setdefault((op_type, frozenset(node.inputs)), node)
        key = None if other is node else _key(node)
        if key is None:
            continue
        found.setdefault(_key(other), other)
        first = found.setdefault(key, node)
        if first is node:
            continue
        pairs = list(zip(node.outputs, first.outputs, strict=True))
        if not all(can_replace(old, new) for old, new in pairs):
            continue
        for old, new in pairs:
            replace(old, new)
        remove_unread([node])
        merged += 1
    return merged


def _key(node: ir.Node) -> Hashable | None:
    """The key that equal nodes share; None for nodes that are never equal."""
    if is_random(node.domain, node.op_type) or not node.inputs:
        return None
    if node.op_type == "Dropout" and operand(node, 2) is not None:
        return None
    attributes: list[Hashable] = []
    given = node.attributes.data
    for name in sorted(given):
        item = given[name]
        if item.is_ref() or item.type not in _COMPARED:
            return None
        if item.type == ir.AttributeType.TENSOR:
            tensor = item.as_tensor()
            if tensor.nbytes > SMALL_BYTES:
                return None
            attributes.append((name, tensor.dtype, tuple(tensor.shape), tensor.tobytes()))
        else:
            attributes.append((name, item.type, repr(item.value)))  # 0.0 is equal to -0.0
    inputs = [id(value) for value in node.inputs]
    if node.op_type in COMMUTATIVE and not node.domain:
        inputs.sort()
    return (node.domain, node.op_type, node.overload, tuple(inputs), tuple(attributes), len(node.outputs))


def remove_dead_nodes(model: ir.Model) -> int:
    """Remove nodes and initializers that no output depends on, in nested graphs too. Returns how many were removed."""
    removed, graphs = 0, list(graphs_with_rows(model))
    for _, rows in graphs:
        dead = [row[0] for row in rows if not has_reader(row[0])]
        removed += len(remove_unread(dead))
    for graph, _ in graphs:
        for value in list(graph.initializers.data.values()):
            if not is_read(value):
                drop_initializer(value)
                removed += not value.is_initializer()
    return removed
