"""The arena of a plan: where each buffer lies, so that no two lie in the same place at the same time; and memory outside of it."""

from __future__ import annotations

import bisect
import heapq
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from fx2onnx.semantics.limits import check_bytes
from fx2onnx.semantics.types import Value

ALIGN_BYTES = 64
"""A cache line, and the widest vector register."""


@dataclass(slots=True)
class Buffer:
    """Memory that is in use from step ``start`` to step ``end``, both included."""

    size_bytes: int
    start: int
    end: int
    offset: int = -1


MAX_LOOKS = 4_000_000
"""Looks at buffers that were placed before, 0.3 s of them: their number grows by the square of that of the buffers, so the
offsets of a very large model are found by a faster rule."""


def assign_offsets(buffers: Sequence[Buffer]) -> int:
    """Give each buffer an offset; returns the arena's size in bytes."""
    total = _lowest_gaps(buffers)
    return _size_classes(buffers) if total is None else total


def _size_classes(buffers: Sequence[Buffer]) -> int:
    """Place buffers by start, each in the memory of a dead buffer whose size has as many bits, or behind all others."""
    total = 0
    free: dict[int, list[int]] = {}
    alive: list[tuple[int, int, int]] = []
    for buffer in sorted(buffers, key=lambda b: b.start):
        while alive and alive[0][0] < buffer.start:
            _, bits, offset = heapq.heappop(alive)
            free.setdefault(bits, []).append(offset)
        bits = (max(buffer.size_bytes, ALIGN_BYTES) - 1).bit_length()
        if free.get(bits):
            buffer.offset = free[bits].pop()
        else:
            buffer.offset, total = total, total + (1 << bits)
        heapq.heappush(alive, (buffer.end, bits, buffer.offset))
    return total


def _lowest_gaps(buffers: Sequence[Buffer]) -> int | None:
    """The largest first, each in the lowest gap; None where that takes too long."""
    placed: list[Buffer] = []
    total, looks = 0, 0
    for buffer in sorted(buffers, key=lambda b: (-b.size_bytes, b.start)):
        size = -(-max(buffer.size_bytes, 1) // ALIGN_BYTES) * ALIGN_BYTES
        offset, seen = 0, len(placed)
        for place, other in enumerate(placed):  # sorted by offset
            if other.end < buffer.start or buffer.end < other.start:
                continue
            if offset + size <= other.offset:
                seen = place
                break
            offset = max(offset, other.offset + -(-max(other.size_bytes, 1) // ALIGN_BYTES) * ALIGN_BYTES)
        looks += seen
        if looks > MAX_LOOKS:
            return None
        buffer.offset = offset
        total = max(total, offset + size)
        bisect.insort_right(placed, buffer, key=_OFFSET)
    return total


_OFFSET = attrgetter("offset")


def size_bytes(value: Value) -> int:
    """The bytes that a copy of the value takes."""
    if isinstance(value, list):
        return sum(map(size_bytes, value))
    return value.nbytes if isinstance(value, np.ndarray) else 0


def owned_bytes(value: Value) -> int:
    """The bytes that are freed with the value: a view takes nothing, and the content of a sequence is checked by its operators."""
    return value.nbytes if isinstance(value, np.ndarray) and value.base is None else 0


_ONE = [np.empty(0)]
HELD_ONCE = sys.getrefcount(_ONE[0])
"""The references to what only a list holds, with that of the call."""


def is_held_once(values: list[Value], index: int) -> bool:
    """Return whether nothing but the list has this array or a view of its memory: each view holds the array that owns the memory."""
    count = sys.getrefcount(values[index])
    value = values[index]
    if type(value) is not np.ndarray or count > HELD_ONCE or not value.flags.writeable:
        return False
    if value.flags.owndata:
        return True
    is_whole = isinstance(value.base, np.ndarray) and value.base.flags.owndata and value.base.nbytes == value.nbytes
    return is_whole and sys.getrefcount(value.base) <= HELD_ONCE


def own(value: Value, is_owned: bool) -> Value:
    """The value in memory of its own, in C order."""
    if isinstance(value, list):
        check_bytes(size_bytes(value), f"a sequence of {len(value)} items")
        return [own(item, False) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    if is_owned and value.flags.c_contiguous:
        return value
    if value.ndim < 2 or value.shape[-1] < 256 or value.strides[-1] % 1024:
        return np.array(value, order="C")
    out = np.empty(value.shape, value.dtype)
    for start in range(0, value.shape[-1], TURNED):
        np.copyto(out[..., start : start + TURNED], value[..., start : start + TURNED])
    return out


TURNED = 16
"""Columns of a transposed matrix that are copied at a time where rows of powers of two lie in the same places of the caches."""
