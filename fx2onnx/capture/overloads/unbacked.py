"""Results whose size depends on data: each unknown size becomes a symbol that stands for that axis."""

from __future__ import annotations

from typing import Any

import torch

from fx2onnx.capture.overloads.common import Shape, Size, record_sized
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import axis_of, dims_of
from fx2onnx.capture.registry import Call, Kind, register
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.torchcompat.dispatch import no_dispatch

aten = torch.ops.aten


@register(Kind.RECORD, aten.nonzero.default)
def _nonzero(tracer: Tracer, call: Call, self: torch.Tensor) -> object:
    """The indices of a constant are a constant; any other has an unknown number of rows."""
    node = tracer.values.node_of(self)
    known = tracer.values.value_of(node)
    if known is not None:
        with no_dispatch():
            indices = known.nonzero()
        return tracer.values.constant(indices)
    if not self.dim():  # a row without numbers where the one element is not 0
        with tracer.mode:
            return self.reshape(1).nonzero()[:, :0]
    key = (tracer.values.graph, node)
    rows = tracer.nonzero_rows.get(key)
    if rows is None:
        rows = tracer.nonzero_rows[key] = tracer.sizes.new_unbacked()
    return record_sized(tracer, call, [(torch.int64, (rows, self.dim()))])


@register(Kind.RECORD, aten.nonzero_numpy.default, aten.where.default)
def _nonzero_numpy(tracer: Tracer, call: Call) -> list[torch.Tensor]:
    """An index for each axis; the two overloads have other names for their one argument."""
    (tensor,) = (*call.args, *call.kwargs.values())
    with tracer.mode:
        return list((tensor if tensor.dim() else tensor.reshape(1)).nonzero().unbind(1))


@register(Kind.RECORD, aten.argwhere.default)
def _argwhere(tracer: Tracer, call: Call, self: torch.Tensor) -> torch.Tensor:
    with tracer.mode:
        return self.nonzero()


