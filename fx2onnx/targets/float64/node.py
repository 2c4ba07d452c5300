"""Helpers that read a node's operands and attributes, shared by all float64 forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims, dims_of
from fx2onnx.sizes.expr import Dim, DimLike

DOUBLE, INT64 = ir.DataType.DOUBLE, ir.DataType.INT64
Form = Callable[[Emit, ir.Node], "ir.Value | tuple[ir.Value, ...] | None"]
"""Emits what stands for a node: its output, or all of them; None, and nothing emitted, where this node has no form."""
T = TypeVar("T")


def number(op: Emit, value: float) -> ir.Value:
    return op.const(float(value), DOUBLE)


def attribute(node: ir.Node, name: str, usual: T) -> T:
    """The attribute's value, or what it is where it is not given."""
    found = node.attributes.get(name)
    return usual if found is None else cast(T, found.value)


def operand(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def given(node: ir.Node, count: int) -> tuple[ir.Value, ...]:
    """The first inputs, which the operator always has."""
    values = node.inputs[:count]
    assert all(value is not None for value in values)
    return cast("tuple[ir.Value, ...]", tuple(values))


def static_dims(value: ir.Value) -> list[int] | None:
    """The sizes, where all are numbers and none is 0."""
    if value.shape is None:
        return None
    dims = [dim for dim in dims_of(value) if isinstance(dim, int) and dim > 0]
    return dims if len(dims) == len(value.shape) else None


def size_of(op: Emit, value: ir.Value, axis: int) -> DimLike:
    """The size of an axis: a number, or a symbol of its own that ``op.size`` reads from the value."""
    dim = dims_of(value)[axis]
    if isinstance(dim, int):
        return dim
    symbol = f"{value.name}/{axis}"
    op.builder.symbols[symbol] = (value, axis)
    return Dim.symbol(symbol)


def channels_last(op: Emit, x: ir.Value) -> ir.Value:
    """[N, C, *in] -> [N, *in, C]."""
    rank = len(dims_of(x))
    return op.Transpose(x, perm=[0, *range(2, rank), 1])


def channels_second(op: Emit, x: ir.Value) -> ir.Value:
    """[N, *in, C] -> [N, C, *in]."""
    rank = len(dims_of(x))
    return op.Transpose(x, perm=[0, rank - 1, *range(1, rank - 1)])


def reshaped(op: Emit, x: ir.Value, kept: int, sizes: list[int]) -> ir.Value:
    """The first axes as they are, which may be empty; the others as given numbers, none of them 0."""
    dims: Dims = (*dims_of(x)[:kept], *sizes)
    return op.node("Reshape", x, [0] * kept + sizes, outputs=((DOUBLE, dims),))


def image_axes(x: ir.Value) -> list[int]:
    """The axes behind batch and channels."""
    return [*range(2, len(dims_of(x)))]
