"""Rules of operators that need elements along an axis: indices lead to some, extremes are some, and norms of none are not defined."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from fx2onnx.capture.overloads.common import Shape, note_places
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import dims_of
from fx2onnx.capture.registry import Call, Kind, register
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import Relation

aten = torch.ops.aten


@register(
    Kind.RECORD,
    aten.index_select.default,
    aten.gather.default,
    aten.index_add.default,
    aten.index_copy.default,
    aten.index_fill.int_Scalar,
    aten.index_fill.int_Tensor,
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter_add.default,
)
def _along_an_axis(tracer: Tracer, call: Call, self: torch.Tensor, dim: int, index: torch.Tensor) -> object:
    note_places(tracer, self, dim, index)
    return NotImplemented


@register(
    Kind.RECORD,
    aten.index_put.default,
    aten.index_put.hacked_twin,
    aten._unsafe_index_put.default,
    aten._unsafe_index_put.hacked_twin,
    aten._index_put_impl.default,
    aten.index.Tensor_hacked_twin,
    aten._unsafe_index.Tensor,
    aten._unsafe_index.Tensor_hacked_twin,
)
def _at_indices(tracer: Tracer, call: Call, self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> object:
    if "index_put" in call.func._schema.name:  # torch's fake kernels of others broadcast the indices
        places = [index for index in indices if index is not None and index.dtype not in _MASKS]
        if any(isinstance(size, Dim) for index in places for size in dims_of(index)):
            torch.broadcast_shapes(*(index.shape for index in places))  # type: ignore[no-untyped-call]
    _note_places_of_all(tracer, self, indices)
    return NotImplemented


_MASKS = (torch.bool, torch.uint8)


def _note_places_of_all(tracer: Tracer, tensor: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> None:
    """``note_places`` for each index of the first axes; a mask among the indices takes as many as it has, of the same sizes."""
    taken = sum(index.dim() if index is not None and index.dtype in _MASKS else 1 for index in indices)
    taken = max(taken, len(indices))  # masks without axes count as one
    if taken > tensor.dim():  # as eager PyTorch says, here and below
        raise IndexError(f"too many indices for tensor of dimension {tensor.dim()} (got {taken})")
    axis = 0
    for index in indices:
        if index is None:
            axis += 1
        elif index.dtype in _MASKS:
            for place, (size, wanted) in enumerate(zip(dims_of(index), dims_of(tensor)[axis:], strict=False)):
                tracer.sizes.expect_equal(size, wanted)
                if tracer.sizes.certain("ne", size, wanted):
                    raise IndexError(
                        f"The shape of the mask {[*index.shape]} at index {place} does not match the shape of the indexed "
                        f"tensor {[*tensor.shape]} at index {axis + place}"
                    )
            axis += index.dim()
        else:
            if dims_of(tensor)[axis] == 0 and _name_some(indices):
                raise IndexError("index is out of bounds for dimension with size 0")
            note_places(tracer, tensor, axis, index)
            axis += 1


def _name_some(indices: Sequence[torch.Tensor | None]) -> bool:
    """Return whether indices name an element whatever they hold: of known sizes, and along an axis that no mask without one empties."""
    places = [dims_of(index) for index in indices if index is not None and index.dtype not in _MASKS]
    if any(type(size) is not int or size == 0 for sizes in places for size in sizes):
        return False
    has_mask = any(index is not None and index.dtype in _MASKS for index in indices)
    return not has_mask or any(sizes[-1] != 1 for sizes in places if sizes)


@register(Kind.RECORD, aten.index.Tensor)
def _index(tracer: Tracer, call: Call, self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> object:
    """A bool mask among the indices stands for the indices of its true elements."""
    _note_places_of_all(tracer, self, indices)
    if not any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return NotImplemented
    plain: list[torch.Tensor | None] = []
    with tracer.mode:
        for index in indices:
            if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
                plain += index.nonzero().unbind(1)
            else:
                plain.append(index)
        return aten.index.Tensor(self, plain)


@register(
    Kind.RECORD,
    *(aten.max.default, aten.max.dim, aten.amax.default, aten.argmax.default),
    *(aten.min.default, aten.min.dim, aten.amin.default, aten.argmin.default, aten.aminmax.default),
    *(aten.median.dim, aten.nanmedian.dim, aten.mode.default, aten.kthvalue.default),
)
def _one_of(tracer: Tracer, call: Call, self: torch.Tensor, dim: int | Sequence[int] | None = None) -> object:
    """One of the elements along ``dim``, or of all."""
    if self.dim():
        dims, axes = dims_of(self), [dim] if isinstance(dim, int) else dim
        tracer.sizes.check_some(dims[axis] for axis in axes or range(len(dims)))
    return NotImplemented


@register(Kind.RECORD, aten.linalg_vector_norm.default)
def _largest(tracer: Tracer, call: Call, self: torch.Tensor, ord: float, dim: Sequence[int] | None) -> object:
    """The norms that an empty vector has not: the largest and least element, and negative powers."""
    return _one_of(tracer, call, self, dim) if ord < 0 or ord == math.inf else NotImplemented


@register(Kind.RECORD, aten.linalg_matrix_norm.default)
def _largest_sum(
    tracer: Tracer, call: Call, self: torch.Tensor, ord: float, dim: Sequence[int], keepdim: bool, dtype: object
) -> object:
    """The norms by sums of rows or columns, in which torch's kernel makes plain numbers of dynamic sizes."""
    rows, columns = (axis % self.dim() for axis in dim)
    if not _is_dynamic(self) or abs(ord) not in (1, math.inf):
        return NotImplemented
    summed, chosen = (rows, columns) if abs(ord) == 1 else (columns, rows)
    with tracer.mode:
        whole = self if dtype is None else self.to(dtype)  # type: ignore[call-overload]
        sums = whole.abs().sum(summed, keepdim=True)
        none = torch.zeros_like(sums.sum(chosen, keepdim=True))  # what there is of an empty matrix
        result = torch.cat([sums, none], chosen).amax(chosen, True) if ord > 0 else sums.amin(chosen, True)
        return result if keepdim else result.squeeze((rows, columns))


@register(Kind.RECORD, aten.linalg_cond.default, aten.linalg_cond.p_str)
def _condition_number(tracer: Tracer, call: Call, self: torch.Tensor, p: float | str | None) -> object:
    """The norm of a matrix times that of its inverse, or the ratio of its singular values; of dynamic sizes."""
    if not _is_dynamic(self):
        return NotImplemented
    with tracer.mode:
        if p in (None, 2, -2):
            _note_some(tracer, dims_of(self)[-2:])
            values = torch.linalg.svdvals(self)
            largest, least = values.amax(-1), values.amin(-1)
            return least / largest if p == -2 else largest / least
        inverse, info = torch.linalg.inv_ex(self)
        inverse = inverse.masked_fill((info > 0)[..., None, None], math.inf)
        return torch.linalg.matrix_norm(self, p) * torch.linalg.matrix_norm(inverse, p)


def _note_some(tracer: Tracer, dims: Shape) -> None:
    """Make conditions of sizes that are not 0, where the result is another one."""
    env = tracer.sizes
    for some in (Relation("ge", (size, 1)) for size in dims if isinstance(size, Dim)):
        if env.facts.is_settled(some) is None:
            (env.assume if some.symbols() & env.unbacked else env.note)(some, tracer.values.where)


def _is_dynamic(matrix: torch.Tensor) -> bool:
    """Return whether a size of a real matrix is dynamic."""
    return not matrix.is_complex() and any(isinstance(size, Dim) for size in dims_of(matrix))
