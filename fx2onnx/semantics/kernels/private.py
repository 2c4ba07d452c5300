"""Operators of the runner's own domain ``fx2onnx``, which no model can name."""

from __future__ import annotations

import numpy as np

from fx2onnx.semantics.registry import PRIVATE_DOMAIN, kernel
from fx2onnx.semantics.types import Array


@kernel("SumTo", domain=PRIVATE_DOMAIN)
def sum_to(x: Array, like: Array) -> Array:
    """x summed over the axes along which ``like`` was broadcast to it."""
    extra = x.ndim - like.ndim
    axes = tuple(range(extra)) + tuple(
        extra + axis for axis, dim in enumerate(like.shape) if dim == 1 and x.shape[extra + axis] != 1
    )
    return np.array(x.sum(axis=axes, keepdims=True)).reshape(like.shape)


@kernel("SwapLast", domain=PRIVATE_DOMAIN, kind="view")
def swap_last(x: Array) -> Array:
    """x with its last two axes exchanged."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)) if x.ndim > 1 else x


@kernel("OnesLike", domain=PRIVATE_DOMAIN)
def ones_like(x: Array) -> Array:
    """Ones in x's shape."""
    return np.ones_like(x)


@kernel("ZerosLike", domain=PRIVATE_DOMAIN)
def zeros_like(x: Array) -> Array:
    """Zeros in x's shape."""
    return np.zeros_like(x)
