"""The result of a capture: a functional ATen graph and everything said about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.fx

from fx2onnx.base.source import SourceLocation
from fx2onnx.sizes.assumptions import Assumed, Condition, Guard
from fx2onnx.sizes.expr import Dim, DimLike, Scalar

REPEAT = "repeat"
"""The key in a node's ``meta`` of the number of a program, and of the copy that the node belongs to. The copies differ
in nothing but the nodes that they take."""


NEXT = ".next"
"""The end of the names of outputs that hold the new value of what forward writes into."""
RETURNS_STATE = "fx2onnx_returns_state"
"""An attribute of a module that returns the new values of all state, so that what forward assigns is none."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """dtype and dims of a value, as PyTorch has them. dims are ints or ``sizes.expr.Dim``."""

    dtype: torch.dtype
    dims: tuple[DimLike, ...]

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}[{', '.join(map(str, self.dims))}]"


@dataclass(slots=True)
class GraphInput:
    """A graph input. ``dims`` holds the names the user gave to dynamic axes."""

    name: str
    info: TensorInfo
    node: torch.fx.Node
    sample: torch.Tensor
    path: str
    """The place in the arguments, such as ``input_ids`` or ``past[0]``."""


@dataclass(slots=True)
class GraphOutput:
    """A graph output: a node's value, or a plain number that forward returned."""

    name: str
    value: torch.fx.Node | Scalar | bool
    path: str


@dataclass(slots=True)
class Weight:
    """A parameter, a buffer or a constant of forward. ``tensor`` is the module's own, never a copy."""

    name: str
    tensor: torch.Tensor
    node: torch.fx.Node
    kind: str
    """``parameter``, ``buffer`` or ``constant``."""


@dataclass(slots=True)
class Mutation:
    """A buffer, an input, or what an attribute holds, that forward changes; ``node`` is its value afterwards, None where that is
    no tensor.
    """

    name: str
    kind: str
    node: torch.fx.Node | None
    where: SourceLocation | None
    before: torch.Tensor | None = None
    """The module's own tensor, which a file with ``state="io"`` has an input for; None where there was none."""
    also: str | None = None
    """A second place of the module that holds ``before`` and keeps it."""


@dataclass(slots=True)
class Symbol:
    """A named size and where its number comes from: axis of an input or node, or (None) the node's own value."""

    name: str
    node: torch.fx.Node
    axis: int | None

    def origin(self) -> str:
        """The text that says what the number is, with the line."""
        where = where_of(self.node)
        place = f" ({where.relative_file()}:{where.line})" if where is not None else ""
        if self.axis is not None:
            operator = getattr(self.node.target, "overloadpacket", self.node.target)
            return f"the size of axis {self.axis} of {getattr(operator, '__name__', operator)}'s result{place}"
        if self.node.op == "placeholder":
            return f"the value of the input {self.node.target}"
        return f"a number from data{place}"


def symbols_of(node: torch.fx.Node) -> Iterator[Symbol]:
    """The sizes of a node's value that are symbols, each as that axis."""
    for axis, dim in enumerate(node.meta["val"].dims):
        name = dim.as_symbol() if isinstance(dim, Dim) else None
        if name is not None:
            yield Symbol(name, node, axis)


@dataclass(slots=True)
class Captured:
    """A module as a functional ATen graph.

    Nodes are ``placeholder``, ``get_attr`` (weights), ``call_function`` of ATen overloads, ``getitem`` for outputs of
    overloads with several. ``meta["val"]`` is a ``TensorInfo``, ``meta["where"]`` the user's line, ``meta["module"]``
    the module path. Sizes in arguments are ints or ``Dim``.
    """

    graph: torch.fx.Graph
    inputs: list[GraphInput]
    outputs: list[GraphOutput]
    weights: dict[str, Weight]
    symbols: dict[str, Symbol]
    mutations: list[Mutation]
    strategy: str
    strategy_reason: str = ""
    attempts: list[str] = field(default_factory=list)
    """Every run of the module: by which strategy, and what made it differ from the one before."""
    assumptions: list[Assumed] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    baked: list[str] = field(default_factory=list)
    """Inputs whose sample values are constants of the graph."""
    sizes: dict[str, int] = field(default_factory=dict)
    """The size of each symbol at which the module ran; none for those that the data gives."""
    states_guards: bool = False
    """A file has to say by which orders of sizes it was decided; else whoever asked for one branch sees to that."""
    numbers_read: list[tuple[torch.fx.Node, SourceLocation | None]] = field(default_factory=list)
    """Values whose numbers Python took, and the lines: what these led to is in the graph as a constant."""
    restore: Callable[[list[Any]], Any] | None = None
    """Rebuilds forward's output structure from the flat tensors."""

    def sample_sizes(self) -> dict[str, int]:
        """The sizes that the example inputs have."""
        samples = {each.node: each.sample for each in self.inputs}
        return {
            name: int(samples[symbol.node].shape[symbol.axis])
            for name, symbol in self.symbols.items()
            if symbol.axis is not None and symbol.node in samples
        }

    def has_sizes_of_data(self) -> bool:
        """True if a size depends on data."""
        return any(symbol.node.op != "placeholder" or symbol.axis is None for symbol in self.symbols.values())

    def broken_at(self, sizes: Mapping[str, int]) -> list[Condition | Guard]:
        """The conditions that the file would state and that these sizes break."""
        return [
            assumed
            for assumed in self.assumptions
            if isinstance(assumed, Condition) or (isinstance(assumed, Guard) and assumed.is_stated)
            if assumed.relation.symbols() <= sizes.keys() and not assumed.relation.is_true_at(sizes)
        ]


class Carried(NamedTuple):
    """A change that a file can have an output for."""

    name: str
    kind: str
    node: torch.fx.Node


OF_CALLER = ("input", "argument")
"""Kinds of what the caller holds, not the module: tensors, and those in objects."""


def carried(captured: Captured, lift_state: bool = True) -> list[Carried]:
    """The changes that a file has outputs for, with its state as inputs and outputs or without."""
    asked = (each for each in captured.mutations if lift_state or each.kind == "argument")
    found = ((each.name, each.kind, each.node) for each in asked)
    return [Carried(name, kind, node) for name, kind, node in found if node is not None]


def where_of(node: torch.fx.Node) -> SourceLocation | None:
    where: SourceLocation | None = node.meta.get("where")
    return where


def label_of(node: torch.fx.Node) -> tuple[str, str, SourceLocation | None]:
    """Name, module path and source line, for the tracer of events."""
    return str(node.target), node.meta.get("module") or "", where_of(node)


def describe(node: torch.fx.Node) -> str:
    """One line: name, target, operand names, type."""
    operands = ", ".join(str(arg)[:40] for arg in node.args)
    values = node.meta.get("val")
    types = ", ".join(map(str, values)) if isinstance(values, tuple | list) else str(values)
    return f"%{node.name} = {node.target}({operands[:120]})  -> {types}"
