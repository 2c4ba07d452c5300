"""Digests by which a file is known again: XXH3 of 128 bits, which is as fast as memory and made against accidents only."""

from __future__ import annotations

import threading
from os import PathLike
from typing import TypeAlias

import xxhash

Buffer: TypeAlias = bytes | bytearray | memoryview

READ_BYTES = 1024 * 1024


def digest_of(content: Buffer) -> str:
    """32 hex digits."""
    return xxhash.xxh3_128_hexdigest(content)


def digest_of_file(path: str | PathLike[str]) -> str:
    """``digest_of`` the file's content. Raises OSError."""
    state = xxhash.xxh3_128()
    buffer = memoryview(bytearray(READ_BYTES))
    with open(path, "rb", buffering=0) as stream:
        while length := stream.readinto(buffer):
            state.update(buffer[:length])
    return state.hexdigest()


class BlockDigests:
    """The digest of a file whose blocks are written in any order, by several threads."""

    def __init__(self) -> None:
        self._blocks: dict[int, bytes] = {}
        self._adding = threading.Lock()

    def add(self, offset: int, block: Buffer) -> None:
        digest = xxhash.xxh3_128_digest(block)
        with self._adding:
            self._blocks[offset] = digest

    def hexdigest(self) -> str:
        """Of all blocks and their places. The same content cut into other blocks has another one."""
        state = xxhash.xxh3_128()
        for offset in sorted(self._blocks):
            state.update(offset.to_bytes(8, "little") + self._blocks[offset])
        return state.hexdigest()
