"""The interface of a rewrite: ``match`` looks and never edits, ``build`` only emits, the driver does the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.private_names import has_reader, nodes_before, use_count, uses_of
from fx2onnx.irx.schema import ELEMENTWISE, MOVES, ROUNDS
from fx2onnx.irx.values import Dims, dims_of, known_array
from fx2onnx.sizes.expr import DimLike


class Why(str):
    """The reason why a rewrite refuses a node: one sentence."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class Match:
    """The findings of ``match`` that ``build`` needs: each rewrite adds its own fields.

    Matches are never compared; ``eq=False`` saves half the time that making such a class takes at import.
    """

    replaces: Sequence[ir.Value] | None = field(default=None, kw_only=True)
    """The values that ``build`` returns anew; default: the root's first output."""
    before: ir.Node | None = field(default=None, kw_only=True)
    """The node before which new nodes go; default: the root."""


M = TypeVar("M", bound=Match)


class Rewrite(ABC, Generic[M]):
    """One local change of the graph. Stateless."""

    roots: ClassVar[tuple[str, ...]]
    """Operators at which the pattern ends, those of other domains as ``domain::operator``."""
    since: ClassVar[int] = 1
    """Lowest opset that has the operators it emits."""
    changes_weights: ClassVar[bool] = False
    """True if the rewrite stores weights other than the module has them; such rewrites are skipped on request."""
    moves_rounding: ClassVar[bool] = False
    """True if a result may differ in its last bits. Not done where a reader rounds or compares
    (``rounding.is_rounded``)."""

    version: ClassVar[int] = 1
    """A number that changes with the meaning of the rewrite; ``proof.derivation`` has it too."""

    @property
    def name(self) -> str:
        return type(self).__name__

    @abstractmethod
    def match(self, node: ir.Node) -> M | Why:
        """Return whether the pattern ends at ``node``, whose operator is one of ``roots``. Must not edit."""

    @abstractmethod
    def build(self, op: Emit, m: M) -> ir.Value | Sequence[ir.Value]:
        """The value, new or existing, that takes the place of each in ``m.replaces``."""


@dataclass(frozen=True, eq=False)
class Kept(Match):
    value: ir.Value


class Removal(Rewrite[Kept]):
    """A rewrite that emits nothing: readers of the root read a value that was there before."""

    def build(self, op: Emit, m: Kept) -> ir.Value:
        return m.value


def produced_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that makes ``value``, if it is one of these operators of the standard domain."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type in op_types and not node.domain else None


def operand_produced_by(node: ir.Node, *op_types: str) -> tuple[ir.Node, ir.Value] | None:
    """The operand of a two-operand node that one of these operators makes and nobody else reads, and the other operand."""
    for index in (0, 1):
        producer = produced_by(node.inputs[index], *op_types)
        other = node.inputs[1 - index]
        if producer is not None and other is not None and sole_use(producer.outputs[0]):
            return producer, other
    return None


def sole_use(value: ir.Value) -> bool:
    """Return whether exactly one input reads the value and the graph does not give it out."""
    return not value.is_graph_output() and use_count(value) == 1


def sole_reader(value: ir.Value) -> ir.Node | None:
    """The one node that reads the value, at however many inputs, if it is not a graph output."""
    if value.is_graph_output():
        return None
    readers: set[ir.Node] = set()
    for user, _ in uses_of(value):
        readers.add(user)
        if len(readers) > 1:
            return None
    return readers.pop() if readers else None


MANY_READERS = 64
"""The number of readers beyond which only one of them looks at the others: if each did, the time would grow with its
square."""


def speaks_for_readers(node: ir.Node, value: ir.Value) -> bool:
    """Return whether ``node``, which reads ``value``, is to look for a change of all readers that are of its operator."""
    if use_count(value) <= MANY_READERS:
        return True
    return next(user for user, _ in uses_of(value) if user.op_type == node.op_type) is node


