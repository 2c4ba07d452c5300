"""Pooling whose windows have symbolic sizes, which torch takes as plain numbers: the windows as axes of their own, reduced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F

from fx2onnx.base.answering import answers_for_caller
from fx2onnx.capture.shapes.size_arguments import plain_number
from fx2onnx.capture.shapes.size_math import Number
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.expr import Dim

Function: TypeAlias = Callable[..., Number]


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
    """One for each axis."""
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
WRAPPED: tuple[tuple[object, str, Callable[[Function], Function]], ...] = tuple(
    (F, f"{kind}_pool{spatial}d", _pool(spatial, reduce, plain))
    for kind, reduce, plain in (("avg", torch.mean, _AVERAGE), ("max", torch.amax, _MAXIMUM))
    for spatial in (1, 2, 3)
)
