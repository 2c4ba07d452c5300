"""Signatures of nodes: numbers that are equal for equal nodes of both files, whatever their names and order."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import onnx_ir as ir

from fx2onnx.diff.opened import OpenedModel, Part, Tensor, nested, title
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
    """Of values whose counterpart is known: the same number on both sides."""
    weights: dict[ir.Value, Tensor] = field(default_factory=dict)
    """Of all parts that were looked at."""
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

    def forward(self, part: Part, *, exact: bool) -> dict[ir.Node, int]:
        """A number for each node that says what it computes from the part's inputs. ``exact``: with attributes and the
        numbers of weights.
        """
        found: dict[ir.Node, int] = {}
        self._forward(part, dict(self.tokens), exact, found)
        return found

    def _forward(
        self, part: Part, known: dict[ir.Value, int], exact: bool, found: dict[ir.Node, int]
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

    def backward(self, part: Part) -> dict[ir.Node, int]:
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
