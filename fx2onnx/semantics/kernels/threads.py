"""Threads of a run: the results have the same bits at any number of them.

Work is cut into parts by its shapes alone, and each part is computed by one thread.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import ctypes
import functools
import glob
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fx2onnx.semantics.types import FLOAT32, Array

_SUFFIXES = ("64_", "")
_PREFIXES = ("scipy_openblas_", "openblas_")


def _openblas(*names: str) -> list[Any] | None:
    """Functions of NumPy's OpenBLAS, or None where it has another BLAS."""
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    for path in sorted(glob.glob(str(folder / "*openblas*"))):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix in _PREFIXES:
            for suffix in _SUFFIXES:
                found = [getattr(library, f"{prefix}{name}{suffix}", None) for name in names]
                if None not in found:
                    return found
    return None


@functools.lru_cache(maxsize=1)
def _controls() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """The getter and setter of OpenBLAS's thread count, or None where NumPy has another BLAS."""
    found = _openblas("get_num_threads", "set_num_threads")
    if found is None:
        return None
    get, put = found
    get.restype, put.argtypes = ctypes.c_int, [ctypes.c_int]
    return get, put


@functools.lru_cache(maxsize=1)
def _has_wide_kernels() -> bool:
    """Return whether OpenBLAS took its kernels for AVX-512. They give a large product the same bits whole and in parts, and
    they alone multiply small matrices without packing them first.
    """
    found = _openblas("get_corename")
    if found is None:
        return False
    found[0].restype = ctypes.c_char_p
    return bool(found[0]() == b"SkylakeX")


_lock = threading.Lock()
_inside = 0
_before = 0
_workers: contextvars.ContextVar[int] = contextvars.ContextVar("fx2onnx_workers", default=1)


class threads:
    """Work with ``count`` threads in the block; 0 means as many as OpenBLAS was set to use.

    OpenBLAS itself gets one thread: how it cuts a product depends on the number of threads, and so do the last bits.
    Its setting is the process's, so the first block to begin changes it and the last to end puts it back.
    """

    __slots__ = ("_count", "_token")

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> None:
        before = _enter()
        self._token = _workers.set(self._count if self._count > 0 else before)

    def __exit__(self, *_: object) -> None:
        _workers.reset(self._token)
        _leave()


def _enter() -> int:
    global _inside, _before
    controls = _controls()
    with _lock:
        if _inside == 0:
            _before = controls[0]() if controls is not None else 1
            if controls is not None and _before != 1:
                controls[1](1)
        _inside += 1
        return _before


def _leave() -> None:
    global _inside
    controls = _controls()
    with _lock:
        _inside -= 1
        if _inside == 0 and controls is not None and _before != 1:
            controls[1](_before)


@functools.lru_cache(maxsize=1)
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1), "fx2onnx")


def are_several() -> bool:
    """Return whether tasks run at the same time here."""
    return _workers.get() > 1


def spread(tasks: Sequence[Callable[[], None]]) -> None:
    """Run all tasks, on several threads where allowed. They must not depend on one another's order.

    The tasks must be the same at any number of threads, or the results would not be.
    """
    helpers = min(_workers.get(), len(tasks)) - 1
    if helpers < 1:
        for task in tasks:
            task()
        return
    waiting = iter(tasks)

    def work() -> None:
        for task in waiting:
            task()

    futures = [_pool().submit(contextvars.copy_context().run, work) for _ in range(helpers)]
    try:
        work()
    finally:
        concurrent.futures.wait(futures)
    for future in futures:
        future.result()


PART_MULTIPLIES = 1 << 26
"""Products are cut into parts of about this many multiplications, 0.6 ms of work: smaller ones cost one thread 4 to 14 %."""

MAX_PARTS = 8


def product(a: Array, b: Array, out: Array) -> Callable[[], Any]:
    """The call of ``multiply``, which has no Python in it for small matrices."""
    if out.size * a.shape[-1] <= LEAST_MULTIPLIES:
        return whole_product(a, b, out)
    return functools.partial(multiply, a, b, out)


def whole_product(a: Array, b: Array, out: Array) -> Callable[[], Any]:
    """The call of out = a @ b in one. ``dot`` takes half a microsecond less than ``np.matmul`` to look at two matrices; by
    a matrix of one number it skips zeros, and inf * 0 is to be NaN."""
    is_plain = 0 < a.ndim <= b.ndim == 2 and out.flags.c_contiguous and a.dtype == b.dtype == out.dtype
    if is_plain and b.size > 1 and out.dtype.char in "fd":
        return functools.partial(a.dot, b, out)
    return functools.partial(np.matmul, a, b, out)


