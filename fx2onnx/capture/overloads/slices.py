"""Slices and chunks of symbolic sizes, exact at every size; torch's own code decides them as for the sample."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from fx2onnx.base.dims import Dim, DimLike, Scalar, apply
from fx2onnx.base.relations import Relation
from fx2onnx.capture.overloads.registry import Call, Kind, register
from fx2onnx.capture.overloads.unbacked import Size
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.capture.recording.tensor_tracker import Arguments, dims_of
from fx2onnx.capture.shapes.certain import certain
from fx2onnx.capture.shapes.symnode import sym_int, unwrap
from fx2onnx.capture.torch_private.fake_tensors import fake_view

aten = torch.ops.aten
_END = 1 << 62
"""Ends beyond are no ends."""
_LARGEST = 1 << 40
"""No bound is as large."""


@register(Kind.RECORD, aten.slice.Tensor)
def _slice(
    recorder: BaseRecorder, call: Call, self: torch.Tensor, dim: int, start: Size | None, end: Size | None, step: Size
) -> object:
    """slice(self, dim=0, start=None, end=None, step=1) by plain numbers of an axis of symbolic size, or by numbers that
    depend on data.
    """
    start, end = 0 if start is None else start, _END if end is None else end
    size = unwrap(self.shape[dim]) if self.dim() else 0
    begin: Scalar
    first, stop = unwrap(start), unwrap(end)
    if type(step) is int and any(_is_unknown(recorder, number) for number in (first, stop)):
        begin, length = _unknown_extent(size, first, stop)
    elif type(step) is int and any(isinstance(number, Dim) for number in (size, first, stop)):
        begin, length, is_exact = _extent(recorder, size, first, stop)
        if not is_exact:
            return NotImplemented
    else:
        return NotImplemented
    nodes = recorder.to_nodes(call.args, call.kwargs)
    made = _view(recorder, self, dim, begin, (length + step - 1) // step, step, nodes)
    view = recorder.view_of(made)
    *before, last = view.steps
    # The node has the user's numbers, which a slice clamps itself; what is written through the view needs the bounds.
    last.args, last.kwargs = (last.args[0], dim, begin, begin + length, step), {}
    view.steps = (*before, last)
    return made


def _is_unknown(recorder: BaseRecorder, number: DimLike) -> bool:
    """Whether it depends on data whether the number is negative, or differs from size to size."""
    if not isinstance(number, Dim) or certain("ge", number, 0) is not None:
        return False
    if number.symbols() & recorder.shape_env.unbacked:
        return True
    return not any(_always(recorder, Relation(op, (number, 0))) for op in ("ge", "lt"))


def _always(recorder: BaseRecorder, relation: Relation) -> bool:
    """Whether it holds at every ordinary size, and at 1."""
    return recorder.shape_env.holds_at_ordinary_sizes(relation, from_one=True)


def _is_negative(recorder: BaseRecorder, number: DimLike) -> bool:
    return number < 0 if isinstance(number, int) else _always(recorder, Relation("lt", (number, 0)))


def _unknown_extent(size: DimLike, start: DimLike, end: DimLike) -> tuple[Scalar, Scalar]:
    """Where ``start:end`` begins, and its length, where even the signs of the bounds may depend on data."""

    def place(bound: DimLike) -> Scalar:
        if bound == _END:
            return size
        if certain("ge", bound, 0) is not True:
            is_negative = -apply("floordiv", bound, _LARGEST)
            return apply("min", apply("max", bound + size * is_negative, 0), size)
        return apply("min", bound, size)

    begin, stop = place(start), place(end)
    return begin, apply("max", stop - begin, 0)


def _extent(recorder: BaseRecorder, size: DimLike, start: DimLike, end: DimLike) -> tuple[Scalar, Scalar, bool]:
    """Where ``start:end`` begins, its length, and whether a bound had to be clamped by an expression."""
    is_exact = False

    def clamped(op: str, value: Scalar, bound: Scalar) -> Scalar:
        """``op(value, bound)``; ``value`` alone where it is that at every ordinary size."""
        nonlocal is_exact
        relation = Relation("ge" if op == "max" else "le", (value, bound))
        is_sure = not relation.symbols() & recorder.shape_env.unbacked and not is_exact
        if (is_sure and _always(recorder, relation)) or certain(relation.op, value, bound):
            return value
        is_exact = True
        return apply(op, value, bound)

    def place(bound: DimLike) -> Scalar:
        if bound == 0:
            return 0
        return clamped("max", size + bound, 0) if _is_negative(recorder, bound) else clamped("min", bound, size)

    begin = place(start)
    if isinstance(end, int) and end >= _END:
        if start == 0:
            return begin, size, is_exact
        if _is_negative(recorder, start):
            return begin, clamped("min", -start, size), is_exact
        return begin, clamped("max", size - start, 0), is_exact
    stop = place(end)
    gap = stop - begin
    return begin, clamped("max", gap, 0) if isinstance(gap, Dim) else max(gap, 0), is_exact


def _view(
    recorder: BaseRecorder,
    tensor: torch.Tensor,
    axis: int,
    begin: Scalar,
    length: Scalar,
    step: int,
    nodes: Arguments,
) -> torch.Tensor:
    fake, env = recorder.fake_of(tensor), recorder.shape_env
    sizes: list[Scalar] = [*dims_of(fake)]
    strides: list[Scalar] = list(map(unwrap, fake.stride()))
    offset = unwrap(fake.storage_offset()) + begin * strides[axis]
    sizes[axis], strides[axis] = length, strides[axis] * step
    sym_sizes, sym_strides = ([sym_int(env, number) for number in group] for group in (sizes, strides))
    made = fake_view(recorder.fake_mode, fake, sym_sizes, sym_strides, sym_int(env, offset))
    recorder.finish(aten.slice.Tensor, (tensor,), nodes, made)
    return made


def _parts(recorder: BaseRecorder, tensor: torch.Tensor, axis: int, lengths: Sequence[Scalar]) -> list[torch.Tensor]:
    """Consecutive slices of the given lengths."""
    parts: list[torch.Tensor] = []
    begin: Scalar = 0
    for length in lengths:
        node_args = (recorder.node_of(tensor), axis, begin, begin + length, 1)
        parts.append(_view(recorder, tensor, axis, begin, length, 1, (node_args, {})))
        begin = begin + length
    return parts


def _axis_of(tensor: torch.Tensor, axis: int) -> tuple[int, DimLike]:
    axis = axis % max(tensor.dim(), 1)
    return axis, unwrap(tensor.shape[axis]) if tensor.dim() else 0


@register(Kind.RECORD, aten.tensor_split.sections)
def _tensor_split(recorder: BaseRecorder, call: Call, self: torch.Tensor, sections: Size, dim: int) -> object:
    """tensor_split(self, sections, dim=0): part i has (size + sections - 1 - i) // sections."""
    axis, size = _axis_of(self, dim)
    if not isinstance(size, Dim) or type(sections) is not int:
        return NotImplemented
    lengths = [(size + sections - 1 - place) // sections for place in range(sections)]
    return _parts(recorder, self, axis, lengths)


@register(Kind.RECORD, aten.tensor_split.indices)
def _tensor_split_at(
    recorder: BaseRecorder, call: Call, self: torch.Tensor, indices: Sequence[Size], dim: int
) -> object:
    """tensor_split(self, indices, dim=0): slices between the indices, which may lie beyond the end."""
    axis, size = _axis_of(self, dim)
    if not isinstance(size, Dim):
        return NotImplemented
    with recorder.mode:
        bounds = [0, *indices, _END]
        return [aten.slice.Tensor(self, axis, *pair) for pair in pairwise(bounds)]


@register(Kind.RECORD, aten.chunk.default)
def _chunk(recorder: BaseRecorder, call: Call, self: torch.Tensor, chunks: int, dim: int) -> object:
    """chunk(self, chunks, dim=0): parts of ceil(size / chunks), the last one what is left; all of them there, as in the
    sample.
    """
    axis, size = _axis_of(self, dim)
    env = recorder.shape_env
    if not isinstance(size, Dim) or size.symbols() & env.unbacked:
        return NotImplemented
    each = (size + chunks - 1) // chunks
    rest = size - (chunks - 1) * each
    relation = Relation("gt", (rest, 0))
    if not env.hint(relation):
        return NotImplemented
    if isinstance(rest, Dim):
        env.guard(relation)
    return _parts(recorder, self, axis, [*[each] * (chunks - 1), rest])


@register(Kind.RECORD, aten.split.Tensor)
def _split(recorder: BaseRecorder, call: Call, self: torch.Tensor, split_size: Size, dim: int) -> object:
    """split(self, split_size, dim=0) by a symbolic size that divides the whole: as many parts at every size."""
    axis, size = _axis_of(self, dim)
    each = unwrap(split_size)
    if not isinstance(each, Dim):
        return NotImplemented
    count = apply("floordiv", size, each)
    if type(count) is not int or count * each != size:
        return NotImplemented
    return _parts(recorder, self, axis, [each] * count)
