"""The file of large weights: every tensor once, page-aligned, from its own memory where that is contiguous."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Bytes: TypeAlias = npt.NDArray[np.uint8]
Place: TypeAlias = tuple[int, int]
"""Offset and length in the file, in bytes."""

ALIGNMENT_BYTES = 4096
"""Start of each tensor: a page, so that a mapped weight needs no copy."""

WRITE_BYTES = 1024 * 1024
"""Bytes of one write call. The page cache takes runs of pages as long as the call; runs of 2 MiB are those that a virtual
machine gives back to its host while they are free, and getting one back costs 5 times more than filling it (measured)."""

BUFFER_BYTES = WRITE_BYTES
"""What is made for the file is made through buffers of so much, which stays in a core's cache: a block of a weight that is
not written as it lies, or neighbours that are small (each write call has its own cost)."""

BUFFERS = 4
"""One is filled while another one is written, and two wait: the one that is faster at times need not stop."""


def write_data(path: str, tensors: Sequence[ir.TensorProtocol]) -> list[tuple[int, int]]:
    """Write ``tensors`` to a new file. Returns offset and length of each, in bytes.

    Raises: OSError.
    """
    places = list(_places(tensors))
    made = any(isinstance(tensor, ir.LazyTensor) for tensor in tensors)
    with open(path, "xb", buffering=0) as stream:
        _reserve(stream, sum(places[-1]) if places else 0)
        sink = _Sink(stream) if not made else _BesideSink(stream)
        try:
            for run in _runs(list(zip(tensors, places, strict=True))):
                if len(run) > 1:
                    _gather(run, sink)
                    continue
                (tensor, place) = run[0]
                offset = place[0]
                for block in _checked_blocks(tensor, place, sink):
                    sink.write(offset, block)
                    offset += len(block)
        finally:
            sink.close()
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


class Buffers(Protocol):
    """Memory to make blocks of bytes in."""

    @property
    def size(self) -> int:
        """Bytes of each buffer."""

    def take(self) -> Bytes:
        """A buffer for one block, which must be handed over before the next one is taken."""


class _Sink:
    """Writes blocks at offsets, at once."""

    size = BUFFER_BYTES

    def __init__(self, stream: io.FileIO) -> None:
        self.stream = stream
        self._buffer = np.empty(self.size, np.uint8)

    def take(self) -> Bytes:
        return self._buffer

    def write(self, offset: int, block: Bytes) -> None:
        _write(self.stream, offset, block)

    def close(self) -> None:
        """Wait until all is written. Raises: OSError."""


class _BesideSink(_Sink):
    """Writes in a thread of its own, while the next block is made."""

    def __init__(self, stream: io.FileIO) -> None:
        super().__init__(stream)
        self._free: SimpleQueue[Bytes] = SimpleQueue()
        for buffer in (self._buffer, *(np.empty(self.size, np.uint8) for _ in range(BUFFERS - 1))):
            self._free.put(buffer)
        self._taken: list[Bytes] = []
        self._waiting: SimpleQueue[tuple[int, Bytes, list[Bytes]] | None] = SimpleQueue()
        self._pool = ThreadPoolExecutor(1)
        self._written = self._pool.submit(self._work)

    def _work(self) -> None:
        failure: Exception | None = None
        while (piece := self._waiting.get()) is not None:
            offset, block, buffers = piece
            try:
                if failure is None:
                    _write(self.stream, offset, block)
            except Exception as cause:  # raised where the caller waits
                failure = cause
            for buffer in buffers:
                self._free.put(buffer)
        if failure is not None:
            raise failure

    def take(self) -> Bytes:
        buffer = self._free.get()
        self._taken.append(buffer)
        return buffer

    def write(self, offset: int, block: Bytes) -> None:
        self._waiting.put((offset, block, self._taken))
        self._taken = []

    def close(self) -> None:
        self._waiting.put(None)
        self._pool.shutdown()
        self._written.result()


class _Gathered:
    """Small neighbours and the gaps between them, in one buffer."""

    def __init__(self, whole: Bytes) -> None:
        self.whole = whole
        self.length = 0

    @property
    def size(self) -> int:
        return len(self.whole) - self.length

    def take(self) -> Bytes:
        return self.whole[self.length :]

    def fill(self, end: int) -> None:
        """Zeros up to ``end``."""
        self.whole[self.length : end] = 0
        self.length = end

    def append(self, block: Bytes) -> None:
        place = self.whole[self.length : self.length + len(block)]
        if not np.may_share_memory(place, block):
            place[...] = block
        self.length += len(block)


def _places(tensors: Sequence[ir.TensorProtocol]) -> Iterator[Place]:
    offset = 0
    for tensor in tensors:
        yield offset, tensor.nbytes
        offset += -(-tensor.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _runs(placed: Sequence[tuple[ir.TensorProtocol, Place]]) -> Iterator[list[tuple[ir.TensorProtocol, Place]]]:
    """What is written in one go: a tensor, or small neighbours."""
    run: list[tuple[ir.TensorProtocol, Place]] = []
    for tensor, (offset, length) in placed:
        if run and offset + length - run[0][1][0] > BUFFER_BYTES:
            yield run
            run = []
        run.append((tensor, (offset, length)))
    if run:
        yield run


def _gather(run: Sequence[tuple[ir.TensorProtocol, Place]], sink: _Sink) -> None:
    """Write small neighbours together."""
    start = run[0][1][0]
    gathered = _Gathered(sink.take())
    for tensor, place in run:
        gathered.fill(place[0] - start)
        for block in _checked_blocks(tensor, place, gathered):
            gathered.append(block)
    sink.write(start, gathered.whole[: gathered.length])


def _write(stream: io.FileIO, offset: int, block: Bytes) -> None:
    stream.seek(offset)
    for start in range(0, len(block), WRITE_BYTES):
        part = block[start : start + WRITE_BYTES].data
        while part:
            part = part[stream.write(part) :]


def _checked_blocks(tensor: ir.TensorProtocol, place: Place, buffers: Buffers) -> Iterator[Bytes]:
    """``blocks_of``. Raises: OSError where they are not as long as the tensor says."""
    total, length = 0, place[1]
    for block in blocks_of(tensor, buffers):
        total += len(block)
        if total > length:
            break
        yield block
    if total != length:
        raise OSError(f"the weight {tensor.name} gave {total} bytes instead of {length}")


def blocks_of(tensor: Any, buffers: Buffers) -> Iterator[Bytes]:
    """The bytes of ``tensor`` as ONNX stores them, little-endian in C order, block after block.

    A tensor that knows how has a method ``blocks(buffers)``. Buffers: a block may lie in one that was taken
    from ``buffers``; it is used up when the next block is asked for.
    """
    blocks = getattr(tensor, "blocks", None)
    if blocks is not None:
        yield from blocks(buffers)
    else:
        yield np.frombuffer(tensor.tobytes(), np.uint8)


def all_bytes(tensor: Any) -> bytes:
    """What ``blocks_of`` gives, at once."""
    return b"".join(block.data for block in blocks_of(tensor, _Fresh()))


class _Fresh:
    """A new buffer for each block."""

    size = BUFFER_BYTES

    def take(self) -> Bytes:
        return np.empty(self.size, np.uint8)
