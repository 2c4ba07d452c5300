"""A checker of the arena that shares nothing with the planner."""

from __future__ import annotations

from collections.abc import Sequence

from fx2onnx.runner.arena import Buffer


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
