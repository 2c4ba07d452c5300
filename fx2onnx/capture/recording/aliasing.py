"""In-place writes as values.

Every tensor that forward handles is a ``View`` of a ``Memory`` (its storage): a chain of view operators from the
memory's base. A write to a view computes the new value of the view, carries it back up the chain into the base
(``slice_scatter`` for ``slice``, a reshape for ``view``, ...), and marks the memory as changed; every other view of that
memory is made anew from the base when it is next read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.fx

from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import Values, View, ViewStep, dims_of
from fx2onnx.capture.registry import Kind, find, register
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.expr import Scalar
from fx2onnx.torchcompat.operators import OpOverload

aten = torch.ops.aten

_EXPANDS = (aten.expand.default, aten.expand_as.default, aten.broadcast_to.default)


def carried_back(values: Values, view: View, value: torch.fx.Node, is_one_number: bool) -> torch.fx.Node:
    """The memory's new content where ``value`` (dtype and shape of the view) is that of a view. ``is_one_number``: all its elements are equal.

    Raises: UserError E103 where the view has no inverse, or shows an element of the memory twice: PyTorch refuses most
    such writes, and the others depend on the order in which elements are written.
    """
    memory, node = view.memory, value
    for depth in range(len(view.steps) - 1, -1, -1):
        step = view.steps[depth]
        info = view.steps[depth - 1].info if depth else memory.info
        if _shows_twice(step, info) and not (is_one_number and depth == len(view.steps) - 1):
            raise values.refuse(
                "E103",
                f"an in-place write goes through a view made by {step.func} that shows elements of its memory twice",
                why=f"the memory is {info}, the view {step.info}",
                next="call .clone() before the write",
            )
        before = regenerated(values, memory.node, view.steps[:depth])
        node = _carry_back(values, step, before, info, node)
    return node


def _shows_twice(step: ViewStep, info: TensorInfo) -> bool:
    """Return whether one element of what is viewed, of type ``info``, may be several of the view."""
    if step.func in _EXPANDS:
        extra = len(step.info.dims) - len(info.dims)
        return step.info.dims[extra:] != info.dims or any(dim != 1 for dim in step.info.dims[:extra])
    if step.func is not aten.as_strided.default:
        return False
    reach: Scalar = 0
    for size, stride in sorted(zip(step.args[1], step.args[2], strict=True), key=lambda pair: str(pair[1]).zfill(20)):
        if size == 1:
            continue
        if not isinstance(reach, int) or not isinstance(stride, int) or stride <= reach:
            return True
        reach = reach + stride * (size - 1)
    return False


def regenerated(values: Values, node: torch.fx.Node, steps: Sequence[ViewStep]) -> torch.fx.Node:
    """The view through ``steps`` of the value ``node``."""
    for step in steps:
        if step.output is None:
            node = values.call(step.func, (node, *step.args[1:]), step.kwargs, step.info)
        else:
            view, _, args = _part(step)
            node = values.call(view, (node, *args), {}, step.info)
    return node


def _part(step: ViewStep) -> tuple[OpOverload, OpOverload, tuple[object, ...]]:
    """One output of a splitting operator as a view of one: the overload, the one that puts it back, their arguments."""
    axis = _split_axis(step)
    if step.func is aten.unbind.int:
        return aten.select.int, aten.select_scatter.default, (axis, step.output)
    start: Scalar = 0
    for info in step.siblings[: step.output]:
        start = start + info.dims[axis] if info else start
    return aten.slice.Tensor, aten.slice_scatter.default, (axis, start, start + step.info.dims[axis], 1)


def _split_axis(step: ViewStep) -> int:
    names = [argument.name for argument in step.func._schema.arguments]
    if "dim" not in names:
        return {"aten::hsplit": 1, "aten::vsplit": 0, "aten::dsplit": 2}.get(step.func._schema.name, 0)
    index = names.index("dim")
    axis = step.args[index] if index < len(step.args) else step.kwargs.get("dim", 0)
    return int(axis) if axis >= 0 else int(axis) + len(step.info.dims) + (step.func is aten.unbind.int)


Inverse: TypeAlias = Callable[[Values, ViewStep, torch.fx.Node, TensorInfo, torch.fx.Node], torch.fx.Node]


@register(
    Kind.INVERSE,
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.view_as.default,
    aten.reshape_as.default, aten.flatten.using_ints, aten.unflatten.int, aten.ravel.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default, aten.alias.default,
    aten.detach.default, aten.contiguous.default, aten.to.dtype, aten.to.device, aten.to.dtype_layout,
    aten.to.other, aten.type_as.default, aten.lift_fresh.default, aten._reshape_alias.default,
    aten.atleast_1d.default, aten.atleast_2d.default, aten.atleast_3d.default, aten.positive.default,
    aten.resolve_conj.default, aten.resolve_neg.default,
)  # fmt: skip
def _reshaped(
    values: Values, step: ViewStep, before: torch.fx.Node, info: TensorInfo, new: torch.fx.Node
) -> torch.fx.Node:
    """The view lists the same elements in the same order."""
    return values.call(aten.reshape.default, (new, list(info.dims)), {}, info)


def _scattered(target: OpOverload) -> Inverse:
    """The view takes a part that a scatter operator with the same arguments puts back."""

    def inverse(
        values: Values, step: ViewStep, before: torch.fx.Node, info: TensorInfo, new: torch.fx.Node
    ) -> torch.fx.Node:
        return values.call(target, (before, new, *step.args[1:]), step.kwargs, info)

    return inverse


for _view, _scatter in (
    (aten.slice.Tensor, aten.slice_scatter.default),
    (aten.select.int, aten.select_scatter.default),
    (aten.diagonal.default, aten.diagonal_scatter.default),
    (aten.as_strided.default, aten.as_strided_scatter.default),
):
    register(Kind.INVERSE, _view)(_scattered(_scatter))


@register(Kind.INVERSE, aten.narrow.default)
def _narrowed(
    values: Values, step: ViewStep, before: torch.fx.Node, info: TensorInfo, new: torch.fx.Node
) -> torch.fx.Node:
    axis, start, length = step.args[1:4]
    return values.call(aten.slice_scatter.default, (before, new, axis, start, start + length, 1), {}, info)


@register(
    Kind.INVERSE,
    aten.split.Tensor, aten.split.sizes, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int,
    aten.tensor_split.sections, aten.tensor_split.indices, aten.hsplit.int, aten.vsplit.int, aten.dsplit.int,
    aten.unsafe_chunk.default, aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default,
)  # fmt: skip
def _split(
    values: Values, step: ViewStep, before: torch.fx.Node, info: TensorInfo, new: torch.fx.Node
) -> torch.fx.Node:
    _, scatter, args = _part(step)
    return values.call(scatter, (before, new, *args), {}, info)


def _permuted(order: Callable[[ViewStep, int], list[int]]) -> Inverse:
    """The view permutes axes; ``order`` gives the permutation."""

    def inverse(
        values: Values, step: ViewStep, before: torch.fx.Node, info: TensorInfo, new: torch.fx.Node
    ) -> torch.fx.Node:
        forward = order(step, len(info.dims))
        backward = [forward.index(axis) for axis in range(len(forward))]
        return values.call(aten.permute.default, (new, backward), {}, info)

    return inverse


def _transposed(step: ViewStep, rank: int) -> list[int]:
    order = list(range(rank))
    if rank:
        one, two = (axis % rank for axis in step.args[1:3])
        order[one], order[two] = order[two], order[one]
    return order


def _moved(step: ViewStep, rank: int) -> list[int]:
    source, target = ([axis % rank for axis in ([arg] if isinstance(arg, int) else arg)] for arg in step.args[1:3])
    order: list[int | None] = [None] * rank
    for one, two in zip(source, target, strict=True):
        order[two] = one
    rest = iter(axis for axis in range(rank) if axis not in source)
    return [next(rest) if axis is None else axis for axis in order]


def _last_two(step: ViewStep, rank: int) -> list[int]:
    order = list(range(rank))
    return [*order[:-2], order[-1], order[-2]] if rank > 1 else order


register(Kind.INVERSE, aten.transpose.int, aten.swapaxes.default, aten.swapdims.default)(_permuted(_transposed))
register(Kind.INVERSE, aten.movedim.int, aten.movedim.intlist, aten.moveaxis.int, aten.moveaxis.intlist)(
    _permuted(_moved)
)
register(Kind.INVERSE, aten.t.default, aten.mT.default, aten.adjoint.default)(_permuted(_last_two))
register(Kind.INVERSE, aten.permute.default)(_permuted(lambda step, rank: [axis % rank for axis in step.args[1]]))
register(Kind.INVERSE, aten.numpy_T.default)(_permuted(lambda step, rank: list(reversed(range(rank)))))


@register(Kind.INVERSE, *_EXPANDS)
def _collapsed(
    values: Values, step: ViewStep, before: torch.fx.Node, info: TensorInfo, new: torch.fx.Node
) -> torch.fx.Node:
    """The view repeats elements (expand); PyTorch writes through it only where all repeats get one value."""
    node, dims = new, list(step.info.dims)
    extra = len(dims) - len(info.dims)
    if step.info.dims == info.dims:
        return new
    for axis in range(len(dims)):
        if axis < extra or dims[axis] != info.dims[axis - extra]:
            dims[axis] = 1
            part = TensorInfo(info.dtype, tuple(dims))
            node = values.call(aten.slice.Tensor, (node, axis, 0, 1, 1), {}, part)
    return values.call(aten.reshape.default, (node, list(info.dims)), {}, info)


@register(Kind.INVERSE, aten.real.default, aten.imag.default)
def _part_of_complex(
    values: Values, step: ViewStep, before: torch.fx.Node, info: TensorInfo, new: torch.fx.Node
) -> torch.fx.Node:
    """The view is the real or the imaginary part; of a real tensor, the tensor itself."""
    if not info.dtype.is_complex:
        return new
    pairs = TensorInfo(step.info.dtype, (*info.dims, 2))
    node = values.call(aten.view_as_real.default, (before,), {}, pairs)
    place = 0 if step.func is aten.real.default else 1
    node = values.call(aten.select_scatter.default, (node, new, len(info.dims), place), {}, pairs)
    return values.call(aten.view_as_complex.default, (node,), {}, info)


@register(Kind.INVERSE, aten.view.dtype)
def _read_back(
    values: Values, step: ViewStep, before: torch.fx.Node, info: TensorInfo, new: torch.fx.Node
) -> torch.fx.Node:
    """The view shows the same bits as another dtype."""
    return values.call(aten.view.dtype, (new, info.dtype), {}, info)


@register(Kind.INVERSE, aten.view_as_real.default, aten.view_as_complex.default)
def _complex_of(
    values: Values, step: ViewStep, before: torch.fx.Node, info: TensorInfo, new: torch.fx.Node
) -> torch.fx.Node:
    target = aten.view_as_complex.default if step.func is aten.view_as_real.default else aten.view_as_real.default
    return values.call(target, (new,), {}, info)


def _carry_back(
    values: Values, step: ViewStep, before: torch.fx.Node, info: TensorInfo, new: torch.fx.Node
) -> torch.fx.Node:
    inverse = find(Kind.INVERSE, step.func)
    if inverse is None:
        raise values.refuse(
            "E103",
            f"an in-place write goes through a view made by {step.func}",
            why="this view has no inverse that could be expressed as a value",
            next="write to the tensor itself, or build the result with torch.where or torch.cat",
        )
    value: torch.fx.Node = inverse(values, step, before, info, new)
    return value


def assign_data(tracer: Tracer, tensor: torch.Tensor, value: torch.Tensor) -> bool:
    """``tensor.data = value``: from now on the tensor is one over the memory of ``value``. Return whether the tensor itself is to have
    it, too: a parameter or buffer of the module stays as it was.
    """
    if _is_its_own(tracer.values, tensor, value):
        return False
    values, is_weight = tracer.values, not tracer.values.fake_mode.holds(tensor)
    source = next((each for each in values.sources.values() if each.tensor is tensor), None)
    is_alike = (value.dtype, dims_of(value)) == (tensor.dtype, dims_of(tensor))
    if is_weight and source is not None and id(tensor) in values.names and is_alike and values.graph is values.root:
        values.same_view(tensor, values.view_of(value))
        values.replaced[id(tensor)] = value.storage_offset()
        values.written.setdefault(id(source.memory), values.where)
        if _layout(value) != _layout(tensor):
            tracer.warnings.append(
                f"forward sets the .data of {values.names[id(tensor)][0]} to a tensor of another layout; its stride(), is_contiguous(), "
                "storage_offset() and storage stay as they were. If forward asks for them, set .data to "
                "value.clone(memory_format=torch.contiguous_format)"
            )
        return False
    if is_weight or source is not None:
        raise values.refuse(
            "E103",
            "the .data of an input or weight is replaced",
            next="write into it with copy_, or use the new value under another name"
            if is_alike
            else "use the new value under another name: it has another type or shape",
        )
    values.leave_memory(tensor)
    values.same_view(tensor, values.view_of(value))
    tracer.types.forget(tensor)
    tracer.values.fake_mode.forget_memory(tensor)
    return True


def _layout(tensor: torch.Tensor) -> list[object]:
    """Strides, offset and number of bytes of the storage."""
    return [unwrap(each) for each in (*tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes())]


def read_data(tracer: Tracer, tensor: torch.Tensor, value: torch.Tensor) -> None:
    """``value`` was read as ``tensor.data``: it is a view of the memory that a parameter or buffer has since that was replaced."""
    values = tracer.values
    if values.is_replaced(tensor):
        values.same_view(value, values.view_of(tensor))


def _is_its_own(values: Values, tensor: torch.Tensor, value: torch.Tensor) -> bool:
    """Return True if ``value`` is the tensor's own data. ``module.to(dtype)`` sets it when the dtype does not change."""
    if value is tensor or (value.dtype, dims_of(value)) != (tensor.dtype, dims_of(tensor)):
        return value is tensor
    old, new = values.view_of(tensor), values.view_of(value)
    more = new.steps[len(old.steps) :]
    are_none = all(step.func._schema.name in ("aten::to", "aten::detach", "aten::alias") for step in more)
    return old.memory is new.memory and new.steps[: len(old.steps)] == old.steps and are_none
