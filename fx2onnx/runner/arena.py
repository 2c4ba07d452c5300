"""The arena of a plan: where each buffer lies, so that no two lie in the same place at the same time."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

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
