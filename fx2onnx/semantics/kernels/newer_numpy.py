"""Functions that NumPy has under other names, or not at all, in some of its versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from fx2onnx.semantics.types import Array


def _vecdot(left: Array, right: Array, out: Array | None = None) -> Array:
    """The products of real vectors along the last axis, each by the routine that takes products of matrices."""
    room = None if out is None else out[..., None, None]
    product: Array = np.matmul(left[..., None, :], right[..., :, None], room)
    return product[..., 0, 0]


vecdot = cast("Callable[..., Array]", getattr(np, "vecdot", _vecdot))
"""``numpy.vecdot``, since NumPy 2.0."""

_umath = (getattr(np, "_core", None) or np.core).umath
clip = cast("Callable[..., Array]", getattr(_umath, "clip", np.clip))
"""The ufunc that ``numpy.clip`` calls after 1.3 us of Python: ``clip(x, low, high, out)``."""
