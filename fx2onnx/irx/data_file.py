"""The file of large weights: every tensor once, page-aligned, from its own memory where that is contiguous."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

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

GATHERED_BYTES = WRITE_BYTES // 2
"""Neighbours that are no longer together are gathered here and written by one call: each call has its own cost."""

SCRATCH_BYTES = 3 * WRITE_BYTES // 2
"""Through this much memory, which stays in a core's cache, a thread reorders weights that are not to be written as they
lie."""

WRITERS = 2
"""Threads where weights are reordered: one reorders while the other writes. Weights written as they are need but one."""


def write_data(path: str, tensors: Sequence[ir.TensorProtocol]) -> list[tuple[int, int]]:
    """Write ``tensors`` to a new file. Returns offset and length of each, in bytes.

    Raises: OSError.
    """
    places = list(_places(tensors))
    threads = WRITERS if any(isinstance(tensor, ir.LazyTensor) for tensor in tensors) else 1
    runs = _runs(list(zip(tensors, places, strict=True)))
    taking = threading.Lock()
    with open(path, "xb"):
        pass

    def work() -> None:
        scratch, gathered = np.empty(SCRATCH_BYTES, np.uint8), np.empty(GATHERED_BYTES, np.uint8)
        with open(path, "r+b", buffering=0) as stream:
            while True:
                with taking:
                    run = next(runs, None)
                if run is None:
                    return
                stream.seek(run[0][1][0])
                if len(run) > 1:
                    _write(stream, _gather(run, scratch, gathered))
                    continue
                for block in _checked_blocks(*run[0], scratch):
                    _write(stream, block)

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work) for _ in range(threads)]:
            done.result()
    return places


def _places(tensors: Sequence[ir.TensorProtocol]) -> Iterator[Place]:
    offset = 0
    for tensor in tensors:
        yield offset, tensor.nbytes
        offset += -(-tensor.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _runs(placed: Sequence[tuple[ir.TensorProtocol, Place]]) -> Iterator[list[tuple[ir.TensorProtocol, Place]]]:
    """What is written in one go: a tensor, or small neighbours."""
    run: list[tuple[ir.TensorProtocol, Place]] = []
    for tensor, (offset, length) in placed:
        if run and offset + length - run[0][1][0] > GATHERED_BYTES:
            yield run
            run = []
        run.append((tensor, (offset, length)))
    if run:
        yield run


def _gather(run: Sequence[tuple[ir.TensorProtocol, Place]], scratch: Bytes, gathered: Bytes) -> Bytes:
    """The bytes of small neighbours and of the gaps between them."""
    start = end = run[0][1][0]
    for tensor, (offset, length) in run:
        gathered[end - start : offset - start] = 0
        end = offset
        for block in _checked_blocks(tensor, (offset, length), scratch):
            gathered[end - start : end - start + len(block)] = block
            end += len(block)
    return gathered[: end - start]


def _write(stream: io.FileIO, block: Bytes) -> None:
    for start in range(0, len(block), WRITE_BYTES):
        part = block[start : start + WRITE_BYTES].data
        while part:
            part = part[stream.write(part) :]


def _checked_blocks(tensor: ir.TensorProtocol, place: Place, scratch: Bytes) -> Iterator[Bytes]:
    """``blocks_of``. Raises: OSError where they are not as long as the tensor says."""
    total, length = 0, place[1]
    for block in blocks_of(tensor, scratch):
        total += len(block)
        if total > length:
            break
        yield block
    if total != length:
        raise OSError(f"the weight {tensor.name} gave {total} bytes instead of {length}")


def blocks_of(tensor: Any, scratch: Bytes) -> Iterator[Bytes]:
    """The bytes of ``tensor`` as ONNX stores them, little-endian in C order, block after block.

    A tensor that knows how has a method ``blocks(scratch)``. Buffers: a block may lie in ``scratch`` and is valid until
    the next one is asked for.
    """
    blocks = getattr(tensor, "blocks", None)
    if blocks is not None:
        yield from blocks(scratch)
    else:
        yield np.frombuffer(tensor.tobytes(), np.uint8)