def first_reader(nodes: Collection[ir.Node], value: ir.Value) -> ir.Node:
    """The first of ``nodes``, which lie in one graph and read ``value``."""
    chosen, producer = set(nodes), value.producer()
    first = next(iter(nodes))
    for node in nodes_before(first):
        if node is producer:
            break
        if node in chosen:
            first = node
    return first


def required(node: ir.Node, index: int) -> ir.Value:
    """Input ``index``, without which the operator cannot be."""
    value = node.inputs[index]
    assert value is not None, f"{node.op_type} has no input {index}"
    return value


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Input ``index``, None where it is not given."""
    return node.inputs[index] if index < len(node.inputs) else None


def dims_or_none(value: ir.Value | None) -> Dims | None:
    """The dims, None where the rank is unknown."""
    return None if value is None or value.shape is None else dims_of(value)


def static_dims(value: ir.Value | None) -> tuple[int, ...] | None:
    """The dims where all are numbers, else None."""
    dims = dims_or_none(value)
    for dim in dims or ():
        if type(dim) is not int:
            return None
    return dims  # type: ignore[return-value]


def is_constant(value: ir.Value | None) -> bool:
    """Return whether the value is an initializer that no feed can replace."""
    return value is not None and value.const_value is not None and not value.is_graph_input()


FLOATING = frozenset(dtype for dtype in ir.DataType if dtype.is_floating_point())
"""The floating-point dtypes; asking one makes this set anew."""


def is_float(value: ir.Value) -> bool:
    return value.dtype in FLOATING


def scalar_of(value: ir.Value | None) -> float | None:
    """The number of a constant of one element (or of a splat of at most 64), else None."""
    if value is None or value.const_value is None or value.is_graph_input() or value.dtype == ir.DataType.STRING:
        return None
    array = known_array(value)
    if array is None or array.size == 0:
        return None
    if array.size == 1:
        return float(array.item())
    first = array.reshape(-1)[0]
    return float(first) if bool((array == first).all()) else None


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """The attribute's value as Python has it."""
    found = node.attributes.data.get(name)
    if found is None:
        return default
    value = found.value
    return list(value) if isinstance(value, tuple) else value


def attributes(node: ir.Node) -> dict[str, Any]:
    """All attributes as Python has them."""
    values = [(name, item.value) for name, item in node.attributes.data.items()]
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values}


def perm_of(node: ir.Node) -> tuple[int, ...] | None:
    """The permutation of a Transpose, None where it is left out and the rank unknown."""
    perm = attribute(node, "perm")
    if perm is not None:
        return tuple(perm)
    dims = dims_or_none(node.inputs[0])
    return None if dims is None else tuple(reversed(range(len(dims))))


def same_dims(lhs: Sequence[DimLike] | None, rhs: Sequence[DimLike] | None) -> bool:
    """Return whether both are known and equal."""
    return lhs is not None and rhs is not None and tuple(lhs) == tuple(rhs)


MAX_VALUES = 1000
"""The largest neighbourhood that is searched; a value with a larger one counts as rounded."""


def is_rounded(value: ir.Value, main: ir.Graph) -> bool:
    """Return whether a reader of the floating-point ``value`` rounds it, compares it or orders it: directly, or after elementwise
    operators and such that move elements. Of what a nested graph gives out, nothing is known.
    """
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        if current.is_graph_output() and current.graph is not main:
            return True
        for node, _ in uses_of(current):
            op_type = node.op_type
            if (op_type in ROUNDS or (op_type == "Cast" and _cuts(node))) and has_reader(node):
                return True
            if op_type in ELEMENTWISE or op_type in MOVES:
                pending += [result for result in node.outputs if result not in seen]
                seen.update(node.outputs)
        if len(seen) > MAX_VALUES:
            return True
    return False


def _cuts(cast: ir.Node) -> bool:
    """Return whether it casts to integers."""
    return cast.attributes["to"].as_int() not in FLOATING