def multiply(a: Array, b: Array, out: Array) -> None:
    """out = a @ b, in parts that depend on the shapes only. One thread takes a product whole where that keeps its bits."""
    multiplies = out.size * a.shape[-1]
    if multiplies <= LEAST_MULTIPLIES:
        whole_product(a, b, out)()
        return
    if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous and out.flags.c_contiguous:
        a, out = a.reshape(-1, a.shape[-1]), out.reshape(-1, out.shape[-1])
    parts = min(MAX_PARTS, multiplies // PART_MULTIPLIES)
    width = _narrow_width(a, b, out)
    if width:
        cuts = _parts(a, b, out, parts) if parts > 1 else [(a, b, out)]
        spread([functools.partial(_by_columns, *cut, width) for cut in cuts])
    elif parts < 2 or (not are_several() and _keeps_bits(out)):
        np.matmul(a, b, out=out)
    else:
        spread([functools.partial(np.matmul, left, right, y) for left, right, y in _parts(a, b, out, parts)])


MIN_SIDE = 16
"""Products of fewer rows or columns are taken for those of a vector, which OpenBLAS computes in another way."""
LEAST_MULTIPLIES = 1 << 17
"""Less work than this is not cut: one more call of NumPy costs as much."""
MAX_ROWS = 48
SMALL_MULTIPLIES = 1_000_000
SMALL_OUTPUT = 1200
"""OpenBLAS packs both operands of a product of more multiplications, or by a transposed matrix with a larger output; with
few rows that takes longer than the product. Source: sgemm_small_kernel_permit_skylakex.c."""


def _keeps_bits(out: Array) -> bool:
    """Return whether the product is of matrices in float32, which have the same bits whole and in parts."""
    return out.dtype == FLOAT32 and out.ndim > 1 and min(out.shape[-2:]) >= MIN_SIDE and _has_wide_kernels()


def _narrow_width(a: Array, b: Array, out: Array) -> int:
    """Return how many columns to compute at a time so that OpenBLAS packs no operand: 0 where the product is better whole."""
    if out.ndim != 2 or b.ndim != 2 or not 1 < len(out) <= MAX_ROWS or out.dtype != FLOAT32 or not _has_wide_kernels():
        return 0
    (rows, columns), inner = out.shape, len(b)
    is_turned = b.strides[0] == b.itemsize < b.strides[1]
    most = SMALL_MULTIPLIES // max(rows * inner, 1)
    if is_turned:
        most = min(most, SMALL_OUTPUT // rows)
    width: int = most // 16 * 16
    if most >= columns or width < (16 if is_turned else 64) or rows * inner * width <= LEAST_MULTIPLIES:
        return 0
    return width


def _by_columns(a: Array, b: Array, out: Array, width: int) -> None:
    for start in range(0, out.shape[1], width):
        np.matmul(a, b[:, start : start + width], out[:, start : start + width])


def _parts(a: Array, b: Array, out: Array, parts: int) -> list[tuple[Array, Array, Array]]:
    """Cut along a batch axis, else along the longer side of the matrices."""
    axis = next((axis for axis in range(out.ndim - 2) if out.shape[axis] > 1), None)
    if axis is not None:
        cuts = _cuts(out.shape[axis], parts, 1)
        return [(_along(a, out.ndim, axis, cut), _along(b, out.ndim, axis, cut), _cut(out, axis, cut)) for cut in cuts]
    if a.ndim < 2 or b.ndim < 2:
        return [(a, b, out)]
    if out.shape[-1] >= out.shape[-2]:
        return [(a, b[..., cut], out[..., cut]) for cut in _cuts(out.shape[-1], parts, 64)]
    return [(a[..., cut, :], b, out[..., cut, :]) for cut in _cuts(out.shape[-2], parts, 64)]


def _cuts(size: int, parts: int, unit: int) -> list[slice]:
    """At most ``parts`` slices of whole units."""
    step = -(-size // parts)
    step = -(-step // unit) * unit
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def _along(x: Array, ndim: int, axis: int, cut: slice) -> Array:
    """The part of an operand, which may have fewer axes than the result, or size 1 there."""
    own = axis - (ndim - x.ndim)
    return x if own < 0 or x.ndim < 3 or x.shape[own] == 1 else _cut(x, own, cut)


def _cut(x: Array, axis: int, cut: slice) -> Array:
    return x[(slice(None),) * axis + (cut,)]
