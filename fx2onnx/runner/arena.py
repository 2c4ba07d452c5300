"""Offsets of buffers in one arena, and the checker that shares nothing with the planner."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

ALIGN_BYTES = 64
"""A cache line, and the widest vector register."""


@dataclass(slots=True)
class Buffer:
    """Memory that is in use from step ``start`` to step ``end``, both included."""

    size_bytes: int
    start: int
    end: int
    offset: int = -1


MAX_TIGHT = 8192
"""More buffers are placed by a faster rule: looking for the lowest gap takes time by the square of their number."""


def assign_offsets(buffers: Sequence[Buffer]) -> int:
    """Give each buffer an offset; returns the arena's size in bytes."""
    return _lowest_gaps(buffers) if len(buffers) <= MAX_TIGHT else _size_classes(buffers)


def _size_classes(buffers: Sequence[Buffer]) -> int:
    """By start, each in the memory of a dead buffer whose size has as many bits, or behind all others."""
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


def _lowest_gaps(buffers: Sequence[Buffer]) -> int:
    """The largest first, each in the lowest gap."""
    placed: list[Buffer] = []
    total = 0
    for buffer in sorted(buffers, key=lambda b: (-b.size_bytes, b.start)):
        size = -(-max(buffer.size_bytes, 1) // ALIGN_BYTES) * ALIGN_BYTES
        offset = 0
        for other in placed:  # sorted by offset
            if other.end < buffer.start or buffer.end < other.start:
                continue
            if offset + size <= other.offset:
                break
            offset = max(offset, other.offset + -(-max(other.size_bytes, 1) // ALIGN_BYTES) * ALIGN_BYTES)
        buffer.offset = offset
        total = max(total, offset + size)
        position = 0
        while position < len(placed) and placed[position].offset <= offset:
            position += 1
        placed.insert(position, buffer)
    return total


def overlaps(buffers: Sequence[Buffer]) -> list[tuple[int, int]]:
    """Pairs of buffers that share a byte at some step. Independent of ``assign_offsets``: it sweeps over the steps."""
    events = sorted(
        [(buffer.start, 1, index) for index, buffer in enumerate(buffers)]
        + [(buffer.end + 1, 0, index) for index, buffer in enumerate(buffers)]
    )
    alive: set[int] = set()
    clashes = []
    for _, is_start, index in events:
        if not is_start:
            alive.discard(index)
            continue
        low = buffers[index].offset
        high = low + buffers[index].size_bytes
        for other in alive:
            other_low = buffers[other].offset
            if low < other_low + buffers[other].size_bytes and other_low < high:
                clashes.append((min(index, other), max(index, other)))
        alive.add(index)
    return clashes