@register(Kind.RECORD, aten.masked_select.default)
def _masked_select(tracer: Tracer, call: Call, self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Both broadcast, then indexed."""
    with tracer.mode:
        tensor, mask = aten.broadcast_tensors.default([self, mask])
        if mask.dim() == 0:  # PyTorch would read the mask's number
            tensor, mask = tensor.reshape(1), mask.reshape(1)
        selected: torch.Tensor = tensor[mask]
    return selected


@register(
    Kind.RECORD,
    aten._unique.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.unique_dim_consecutive.default,
)
def _unique(
    tracer: Tracer,
    call: Call,
    self: torch.Tensor,
    return_inverse: bool,
    return_counts: bool = False,
    dim: int | None = None,
) -> object:
    """Values, inverse, counts; along a dim PyTorch gives all three, asked for or not."""
    known = tracer.values.value_of(tracer.values.node_of(self))
    if known is not None:
        rest = {name: value for name, value in call.kwargs.items() if name != "self"}
        with no_dispatch():
            parts = call.func(known, *call.args[1:], **rest)
        return tuple(map(tracer.values.constant, parts))
    size = tracer.sizes.new_unbacked()
    shape = dims_of(self)
    is_whole = dim is not None and (len(shape) > 1 or dim != 0 or call.func is not aten.unique_consecutive.default)
    values: Shape = [size]
    inverse: Shape = shape
    if dim is not None:
        dim = axis_of(len(shape), dim)
        values = [size if place == dim else length for place, length in enumerate(shape)]
        inverse = [shape[dim]]
    outputs = (
        (self.dtype, values),
        (torch.int64, inverse if return_inverse or is_whole else (0,)),
        (torch.int64, (size,) if return_counts or is_whole else (0,)),
    )
    return record_sized(tracer, call, outputs[: len(call.func._schema.returns)])


@register(Kind.RECORD, aten.repeat_interleave.Tensor)
def _repeat_interleave(tracer: Tracer, call: Call, repeats: torch.Tensor, output_size: Size | None) -> object:
    """repeat_interleave(repeats): as many rows as the repeats add up to."""
    if repeats.dim() != 1:  # as eager PyTorch says
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int32, torch.int64):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if output_size is None:
        known = tracer.values.value_of(tracer.values.node_of(repeats))
        if known is not None:
            with no_dispatch():
                rows_of = torch.repeat_interleave(known)
            return tracer.values.constant(rows_of)
    rows = tracer.sizes.new_unbacked() if output_size is None else unwrap(output_size)
    return record_sized(tracer, call, [(repeats.dtype, (rows,))])


@register(Kind.RECORD, aten.repeat_interleave.self_Tensor)
def _repeat_interleave_self(
    tracer: Tracer, call: Call, self: torch.Tensor, repeats: torch.Tensor, dim: int | None, output_size: Size | None
) -> torch.Tensor:
    if repeats.dim() > 1:  # as eager PyTorch says
        raise RuntimeError("repeats must be 0-dim or 1-dim tensor")
    with tracer.mode:
        tensor, axis = (self.flatten(), 0) if dim is None else (self, axis_of(self.dim(), dim))
        count, size = dims_of(repeats)[:1], dims_of(tensor)[axis : axis + 1]
        if count and count != [1] and size:
            tracer.sizes.expect_equal(count[0], size[0])
            if tracer.sizes.certain("ne", count[0], size[0]):  # as eager PyTorch says
                raise RuntimeError(
                    "repeats must have the same size as input along dim, but got repeats.size(0) = "
                    f"{count[0]} and input.size({axis}) = {size[0]}"
                )
        if repeats.dim() == 0 or repeats.shape[0] == 1:
            rows, total = unwrap(tensor.shape[axis]), unwrap(output_size)
            if total is not None and tracer.sizes.certain("ne", total if rows == 0 else total % rows, 0):
                raise RuntimeError(f"output_size={total} is not a multiple of the {rows} rows, all repeated as often")
            repeats = repeats.reshape(1).expand(tensor.shape[axis])
        index = aten.repeat_interleave.Tensor(repeats, output_size=output_size)
        return tensor.index_select(axis, index)


@register(Kind.RECORD, aten.narrow.Tensor)
def _narrow(tracer: Tracer, call: Call, self: torch.Tensor, dim: int, start: torch.Tensor, length: Size) -> object:
    """The start depends on data: PyTorch reads its number."""
    if start.dim() or start.dtype == torch.bool or start.dtype.is_floating_point or start.dtype.is_complex:
        raise RuntimeError("start must be an 0-dim integral Tensor.")
    with tracer.mode:
        return aten.narrow.default(self, dim, start.item(), length)


@register(Kind.RECORD, aten.bincount.default)
def _bincount(tracer: Tracer, call: Call, self: torch.Tensor, weights: torch.Tensor | None, minlength: Size) -> object:
    """bincount: as many counts as the largest number plus 1, or ``minlength``, says; of no numbers ``minlength`` zeros."""
    if unwrap(self.shape[0]) == 0:
        with tracer.mode:
            return torch.zeros(minlength, dtype=torch.int64)
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    return record_sized(tracer, call, [(dtype, (tracer.sizes.new_unbacked(),))])


@register(Kind.RECORD, aten.one_hot.default)
def _one_hot(tracer: Tracer, call: Call, self: torch.Tensor, num_classes: int) -> object:
    """one_hot(self, num_classes=-1): as many classes as the largest number plus 1 where they are not given."""
    if num_classes != -1 or tracer.values.value_of(tracer.values.node_of(self)) is not None:
        return NotImplemented
    with tracer.mode:
        return (self.unsqueeze(-1) == torch.arange(self.max().item() + 1)).long()


@register(Kind.RECORD, aten.tensor_split.tensor_indices_or_sections)
def _tensor_split(
    tracer: Tracer, call: Call, self: torch.Tensor, tensor_indices_or_sections: torch.Tensor, dim: int
) -> object:
    """PyTorch reads the numbers: where to split, or how many parts to make, which has to be a plain number."""
    if tensor_indices_or_sections.dtype != torch.int64 or tensor_indices_or_sections.dim() > 1:
        raise RuntimeError("tensor_split expected tensor_indices_or_sections to be of rank 0 or 1 and dtype long")
    with tracer.mode:
        places: Any = tensor_indices_or_sections.tolist()
        return torch.tensor_split(self, places if isinstance(places, list) else int(places), dim)


@register(Kind.RECORD, "torchvision::nms")
def _nms(tracer: Tracer, call: Call) -> object:
    return record_sized(tracer, call, [(torch.int64, (tracer.sizes.new_unbacked(),))])


@register(Kind.RECORD, "fx2onnx::suppressed")
def _suppressed(tracer: Tracer, call: Call) -> object:
    return record_sized(tracer, call, [(torch.int64, (tracer.sizes.new_unbacked(), 3))])


@register(Kind.RECORD, aten._grouped_mm.default)
def _grouped_mm(
    tracer: Tracer,
    call: Call,
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> object:
    """torch's fake takes bfloat16 only, its CPU kernel any float.

    Shapes:  self [M, K] or [G, M, K], mat2 [G, K, N] or [K, N], offs [G] where the groups are along M, N or K.
    """
    rows, columns = unwrap(self.shape[-2]), unwrap(mat2.shape[-1])
    is_stacked = self.dim() == mat2.dim()  # [G, M, N]; else the groups are ranges of the rows or of the columns
    groups = self.shape[0] if self.dim() == 3 or offs is None else offs.shape[0]
    shape: Shape = (unwrap(groups), rows, columns) if is_stacked else (rows, columns)
    return record_sized(tracer, call, [(out_dtype or self.dtype, shape)])
