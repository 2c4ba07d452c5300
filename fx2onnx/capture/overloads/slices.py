"""Slices and chunks of symbolic sizes, exact at every size; torch's own code decides them as for the example inputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from fx2onnx.capture.overloads.common import Size
from fx2onnx.capture.rare_roads import road
from fx2onnx.capture.reasons import with_inputs
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import Arguments, View, axis_of, dims_of
from fx2onnx.capture.registry import Call, Kind, register
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.symnode import sym_int, unwrap
from fx2onnx.sizes.expr import Dim, DimLike, Scalar, apply
from fx2onnx.sizes.following import follows_from
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.asked_code import unpacks
from fx2onnx.torchcompat.caught_errors import is_caught
from fx2onnx.torchcompat.fake_tensors import fake_view
from fx2onnx.torchcompat.frames import user_location

aten = torch.ops.aten
_END = 1 << 62
"""Ends beyond are no ends."""


@register(Kind.RECORD, aten.slice.Tensor)
def _slice(
    tracer: Tracer, call: Call, self: torch.Tensor, dim: int, start: Size | None, end: Size | None, step: Size
) -> object:
    """slice(self, dim=0, start=None, end=None, step=1) by plain numbers of an axis of symbolic size, or by numbers that
    depend on data.
    """
    start, end = 0 if start is None else start, _END if end is None else end
    size = unwrap(self.shape[dim]) if self.dim() else 0
    begin: Scalar
    first, stop = unwrap(start), unwrap(end)
    if type(step) is int and any(_is_unknown(tracer.sizes, number) for number in (first, stop)):
        begin, length = _unknown_extent(tracer.sizes, size, first, stop)
    elif type(step) is int and any(isinstance(number, Dim) for number in (size, first, stop)):
        begin, length, is_exact = _extent(tracer, size, first, stop)
        if not is_exact:
            return NotImplemented
    else:
        return NotImplemented
    most = stop - first
    if type(most) is int and 0 < most < _END and isinstance(first, Dim) and first.symbols() & tracer.sizes.unbacked:
        length = apply("min", length, most)  # x[n : n + 1] has one element or none
    nodes = tracer.values.to_nodes(call.args, call.kwargs)
    made = _view(tracer, self, dim, begin, (length + step - 1) // step, step, nodes)
    _write_at(tracer.values.view_of(made), dim, begin, begin + length, step)
    return made


def _write_at(view: View, *place: Scalar) -> None:
    """The node has the user's numbers, which the operator counts from the end or clamps itself; what is written through the
    view needs the bounds.
    """
    *before, last = view.steps
    last.args, last.kwargs = (last.args[0], *place), {}
    view.steps = (*before, last)


def sliced(
    env: ShapeEnv, self: torch.Tensor, dim: int = 0, start: Size | None = None, end: Size | None = None, step: int = 1
) -> torch.Tensor:
    """A slice inside of an operator that runs for its type, by numbers of unknown sign."""
    first, stop = (0 if start is None else unwrap(start)), (_END if end is None else unwrap(end))
    begin, length = _unknown_extent(env, unwrap(self.shape[dim]), first, stop)
    sizes, strides = [*self.shape], [*self.stride()]
    offset = self.storage_offset() + sym_int(env, begin) * strides[dim]
    sizes[dim], strides[dim] = sym_int(env, (length + step - 1) // step), strides[dim] * step
    return self.as_strided(sizes, strides, offset)


def _is_unknown(env: ShapeEnv, number: Size) -> bool:
    """Return whether data, or the size, decides that the number is negative."""
    dim = unwrap(number)
    if not isinstance(dim, Dim) or env.certain("ge", dim, 0) is not None:
        return False
    return bool(dim.symbols() & env.unbacked) or not any(_always(env, Relation(op, (dim, 0))) for op in ("ge", "lt"))


def _is_below_zero(number: Scalar) -> Scalar:
    """1 or 0"""
    return apply("min", apply("max", -number, 0), 1)


def _always(env: ShapeEnv, relation: Relation) -> bool:
    """Return whether a relation holds at every ordinary size, and at 1."""
    return env.holds_at_ordinary_sizes(relation, from_one=True)


def _is_negative(env: ShapeEnv, number: DimLike) -> bool:
    return number < 0 if isinstance(number, int) else _always(env, Relation("lt", (number, 0)))


def _unknown_extent(env: ShapeEnv, size: DimLike, start: DimLike, end: DimLike) -> tuple[Scalar, Scalar]:
    """The beginning of ``start:end`` and its length, where even the signs of the bounds may depend on data."""

    def place(bound: DimLike) -> Scalar:
        if bound == 0:
            return 0
        if bound == size or (isinstance(bound, int) and bound >= _END):
            return size
        if env.certain("ge", bound, 0) is not True:
            return apply("min", apply("max", bound + size * _is_below_zero(bound), 0), size)
        return apply("min", bound, size)

    begin, stop = place(start), place(end)
    length = stop - begin
    return begin, length if length == size or env.certain("ge", length, 0) else apply("max", length, 0)


def _extent(tracer: Tracer, size: DimLike, start: DimLike, end: DimLike) -> tuple[Scalar, Scalar, bool]:
    """The beginning of ``start:end``, its length, and whether torch would find another: it may clamp a bound by the
    example inputs, or not know that a data-dependent size is >= 0.
    """
    env = tracer.sizes
    is_exact = isinstance(size, Dim) and bool(size.symbols() & env.unbacked)

    def clamped(op: str, value: Scalar, bound: Scalar) -> Scalar:
        """``op(value, bound)``; ``value`` alone where it is that at every ordinary size."""
        nonlocal is_exact
        relation = Relation("ge" if op == "max" else "le", (value, bound))
        is_known = relation.symbols() & env.unbacked or not tracer.values.is_outermost()
        if is_known and env.facts.holds(relation.op, value, bound):
            is_exact = True
            return value
        is_sure = not relation.symbols() & env.unbacked and not is_exact
        if (is_sure and _always(env, relation)) or env.certain(relation.op, value, bound):
            return value
        is_exact = True
        needed = [guard.relation for guard in env.guards.values() if guard.ends_run]
        return value if needed and follows_from(needed, relation) else apply(op, value, bound)

    def place(bound: DimLike) -> Scalar:
        if bound == 0:
            return 0
        return clamped("max", size + bound, 0) if _is_negative(env, bound) else clamped("min", bound, size)

    begin = place(start)
    if isinstance(end, int) and end >= _END:
        if start == 0:
            return begin, size, is_exact
        if _is_negative(env, start):
            return begin, clamped("min", -start, size), is_exact
        return begin, clamped("max", size - start, 0), is_exact
    stop = place(end)
    gap = stop - begin
    return begin, clamped("max", gap, 0) if isinstance(gap, Dim) else max(gap, 0), is_exact


def _view(
    tracer: Tracer, tensor: torch.Tensor, axis: int, begin: Scalar, length: Scalar, step: int, nodes: Arguments
) -> torch.Tensor:
    fake, env = tracer.values.fake_of(tensor), tracer.sizes
    sizes: list[Scalar] = [*dims_of(fake)]
    strides: list[Scalar] = list(map(unwrap, fake.stride()))
    offset = unwrap(fake.storage_offset()) + begin * strides[axis]
    sizes[axis], strides[axis] = length, strides[axis] * step
    sym_sizes, sym_strides = ([sym_int(env, number) for number in group] for group in (sizes, strides))
    made = fake_view(tracer.values.fake_mode, fake, sym_sizes, sym_strides, sym_int(env, offset))
    tracer.finish(aten.slice.Tensor, (tensor,), nodes, made)
    return made


def _parts(tracer: Tracer, tensor: torch.Tensor, axis: int, lengths: Sequence[Scalar]) -> list[torch.Tensor]:
    """Consecutive slices of the given lengths."""
    parts: list[torch.Tensor] = []
    begin: Scalar = 0
    for length in lengths:
        node_args = (tracer.values.node_of(tensor), axis, begin, begin + length, 1)
        parts.append(_view(tracer, tensor, axis, begin, length, 1, (node_args, {})))
        begin = begin + length
    return parts


def _axis_of(tensor: torch.Tensor, axis: int) -> tuple[int, DimLike]:
    axis = axis_of(tensor.dim(), axis)
    return axis, unwrap(tensor.shape[axis]) if tensor.dim() else 0


@register(Kind.RECORD, aten.select.int)
def _select(tracer: Tracer, call: Call, self: torch.Tensor, dim: int, index: Size) -> object:
    """select(self, dim, index) by a number that depends on data, of either sign."""
    number, env = unwrap(index), tracer.sizes
    axis_of(self.dim(), dim)
    if not isinstance(number, Dim) or not number.symbols() & env.unbacked:
        return NotImplemented
    axis, size = _axis_of(self, dim)
    fake = tracer.values.fake_of(self)
    begin = number if env.certain("ge", number, 0) else number + size * _is_below_zero(number)
    if is_caught(IndexError):
        road("errors that forward catches").warn_of_one_branch(tracer, "an index out of range", user_location())
    kept = [place for place in range(self.dim()) if place != axis]
    offset = sym_int(env, unwrap(fake.storage_offset()) + begin * unwrap(fake.stride(axis)))
    sizes, strides = ([group[place] for place in kept] for group in (fake.shape, fake.stride()))
    made = fake_view(tracer.values.fake_mode, fake, sizes, strides, offset)
    tracer.finish(call.func, call.args, tracer.values.to_nodes(call.args, call.kwargs), made)
    _write_at(tracer.values.view_of(made), axis, begin)
    return made


@register(Kind.RECORD, aten.narrow.default)
def _narrow(tracer: Tracer, call: Call, self: torch.Tensor, dim: int, start: Size, length: Size) -> object:
    """narrow(self, dim, start, length) by numbers that depend on data: the start is counted from the end where it is negative. What
    it takes lies within the axis, else eager PyTorch raises.
    """
    axis, size = _axis_of(self, dim)
    number, count, env = unwrap(start), unwrap(length), tracer.sizes
    if not any(isinstance(each, Dim) and each.symbols() & env.unbacked for each in (number, count, size)):
        return NotImplemented
    if env.certain("gt", count, size):  # wherever it starts, as eager PyTorch says
        raise RuntimeError(f"start ({number}) + length ({count}) exceeds dimension size ({size}).")
    begin = number if env.certain("ge", number, 0) else number + size * _is_below_zero(number)
    for sign, one, other in (("ge", begin, 0), ("ge", count, 0), ("le", begin + count, size)):
        env.expect(sign, one, other)
    return _view(
        tracer, self, axis, begin, count, 1, ((tracer.values.node_of(self), axis, begin, begin + count, 1), {})
    )


@register(Kind.RECORD, aten.narrow_copy.default)
def _narrow_copy(tracer: Tracer, call: Call, self: torch.Tensor, dim: int, start: Size, length: Size) -> object:
    """narrow_copy(self, dim, start, length)"""
    with tracer.mode:
        return aten.narrow.default(self, dim, start, length).clone()


@register(Kind.RECORD, aten.tensor_split.sections)
def _tensor_split(tracer: Tracer, call: Call, self: torch.Tensor, sections: Size, dim: int) -> object:
    """tensor_split(self, sections, dim=0): part i has (size + sections - 1 - i) // sections."""
    axis, size = _axis_of(self, dim)
    _check_count(tracer, unwrap(sections))
    if not isinstance(size, Dim) or type(sections) is not int:
        return NotImplemented
    lengths = [(size + sections - 1 - place) // sections for place in range(sections)]
    return _parts(tracer, self, axis, lengths)


@register(Kind.RECORD, aten.tensor_split.indices)
def _tensor_split_at(tracer: Tracer, call: Call, self: torch.Tensor, indices: Sequence[Size], dim: int) -> object:
    """tensor_split(self, indices, dim=0): slices between the indices, which may lie beyond the end."""
    axis, size = _axis_of(self, dim)
    if not any(isinstance(number, Dim) for number in (size, *map(unwrap, indices))):
        return NotImplemented
    with tracer.mode:
        bounds = [0, *indices, _END]
        return [aten.slice.Tensor(self, axis, *pair) for pair in pairwise(bounds)]


@register(Kind.RECORD, aten.chunk.default)
def _chunk(tracer: Tracer, call: Call, self: torch.Tensor, chunks: Size, dim: int) -> object:
    """chunk(self, chunks, dim=0): parts of ceil(size / chunks), the last one what is left. Python sees how many there are, and
    decides by it.
    """
    axis, size = _axis_of(self, dim)
    env = tracer.sizes
    _check_count(tracer, unwrap(chunks))
    chunks = int(chunks)
    if isinstance(size, Dim) and size.symbols() & env.unbacked and unpacks():
        none = (
            1 - apply("min", size, 1) if unpacks() == chunks else 0
        )  # of nothing there are as many parts as are asked for
        return _unpacked_parts(tracer, self, axis, size, (size + chunks - 1) // chunks, none)
    if isinstance(size, Dim) and size.symbols() & env.unbacked and chunks == 2:
        is_two = env.guard(Relation("ne", (size, 1)), by_python=True, by_user=True)
        return _parts(tracer, self, axis, [(size + 1) // 2, size // 2] if is_two else [size])
    if not isinstance(size, Dim) or size.symbols() & env.unbacked or not env.look(size):
        return NotImplemented
    return _in_chunks(tracer, self, axis, size, chunks)


def _check_count(tracer: Tracer, count: Scalar) -> None:
    """Raises UserError E104 where data tells how many parts there are."""
    owner = tracer.sizes.tracer()
    if isinstance(count, Dim) and count.symbols() & tracer.sizes.unbacked:
        error = tracer.values.refuse(
            "E104",
            "how many parts a tensor is divided into is known only when the model runs",
            why=f"there are {count}, a data-dependent number, and Python makes a list of them",
            next=(
                "return or use one tensor in the place of the list, such as x.reshape(-1, size)",
                "take each part that is needed as a slice, such as x[:size] in the place of x.split(size)[0]",
                "or give Python the number: as an argument of forward, or as that of the names in a, b = x.split(size)",
            ),
        )
        raise with_inputs(error, owner.inputs_behind_sizes(count.symbols()) if owner is not None else ())


def _unpacked_parts(
    tracer: Tracer, self: torch.Tensor, axis: int, size: DimLike, each: Scalar, none: Scalar = 0
) -> list[torch.Tensor]:
    """Parts of the size ``each``, as many as the user's code takes apart; Python ends the run where there are more or fewer.
    ``none``: 1 where there is nothing to take apart, and that is no matter.
    """
    env, count = tracer.sizes, unpacks()
    if count > 1:
        env.expect("gt", size + none, (count - 1) * each)
    if not isinstance(none, Dim):
        env.expect("le", size, count * each)
    rest = size - (count - 1) * each
    is_some = isinstance(none, Dim) or env.certain("ge", rest, 0)
    return _parts(tracer, self, axis, [*[each] * (count - 1), rest if is_some else apply("max", rest, 0)])


def _in_chunks(tracer: Tracer, self: torch.Tensor, axis: int, size: Dim, chunks: int) -> list[torch.Tensor]:
    env = tracer.sizes
    each = (size + chunks - 1) // chunks
    count = road("decisions by sizes").one_of(
        env, {parts: _has_parts(size, each, parts, chunks) for parts in range(1, chunks + 1)}
    )
    rest = size // 2 if count == chunks == 2 else size - (count - 1) * each
    return _parts(tracer, self, axis, [*[each] * (count - 1), rest])


def _has_parts(size: Scalar, each: Scalar, parts: int, most: int) -> Relation:
    """Return whether an axis has so many parts of the size ``each``, of which the last may be smaller."""
    begun = Relation("gt", (size - (parts - 1) * each, 0))
    return begun if parts == most else Relation("and", (begun, Relation("le", (size - parts * each, 0))))


@register(Kind.RECORD, aten.split.Tensor)
def _split(tracer: Tracer, call: Call, self: torch.Tensor, split_size: Size, dim: int) -> object:
    """split(self, split_size, dim=0) by a symbolic size that divides the whole: as many parts at every size; or by a part of it,
    rounded up, as ``chunk`` does.
    """
    axis, size = _axis_of(self, dim)
    each, env = unwrap(split_size), tracer.sizes
    if unpacks() and any(isinstance(number, Dim) and number.symbols() & env.unbacked for number in (each, size)):
        return _unpacked_parts(tracer, self, axis, size, each)
    count = apply("floordiv", size, each) if each != 0 else 0
    if isinstance(each, Dim) and type(count) is int and count * each == size:
        return _parts(tracer, self, axis, [each] * count)
    if each != 0:
        _check_count(tracer, apply("floordiv", size + each - 1, each))
    if not isinstance(each, Dim):
        return NotImplemented
    chunks = _part_rounded_up(each, size)
    if chunks is None or not isinstance(size, Dim) or size.symbols() & env.unbacked or not env.look(size):
        return NotImplemented
    return _in_chunks(tracer, self, axis, size, chunks)


def _part_rounded_up(each: Dim, size: Scalar) -> int | None:
    """``k`` where ``each`` is ``size / k``, rounded up."""
    divisors = {atom.args[1] for atom in each.atoms() if atom.op == "floordiv"}
    for divisor in divisors:
        if type(divisor) is int and divisor > 1 and each in ((size + divisor - 1) // divisor, -(-size // divisor)):
            return divisor
    return None
