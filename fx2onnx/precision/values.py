"""The values of a model on some inputs, one by one, of which only sizes and numbers to compare are kept; and weights in 16 bits, made a few
rows at a time when they are written.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.data_file import Bytes, Piece
from fx2onnx.irx.values import MAX_KNOWN_INTS
from fx2onnx.judge.tolerance import is_mask_value
from fx2onnx.optimize.weights import DerivedTensor, is_literal

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]
MOST_NUMBERS = 1 << 14
"""The largest number of elements of a value that are compared, at equal distances."""


@dataclass(frozen=True)
class SeenValue:
    """A value: its largest finite magnitude, whether it has a NaN, and some of its numbers."""

    largest: float
    has_nan: bool
    numbers: Array


def seen(array: Array) -> SeenValue:
    """The part of an array of floats that is kept."""
    wide = array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)
    largest = max(abs(float(wide.max(initial=0.0))), abs(float(wide.min(initial=0.0))))
    has_nan = False
    if not np.isfinite(largest):
        has_nan = bool(np.isnan(wide).any())
        largest = float(np.abs(np.where(np.isfinite(wide), wide, 0)).max(initial=0.0))
    step = -(-wide.size // MOST_NUMBERS) or 1
    return SeenValue(largest, has_nan, np.array(wide.reshape(-1)[::step], np.float64))


def values_of(model: ir.Model, feeds: Feeds) -> dict[str, SeenValue]:
    """The floating-point values by name; for a value in a loop those of the last iteration, with the largest magnitude of all.

    Raises: Fx2OnnxError where the runner cannot run the model.
    """
    from fx2onnx.runner import GraphOptimizationLevel, InferenceSession, SessionOptions

    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    session = InferenceSession(model, options)
    found = {name: seen(array) for name, array in feeds.items() if is_float(array)}

    def observe(program: Any, step: Any, start_ns: int, end_ns: int, results: Sequence[Any]) -> None:
        del start_ns, end_ns
        for index, result in zip(step.outputs, results, strict=False):
            if index >= 0 and is_float(result):
                name, now = program.slots[index].name, seen(result)
                before = found.get(name)
                found[name] = now if before is None else SeenValue(
                    max(now.largest, before.largest), now.has_nan or before.has_nan, now.numbers
                )  # fmt: skip

    with np.errstate(all="ignore"):
        session.executor.run(session.check_feeds(feeds), observe)
    return found


def is_float(value: Any) -> bool:
    """Return whether it is an array of floats, bfloat16 among them."""
    return isinstance(value, np.ndarray) and (value.dtype.kind == "f" or value.dtype.name == "bfloat16")


def distance(got: SeenValue, want: SeenValue, limit: float) -> float:
    """The size of the difference, of that of ``want``; infinite where NaN or infinity came in."""
    if got.numbers.shape != want.numbers.shape:
        return 0.0
    if got.has_nan and not want.has_nan:
        return float("inf")
    return difference(got.numbers, want.numbers, limit)


def difference(got: Array, want: Array, limit: float) -> float:
    """The same of two arrays. What is beyond ``limit`` in both counts as equal."""
    one, other = got.astype(np.float64).reshape(-1), want.astype(np.float64).reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        both_masked = is_mask_value(other, limit) & is_mask_value(one, limit) & (np.sign(one) == np.sign(other))
        is_same = both_masked | (np.isnan(one) & np.isnan(other)) | (one == other)
        gap = np.where(is_same, 0.0, one - other)
        if not np.isfinite(gap).all():
            return float("inf")
        size = float(np.linalg.norm(other[~both_masked & np.isfinite(other)]))
    off = float(np.linalg.norm(gap))
    return off / size if size else float(off > 0)


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
