"""Functions of newer versions of NumPy, for those that lack them."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from fx2onnx.semantics.types import Array


def _vecdot(left: Array, right: Array) -> Array:
    """The products of real vectors along the last axis, each by the routine that takes products of matrices."""
    product: Array = np.matmul(left[..., None, :], right[..., :, None])
    return product[..., 0, 0]


vecdot = cast("Callable[..., Array]", getattr(np, "vecdot", _vecdot))
"""``numpy.vecdot``, since NumPy 2.0."""
