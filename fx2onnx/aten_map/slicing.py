"""Taking pieces: slice, select, narrow, split, chunk, unbind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import END, axis_of, fixed, is_empty, sliced, steps, whole, zeros
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike

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
