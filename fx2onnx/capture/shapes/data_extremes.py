"""Python's ``min`` and ``max`` of tensors of one number, such as ``max(1, mask.sum())``: a choice in the graph, not in Python."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from fx2onnx.capture.shapes.size_math import Number


def are_numbers(items: Sequence[Number]) -> bool:
    """Whether there is a tensor of one number, and with it tensors of its dtype and numbers that have room in it: the answer has
    that dtype, whichever it is.
    """
    first = next((item for item in items if isinstance(item, torch.Tensor)), None)
    if first is None or first.dtype is torch.bool or first.is_complex():
        return False
    return all(
        item.dim() == 0 and item.dtype == first.dtype
        if isinstance(item, torch.Tensor)
        else _has_room(first.dtype, item)
        for item in items
    )


def _has_room(dtype: torch.dtype, number: Number) -> bool:
    if type(number) is torch.SymInt:
        return dtype == torch.int64 or dtype.is_floating_point
    if type(number) is int or (type(number) is float and dtype.is_floating_point):
        limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        return bool(limits.min <= number <= limits.max)
    return False


def extreme(op: str, items: Sequence[Number]) -> Number:
    """The first of those that no other is beyond, as Python finds it: NaN is beyond nothing. That of sizes is a size again."""
    like = next(item for item in items if isinstance(item, torch.Tensor))
    tensors = [
        item if isinstance(item, torch.Tensor) else torch.scalar_tensor(item, dtype=like.dtype, device=like.device)
        for item in items
    ]
    if not like.is_floating_point():
        return functools.reduce(torch.maximum if op == "max" else torch.minimum, tensors)
    is_beyond = torch.gt if op == "max" else torch.lt
    return functools.reduce(lambda best, item: torch.where(is_beyond(item, best), item, best), tensors)
