"""The number of threads of NumPy's own OpenBLAS, set for the time of a run where it can be found."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

_SUFFIXES = ("64_", "")
_PREFIXES = ("scipy_openblas_", "openblas_")


@functools.lru_cache(maxsize=1)
def _controls() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """The getter and setter of OpenBLAS's thread count, or None where NumPy has another BLAS."""
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    for path in sorted(glob.glob(str(folder / "*openblas*"))):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix in _PREFIXES:
            for suffix in _SUFFIXES:
                get = getattr(library, f"{prefix}get_num_threads{suffix}", None)
                put = getattr(library, f"{prefix}set_num_threads{suffix}", None)
                if get is not None and put is not None:
                    get.restype, put.argtypes = ctypes.c_int, [ctypes.c_int]
                    return get, put
    return None


@contextlib.contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Use ``count`` BLAS threads in the block; 0 leaves the number as it is."""
    controls = _controls() if count > 0 else None
    if controls is None:
        yield
        return
    get, put = controls
    before = get()
    put(count)
    try:
        yield
    finally:
        put(before)
