"""``as_strided``: sizes and strides count in the storage, which a graph of values does not have."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import dims_of
from fx2onnx.capture.registry import Call, Kind, register
from fx2onnx.capture.shapes.symnode import sym_int, unwrap
from fx2onnx.sizes.expr import Dim, DimLike, product
from fx2onnx.sizes.relation import Relation

aten = torch.ops.aten


@register(Kind.RECORD, aten.as_strided.default)
def _as_strided(
    tracer: Tracer,
    call: Call,
    self: torch.Tensor,
    size: Sequence[object],
    stride: Sequence[object],
    storage_offset: int | torch.SymInt | None,
) -> object:
    """Say it of the tensor that the operand is a view of, with its axes in the order of the storage: storage and value are
    the same then.

    Raises: UserError E203 where what lies between or around the elements in the storage is not in the graph.
    """
    fake = tracer.values.fake_of(self)
    view = tracer.values.view_of(self)
    viewed = (other.tensor for other in tracer.values.views.values() if other.memory is view.memory and not other.steps)
    whole = next(viewed, self)  # the tensor that shows the memory by no step
    base = tracer.values.fake_of(whole)
    is_given = isinstance(storage_offset, int)
    moved = tracer.values.storage_offsets.get(id(whole), 0) if is_given or base is not fake else 0
    order = _order_in_storage(base)
    if order is None or base.dtype != fake.dtype or moved:
        raise tracer.values.refuse(
            "E203",
            "as_strided of a tensor whose storage the graph does not have",
            node=f"storage offset {moved}, strides {list(base.stride())} of sizes {list(base.shape)}"
            if not any(isinstance(size, Dim) for size in base.shape)
            else "",
            why="its elements are a part of a larger storage",
            next="call .contiguous().clone() before as_strided, or write it with slices and reshapes",
        )
    _check_storage(tracer, base, size, stride, fake.storage_offset() if storage_offset is None else storage_offset)
    is_in_order = order == sorted(order)
    if base is fake and is_in_order:
        return NotImplemented
    if storage_offset is None:
        storage_offset = fake.storage_offset()
    if not is_in_order:
        whole = tracer.record(aten.permute.default, (whole, order), {})  # type: ignore[assignment]
    return tracer.record(aten.as_strided.default, (whole, size, stride, storage_offset), {})


def _check_storage(
    tracer: Tracer, base: torch.Tensor, size: Sequence[object], stride: Sequence[object], offset: object
) -> None:
    """Make a condition of the elements that the storage needs, where other sizes have fewer."""
    sizes, strides = ([unwrap(each) for each in given] for given in (size, stride))
    if any(number == 0 for number in sizes):
        return
    reach = unwrap(offset) + 1
    for length, step in zip(sizes, strides, strict=True):
        reach = reach + (length - 1) * step
    count = product(dims_of(base))
    needed = Relation("ge", (count, reach))
    if tracer.sizes.hint(needed) and tracer.sizes.certain(needed.op, *needed.args) is None:
        tracer.sizes.check(needed)


def _order_in_storage(base: torch.Tensor) -> list[int] | None:
    """The axes from the outermost in the storage to the innermost, where the elements fill it; those of one element first."""
    order: list[int] = []
    lengths, strides = [[unwrap(each) for each in given] for given in (base.shape, base.stride())]
    if base.is_contiguous():
        return list(range(base.dim()))
    left = [axis for axis in reversed(range(base.dim())) if lengths[axis] != 1]
    packed: DimLike = 1
    while left:
        axis = next((axis for axis in left if strides[axis] == packed), None)
        if axis is None:
            return None
        order.insert(0, axis)
        left.remove(axis)
        packed = packed * lengths[axis]
    return [axis for axis in range(base.dim()) if axis not in order] + order


@register(Kind.WRITE, aten.as_strided_.default)
def _as_strided_in_place(
    tracer: Tracer, call: Call, self: torch.Tensor, size: object, stride: object, storage_offset: object
) -> torch.Tensor:
    """The tensor itself becomes that view of its memory."""
    with tracer.mode:
        self.data = aten.as_strided.default(self, size, stride, storage_offset)
    return self


@register(Kind.RECORD, aten.as_strided_copy.default, aten.as_strided_scatter.default)
def _as_strided_anew(
    tracer: Tracer,
    call: Call,
    self: torch.Tensor,
    size: Sequence[object],
    stride: Sequence[object],
    storage_offset: object,
    src: torch.Tensor | None = None,
) -> object:
    """A copy of the view, or one of the operand into whose storage ``src`` is written, unless storage and value are the same."""
    if len(size) != len(stride):  # as eager PyTorch says
        raise RuntimeError("mismatch in length of strides and shape")
    fake = tracer.values.fake_of(self)
    if fake.is_contiguous() and not tracer.values.view_of(self).steps:
        return NotImplemented
    with tracer.mode:
        if src is None:
            return aten.as_strided.default(self, size, stride, storage_offset).clone()
        whole = aten.as_strided.default(self, *_storage_of(tracer, self)).clone()
        aten.as_strided.default(whole, size, stride, storage_offset).copy_(src)
        return aten.as_strided.default(whole, fake.shape, fake.stride(), fake.storage_offset())


def _storage_of(tracer: Tracer, tensor: torch.Tensor) -> tuple[list[object], list[int], int]:
    """The size, stride and offset with which a tensor shows all of its storage."""
    count = product([*tracer.values.view_of(tensor).memory.info.dims])
    return [sym_int(tracer.sizes, count)], [1], 0


@register(Kind.RECORD, aten._reshape_alias.default, aten._reshape_alias_copy.default)
def _reshape_alias(
    tracer: Tracer, call: Call, self: torch.Tensor, size: Sequence[object], stride: Sequence[object]
) -> object:
    """A reshape where the strides are a reshape's; other strides count in the storage."""
    lengths = [number for number in size if isinstance(number, int)]
    if len(lengths) < len(size) or not all(isinstance(number, int) for number in stride):
        return NotImplemented
    fake = tracer.values.fake_of(self)
    packed = 1
    wanted: list[int] = []
    for length in reversed(lengths):
        wanted.insert(0, packed)
        packed *= max(length, 1)
    own = zip(lengths, stride, wanted, strict=True)
    if fake.is_contiguous() and packed == fake.numel() and all(length == 1 or a == b for length, a, b in own):
        return NotImplemented
    with tracer.mode:
        found = aten.as_strided.default(self, size, stride, fake.storage_offset())
        return found.clone() if call.func is aten._reshape_alias_copy.default else found


@register(Kind.RECORD, aten.slice_inverse.default)
def _slice_inverse(
    tracer: Tracer, call: Call, self: torch.Tensor, src: torch.Tensor, dim: int, start: int | None
) -> object:
    """The tensor that ``self`` is a slice of, in the form of ``src``: it lies in the same storage, before and behind the slice."""
    fake = tracer.values.fake_of(src)
    before = 0
    if src.dim() and start:
        axis = dim % src.dim()
        first = start + src.shape[axis] if start < 0 else start
        before = min(max(first, 0), src.shape[axis]) * fake.stride(axis)
    with tracer.mode:
        offset = tracer.values.fake_of(self).storage_offset() - before
        return aten.as_strided.default(self, src.shape, fake.stride(), offset)
