"""Digests by which a file is known again: XXH3 of 128 bits, which is as fast as memory and made against accidents only.

Statements that others rely on have SHA-256, which nobody can forge.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from functools import lru_cache
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


def sha256_of_file(path: str | PathLike[str]) -> str:
    """The SHA-256 of the file's content, in hex. Raises OSError."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


_FRESH_NS = 2_000_000_000
"""A change this soon after another may leave the inode's times as they are."""


def known_digest(path: str | PathLike[str]) -> str | None:
    """``digest_of_file``, read again only where the file's inode says that anything changed; None where it cannot be read."""
    try:
        found = os.stat(path)
        if time.time_ns() - found.st_ctime_ns < _FRESH_NS:
            return digest_of_file(path)
        state = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        return _digest_of(os.path.abspath(path), *state)
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=1 << 16)
def _digest_of(path: str, *state: int) -> str:
    return digest_of_file(path)


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
        """The digest of all blocks and their places. The same content cut into other blocks has another one."""
        state = xxhash.xxh3_128()
        for offset in sorted(self._blocks):
            state.update(offset.to_bytes(8, "little") + self._blocks[offset])
        return state.hexdigest()
