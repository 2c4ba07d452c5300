"""Agreement of operands: a graph is checked against itself while it is built.

Two sizes contradict each other where their difference is a number other than 0, or is one at the sizes of the sample.
Data-dependent sizes contradict nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from fx2onnx.base.errors import InternalError, UserError
from fx2onnx.irx.schema import OpSchema
from fx2onnx.irx.shapes.table import Call
from fx2onnx.irx.values import Dims, dims_of, dtype_name, dtype_of
from fx2onnx.sizes.expr import Dim, DimLike, product


class Contradiction(InternalError):
    """E900: operands that do not fit, or a value of another shape than it has in PyTorch."""


def differ(one: DimLike, other: DimLike, sizes: Mapping[str, int]) -> bool:
    """Return whether the two sizes are known to be unlike. ``sizes`` are the sample's."""
    if one == other:
        return False
    gap = one - other
    if not isinstance(gap, Dim):
        return gap != 0
    try:
        return gap.evaluate(sizes) != 0
    except (KeyError, ZeroDivisionError):
        return False


def check_dtypes(schema: OpSchema, values: Sequence[ir.Value | None], opset: int) -> None:
    """Raises Contradiction where operands that must have one dtype have not, UserError E203 where the operator of this opset
    takes no such dtype.
    """
    for index, value in enumerate(values):
        dtype = None if value is None else value.dtype
        allowed = None if dtype is None else schema.dtypes_of(index)
        if allowed is not None and dtype is not None and dtype not in allowed:
            raise _not_taken(schema, dtype, opset)
    for one, other in schema.alike:
        repeats = other == len(schema.input_names)
        for value in values[other:] if repeats else values[other : other + 1]:
            first = values[one]
            if first is not None and value is not None and first.dtype is not value.dtype:
                raise refused(schema.op_type, values, "they must have one dtype")


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


def check_equal(call: Call, one: Sequence[DimLike], other: Sequence[DimLike], what: str) -> None:
    """Raises Contradiction where the sizes are not the same."""
    if one == other:
        return
    if len(one) != len(other) or any(differ(*pair, call.sizes) for pair in zip(one, other, strict=True)):
        raise refused(call.op_type, call.inputs, f"{what}: {_text(one)} and {_text(other)}")


def check_broadcast(call: Call, *shapes: Dims) -> None:
    """Raises Contradiction where the shapes do not broadcast to one."""
    first = shapes[0]
    for shape in shapes[1:]:
        if shape == first:
            continue
        for one, other in zip(reversed(first), reversed(shape), strict=False):
            if one != other and one != 1 and other != 1 and _unlike(one, other, call.sizes):
                raise refused(call.op_type, call.inputs, f"{one} and {other} do not broadcast")


def check_count(call: Call, dims: Dims, target: Sequence[DimLike]) -> None:
    """Raises Contradiction where ``target`` is a shape of another number of elements."""
    if differ(product(dims), product(list(target)), call.sizes):
        raise refused(call.op_type, call.inputs, f"{_text(target)} has another number of elements")


def refused(op_type: str, values: Sequence[ir.Value | None], why: str) -> Contradiction:
    operands = ", ".join(
        "none" if value is None else f"{dtype_of(value).name.lower()}{_text(dims_of(value))}" for value in values
    )
    return Contradiction("E900", f"{op_type} has operands that do not fit: {operands}", why=why)


def _unlike(one: DimLike, other: DimLike, sizes: Mapping[str, int]) -> bool:
    """Where neither of the two is 1 at the sample's sizes."""
    return differ(one, other, sizes) and differ(one, 1, sizes) and differ(other, 1, sizes)


def _text(dims: Sequence[DimLike]) -> str:
    return f"[{', '.join(map(str, dims))}]"
