"""Private names of onnx_ir: what its public interface does not offer, or only at a cost that grows with the graph.

Its constructors of shapes, notes and nodes look at all that they are given, which takes twice as long as what they make.
It lacks: the number of a value's uses and the uses themselves without a copy, the node before a node, inputs replaced all at once,
the removal of a node that nobody reads without a look at all outputs of the graph, and the fields of all nodes without a call for
each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from typing import Any, TypeAlias

import onnx_ir as ir

_READ = ir.Value()
_Attributes = type(ir.Node("", "", (_READ,)).attributes)
_Notes, _Usage = type(_READ.meta), type(next(iter(_READ.uses())))

Row: TypeAlias = tuple[ir.Node, str, str, Sequence[ir.Value | None], Sequence[ir.Value]]
"""A node, its domain, operator, inputs and outputs."""


def rows_of(graph: ir.Graph) -> list[Row]:
    """The nodes of a graph in order, with what every pass asks of them."""
    root, rows = graph._nodes._root, list[Row]()
    box = root.next
    while box is not root:
        node = box.value
        assert node is not None
        rows.append((node, node._domain, node._op_type, node._inputs, node._outputs))
        box = box.next
    return rows


def nodes_of_own_kind(graph: ir.Graph, op_types: Set[str]) -> list[ir.Node]:
    """The nodes of a graph, in order, that have one of these operators or one of a domain beside the standard one."""
    root, nodes = graph._nodes._root, list[ir.Node]()
    box = root.next
    while box is not root:
        node = box.value
        if node is not None and (node._domain or node._op_type in op_types):
            nodes.append(node)
        box = box.next
    return nodes


def names_of(graph: ir.Graph, *, nodes: bool = True) -> list[str]:
    """The names of a graph's inputs, weights, nodes and what they make; empty where one has none. ``nodes``: theirs, too."""
    names = [value._name or "" for value in (*graph._inputs.data, *graph._initializers.data.values())]
    for node, _, _, _, outputs in rows_of(graph):
        if nodes:
            names.append(node._name or "")
        names += [value._name or "" for value in outputs]
    return names


def dtypes_of(values: Iterable[ir.Value | None]) -> tuple[ir.DataType | None, ...]:
    """The dtypes of values, None where one is missing or of unknown type."""
    types = [None if value is None else value._type for value in values]
    return tuple(
        [None if each is None else each._dtype if type(each) is ir.TensorType else each.dtype for each in types]
    )


def is_read(value: ir.Value) -> bool:
    """Return whether a node reads the value or it is a graph output."""
    return value._is_graph_output or bool(value._uses)


def has_reader(node: ir.Node) -> bool:
    """Return whether a result of the node is read (``is_read``)."""
    return bool([value for value in node._outputs if value._uses or value._is_graph_output])


def fixed_shape(dims: tuple[int, ...]) -> ir.Shape:
    """The shape of sizes that are all known to be ints."""
    shape: ir.Shape = object.__new__(ir.Shape)
    shape._dims = list(dims)
    shape._denotations = [None] * len(dims)
    shape._frozen = False
    return shape


def copied_shape(shape: ir.Shape) -> ir.Shape:
    """A copy, which may be changed."""
    copy: ir.Shape = object.__new__(ir.Shape)
    copy._dims = list(shape._dims)
    copy._denotations = list(shape._denotations)
    copy._frozen = False
    return copy


def give_notes(value: ir.Value, notes: dict[str, Any]) -> None:
    """Give a new value its notes: ``value.meta.data`` is ``notes``."""
    value._metadata = store = object.__new__(_Notes)
    store.data = notes
    store._invalid_keys = set()


def new_node(
    domain: str,
    op_type: str,
    inputs: Iterable[ir.Value | None],
    attributes: Iterable[ir.Attr],
    outputs: Iterable[ir.Value],
    name: str,
    metadata: dict[str, str] | None = None,
) -> ir.Node:
    """A node that makes ``outputs``, values that no other node makes."""
    node: ir.Node = object.__new__(ir.Node)
    node._domain, node._op_type = "" if domain == "ai.onnx" else domain, op_type
    node._overload, node._version = "", None
    node._name, node.doc_string, node._graph, node.device_configurations = name, None, None, ()
    node._metadata, node._metadata_props = None, metadata
    node._attributes = held = object.__new__(_Attributes)
    held._owner = node
    held.data = {attribute._name: attribute for attribute in attributes}
    node._inputs, node._outputs = tuple(inputs), tuple(outputs)
    for index, value in enumerate(node._outputs):
        value._producer, value._index = node, index
    for index, read in enumerate(node._inputs):
        if read is not None:
            read._uses[_Usage(node, index)] = None
    return node


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


def set_inputs(node: ir.Node, changes: dict[int, ir.Value | None]) -> None:
    """Give ``node`` other inputs, by index. onnx_ir copies all of them for each that changes."""
    inputs = list(node._inputs)
    for index, value in changes.items():
        before, inputs[index] = inputs[index], value
        if before is not None:
            del before._uses[node, index]  # type: ignore[arg-type]  # a ``Usage`` is a tuple
        if value is not None:
            value._add_usage(node, index)
    dropped, node._inputs = node._inputs, tuple(inputs)
    if node.device_configurations:
        for before in dropped:
            if before is not None:
                node._drop_sharding_for_value(before)


def take_out(node: ir.Node) -> None:
    """Take a node that nobody reads out of its graph, as ``graph.remove(node, safe=True)`` does, but without a look at each of
    the graph's outputs and a copy of the inputs for each of them.
    """
    graph = node.graph
    assert graph is not None
    for index, value in enumerate(node._inputs):
        if value is not None:
            del value._uses[node, index]  # type: ignore[arg-type]
    node._inputs = (None,) * len(node._inputs)
    node.graph = None
    graph._nodes.remove(node)


def drop_initializer(value: ir.Value) -> None:
    """Take a weight that nobody reads out of its graph; one that is also a graph input stays."""
    if value._is_initializer and not value._is_graph_input and value._graph is not None and value._name is not None:
        del value._graph._initializers[value._name]
