"""Pairs of equal nodes of two files: by what they compute, by their weights, by their origin, by neighbours. Each pass
pairs what the ones before it left over; the strictest comes first.

Each pass pairs what the ones before it left over; the strictest comes first.
"""

from __future__ import annotations

import collections
import difflib
import enum
import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import onnx_ir as ir

from fx2onnx.diff.opened import GraphPart, OpenedModel, Tensor, nested, operator, scope, source, title
from fx2onnx.irx.schema import COMMUTATIVE
from fx2onnx.irx.values import dtype_name
from fx2onnx.semantics.schemas import onnx_schema

Numbers: TypeAlias = dict[Hashable, int]
"""A number for each thing that was seen, in either file: equal things have the same one."""
Attributes: TypeAlias = dict[str, Hashable]
_ABSENT, _UNKNOWN = -1, -2
"""Instead of a number: an input that is left out, and a value of outside whose counterpart is not known."""


@dataclass(slots=True, eq=False)
class Side:
    """One of the two files, with what its values are known as."""

    opened: OpenedModel
    numbers: Numbers
    """Shared by both sides."""
    tokens: dict[ir.Value, int] = field(default_factory=dict)
    """A number for each value whose counterpart is known, the same on both sides."""
    weights: dict[ir.Value, Tensor] = field(default_factory=dict)
    """The weights of all parts that were compared."""
    known_weights: dict[tuple[int, bool], int] = field(default_factory=dict)
    attributes: dict[ir.Node, Attributes] = field(default_factory=dict)

    def number(self, *key: Hashable) -> int:
        """The number of what ``key`` describes."""
        return self.numbers.setdefault(key, len(self.numbers))

    def weight(self, tensor: Tensor, *, with_content: bool) -> int:
        """A number for equal weights, or for those of one dtype and shape."""
        key = (id(tensor), with_content)
        if key not in self.known_weights:
            content = self.opened.digest(tensor) if with_content else ""
            shape = tuple(tensor.shape.numpy())
            self.known_weights[key] = self.number("weight", tensor.dtype.name, shape, content)
        return self.known_weights[key]

    def attributes_of(self, node: ir.Node) -> Attributes:
        """Attributes as values that compare, less those that say what holds without them; graphs are left out."""
        if node not in self.attributes:
            usual = self._defaults_of(node)
            found = {name: self._comparable(attribute) for name, attribute in node.attributes.items()}
            self.attributes[node] = {
                name: value
                for name, value in found.items()
                if value is not None and not (name in usual and usual[name] == value)
            }
        return self.attributes[node]

    def attribute(self, node: ir.Node, name: str) -> Hashable:
        """The value of an attribute for the node: its own, or ONNX's default."""
        return self.attributes_of(node).get(name, self._defaults_of(node).get(name))

    def _defaults_of(self, node: ir.Node) -> Mapping[str, Any]:
        return _defaults(node.op_type, node.domain, self.opened.model.opset_imports.get(node.domain, 0))

    def _comparable(self, attribute: ir.Attr) -> Hashable:
        if attribute.is_ref():
            return f"attribute {attribute.ref_attr_name} of the function"
        kind, value = attribute.type, attribute.value
        if kind in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return None
        if kind == ir.AttributeType.TENSOR:
            return self._tensor(attribute.as_tensor())
        if kind == ir.AttributeType.TENSORS:
            return tuple(map(self._tensor, attribute.as_tensors()))
        return tuple(value) if isinstance(value, list | tuple) else value if isinstance(value, Hashable) else str(value)

    def _tensor(self, tensor: Tensor) -> str:
        return f"{dtype_name(tensor.dtype)}{list(tensor.shape)} {self.opened.digest(tensor)[:16]}"

    def forward(self, part: GraphPart, *, exact: bool) -> dict[ir.Node, int]:
        """A number for each node that says what it computes from the part's inputs. ``exact``: with attributes and the
        numbers of weights.
        """
        found: dict[ir.Node, int] = {}
        self._forward(part, dict(self.tokens), exact, found)
        return found

    def _forward(
        self, part: GraphPart, known: dict[ir.Value, int], exact: bool, found: dict[ir.Node, int]
    ) -> tuple[int, ...]:
        for index, value in enumerate(part.inputs):
            if part.where:
                known.setdefault(value, self.number("input", index))
        self.weights.update(part.weights)
        for node in part.nodes:
            inner = tuple(
                (name, *self._forward(self.opened.part(graph, f"{name} of {title(node)}"), known, exact, {}))
                for name, graph in nested(node)
            )
            inputs = [self._token(value, known, exact) for value in node.inputs]
            if is_commutative(node):
                inputs.sort()
            own = tuple(sorted(self.attributes_of(node).items(), key=lambda item: item[0])) if exact else ()
            found[node] = self.number("node", node.domain, node.op_type, node.overload, own, tuple(inputs), inner)
            known.update({value: self.number("output", found[node], index) for index, value in enumerate(node.outputs)})
        return tuple(self._token(value, known, exact) for value in part.outputs)

    def _token(self, value: ir.Value | None, known: Mapping[ir.Value, int], exact: bool) -> int:
        if value is None:
            return _ABSENT
        if value in self.weights:
            return self.weight(self.weights[value], with_content=exact)
        return known.get(value, _UNKNOWN)

    def backward(self, part: GraphPart) -> dict[ir.Node, int]:
        """A number for each node that says what reads its results, down to the part's outputs."""
        found: dict[ir.Node, int] = {}
        places = {value: index for index, value in enumerate(part.outputs)}
        for node in reversed(part.nodes):
            uses = tuple(self._uses(value, places, found) for value in node.outputs)
            found[node] = self.number("read", node.domain, node.op_type, uses)
        return found

    def _uses(
        self, value: ir.Value, places: Mapping[ir.Value, int], found: Mapping[ir.Node, int]
    ) -> tuple[int, tuple[tuple[int, int], ...]]:
        readers = [(found.get(node, _UNKNOWN), 0 if is_commutative(node) else index) for node, index in value.uses()]
        return places.get(value, _ABSENT), tuple(sorted(readers))


