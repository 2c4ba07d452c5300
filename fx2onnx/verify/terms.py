"""How large the terms of a sum are: a result that is nearly nothing is as far off as they are."""

from __future__ import annotations

from typing import Any

import torch

from fx2onnx.torchcompat.pytrees import pytree


def _multiplied(func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """How large the numbers are that the operator multiplies by a share between nothing and one, which is off by units of one."""
    value = args[0]
    if func._schema.name.endswith("::glu"):
        value = value.chunk(2, axis_of(func, args, kwargs))[0]
    return torch.nan_to_num(value.abs().float(), 0.0, 0.0, 0.0)


def _summed(func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
    """The size of a sum or a mean of terms as large of either sign, though these may add up to nothing."""
    value = args[0]
    if not value.is_floating_point() or not value.numel():
        return None
    squares = torch.nan_to_num(func(value.double() ** 2, *args[1:], **{**kwargs, "dtype": None}), 0.0, 0.0, 0.0)
    terms = value.numel() / max(squares.numel(), 1) if func._schema.name.endswith("::mean") else 1.0
    return (squares / terms).sqrt().float()


def _products(func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
    """The size of a sum of products as large of either sign: a product of squares. A row of one number says nothing of it."""
    tensors = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    if not all(each.is_floating_point() and each.numel() for each in tensors):
        return None
    squared_args = pytree.tree_map_only(torch.Tensor, lambda each: each.float().square(), tuple(args))
    factors = {key: value**2 if isinstance(value, (int, float)) else value for key, value in kwargs.items()}
    squares: torch.Tensor = func(*squared_args, **factors)
    return torch.nan_to_num(squares, 0.0, 0.0, 0.0).sqrt_()


TERMS = {
    **dict.fromkeys(("gelu", "gelu_", "silu", "silu_", "hardswish", "hardswish_", "glu"), _multiplied),
    **dict.fromkeys(("sum", "mean"), _summed),
    **dict.fromkeys(
        ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "linear", "convolution", "_convolution", "_trilinear"),
        _products,
    ),
}
"""Operators whose results may be off by units of what they are made of, by how large that is."""


def axis_of(func: Any, args: Any, kwargs: Any) -> int:
    names = [argument.name for argument in func._schema.arguments]
    if "dim" in kwargs:
        return int(kwargs["dim"])
    place = names.index("dim") if "dim" in names else -1
    return int(args[place]) if 0 <= place < len(args) else -1
