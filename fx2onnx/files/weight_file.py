"""A checkpoint file in memory: where the weights that a model refers to lie in the file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WeightFile:
    """A file whose bytes are mapped at ``address``; a tensor that lies inside is read from the file by its offset."""

    path: str
    address: int
    size_bytes: int

    def offset_of(self, address: int, length_bytes: int) -> int | None:
        """Where in the file the bytes at ``address`` are; None for memory that is not (all) the file's."""
        offset = address - self.address
        return offset if offset >= 0 and offset + length_bytes <= self.size_bytes else None
