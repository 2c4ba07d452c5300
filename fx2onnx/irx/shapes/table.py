"""The table of shape rules: operator -> rule, and what rules share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import onnx_ir as ir

from fx2onnx.irx.values import Dims, dims_of, dtype_of, known_ints
from fx2onnx.sizes.expr import Dim, DimLike

Typed: TypeAlias = tuple[ir.DataType, Dims]
BOOL, INT64, FLOAT = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.FLOAT


@dataclass(slots=True)
class Call:
    """One operator call whose output types are wanted."""

    op_type: str
    inputs: Sequence[ir.Value | None]
    attrs: dict[str, Any]
    num_outputs: int
    names: tuple[str, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The sample's, of symbols."""

    def value(self, index: int) -> ir.Value:
        found = self.inputs[index]
        assert found is not None, f"{self.op_type} lacks input {index}"
        return found

    def dims(self, index: int = 0) -> Dims:
        return dims_of(self.value(index))

    def dtype(self, index: int = 0) -> ir.DataType:
        return dtype_of(self.value(index))

    def optional(self, name: str) -> ir.Value | None:
        """The input of that name, if given."""
        index = self.names.index(name) if name in self.names else -1
        return self.inputs[index] if 0 <= index < len(self.inputs) else None

    def ints(self, name: str) -> list[int] | None:
        """An integer list that is an attribute in some opsets and an input in others."""
        if name in self.attrs:
            return list(self.attrs[name])
        return known_ints(self.optional(name))


Rule: TypeAlias = Callable[[Call], list[Typed]]
RULES: dict[str, Rule] = {}


class UnknownShape(Exception):
    """The rule cannot tell; the caller has to give the output types."""


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for op_type in op_types:
            assert op_type not in RULES, f"two shape rules for {op_type}"
            RULES[op_type] = function
        return function

    return register


def infer(call: Call) -> list[Typed]:
    """Output types of ``call``. Raises UnknownShape."""
    found = RULES.get(call.op_type)
    if found is None:
        raise UnknownShape(f"no shape rule for {call.op_type}")
    return found(call)


def broadcast_dims(*shapes: Sequence[DimLike]) -> Dims:
    """NumPy broadcasting. A symbolic size beside a fixed size other than 1 is taken to be that size."""
    rank = max(map(len, shapes))
    result: list[DimLike] = []
    for axis in range(rank):
        size: DimLike = 1
        for shape in shapes:
            index = axis - rank + len(shape)
            if index < 0:
                continue
            dim = shape[index]
            if size == 1 or (isinstance(size, Dim) and isinstance(dim, int) and dim != 1):
                size = dim
        result.append(size)
    return tuple(result)


def as_dim(size: Any) -> DimLike:
    """A size that arithmetic gave."""
    return size if isinstance(size, Dim) else int(size)
