"""Functions of torch whose plain numbers may be sizes: such a call goes to the recorder as it is, since torch's reading of
arguments would turn the sizes into numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
import torch.nn.functional as F

from fx2onnx.base.answering import answers_for_caller
from fx2onnx.base.code_patch import THREAD
from fx2onnx.capture.shapes.size_math import Number

Function: TypeAlias = Callable[..., Number]
aten = torch.ops.aten


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
)