def is_commutative(node: ir.Node) -> bool:
    """Return whether the order of the node's inputs makes no difference."""
    return not node.domain and node.op_type in COMMUTATIVE


@lru_cache(maxsize=4096)
def _defaults(op_type: str, domain: str, opset: int) -> Mapping[str, Any]:
    """The defaults of attributes in ONNX, for a node that does not have them."""
    schema = onnx_schema(op_type, opset, domain) if opset else None
    if schema is None:
        return {}
    found = {}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.name:
            value = ir.serde.deserialize_attribute(attribute.default_value).value
            found[name] = tuple(value) if isinstance(value, list | tuple) else value
    return found


Key: TypeAlias = Callable[[ir.Node], Hashable]
"""The key by which a pass compares nodes; None for a node that has none."""
Sides: TypeAlias = tuple[Side, Side]
Parts: TypeAlias = tuple[GraphPart, GraphPart]

Left: TypeAlias = tuple[dict[ir.Node, None], dict[ir.Node, None]]
"""Nodes without a counterpart so far."""

MOST_ALIGNED = 1_000_000
"""Pairs of nodes that an alignment by order looks at: of more, two models have little in common."""
LEAST_ELEMENTS = 16
"""Weights with fewer elements are axes, shapes and the like, of which many nodes have the same."""


class MatchedView:
    """A part of a model with the keys of its nodes, computed once."""

    def __init__(self, side: Side, part: GraphPart) -> None:
        self.side, self.part = side, part

    @functools.cached_property
    def above(self) -> dict[ir.Node, int]:
        """A number for each node that says what leads to it."""
        return self.side.forward(self.part, exact=False)

    @functools.cached_property
    def below(self) -> dict[ir.Node, int]:
        """A number for each node that says what reads its results."""
        return self.side.backward(self.part)

    def own(self, node: ir.Node) -> Hashable:
        """The attributes of the node, as a key."""
        return tuple(sorted(self.side.attributes_of(node).items(), key=lambda item: item[0]))


def matched(sides: Sides, parts: Parts) -> dict[ir.Node, ir.Node]:
    """Pairs of nodes of one operator, each node at most once."""
    pairs: dict[ir.Node, ir.Node] = {}
    left = (dict.fromkeys(parts[0].nodes), dict.fromkeys(parts[1].nodes))
    views = [MatchedView(side, part) for side, part in zip(sides, parts, strict=True)]
    for passed, takes, then_neighbours in _PASSES:
        if not all(left):
            break
        keys = [passed(view) for view in views]
        groups = [_groups(nodes, key) for nodes, key in zip(left, keys, strict=True)]
        for key, ours in groups[0].items():
            theirs = groups[1].get(key, [])
            if takes is Takes.FIRST or (len(ours) == len(theirs) and (takes is Takes.AS_MANY or len(ours) == 1)):
                for one, other in zip(ours, theirs, strict=False):
                    _take(left, pairs, one, other)
        if then_neighbours:
            _take_neighbours(sides, parts, left, pairs)
    _take_in_order(left, pairs)
    return pairs


def _exact(view: MatchedView) -> Key:
    return view.side.forward(view.part, exact=True).get


def _structure(view: MatchedView) -> Key:
    return lambda node: (view.above[node], view.below[node], scope(node), source(node), view.own(node))


def _content_of_weights(view: MatchedView) -> Key:
    side = view.side

    def key(node: ir.Node) -> Hashable:
        tensors = [side.weights[value] for value in node.inputs if value in side.weights]
        large = [tensor for tensor in tensors if math.prod(tensor.shape.numpy()) >= LEAST_ELEMENTS]
        return (operator(node), *map(side.opened.digest, large)) if large else None

    return key


def _names_of_weights(view: MatchedView) -> Key:
    side = view.side

    def key(node: ir.Node) -> Hashable:
        names = [value.name for value in node.inputs if value in side.weights and value.producer() is None]
        return (operator(node), *names) if names else None

    return key


def _origin_and_attributes(view: MatchedView) -> Key:
    return lambda node: (*origin, view.own(node)) if (origin := _origin_of(node)) else None


