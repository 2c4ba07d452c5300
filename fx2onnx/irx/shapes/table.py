"""The table of shape rules: operator -> rule, what rules share, and how a graph's operands are checked against each other while it is built.

Two sizes contradict each other where their difference is a number other than 0, or is one at the sizes of the example
inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import onnx_ir as ir

from fx2onnx.base.errors import InternalError, UserError
from fx2onnx.irx.schema import OpSchema
from fx2onnx.irx.values import Dims, dims_of, dtype_name, dtype_of, known_ints
from fx2onnx.sizes.bounds import certain
from fx2onnx.sizes.expr import Dim, DimLike, product

Typed: TypeAlias = tuple[ir.DataType, Dims]
BOOL, INT64, FLOAT = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.FLOAT


@dataclass(slots=True)
class ShapeCall:
    """One operator call whose output types are wanted."""

    op_type: str
    inputs: Sequence[ir.Value | None]
    attrs: dict[str, Any]
    num_outputs: int
    names: tuple[str, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The example's sizes of symbols."""

    def value(self, index: int) -> ir.Value:
        found = self.inputs[index]
        assert found is not None, f"{self.op_type} lacks input {index}"
        return found

    def dims(self, index: int = 0) -> Dims:
        return dims_of(self.inputs[index] or self.value(index))

    def dtype(self, index: int = 0) -> ir.DataType:
        return dtype_of(self.inputs[index] or self.value(index))

    def optional(self, name: str) -> ir.Value | None:
        """The input of that name, if given."""
        index = self.names.index(name) if name in self.names else -1
        return self.inputs[index] if 0 <= index < len(self.inputs) else None

    def ints(self, name: str) -> list[int] | None:
        """An integer list that is an attribute in some opsets and an input in others; None where it is left out.

        Raises UnknownShape where it is computed.
        """
        if name in self.attrs:
            return list(self.attrs[name])
        found = known_ints(self.optional(name))
        if found is None and self.optional(name) is not None:
            raise UnknownShape(f"{self.op_type} by computed {name}")
        return found


Rule: TypeAlias = Callable[[ShapeCall], list[Typed]]
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


def infer(call: ShapeCall) -> list[Typed]:
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
            if size == 1 or (isinstance(size, Dim) and (dim != 1 if isinstance(dim, int) else _gives_way(size, dim))):
                size = dim
        result.append(size)
    return tuple(result)


def _gives_way(size: Dim, other: Dim) -> bool:
    """Return whether ``size`` is at most one and the other may be more, such as ``min(1, n)`` beside ``n``."""
    return size != other and certain("le", size, 1) is True and certain("le", other, 1) is None


def as_dim(size: Any) -> DimLike:
    """A size that arithmetic gave."""
    return size if isinstance(size, Dim) else int(size)


class Contradiction(InternalError):
    """E900: operands that do not fit, or a value of another shape than it has in PyTorch."""


def differ(one: DimLike, other: DimLike, sizes: Mapping[str, int]) -> bool:
    """Return whether the two sizes are known to be unlike. ``sizes`` are the example's."""
    if one == other:
        return False
    gap = one - other
    if not isinstance(gap, Dim):
        return gap != 0
    try:
        return gap.evaluate(sizes) != 0
    except (KeyError, ZeroDivisionError):
        return False


def misfit(schema: OpSchema, dtypes: Sequence[ir.DataType | None]) -> ir.DataType | Literal["unlike"] | None:
    """The dtype that the operator does not take, ``unlike`` where inputs that must have one dtype have not, None where all
    fits. The dtype of an absent input is None, an unknown one UNDEFINED.
    """
    for index, dtype in enumerate(dtypes):
        allowed = schema.dtypes_of(index) if dtype else None
        if allowed is not None and dtype not in allowed:
            return dtype
    for one, other in schema.alike:
        repeats = other == len(schema.input_names)
        for dtype in dtypes[other:] if repeats else dtypes[other : other + 1]:
            if dtype is not None and dtypes[one] not in (None, dtype):
                return "unlike"
    return None


def check_dtypes(
    schema: OpSchema, values: Sequence[ir.Value | None], dtypes: Sequence[ir.DataType | None], opset: int
) -> None:
    """Raises Contradiction where operands that must have one dtype have not, UserError E203 where the operator of this opset
    takes no such dtype.
    """
    found = misfit(schema, dtypes)
    if found == "unlike":
        raise refused(schema.op_type, values, "they must have one dtype")
    if found is not None:
        raise _not_taken(schema, found, opset)


def _not_taken(schema: OpSchema, dtype: ir.DataType, opset: int) -> UserError:
    name = dtype_name(dtype)
    return UserError(
        "E203",
        f"{schema.op_type} takes no {name} in opset {opset}",
        why=f"opset {opset} defines {schema.op_type}-{schema.since_version}",
        next=(
            f"cast to a dtype that it takes before, or export with the opset_version that admits {name}, if one does"
        ),
    )


def check_equal(call: ShapeCall, one: Sequence[DimLike], other: Sequence[DimLike], what: str) -> None:
    """Raises Contradiction where the sizes are not the same."""
    if one == other:
        return
    if len(one) != len(other) or any(differ(*pair, call.sizes) for pair in zip(one, other, strict=True)):
        raise refused(call.op_type, call.inputs, f"{what}: {_text(one)} and {_text(other)}")


def check_broadcast(call: ShapeCall, *shapes: Dims) -> None:
    """Raises Contradiction where the shapes do not broadcast to one."""
    first = shapes[0]
    for shape in shapes[1:]:
        if shape == first:
            continue
        for one, other in zip(reversed(first), reversed(shape), strict=False):
            if one != other and one != 1 and other != 1 and _unlike(one, other, call.sizes):
                raise refused(call.op_type, call.inputs, f"{one} and {other} do not broadcast")


def check_count(call: ShapeCall, dims: Dims, target: Sequence[DimLike]) -> None:
    """Raises Contradiction where ``target`` is a shape of another number of elements."""
    if differ(product(dims), product(list(target)), call.sizes):
        raise refused(call.op_type, call.inputs, f"{_text(target)} has another number of elements")


def refused(op_type: str, values: Sequence[ir.Value | None], why: str) -> Contradiction:
    operands = ", ".join(
        "none" if value is None else f"{dtype_of(value).name.lower()}{_text(dims_of(value))}" for value in values
    )
    return Contradiction("E900", f"{op_type} has operands that do not fit: {operands}", why=why)


def _unlike(one: DimLike, other: DimLike, sizes: Mapping[str, int]) -> bool:
    """True if the two differ and neither is 1 at the sizes of the example inputs."""
    return differ(one, other, sizes) and differ(one, 1, sizes) and differ(other, 1, sizes)


def _text(dims: Sequence[DimLike]) -> str:
    return f"[{', '.join(map(str, dims))}]"
