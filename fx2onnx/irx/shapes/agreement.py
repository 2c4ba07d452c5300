"""Whether operands fit one another: a graph is checked against itself while it is built.

Two sizes contradict each other where their difference is a number other than 0, or is one at the sizes of the sample.
Sizes that only the data gives contradict nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fx2onnx.base.dims import Dim, DimLike, product
from fx2onnx.base.errors import InternalError
from fx2onnx.irx.shapes.table import Call
from fx2onnx.irx.values import Dims, dims_of, dtype_of


class Contradiction(InternalError):
    """E900: operands that do not fit, or a value of another shape than it has in PyTorch."""


def differ(one: DimLike, other: DimLike, sizes: Mapping[str, int]) -> bool:
    """Whether the two sizes are known to be unlike. ``sizes`` are the sample's."""
    if one == other:
        return False
    gap = one - other
    if not isinstance(gap, Dim):
        return gap != 0
    try:
        return gap.evaluate(sizes) != 0
    except (KeyError, ZeroDivisionError):
        return False


def check_equal(call: Call, one: Sequence[DimLike], other: Sequence[DimLike], what: str) -> None:
    """Raises Contradiction where the sizes are not the same."""
    if one == other:
        return
    if len(one) != len(other) or any(differ(*pair, call.sizes) for pair in zip(one, other, strict=True)):
        raise refused(call, f"{what}: {_text(one)} and {_text(other)}")


def check_broadcast(call: Call, *shapes: Dims) -> None:
    """Raises Contradiction where the shapes do not broadcast to one."""
    first = shapes[0]
    for shape in shapes[1:]:
        if shape == first:
            continue
        for one, other in zip(reversed(first), reversed(shape), strict=False):
            if one != other and one != 1 and other != 1 and _unlike(one, other, call.sizes):
                raise refused(call, f"{one} and {other} do not broadcast")


def check_count(call: Call, dims: Dims, target: Sequence[DimLike]) -> None:
    """Raises Contradiction where ``target`` is a shape of another number of elements."""
    if differ(product(dims), product(list(target)), call.sizes):
        raise refused(call, f"{_text(target)} has another number of elements")


def refused(call: Call, why: str) -> Contradiction:
    operands = ", ".join(
        "none" if value is None else f"{dtype_of(value).name.lower()}{_text(dims_of(value))}" for value in call.inputs
    )
    return Contradiction("E900", f"{call.op_type} has operands that do not fit: {operands}", why=why)


def _unlike(one: DimLike, other: DimLike, sizes: Mapping[str, int]) -> bool:
    """Where neither of the two is 1 at the sample's sizes."""
    return differ(one, other, sizes) and differ(one, 1, sizes) and differ(other, 1, sizes)


def _text(dims: Sequence[DimLike]) -> str:
    return f"[{', '.join(map(str, dims))}]"
