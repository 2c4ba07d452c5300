"""Arguments and indices that are sizes, of functions of torch that want plain numbers: such a call goes to the tracer as it is, since torch's reading of arguments would turn the sizes into numbers."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from fx2onnx.base.code_patch import THREAD, answers_for_caller
from fx2onnx.capture.shapes.size_math import Number
from fx2onnx.capture.shapes.symnode import may_be_size, unwrap
from fx2onnx.sizes.expr import Dim
from fx2onnx.torchcompat.asked_code import counts_elements, subscripts_of
from fx2onnx.torchcompat.operators import KERNELS_OF_NN
from fx2onnx.torchcompat.versions import find

Function: TypeAlias = Callable[..., Number]
aten = torch.ops.aten
_check = find("_check")


@answers_for_caller
def _direct(overload: Function, signature: Function, original: Function) -> Function:
    """``original``, or ``overload`` of the arguments that ``signature`` gives for its own where one of them is a size."""

    def direct(*args: Number, **kwargs: Number) -> Number:
        if not THREAD.captures or not any(map(may_be_size, (*args[1:], *kwargs.values()))):
            return original(*args, **kwargs)
        try:
            tensor, *numbers = signature(*args, **kwargs)
            given = [tensor, *map(plain_number, numbers)]
        except TypeError:  # as torch says of these arguments
            return original(*args, **kwargs)
        env = next((size.node.env for size in _sizes_in(given)), None)
        tracer = None if env is None else env.tracer()
        return original(*args, **kwargs) if tracer is None else tracer.handle(overload, tuple(given), {})

    return direct


@answers_for_caller
def plain_number(value: Number) -> Number:
    """A tensor of one integer as its number, which torch takes, too."""
    if isinstance(value, list | tuple):
        return [plain_number(each) for each in value]
    is_number = isinstance(value, torch.Tensor) and value.dim() == 0 and not value.is_floating_point()
    return value.item() if is_number and value.dtype is not torch.bool else value


def _sizes_in(values: Number) -> Iterator[Number]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _sizes_in(value)
        elif type(value) is torch.SymInt:
            yield value


@answers_for_caller
def _unfold(self: Number, dimension: int, size: Number, step: Number) -> Number:
    return self, dimension, size, step


@answers_for_caller
def _chunk(input: Number, chunks: Number, dim: int = 0) -> Number:
    return input, chunks, dim


@answers_for_caller
def _diagonal(input: Number, offset: Number = 0, dim1: int = 0, dim2: int = 1) -> Number:
    return input, offset, dim1, dim2


@answers_for_caller
def _adaptive_max(spatial: int, original: Function) -> Function:
    """An adaptive max pool of values alone: the places of the largest are asked for by a plain number of windows."""
    overload = getattr(aten, f"adaptive_max_pool{spatial}d").default

    def arguments(input: Number, output_size: Number, return_indices: bool = False) -> Number:
        sizes = list(output_size) if isinstance(output_size, list | tuple) else [output_size] * spatial
        return input, sizes * spatial if len(sizes) == 1 else sizes

    inner = _direct(overload, arguments, original)

    def pool(input: Number, output_size: Number, return_indices: bool = False) -> Number:
        if isinstance(output_size, list | tuple) and len(output_size) == spatial:
            kept = input.shape[-spatial:]
            output_size = [here if size is None else size for size, here in zip(output_size, kept, strict=True)]
        found = inner(input, output_size, return_indices=return_indices)
        return found[0] if isinstance(found, tuple) and not return_indices else found

    return pool


@answers_for_caller
def _numel(self: Number) -> Number:
    return self.numel()


@answers_for_caller
def _size(self: Number, dim: int) -> Number:
    return self.shape[dim]


@answers_for_caller
def _assert_scalar(self: Number, assert_msg: str, dep_token: Number = None) -> Number:
    _check(self != 0 if not isinstance(self, bool | torch.SymBool) else self, lambda: assert_msg)
    return None if dep_token is None else dep_token.clone()


@answers_for_caller
def constrain(size: Number, min: Number = None, max: Number = None, dep_token: Number = None) -> Number:
    if min is not None:
        _check(size >= min)
    if max is not None:
        _check(size <= max)
    return None if dep_token is None else dep_token.clone()


@answers_for_caller
def _constrain_size(size: Number, min: Number = None, max: Number = None, dep_token: Number = None) -> Number:
    return constrain(size, 0 if min is None else min, max, dep_token)


_OVERLOADS: tuple[tuple[str, Function], ...] = (
    ("numel.default", _numel),
    ("size.int", _size),
    ("_assert_scalar.default", _assert_scalar),
    ("_functional_assert_scalar.default", _assert_scalar),
    ("sym_constrain_range.default", constrain),
    ("sym_constrain_range_for_size.default", _constrain_size),
    ("_functional_sym_constrain_range.default", constrain),
    ("_functional_sym_constrain_range_for_size.default", _constrain_size),
)
"""Overloads that give or take plain numbers, so that torch would turn a size into one on the way."""


def _called(function: Function) -> Callable[[Function], Function]:
    return lambda original: function


def _of_overloads() -> Iterator[tuple[object, str, Callable[[Function], Function]]]:
    """The attributes through which packets and overloads are called, with their replacements."""
    for name, function in _OVERLOADS:
        packet, _, overload = name.partition(".")
        found = getattr(aten, packet)
        if overload == "default":
            yield found, "_op", _called(function)
        yield getattr(found, overload), "_op", _called(function)


@answers_for_caller
def _fractional(self: Number, kernel_size: Number, output_size: Number, random_samples: Number) -> Number:
    kernel = [kernel_size] * len(output_size) if isinstance(kernel_size, int) else kernel_size
    return self, kernel, output_size, random_samples


@answers_for_caller
def _with_ratio(spatial: int, original: Function) -> Function:
    """Fractional pooling by ratios of the sizes, which torch would make plain numbers."""

    def pool(
        input: Number,
        kernel_size: Number,
        output_size: Number = None,
        output_ratio: Number = None,
        *rest: Number,
        **named: Number,
    ) -> Number:
        sizes = input.shape[-spatial:]
        is_by_size = output_size is None and isinstance(output_ratio, list | tuple) and any(map(may_be_size, sizes))
        if is_by_size and len(output_ratio) in (1, spatial):
            ratios = output_ratio if len(output_ratio) == spatial else [*output_ratio] * spatial
            output_size = [math.trunc(size * ratio) for size, ratio in zip(sizes, ratios, strict=True)]
            output_ratio = None
        return original(input, kernel_size, output_size, output_ratio, *rest, **named)

    return pool


@answers_for_caller
def _pool(spatial: int, reduce: Function, plain: Mapping[str, object]) -> Callable[[Function], Function]:
    """Makes the function that stands for a pool over the last ``spatial`` axes. ``plain``: the arguments behind the stride, and
    how they are where the windows are all that is asked for.
    """

    def wrap(original: Function) -> Function:
        def pool(input: torch.Tensor, kernel_size: Number, *rest: Number, **kwargs: Number) -> Number:
            given = dict(zip(("stride", *plain), rest, strict=False)) | kwargs
            stride = given.pop("stride", None)
            kernel_size, stride = plain_number(kernel_size), plain_number(stride)
            kernel = _sizes(kernel_size, spatial)
            steps = kernel if stride is None else _sizes(stride, spatial) or kernel
            is_plain = all(
                key in plain and type(value) in _PLAIN and plain[key] == value for key, value in given.items()
            )
            if not is_plain or torch.SymInt not in map(type, (*kernel, *steps)):
                return original(input, kernel_size, *rest, **kwargs)
            for size in (*kernel, *steps):
                if isinstance(size, torch.SymInt):
                    size.node.env.check_some([unwrap(size)])
            for axis in range(-spatial, 0):
                input = _windows(input, axis, kernel[axis], steps[axis])
            return reduce(input, list(range(1 - 2 * spatial, 0, 2)))

        return pool

    return wrap


@answers_for_caller
def _sizes(given: Number, spatial: int) -> Sequence[Number]:
    """One size for each axis."""
    sizes = given if isinstance(given, tuple | list) else [given]
    return sizes if len(sizes) == spatial else [*sizes] * spatial


@answers_for_caller
def _windows(input: torch.Tensor, axis: int, size: Number, step: Number) -> torch.Tensor:
    """Shapes: [.., n, ..] -> [.., (n - size) // step + 1, size, ..]."""
    if unwrap(size) == unwrap(step):
        count = input.shape[axis] // size
        places = input.narrow(axis, 0, count * size)
    else:
        count = (input.shape[axis] - size) // step + 1
        index = torch.arange(count)[:, None] * step + torch.arange(size)
        places = input.index_select(axis, index.flatten())
    number = unwrap(count)
    if isinstance(number, Dim) and number.symbols() & count.node.env.unbacked:
        count.node.env.check_some([number])
    shape = [*places.shape]
    shape[axis : axis + 1 or None] = [count, size]
    return places.reshape(shape)


_PLAIN = (int, bool, type(None))
_AVERAGE = {"padding": 0, "ceil_mode": False, "count_include_pad": True, "divisor_override": None}
_MAXIMUM = {"padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}
METHODS: dict[str, Callable[[Function], Function]] = {
    "unfold": functools.partial(_direct, aten.unfold.default, _unfold),
    "chunk": functools.partial(_direct, aten.chunk.default, _chunk),
    "diagonal": functools.partial(_direct, aten.diagonal.default, _diagonal),
}
"""The methods of ``torch.Tensor`` that take sizes, called only where an argument may be one."""
OF_ARGUMENTS: tuple[tuple[object, str, Callable[[Function], Function]], ...] = (
    (torch, "chunk", METHODS["chunk"]),
    (torch, "diagonal", METHODS["diagonal"]),
    *(
        (F, f"{kind}_pool{spatial}d", _pool(spatial, reduce, plain))
        for kind, reduce, plain in (("avg", torch.mean, _AVERAGE), ("max", torch.amax, _MAXIMUM))
        for spatial in (1, 2, 3)
    ),
)
"""The functions that take sizes, called only where an argument behind the first may be one."""
WRAPPED: tuple[tuple[object, str, Callable[[Function], Function]], ...] = (
    *(
        (F, f"adaptive_max_pool{spatial}d", lambda original, spatial=spatial: _adaptive_max(spatial, original))
        for spatial in (1, 2, 3)
    ),
    *_of_overloads(),
    *(
        (
            KERNELS_OF_NN,
            f"fractional_max_pool{spatial}d",
            functools.partial(_direct, getattr(aten, f"fractional_max_pool{spatial}d").default, _fractional),
        )
        for spatial in (2, 3)
    ),
    *((F, f"fractional_max_pool{spatial}d", functools.partial(_with_ratio, spatial)) for spatial in (2, 3)),
)


Index: TypeAlias = Any
"""The index between the brackets."""
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def raised_by_brackets(error: BaseException | None) -> bool:
    """Return whether ``error`` was raised by brackets themselves, as torch raises for a size in them, or for a list with one."""
    place = error.__traceback__ if isinstance(error, IndexError | RuntimeError) else None
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_lasti in subscripts_of(place.tb_frame.f_code)


@answers_for_caller
class IndicesOfSizes(TorchFunctionMode):
    """Gives ``Tensor.__getitem__`` and ``__setitem__`` sizes where torch reads plain numbers, and shapes that count their elements."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.__getitem__:
            return _taken(args[0], _with_sizes(args[1]))
        if func is torch.Tensor.__setitem__:
            return _put(args[0], _with_sizes(args[1]), args[2])
        found = func(*args, **(kwargs or {}))
        return _CountedShape(found) if type(found) is torch.Size and counts_elements() else found


@answers_for_caller
class _CountedShape(tuple[Any, ...]):
    """A shape, or a part of one, whose ``numel`` is a product of sizes: torch's own takes plain numbers, and no class derives from it."""

    def numel(self) -> Any:
        return functools.reduce(operator.mul, self, 1)

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return _CountedShape(found) if isinstance(place, slice) else found


WHOLE: dict[type, Callable[[Any], torch.Tensor]] = {}
"""Kinds of lists that loops of the file fill, and the function that gives the tensor of one."""


@answers_for_caller
def _with_sizes(index: Index) -> Index:
    """``index`` whose slices have numbers, symbolic ones among them, in the place of one-element tensors, and whose lists of
    sizes are tensors.
    """
    if isinstance(index, tuple):
        return tuple(map(_with_sizes, index))
    if type(index) in WHOLE:
        return WHOLE[type(index)](index)
    if isinstance(index, list) and any(type(each) is torch.SymInt or isinstance(each, torch.Tensor) for each in index):
        return torch.tensor([_number(each) for each in index])
    if isinstance(index, slice):
        return slice(*(_number(bound) for bound in (index.start, index.stop, index.step)))
    return index


@answers_for_caller
def _number(bound: Any) -> Any:
    is_number = isinstance(bound, torch.Tensor) and bound.numel() == 1 and bound.dtype in _INTEGERS
    return bound.item() if is_number else bound


@answers_for_caller
def _one(part: Any) -> Any:
    """A tensor of one integer and no axes as its number: torch selects there. Bytes are masks."""
    is_one = isinstance(part, torch.Tensor) and part.dim() == 0 and part.dtype in _INTEGERS[:-1]
    return part.item() if is_one else part


@answers_for_caller
def _put(tensor: torch.Tensor, index: Index, value: torch.Tensor | float) -> None:
    """``tensor[index] = value``; at sizes, and tensors of one integer, by a view."""
    place, rest = _selected(tensor, index)
    place[rest] = value


@answers_for_caller
def _taken(tensor: torch.Tensor, index: Index) -> torch.Tensor:
    """``tensor[index]``; at sizes, and tensors of one integer, by a view."""
    place, rest = _selected(tensor, index)
    return place[rest]


@answers_for_caller
def _selected(tensor: torch.Tensor, index: Index) -> tuple[torch.Tensor, Index]:
    """A view of ``tensor`` where ``index`` has sizes, and what is left of it: torch, too, selects before it does the rest."""
    parts = tuple(map(_one, index if isinstance(index, tuple) else (index,)))
    if torch.SymInt not in map(type, parts):
        return tensor, index
    behind = tensor.dim() - sum(map(_axes, parts))
    axis, rest = 0, []
    for part in parts:
        if type(part) is torch.SymInt:
            tensor = tensor.select(axis, part)
        else:
            rest.append(part)
            axis += behind if part is Ellipsis else _axes(part)
    return tensor, tuple(rest) or ...


def _axes(part: object) -> int:
    """The number of axes of the tensor that a part of an index uses."""
    if isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8):
        return part.dim()
    return 0 if part is None or part is Ellipsis or isinstance(part, bool) else 1
