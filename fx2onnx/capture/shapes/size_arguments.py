"""Functions of torch whose plain numbers may be sizes: such a call goes to the recorder as it is, since torch's reading of
arguments would turn the sizes into numbers.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
import torch.nn.functional as F

from fx2onnx.base.answering import answers_for_caller
from fx2onnx.base.code_patch import THREAD
from fx2onnx.capture.shapes.size_math import Number
from fx2onnx.torchcompat.frames import asked_by_user
from fx2onnx.torchcompat.operators import KERNELS_OF_NN
from fx2onnx.torchcompat.versions import find

Function: TypeAlias = Callable[..., Number]
aten = torch.ops.aten
_check, _SHAPES = find("_check"), find("fx.experimental.symbolic_shapes")


@answers_for_caller
def _direct(overload: Function, signature: Function, original: Function) -> Function:
    """``original``, or ``overload`` of the arguments that ``signature`` gives for its own where one of them is a size."""

    def direct(*args: Number, **kwargs: Number) -> Number:
        if not THREAD.captures or not any(map(_may_be_size, (*args[1:], *kwargs.values()))):
            return original(*args, **kwargs)
        try:
            tensor, *numbers = signature(*args, **kwargs)
            given = [tensor, *map(plain_number, numbers)]
        except TypeError:  # as torch says of these arguments
            return original(*args, **kwargs)
        env = next((size.node.env for size in _sizes_in(given)), None)
        recorder = None if env is None else env.recorder()
        return original(*args, **kwargs) if recorder is None else recorder.handle(overload, tuple(given), {})

    return direct


def _may_be_size(value: Number) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_may_be_size, value))
    return type(value) is torch.SymInt or (isinstance(value, torch.Tensor) and value.dim() == 0)


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
    """Of the values alone: where the largest are is asked for by a plain number of windows."""
    overload = getattr(aten, f"adaptive_max_pool{spatial}d").default

    def arguments(input: Number, output_size: Number, return_indices: bool = False) -> Number:
        sizes = list(output_size) if isinstance(output_size, list | tuple) else [output_size] * spatial
        sizes = sizes * spatial if len(sizes) == 1 else sizes
        return input, [kept if size is None else size for size, kept in zip(sizes, input.shape[-spatial:], strict=True)]

    inner = _direct(overload, arguments, original)
    by_name = inspect.signature(arguments)

    def pool(*args: Number, **kwargs: Number) -> Number:
        found = inner(*args, **kwargs)
        wants_both = by_name.bind(*args, **kwargs).arguments.get("return_indices", False)
        return found[0] if isinstance(found, tuple) and not wants_both else found

    return pool


# -- overloads and functions that state or ask something of sizes -----------------------------------------------------------
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
def _constrain(size: Number, min: Number = None, max: Number = None, dep_token: Number = None) -> Number:
    if min is not None:
        _check(size >= min)
    if max is not None:
        _check(size <= max)
    return None if dep_token is None else dep_token.clone()


@answers_for_caller
def _constrain_size(size: Number, min: Number = None, max: Number = None, dep_token: Number = None) -> Number:
    return _constrain(size, 0 if min is None else min, max, dep_token)


@answers_for_caller
def _guarded(original: Function) -> Function:
    """In eager PyTorch it is the condition's own truth."""
    return lambda condition: bool(condition) if asked_by_user() else original(condition)


_OVERLOADS: tuple[tuple[str, Function], ...] = (
    ("numel.default", _numel),
    ("size.int", _size),
    ("_assert_scalar.default", _assert_scalar),
    ("_functional_assert_scalar.default", _assert_scalar),
    ("sym_constrain_range.default", _constrain),
    ("sym_constrain_range_for_size.default", _constrain_size),
    ("_functional_sym_constrain_range.default", _constrain),
    ("_functional_sym_constrain_range_for_size.default", _constrain_size),
)
"""Those that give or take plain numbers, so that torch would turn a size into one on the way."""


def _called(function: Function) -> Callable[[Function], Function]:
    return lambda original: function


def _of_overloads() -> Iterator[tuple[object, str, Callable[[Function], Function]]]:
    """How the packet is called and its overload."""
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
        is_by_size = output_size is None and isinstance(output_ratio, list | tuple) and any(map(_may_be_size, sizes))
        if is_by_size and len(output_ratio) in (1, spatial):
            ratios = output_ratio if len(output_ratio) == spatial else [*output_ratio] * spatial
            output_size = [math.trunc(size * ratio) for size, ratio in zip(sizes, ratios, strict=True)]
            output_ratio = None
        return original(input, kernel_size, output_size, output_ratio, *rest, **named)

    return pool


_METHODS: dict[str, object] = {
    "unfold": _direct(aten.unfold.default, _unfold, torch.Tensor.unfold),
    "chunk": _direct(aten.chunk.default, _chunk, torch.Tensor.chunk),
    "diagonal": _direct(aten.diagonal.default, _diagonal, torch.Tensor.diagonal),
}


def methods() -> Iterator[tuple[str, object]]:
    """Of ``torch.Tensor``, those that take sizes."""
    yield from _METHODS.items()


WRAPPED: tuple[tuple[object, str, Callable[[Function], Function]], ...] = (
    (torch, "chunk", lambda original: _direct(aten.chunk.default, _chunk, original)),
    (torch, "diagonal", lambda original: _direct(aten.diagonal.default, _diagonal, original)),
    *(
        (F, f"adaptive_max_pool{spatial}d", lambda original, spatial=spatial: _adaptive_max(spatial, original))
        for spatial in (1, 2, 3)
    ),
    *_of_overloads(),
    *((_SHAPES, name, _guarded) for name in ("guard_or_false", "guard_or_true", "guard_size_oblivious")),
    (_SHAPES, "constrain_range", lambda original: lambda a, *, min, max=None: _constrain(a, min, max)),
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
