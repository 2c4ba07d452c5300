"""Indices that are sizes: ``x[n - 1]``, and slices to one-element tensors of sizes, ``x[..., :end]``, of which torch itself wants
plain numbers. In place only in a run that follows one in which such an index became a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

from fx2onnx.base.answering import answers_for_caller
from fx2onnx.torchcompat.frames import subscripts_of

Index: TypeAlias = Any
"""What stands in the brackets."""
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def raised_by_brackets(error: BaseException | None) -> bool:
    """Whether ``error`` was raised by brackets themselves, as torch raises for a size in them, or for a list with one."""
    place = error.__traceback__ if isinstance(error, IndexError | RuntimeError) else None
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_lasti in subscripts_of(place.tb_frame.f_code)


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
    """``index`` whose slices have numbers, symbolic ones among them, in the place of one-element tensors, and whose lists of
    sizes are tensors.
    """
    if isinstance(index, tuple):
        return tuple(map(_with_sizes, index))
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
    """How many axes of the tensor the part of an index is for."""
    if isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8):
        return part.dim()
    return 0 if part is None or part is Ellipsis or isinstance(part, bool) else 1
