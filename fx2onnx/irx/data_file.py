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

ALIGNMENT_BYTES = 4096
"""Start of each tensor: a page, so that a mapped weight needs no copy."""

WRITE_BYTES = 512 * 1024
"""Bytes of one write call. The page cache takes runs of pages as long as the call; runs of 2 MiB are those that a virtual
machine gives back to its host while they are free, and getting one back costs 5 times more than filling it (measured)."""

SCRATCH_BYTES = 2 * WRITE_BYTES
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
    jobs = iter(list(zip(tensors, places, strict=True)))
    taking = threading.Lock()
    with open(path, "xb"):
        pass

    def work() -> None:
        scratch = np.empty(SCRATCH_BYTES, np.uint8)
        with open(path, "r+b", buffering=0) as stream:
            while True:
                with taking:
                    job = next(jobs, None)
                if job is None:
                    return
                tensor, (offset, length) = job
                stream.seek(offset)
                _write_tensor(stream, tensor, length, scratch)

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work) for _ in range(threads)]:
            done.result()
    return places


def _places(tensors: Sequence[ir.TensorProtocol]) -> Iterator[tuple[int, int]]:
    offset = 0
    for tensor in tensors:
        yield offset, tensor.nbytes
        offset += -(-tensor.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _write_tensor(stream: io.FileIO, tensor: ir.TensorProtocol, length: int, scratch: Bytes) -> None:
    total = 0
    for block in blocks_of(tensor, scratch):
        total += len(block)
        for start in range(0, len(block), WRITE_BYTES):
            part = block[start : start + WRITE_BYTES].data
            while part:
                part = part[stream.write(part) :]
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
