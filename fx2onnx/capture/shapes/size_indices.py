"""Indices that are sizes: ``x[n - 1]``, and slices to one-element tensors of sizes, ``x[..., :end]``, of which torch itself wants
plain numbers. In place only in a run that follows one in which such an index became a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import EllipsisType
from typing import Any, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

from fx2onnx.base.answering import answers_for_caller

Index: TypeAlias = Any
"""What stands in the brackets."""
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@answers_for_caller
class IndicesOfSizes(TorchFunctionMode):
    """Gives ``Tensor.__getitem__`` and ``__setitem__`` sizes where torch reads plain numbers."""

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
        return func(*args, **(kwargs or {}))


@answers_for_caller
def _with_sizes(index: Index) -> Index:
    """``index`` whose slices have numbers, symbolic ones among them, in the place of one-element tensors."""
    if isinstance(index, tuple):
        return tuple(map(_with_sizes, index))
    if isinstance(index, slice):
        return slice(*(_number(bound) for bound in (index.start, index.stop, index.step)))
    return index


@answers_for_caller
def _number(bound: Any) -> Any:
    is_number = isinstance(bound, torch.Tensor) and bound.numel() == 1 and bound.dtype in _INTEGERS
    return bound.item() if is_number else bound


@answers_for_caller
def _has_sizes(parts: tuple[object, ...]) -> bool:
    """Whether sizes are among plain indices."""
    are_plain = all(part is None or type(part) in (int, slice, EllipsisType, torch.SymInt) for part in parts)
    return are_plain and torch.SymInt in map(type, parts)


@answers_for_caller
def _put(tensor: torch.Tensor, index: Index, value: torch.Tensor | float) -> None:
    """``tensor[index] = value``; where sizes are among plain indices, by a view."""
    if not _has_sizes(index if isinstance(index, tuple) else (index,)):
        tensor[index] = value
        return
    place = _taken(tensor, index)
    if not isinstance(value, torch.Tensor):
        place.fill_(value)
        return
    while value.dim() > place.dim() and value.shape[0] == 1:
        value = value[0]
    place.copy_(value)


@answers_for_caller
def _taken(tensor: torch.Tensor, index: Index) -> torch.Tensor:
    """``tensor[index]``; where sizes are among plain indices, the elements at these are selected afterwards."""
    parts = index if isinstance(index, tuple) else (index,)
    if not _has_sizes(parts):
        return tensor[index]
    rest = tensor.dim() - sum(part is not None and part is not Ellipsis for part in parts)
    parts = parts if Ellipsis in parts else (*parts, Ellipsis)
    axis, places = 0, []
    for part in parts:
        if type(part) is torch.SymInt:
            places.append((axis, part))
        axis += rest if part is Ellipsis else type(part) is not int
    tensor = tensor[tuple(slice(None) if type(part) is torch.SymInt else part for part in parts)]
    for axis, place in reversed(places):
        tensor = tensor.select(axis, place)
    return tensor
