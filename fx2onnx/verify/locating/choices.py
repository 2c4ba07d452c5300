"""Places among equal numbers: PyTorch does not say which of them ``sort`` or ``topk`` takes, and a file may take others."""

from __future__ import annotations

import numpy as np
import torch.fx

from fx2onnx.judge.engines import Array

_PLACES = {
    "aten::sort": 1,
    "aten::topk": 1,
    "aten::argsort": 0,
    "aten::kthvalue": 1,
    "aten::median": 1,
    "aten::mode": 1,
}
"""Operators, and which of their results are the places."""


def axis_of_places(node: torch.fx.Node, index: int) -> int | None:
    """The axis along which the node's result holds places of its operand that PyTorch leaves open; None where it does not."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or _PLACES.get(schema.name) != index:
        return None
    names = [argument.name for argument in schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    default = next((argument.default_value for argument in schema.arguments if argument.name == "dim"), None)
    axis = given.get("dim", default)
    return axis if isinstance(axis, int) and not given.get("stable") else None


def takes_equal(got: Array, want: Array, own: Array, axis: int) -> bool:
    """Whether ``got`` names other places than ``want`` of numbers of ``own`` that are as large, and none twice that ``want``
    does not.
    """
    if got.shape != want.shape or not own.ndim:
        return False
    if got.ndim == own.ndim - 1:
        got, want = np.expand_dims(got, axis), np.expand_dims(want, axis)
    size = own.shape[axis]
    if got.size and (int(got.min()) < 0 or int(got.max()) >= size):
        return False
    sorted_places = np.sort(got, axis)
    is_twice = np.any(np.diff(sorted_places, axis=axis) == 0)
    one, other = (np.take_along_axis(own, places, axis) for places in (got, want))
    return not is_twice and bool(np.array_equal(one, other, equal_nan=own.dtype.kind == "f"))