def _origin(view: MatchedView) -> Key:
    return lambda node: _origin_of(node) or None


def _origin_of(node: ir.Node) -> tuple[str, ...]:
    """Empty where the file does not say."""
    return (operator(node), scope(node), source(node)) if scope(node) or source(node) else ()


def _above(view: MatchedView) -> Key:
    return view.above.get


def _below(view: MatchedView) -> Key:
    return view.below.get


def _module(view: MatchedView) -> Key:
    return lambda node: (operator(node), scope(node)) if scope(node) else None


class Takes(enum.Enum):
    """The choice of pairs among nodes of one key, in the order in which they run."""

    ONE = enum.auto()
    """The nodes that are the only ones on their side."""
    AS_MANY = enum.auto()
    """All nodes, if there are as many on both sides."""
    FIRST = enum.auto()
    """The first ones, as many as there are on both sides."""


_PASSES: Sequence[tuple[Callable[[MatchedView], Key], Takes, bool]] = (
    (_exact, Takes.FIRST, False), (_structure, Takes.AS_MANY, False), (_content_of_weights, Takes.AS_MANY, False),
    (_names_of_weights, Takes.AS_MANY, False), (_origin_and_attributes, Takes.AS_MANY, False),
    (_origin, Takes.AS_MANY, False), (_above, Takes.ONE, False), (_below, Takes.ONE, True),
    (_module, Takes.FIRST, True), (_above, Takes.AS_MANY, True),
)  # fmt: skip
"""The passes in order: the key by which nodes are compared, the choice of pairs, and True if neighbours of pairs are
paired then. Neighbours come late: a node that was put in between may look like the one behind it."""


def _groups(nodes: Mapping[ir.Node, None], key: Key) -> dict[Hashable, list[ir.Node]]:
    groups: dict[Hashable, list[ir.Node]] = {}
    for node in nodes:
        found = key(node)
        if found is not None:
            groups.setdefault(found, []).append(node)
    return groups


def _take(left: Left, pairs: dict[ir.Node, ir.Node], one: ir.Node | None, other: ir.Node | None) -> bool:
    """Pair two nodes of one operator that are left over."""
    if one not in left[0] or other not in left[1] or operator(one) != operator(other):
        return False
    del left[0][one], left[1][other]
    pairs[one] = other
    return True


def _take_neighbours(sides: Sides, parts: Parts, left: Left, pairs: dict[ir.Node, ir.Node]) -> None:
    """Pair what makes the same input of paired nodes, and the only readers at the same input of paired values."""
    by_token = {sides[1].tokens.get(value): value for value in parts[1].inputs}
    values = [
        (value, by_token[token]) for value in parts[0].inputs if (token := sides[0].tokens.get(value)) in by_token
    ]
    near = [(one.producer(), other.producer()) for one, other in zip(parts[0].outputs, parts[1].outputs, strict=False)]
    near += [pair for one, other in values for pair in _only_readers(left, one, other)]
    for pair in near:
        _take(left, pairs, *pair)
    pending = collections.deque(pairs.items())
    while pending and all(left):
        node, same = pending.popleft()
        near = [
            (value.producer(), counterpart.producer())
            for value, counterpart in zip(node.inputs, same.inputs, strict=False)
            if value is not None and counterpart is not None and value.index() == counterpart.index()
        ]
        for value, counterpart in zip(node.outputs, same.outputs, strict=False):
            near += _only_readers(left, value, counterpart)
        for first, second in near:
            if first is not None and second is not None and _take(left, pairs, first, second):
                pending.append((first, second))


def _take_in_order(left: Left, pairs: dict[ir.Node, ir.Node]) -> None:
    """Pair what is left over by the order of operators alone, as far as both sides have the same."""
    ours, theirs = list(left[0]), list(left[1])
    if len(ours) * len(theirs) > MOST_ALIGNED:
        return
    operators = [[operator(node) for node in nodes] for nodes in (ours, theirs)]
    alignment = difflib.SequenceMatcher(a=operators[0], b=operators[1], autojunk=False)
    for start, other_start, length in alignment.get_matching_blocks():
        for index in range(length):
            _take(left, pairs, ours[start + index], theirs[other_start + index])


def _only_readers(left: Left, one: ir.Value, other: ir.Value) -> list[tuple[ir.Node | None, ir.Node | None]]:
    readers = [_readers(value, nodes) for value, nodes in zip((one, other), left, strict=True)]
    both = readers[0].keys() & readers[1].keys()
    return [
        (readers[0][key][0], readers[1][key][0])
        for key in readers[0]
        if key in both and len(readers[0][key]) == len(readers[1][key]) == 1
    ]


def _readers(value: ir.Value, nodes: Mapping[ir.Node, None]) -> dict[Hashable, list[ir.Node]]:
    """The readers of a value among ``nodes``, by operator and input."""
    groups: dict[Hashable, list[ir.Node]] = {}
    for node, index in value.uses():
        if node in nodes:
            groups.setdefault((operator(node), index), []).append(node)
    return groups
