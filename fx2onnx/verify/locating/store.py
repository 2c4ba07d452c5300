"""Arrays by name, in memory up to a budget, in files of a temporary folder beyond."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
import psutil

from fx2onnx.judge.engines import Array

SHARE_OF_MEMORY = 0.25
"""Of the memory that is available, for the values of one run."""


def default_budget_bytes() -> int:
    return int(psutil.virtual_memory().available * SHARE_OF_MEMORY)


class ValueStore:
    """A mapping from keys to arrays. Those that do not fit in ``budget_bytes`` are mapped from files, which end with it."""

    def __init__(self, budget_bytes: int | None = None) -> None:
        self.budget_bytes = default_budget_bytes() if budget_bytes is None else budget_bytes
        self.held_bytes = 0
        self.spilled_bytes = 0
        self._arrays: dict[Any, Array] = {}
        self._paths: dict[Any, tuple[str, np.dtype[Any], tuple[int, ...]]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __contains__(self, key: object) -> bool:
        return key in self._arrays or key in self._paths

    def __setitem__(self, key: Any, array: Array) -> None:
        if self.held_bytes + array.nbytes <= self.budget_bytes or array.dtype.hasobject:
            self._arrays[key] = array
            self.held_bytes += array.nbytes
            return
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="fx2onnx-values-", ignore_cleanup_errors=True)
        path = os.path.join(self._folder.name, str(len(self._paths)))
        np.ascontiguousarray(array).tofile(path)
        self._paths[key] = (path, array.dtype, array.shape)
        self.spilled_bytes += array.nbytes

    def __getitem__(self, key: Any) -> Array:
        found = self._arrays.get(key)
        if found is not None:
            return found
        path, dtype, shape = self._paths[key]
        if not os.path.getsize(path):
            return np.empty(shape, dtype)
        return np.memmap(path, dtype=dtype, mode="r", shape=shape or (1,)).reshape(shape)

    def nbytes(self, key: Any) -> int:
        """The size of an array, without a look at it."""
        if key in self._arrays:
            return self._arrays[key].nbytes
        path, _, _ = self._paths[key]
        return os.path.getsize(path)
