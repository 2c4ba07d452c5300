"""Pages of a mapped file that have been read are given back, so that a file larger than memory passes through it."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable

import numpy as np

_PAGEMAP = "/proc/self/pagemap"
_IN_MEMORY, _OF_A_FILE = np.uint64(3 << 62), np.uint64(1 << 61)
"""Bits of an entry: the page is in memory or swapped out; the page in memory is the file's. Source: Linux,
admin-guide/mm/pagemap."""


def give_back(address: int, length: int) -> None:
    """Let the system have the whole pages of this memory: a later read gets them from the file again.

    Nothing is done where a page is no file's, or was written to (then it is the process's alone), and on other systems than Linux.
    """
    release = _release()
    first = -(-address // mmap.PAGESIZE)
    count = (address + length) // mmap.PAGESIZE - first
    if release is None or count <= 0 or not _are_of_a_file(first, count):
        return
    release(first * mmap.PAGESIZE, count * mmap.PAGESIZE)


def _are_of_a_file(first: int, count: int) -> bool:
    try:
        with open(_PAGEMAP, "rb", buffering=0) as file:
            file.seek(8 * first)
            content = file.read(8 * count)
    except OSError:
        return False
    if len(content) != 8 * count:
        return False
    entries = np.frombuffer(content, np.uint64)
    return not bool(np.any((entries & _IN_MEMORY != 0) & (entries & _OF_A_FILE == 0)))


@functools.cache
def _release() -> Callable[[int, int], None] | None:
    """``madvise(address, length, MADV_DONTNEED)``; None where there is none."""
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def release(address: int, length: int) -> None:
        function(address, length, mmap.MADV_DONTNEED)

    return release
