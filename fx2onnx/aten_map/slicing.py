"""Taking pieces: slice, select, narrow, split, chunk, unbind, and views by strides: as_strided, unfold.

Capture hands ``as_strided`` the values of a storage in its order (``capture/overloads/strided.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import (
    END,
    INT64,
    axis_of,
    fixed,
    flat,
    is_empty,
    sliced,
    steps,
    transpose,
    unsqueeze,
    whole,
    zeros,
)
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike, product

aten = torch.ops.aten


def slice_Tensor(op: Emit, self: ir.Value, dim: int, start: DimLike | None, end: DimLike | None, step: int) -> ir.Value:
    axis = axis_of(dim, op.rank(self))
    size = op.result_dims()[axis]
    if is_empty(op.result_dims()):
        return zeros(op, op.result_dims(), op.dtype(self))
    return sliced(op, self, axis, 0 if start is None else start, END if end is None else end, size, step)


def narrow(op: Emit, self: ir.Value, dim: int, start: DimLike, length: DimLike) -> ir.Value:
    axis = axis_of(dim, op.rank(self))
    if not isinstance(start, Dim) and start < 0:
        start = whole(start + op.dims(self)[axis])
    return sliced(op, self, axis, start, whole(start + length), length)


@translates(aten.narrow.Tensor)
def narrow_Tensor(op: Emit, self: ir.Value, dim: int, start: ir.Value, length: DimLike) -> ir.Value:
    """narrow(Tensor(a) self, int dim, Tensor start, SymInt length) -> Tensor(a)

    A negative start counts from the end, as Gather's indices do.
    """
    indices = op.Add(steps(op, length), op.cast(start, ir.DataType.INT64))
    return op.Gather(self, indices, axis=axis_of(dim, op.rank(self)))


def select_int(op: Emit, self: ir.Value, dim: int, index: DimLike) -> ir.Value:
    return op.Gather(self, op.size(index), axis=axis_of(dim, op.rank(self)))


def unbind_int(op: Emit, self: ir.Value, dim: int) -> tuple[ir.Value, ...]:
    """One Gather a piece, so that pieces nobody reads cost nothing."""
    axis = axis_of(dim, op.rank(self))
    return tuple(op.Gather(self, op.size(index), axis=axis) for index in range(len(op.result)))


def pieces(op: Emit, value: ir.Value, axis: int, sizes: Sequence[DimLike]) -> tuple[ir.Value, ...]:
    """``value`` cut along ``axis`` into pieces of these sizes."""
    if not sizes:
        return ()
    if len(sizes) == 1:
        return (value,)
    dims, dtype = op.dims(value), op.dtype(value)
    if op.opset < 13 and any(isinstance(size, Dim) for size in sizes):
        start: DimLike = 0
        found = []
        for size in sizes:
            found.append(sliced(op, value, axis, start, whole(start + size), size))
            start = whole(start + size)
        return tuple(found)
    outputs = [(dtype, (*dims[:axis], size, *dims[axis + 1 :])) for size in sizes]
    split = op.sizes(sizes) if op.opset >= 13 else [fixed(size, "a piece's size") for size in sizes]
    result: tuple[ir.Value, ...] = op.Split(value, split=split, axis=axis, outputs=outputs)
    return result


def _split_as_result(op: Emit, value: ir.Value, dim: int) -> tuple[ir.Value, ...]:
    axis = axis_of(dim, op.rank(value))
    return pieces(op, value, axis, [dims[axis] for _, dims in op.result])


_SPLITS = "split.Tensor split.sizes split split_copy.Tensor split_with_sizes split_with_sizes_copy unsafe_split.Tensor "
_SPLITS += "unsafe_split_with_sizes chunk unsafe_chunk tensor_split.sections"
register_shared(_split_as_result, "Split", *overloads_of(_SPLITS))


def _tensor_split(op: Emit, value: ir.Value, axis: int, cuts: Sequence[DimLike]) -> tuple[ir.Value, ...]:
    """Pieces between cuts, which may overlap or run backwards (an empty piece then), as NumPy has it."""
    sizes = [dims[axis] for _, dims in op.result]
    total = op.dims(value)[axis]
    if not isinstance(total, Dim) and all(not isinstance(size, Dim) for size in sizes) and sum(sizes) == total:
        return pieces(op, value, axis, sizes)
    bounds: list[DimLike] = [0, *cuts, END]
    return tuple(
        zeros(op, op.result_dims(place), op.dtype(value))
        if sizes[place] == 0
        else sliced(op, value, axis, bounds[place], bounds[place + 1], sizes[place])
        for place in range(len(sizes))
    )


@translates(aten.tensor_split.indices)
def tensor_split_indices(op: Emit, self: ir.Value, indices: Sequence[DimLike], dim: int) -> tuple[ir.Value, ...]:
    """tensor_split(Tensor(a -> *) self, SymInt[] indices, int dim=0) -> Tensor(a)[]"""
    return _tensor_split(op, self, axis_of(dim, op.rank(self)), indices)


@translates(aten.tensor_split.tensor_indices_or_sections)
def tensor_split_tensor(
    op: Emit, self: ir.Value, tensor_indices_or_sections: ir.Value, dim: int
) -> tuple[ir.Value, ...]:
    """tensor_split(Tensor(a -> *) self, Tensor tensor_indices_or_sections, int dim=0) -> Tensor(a)[]"""
    axis = axis_of(dim, op.rank(self))
    cuts = op.integers(tensor_indices_or_sections)
    if op.rank(tensor_indices_or_sections) == 0 or cuts is None:
        return _split_as_result(op, self, dim)
    return _tensor_split(op, self, axis, cuts)


def _split_along(axis: int, is_hsplit: bool = False) -> Callable[..., tuple[ir.Value, ...]]:
    def entry(op: Emit, self: ir.Value, indices: Sequence[int] | None = None) -> tuple[ir.Value, ...]:
        along = 0 if is_hsplit and op.rank(self) == 1 else axis
        return _split_as_result(op, self, along) if indices is None else _tensor_split(op, self, along, indices)

    return entry


for _name, _axis in (("hsplit", 1), ("vsplit", 0), ("dsplit", 2)):
    register_shared(_split_along(_axis, _name == "hsplit"), "Split", *overloads_of(f"{_name}.array {_name}.int"))


register_shared(slice_Tensor, "Slice", *overloads_of("slice.Tensor slice_copy.Tensor"))
register_shared(narrow, "Slice", *overloads_of("narrow narrow_copy"))
register_shared(select_int, "Gather", *overloads_of("select.int select_copy.int"))
register_shared(unbind_int, "Gather of each piece", *overloads_of("unbind.int unbind_copy.int"))


def _places(
    op: Emit, value: ir.Value, size: Sequence[DimLike], stride: Sequence[DimLike], offset: DimLike | None
) -> npt.NDArray[np.int64]:
    """The flat index in ``value``, which is taken to be contiguous, of each element of the view.

    Raises UserError E203 where the view reaches beyond it: it then looks into a storage that the graph does not have.
    """
    shape = [fixed(number, "a size of as_strided") for number in size]
    places = np.full(shape, fixed(offset or 0, "the offset of as_strided"), dtype=np.int64)
    for axis, step in enumerate(stride):
        places += np.arange(shape[axis]).reshape([-1 if place == axis else 1 for place in range(len(shape))]) * fixed(
            step, "a stride of as_strided"
        )
    if places.size:
        _check_inside(op, value, int(places.max()))
    return places


def _dynamic_places(
    op: Emit, value: ir.Value, size: Sequence[DimLike], stride: Sequence[DimLike], offset: DimLike
) -> ir.Value:
    """``_places`` computed in the graph, int64 of shape ``size``."""
    last = offset
    places = op.size(offset)
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        last = whole(last + (count - 1) * step)
        along = steps(op, count)
        if step != 1:
            along = op.Mul(along, op.size(step))
        places = op.Add(places, unsqueeze(op, along, *range(1, len(size) - axis)))
    _check_inside(op, value, last)
    return places


def _check_inside(op: Emit, value: ir.Value, last: DimLike) -> None:
    """Raises UserError E203 where the element at ``last`` is not in ``value``."""
    left = product(list(op.dims(value))) - last
    if not isinstance(left, Dim) and left < 1:
        raise UserError(
            "E203",
            "as_strided reaches beyond the tensor",
            why="it reads the storage of another tensor that this one is a view of",
            next="call .contiguous() first, or write the view with slices and reshapes",
        )


def as_strided(
    op: Emit, self: ir.Value, size: Sequence[DimLike], stride: Sequence[DimLike], storage_offset: DimLike | None
) -> ir.Value:
    dims = op.result_dims()
    if is_empty(dims):
        return zeros(op, dims, op.dtype(self))
    count = whole(product(list(dims)))
    if _is_contiguous(dims, stride):
        start = storage_offset or 0
        _check_inside(op, self, whole(start + count - 1))
        return op.reshape(sliced(op, flat(op, self), 0, start, whole(start + count), count), dims)
    if any(isinstance(number, Dim) for number in (*size, *stride, storage_offset)):
        places = _dynamic_places(op, self, dims, stride, storage_offset or 0)
    else:
        places = op.const(_places(op, self, size, stride, storage_offset))
    return op.Gather(flat(op, self), places, axis=0)


def _is_contiguous(dims: Sequence[DimLike], stride: Sequence[DimLike]) -> bool:
    expected: DimLike = 1
    for size, step in zip(reversed(dims), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected = whole(expected * size)
    return True


@translates(aten.as_strided_scatter.default)
def as_strided_scatter(
    op: Emit,
    self: ir.Value,
    src: ir.Value,
    size: Sequence[DimLike],
    stride: Sequence[DimLike],
    storage_offset: DimLike | None,
) -> ir.Value:
    """as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor"""
    places = _places(op, self, size, stride, storage_offset)
    if not places.size:
        return self
    flat_places = op.const(places.reshape(-1))
    written = op.ScatterElements(flat(op, self), flat_places, flat(op, op.cast(src, op.dtype(self))), axis=0)
    return op.reshape(written, op.dims(self))


def unfold(op: Emit, self: ir.Value, dimension: int, size: DimLike, step: DimLike) -> ir.Value:
    """Windows of ``size`` every ``step`` along an axis, as a new last axis."""
    dims = op.result_dims()
    if op.rank(self) == 0:
        return unsqueeze(op, self, 0) if size else zeros(op, dims, op.dtype(self))
    if is_empty(dims):
        return zeros(op, dims, op.dtype(self))
    axis = axis_of(dimension, op.rank(self))
    source, count = op.dims(self), dims[axis]
    if size == step:
        length = whole(count * size)
        kept = sliced(op, self, axis, 0, length, length)
        windows = op.reshape(kept, (*source[:axis], count, size, *source[axis + 1 :]))
    elif isinstance(count, int) and isinstance(size, int) and isinstance(step, int):
        places = np.arange(count)[:, None] * step + np.arange(size)
        windows = op.Gather(self, op.const(places), axis=axis)
    else:
        starts = op.Mul(steps(op, count), op.size(step)) if step != 1 else steps(op, count)
        places_value = op.Add(unsqueeze(op, starts, 1), steps(op, size, INT64))
        windows = op.Gather(self, places_value, axis=axis)
    rank = op.rank(windows)
    return transpose(op, windows, [place for place in range(rank) if place != axis + 1] + [axis + 1])


register_shared(
    as_strided,
    "Gather of the flattened tensor; a Reshape (of a Slice) where the strides are those of a contiguous one",
    *overloads_of("as_strided as_strided_copy"),
)
register_shared(
    unfold,
    "Reshape where windows touch without overlap; else Gather with the windows' places; the new axis goes last",
    *overloads_of("unfold unfold_copy"),
)
