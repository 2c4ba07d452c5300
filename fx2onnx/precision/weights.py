"""Weights in 16 bits as tensors whose bytes are made a few rows at a time when they are written."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.pieces import Bytes, Piece
from fx2onnx.irx.values import MAX_KNOWN_INTS
from fx2onnx.optimize.weights import DerivedTensor, is_literal

Array = np.ndarray[Any, Any]
_BLOCK_BYTES = 1 << 22


class HalfTensor(DerivedTensor):
    """``source`` rounded to another float dtype; what lies beyond its range becomes its largest number."""

    def __init__(self, source: ir.TensorProtocol, dtype: ir.DataType, name: str) -> None:
        self.source = source
        self._limit = float(largest_of(dtype))
        super().__init__(self._rounded, (source,), dtype, source.shape.numpy(), name)

    def _rounded(self, array: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            made = array.astype(self.dtype.numpy())
            beyond = np.isinf(made.astype(np.float32))
            if beyond.any():
                made = np.where(beyond & np.isfinite(array), np.sign(array) * self._limit, array).astype(made.dtype)
        return np.asarray(made)

    def _array(self) -> Array:
        return np.asarray(self._rounded(np.asarray(self.source.numpy())), order="C")

    def pieces(self, size: int) -> Iterable[Piece]:
        """The bytes, some rows at a time."""
        del size
        array = self.source.numpy()
        if not array.ndim or array.nbytes <= _BLOCK_BYTES:
            yield from super().pieces(self.nbytes)
            return
        count = max(1, _BLOCK_BYTES * len(array) // array.nbytes)
        for start in range(0, len(array), count):
            part = array[start : start + count]
            yield Piece(part.size * self.dtype.numpy().itemsize, functools.partial(self._bytes, part))

    def _bytes(self, part: Array, _: Bytes) -> Bytes:
        return np.ascontiguousarray(self._rounded(part)).reshape(-1).view(np.uint8)


def in_dtype(tensor: ir.TensorProtocol, dtype: ir.DataType) -> ir.TensorProtocol:
    """The tensor in another float dtype: small constants at once, since passes look at their numbers; others when they are written."""
    made = HalfTensor(tensor, dtype, tensor.name or "")
    if tensor.size > MAX_KNOWN_INTS or not is_literal(tensor):
        return made
    return ir.Tensor(made.numpy(), dtype=dtype, name=tensor.name)


def largest_of(dtype: ir.DataType) -> float:
    """The largest finite number of a float dtype."""
    return float(ir.DataType(dtype).max)


def magnitudes(tensor: ir.TensorProtocol) -> tuple[float, float]:
    """The largest finite magnitude of the numbers, and the smallest but 0 (infinite where there is none)."""
    largest, smallest = 0.0, float("inf")
    for part in _blocks(tensor):
        magnitude = np.abs(part.astype(np.float32) if part.dtype.kind == "V" or part.dtype.itemsize < 4 else part)
        finite = magnitude[np.isfinite(magnitude)]
        largest = max(largest, float(finite.max(initial=0.0)))
        if tensor.size <= 64:
            smallest = min(smallest, float(finite[finite > 0].min(initial=np.inf)))
    return largest, smallest


def _blocks(tensor: ir.TensorProtocol) -> Iterator[Array]:
    array = np.asarray(tensor.numpy())
    if not array.ndim or array.nbytes <= _BLOCK_BYTES:
        yield array
        return
    count = max(1, _BLOCK_BYTES * len(array) // array.nbytes)
    for start in range(0, len(array), count):
        yield array[start : start + count]
