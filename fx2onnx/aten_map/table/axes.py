"""Axes and layouts: what the families of views, indexing and windows share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike, Scalar, product

INT64 = ir.DataType.INT64
END = 2**63 - 1
"""Slice's "to the end"."""


def axis_of(dim: int, rank: int) -> int:
    """``dim`` counted from the front; a 0-d tensor is treated as of rank 1, as PyTorch does. Raises IndexError for a dim that is not
    there, which not all of torch's fake kernels do.
    """
    count = max(rank, 1)
    if not -count <= dim < count:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got {dim})")
    return dim % count


def axes_of(dims: int | Iterable[int], rank: int) -> list[int]:
    """Several dims, counted from the front."""
    return [axis_of(dim, rank) for dim in ([dims] if isinstance(dims, int) else dims)]


def as_list(number: int | Sequence[int], length: int) -> list[int]:
    """One number a spatial axis, where PyTorch accepts one for all."""
    if isinstance(number, int):
        return [number] * length
    return list(number) * length if len(number) == 1 else list(number)


def transpose(op: Emit, value: ir.Value, perm: Sequence[int]) -> ir.Value:
    """``Transpose``; nothing is emitted for the identity. Float8 goes through float16, which holds it, before opset 21."""
    if list(perm) == list(range(len(perm))):
        return value
    if op.opset < 21 and (dtype := op.dtype(value)).name.startswith("FLOAT8"):
        return op.cast(op.Transpose(op.cast(value, ir.DataType.FLOAT16), perm=list(perm)), dtype)
    return op.Transpose(value, perm=list(perm))


def swap(op: Emit, value: ir.Value, first: int, second: int) -> ir.Value:
    """``value`` with two axes swapped."""
    perm = list(range(op.rank(value)))
    if perm:
        perm[first], perm[second] = perm[second], perm[first]
    return transpose(op, value, perm)


def moved(op: Emit, value: ir.Value, source: Sequence[int], destination: Sequence[int]) -> ir.Value:
    """``value`` with the axes ``source`` at the places ``destination``, the others in order (``torch.movedim``)."""
    return transpose(op, value, move_permutation(op.rank(value), source, destination))


def move_permutation(rank: int, source: Sequence[int], destination: Sequence[int]) -> list[int]:
    """The permutation of ``torch.movedim``."""
    source, destination = axes_of(source, rank), axes_of(destination, rank)
    places = dict(zip(destination, source, strict=True))
    rest = iter(axis for axis in range(rank) if axis not in source)
    return [places[axis] if axis in places else next(rest) for axis in range(rank)]


def inverse(perm: Sequence[int]) -> list[int]:
    """The permutation that undoes ``perm``."""
    return [list(perm).index(axis) for axis in range(len(perm))]


def unsqueeze(op: Emit, value: ir.Value, *axes: int) -> ir.Value:
    """``Unsqueeze``; nothing is emitted for no axes."""
    if not axes:
        return value
    return op.Unsqueeze(value, axes=list(axes))


def squeeze(op: Emit, value: ir.Value, *axes: int) -> ir.Value:
    """``Squeeze``; nothing is emitted for no axes."""
    if not axes:
        return value
    return op.Squeeze(value, axes=list(axes))


def with_rank(op: Emit, value: ir.Value, rank: int) -> ir.Value:
    """``value`` with axes of size 1 in front until it has ``rank``."""
    return unsqueeze(op, value, *range(rank - op.rank(value)))


def sliced(
    op: Emit, value: ir.Value, axis: int, start: DimLike, end: DimLike, size: DimLike, step: int = 1
) -> ir.Value:
    """``value[start:end:step]`` along ``axis``, which takes ``size`` elements."""
    dims = op.dims(value)
    if step == 1 and dims[axis] == size:
        return value
    steps = {} if step == 1 else {"steps": [step]}
    return op.Slice(
        value,
        starts=op.sizes([start]),
        ends=op.sizes([end]),
        axes=[axis],
        outputs=[(op.dtype(value), (*dims[:axis], size, *dims[axis + 1 :]))],
        **steps,
    )


def flat(op: Emit, value: ir.Value) -> ir.Value:
    """``value`` as a vector."""
    return flattened(op, value, 0, op.rank(value))


def flattened(op: Emit, value: ir.Value, start: int, end: int) -> ir.Value:
    """``value`` with the axes ``start..end-1`` as one (none of them: a new axis of size 1)."""
    dims = op.dims(value)
    return op.reshape(value, (*dims[:start], product(list(dims[start:end])), *dims[end:]))


def as_plain(op: Emit, index: ir.Value) -> ir.Value:
    """Indices in a dtype that Gather reads: int32 and int64 stay."""
    return index if op.dtype(index) in (INT64, ir.DataType.INT32) else op.cast(index, INT64)


def reshaped_like(op: Emit, value: ir.Value, like: ir.Value) -> ir.Value:
    """``value`` with the dims of ``like``; where several are symbolic, its ``Shape`` says them in one node."""
    dims = op.dims(like)
    if sum(isinstance(dim, Dim) for dim in dims) < 2 or op.dims(value) == dims:
        return op.reshape(value, dims)
    return op.Reshape(value, op.Shape(like), outputs=[(op.dtype(value), dims)])


def is_empty(dims: Iterable[DimLike]) -> bool:
    """Return whether a tensor of these dims has no element, whatever the symbols."""
    return any(not isinstance(dim, Dim) and dim == 0 for dim in dims)


MOST_CONSTANT = 2048
"""Elements of a tensor full of one number that is written as it is: such as one number a channel."""


def zeros(op: Emit, dims: Sequence[DimLike], dtype: ir.DataType) -> ir.Value:
    """A tensor of zeros; of False for bool."""
    return filled(op, dims, 0, dtype)


def filled(op: Emit, dims: Sequence[DimLike], number: float, dtype: ir.DataType) -> ir.Value:
    """A tensor of ``dims`` full of one number; small fixed ones are constants."""
    if not any(isinstance(dim, Dim) for dim in dims) and int(np.prod([int(dim) for dim in dims])) <= MOST_CONSTANT:  # type: ignore[arg-type]
        return op.const(np.full([int(dim) for dim in dims], number), dtype)  # type: ignore[arg-type]
    return op.expand(op.const(number, dtype), dims)


def steps(op: Emit, size: DimLike, dtype: ir.DataType = INT64) -> ir.Value:
    """``0, 1, .. size-1`` as a vector."""
    if not isinstance(size, Dim):
        return op.const(np.arange(size), dtype)
    return op.Range(op.const(0, dtype), op.size(size, dtype), op.const(1, dtype), outputs=[(dtype, (size,))])


def whole(size: Scalar) -> DimLike:
    """An expression over sizes that is a size itself."""
    return cast("DimLike", size)


def fixed(size: DimLike, what: str) -> int:
    """``size`` as a number. Raises UserError E203 where it is symbolic."""
    if isinstance(size, Dim):
        raise UserError(
            "E203",
            f"{what} must be fixed, it is {size}",
            why="the ONNX form computed here depends on the number itself",
            next="export with this dim static",
        )
    return int(size)
