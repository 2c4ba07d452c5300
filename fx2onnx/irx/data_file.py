"""The file of large weights: every tensor once, page-aligned, from its own memory where that is contiguous, else made piece by piece when it
is wanted.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fx2onnx.files.digest import BlockDigests
from fx2onnx.files.staging import open_to_write

Bytes: TypeAlias = npt.NDArray[np.uint8]


class Piece(NamedTuple):
    """Consecutive bytes of a tensor."""

    length: int
    make: Callable[[Bytes], Bytes | None]
    """Called with memory of ``length`` bytes: fills it, or returns other memory that has the bytes already.

    Any thread may call it, at any time and beside other pieces."""


def pieces_of(tensor: Any, size: int) -> Iterable[Piece]:
    """The bytes of ``tensor`` as ONNX stores them, little-endian in C order.

    A tensor that knows how has a method ``pieces(size)``. A piece is longer than ``size`` bytes only where it needs no
    memory to be made in.
    """
    pieces = getattr(tensor, "pieces", None)
    if pieces is not None:
        made: Iterable[Piece] = pieces(size)
        return made
    return (Piece(tensor.nbytes, lambda _: np.frombuffer(tensor.tobytes(), np.uint8)),)


def all_bytes(tensor: Any) -> bytes:
    """The bytes of ``pieces_of``, at once."""
    whole = np.empty(tensor.nbytes, np.uint8)
    start = 0
    for piece in pieces_of(tensor, whole.size):
        make_in(whole[start : start + piece.length], piece, tensor)
        start += piece.length
    return whole.tobytes()


def make_in(place: Bytes, piece: Piece, tensor: Any) -> None:
    """Have the bytes of a piece of ``tensor`` in ``place``. Raises OSError where they are not as many."""
    made = made_with(place, piece, tensor)
    if made is not place:
        place[:] = made


def made_with(memory: Bytes, piece: Piece, tensor: Any) -> Bytes:
    """The bytes of a piece of ``tensor``: ``memory``, or other memory that has them already.

    Raises: OSError where they are not as many as the piece said.
    """
    made = piece.make(memory)
    if made is None:
        return memory
    if len(made) != piece.length:
        raise OSError(f"the weight {tensor.name} gave {len(made)} bytes instead of {piece.length}")
    return made


Place: TypeAlias = tuple[int, int]
"""Offset and length in the file, in bytes."""
Pieces: TypeAlias = list[tuple[int, Piece, ir.TensorProtocol]]
"""The pieces of one write: the offset of each from the first one, the piece, and its tensor."""

ALIGNMENT_BYTES = 4096
"""Start of each tensor: a page, so that a mapped weight needs no copy."""

WRITE_BYTES = 1024 * 1024
"""Bytes of one write call. The page cache takes runs of pages as long as the call; runs of 2 MiB are those that a virtual
machine gives back to its host while they are free, and getting one back costs 5 times more than filling it (measured)."""

BUFFER_BYTES = WRITE_BYTES
"""The size of the buffer in which numbers are made for the file, small enough for a core's cache: a part of a weight
that is not written as it lies, or neighbours that are small (each write call has its own cost)."""

BESIDE_BYTES = 8 * BUFFER_BYTES
"""The size from which on a second thread makes and writes, too: one writes (the system lets one into a file at a time)
while the other one makes."""


def write_data(path: str, tensors: Sequence[ir.TensorProtocol], digests: BlockDigests | None = None) -> list[Place]:
    """Write ``tensors`` to a new file or an empty one, and note what is written in ``digests``.

    Returns: offset and length of each, in bytes. Raises: OSError.
    """
    places = list(_places(tensors))
    length = sum(places[-1]) if places else 0
    with open_to_write(path) as stream:
        _reserve(stream, length)
        work = _Work(_runs(tensors, places), digests)
        if length < BESIDE_BYTES or not any(isinstance(tensor, ir.LazyTensor) for tensor in tensors):
            work.do(stream)
        else:
            with open(path, "r+b", buffering=0) as other, ThreadPoolExecutor(1) as beside:
                second = beside.submit(work.do, other)
                work.do(stream)
            second.result()
    return places


def _reserve(stream: io.FileIO, length: int) -> None:
    """Take the room on the disk at once: cheaper than page by page, and a full disk shows before the work.

    Raises: OSError where there is no room.
    """
    if length and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(stream.fileno(), 0, length)
        except OSError as cause:
            if cause.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise


def _places(tensors: Sequence[ir.TensorProtocol]) -> Iterator[Place]:
    offset = 0
    for tensor in tensors:
        length = tensor.nbytes
        yield offset, length
        offset += -(-length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _runs(tensors: Sequence[ir.TensorProtocol], places: Sequence[Place]) -> Iterator[tuple[int, Pieces]]:
    """Pieces and where they start, those that fit into one buffer together."""
    start = 0
    run: Pieces = []
    for tensor, (offset, length) in zip(tensors, places, strict=True):
        end = offset + length
        for piece in pieces_of(tensor, BUFFER_BYTES):
            if run and offset + piece.length - start > BUFFER_BYTES:
                yield start, run
                run = []
            if not run:
                start = offset
            run.append((offset - start, piece, tensor))
            offset += piece.length
        if offset != end:
            raise OSError(f"the weight {tensor.name} gave {length + offset - end} bytes instead of {length}")
    if run:
        yield start, run


class _Work:
    """Runs to make and to write, by one thread or several."""

    def __init__(self, runs: Iterator[tuple[int, Pieces]], digests: BlockDigests | None) -> None:
        self._runs = runs
        self._digests = digests
        self._taking = threading.Lock()
        self._failed = False

    def do(self, stream: io.FileIO) -> None:
        """Take runs and write them until none is left, or until a thread failed."""
        buffer = np.empty(BUFFER_BYTES, np.uint8)
        try:
            while (run := self._next()) is not None:
                offset, pieces = run
                self._write(stream, offset, _joined(pieces, buffer))
        except BaseException:
            self._failed = True
            raise

    def _next(self) -> tuple[int, Pieces] | None:
        with self._taking:
            return None if self._failed else next(self._runs, None)

    def _write(self, stream: io.FileIO, offset: int, block: Bytes) -> None:
        for start in range(0, len(block), WRITE_BYTES):
            part = block[start : start + WRITE_BYTES]
            if self._digests is not None:
                self._digests.add(offset + start, part.data)  # first: the write then finds it in the core's cache
            _write(stream, offset + start, part)


def _joined(run: Pieces, buffer: Bytes) -> Bytes:
    """The bytes of a run, with zeros between the tensors; in ``buffer`` except for a piece that lies in memory."""
    if len(run) == 1:
        _, piece, tensor = run[0]
        return made_with(buffer[: piece.length], piece, tensor)
    end = 0
    for start, piece, tensor in run:
        if start > end:
            buffer[end:start] = 0
        end = start + piece.length
        make_in(buffer[start:end], piece, tensor)
    return buffer[:end]


def _write(stream: io.FileIO, offset: int, block: Bytes) -> None:
    stream.seek(offset)
    part = block.data
    while part:
        part = part[stream.write(part) :]
