"""Private names of onnx_ir: what its public interface does not offer, or only at a cost that grows with the graph.

It lacks: the number of a value's uses and the uses themselves without a copy, the node before a node, inputs replaced all at once,
and the removal of a node that nobody reads without a look at all outputs of the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir


def uses_of(value: ir.Value) -> Collection[tuple[ir.Node, int]]:
    """The nodes that read the value, and at which input. ``value.uses()`` copies them."""
    return value._uses


def use_count(value: ir.Value) -> int:
    """The number of node inputs that read the value; ``uses()`` would copy them, which the readers of one value cannot
    all ask."""
    return len(value._uses)


def nodes_before(node: ir.Node) -> Iterator[ir.Node]:
    """The nodes of the same graph before ``node``, backwards, as the linked list has them: onnx_ir starts at an end."""
    assert node.graph is not None
    boxes = node.graph._nodes
    box = boxes._value_ids_to_boxes[id(node)].prev
    while box is not boxes._root:
        if box.value is not None:
            yield box.value
        box = box.prev


FEW_INPUTS = 16
"""The number of inputs beyond which onnx_ir is slow: it copies all of them in Python for each that changes."""


def set_inputs(node: ir.Node, changes: dict[int, ir.Value | None]) -> None:
    """Give ``node`` other inputs, by index."""
    if len(node.inputs) <= FEW_INPUTS:
        for index, value in changes.items():
            node.replace_input_with(index, value)
        return
    inputs = list(node.inputs)
    for index, value in changes.items():
        before, inputs[index] = inputs[index], value
        if before is not None:
            before._remove_usage(node, index)
        if value is not None:
            value._add_usage(node, index)
    node._inputs = tuple(inputs)


def take_out(node: ir.Node) -> None:
    """Take a node that nobody reads out of its graph, as ``graph.remove(node, safe=True)`` does, but without a look at each of
    the graph's outputs and a copy of the inputs for each of them.
    """
    graph = node.graph
    assert graph is not None
    set_inputs(node, dict.fromkeys(range(len(node.inputs))))
    node.graph = None
    graph._nodes.remove(node)
