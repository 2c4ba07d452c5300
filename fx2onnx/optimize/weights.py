"""Weights computed from weights, at the moment they are written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fx2onnx.irx.data_file import Bytes, Piece, all_bytes

Array: TypeAlias = npt.NDArray[Any]


def tensors_of(values: Iterable[ir.Value]) -> list[ir.TensorProtocol]:
    """The tensors of weights."""
    return [value.const_value for value in values if value.const_value is not None]


class DerivedTensor(ir.LazyTensor):
    """``function(*sources)``: made when it is written, not kept. Sources may lack data until then, or for ever."""

    def __init__(
        self,
        function: Callable[..., Array],
        sources: Sequence[ir.TensorProtocol],
        dtype: ir.DataType,
        sizes: Sequence[int],
        name: str,
    ) -> None:
        self.sources = tuple(sources)
        self.function = function
        super().__init__(_unasked, dtype=dtype, shape=ir.Shape(sizes), cache=False, name=name)

    @property
    def raw(self) -> Callable[[], ir.TensorProtocol]:
        """Makes the tensor. Not kept: a method in its own object would be a cycle, which frees sources late."""
        return self._made

    def _evaluate(self) -> ir.TensorProtocol:
        return self._made()

    def _array(self) -> Array:
        array = self.function(*(source.numpy() for source in self.sources))
        return np.asarray(array, self.dtype.numpy(), order="C")  # ascontiguousarray gives a scalar an axis

    def _made(self) -> ir.TensorProtocol:
        return ir.Tensor(self._array(), dtype=self.dtype, name=self.name)

    @property
    def lacks_data(self) -> bool:
        """True if a source is a mere description without numbers."""
        return any(lacks_data(source) for source in self.sources)

    def tobytes(self) -> bytes:
        """The bytes in C order, little-endian."""
        return all_bytes(self)

    def pieces(self, size: int) -> Iterable[Piece]:
        """The bytes, in one copy that is made when it is written."""
        return (Piece(self.nbytes, self._content),)

    def _content(self, _: Bytes) -> Bytes:
        if self.dtype.bitwidth < 8:
            return np.frombuffer(self._made().tobytes(), np.uint8)
        return self._array().reshape(-1).view(np.uint8)


def _unasked() -> ir.TensorProtocol:
    raise AssertionError("a derived tensor makes itself")


class TransposedTensor(DerivedTensor):
    """A weight in another axis order; made by the source itself where it knows a faster way than NumPy."""

    def __init__(self, source: ir.TensorProtocol, perm: tuple[int, ...], name: str) -> None:
        self.source = source
        self.perm = perm
        sizes = source.shape.numpy()
        super().__init__(
            lambda array: array.transpose(perm), (source,), source.dtype, [sizes[axis] for axis in perm], name
        )

    def pieces(self, size: int) -> Iterable[Piece]:
        """The bytes, as the source gives them in another order."""
        permuted = getattr(self.source, "permuted_pieces", None)
        return super().pieces(size) if permuted is None else permuted(self.perm, size)


class ArrangedTensor(DerivedTensor):
    """Weights whose rows, the numbers along the last axis, stand in another order or another shape, each row whole."""


class JoinedTensor(DerivedTensor):
    """Weights beside each other along the last axis."""

    def __init__(self, sources: Sequence[ir.TensorProtocol], sizes: Sequence[int], name: str) -> None:
        super().__init__(_joined, sources, sources[0].dtype, sizes, name)


def _joined(*arrays: Array) -> Array:
    return np.concatenate(arrays, axis=-1)


class ScaledTensor(DerivedTensor):
    """``source.reshape(view) * factor(*sources)``, made and written a few rows at a time.

    Shapes:    ``view`` has as many elements as source, factor broadcasts to it.
    """

    def __init__(
        self,
        source: ir.TensorProtocol,
        view: Sequence[int],
        factor: Callable[..., Array],
        factor_sources: Sequence[ir.TensorProtocol],
        name: str,
    ) -> None:
        self.view = tuple(view)
        self.factor = factor
        sizes = source.shape.numpy()
        super().__init__(
            functools.partial(_scaled, self.view, factor), (source, *factor_sources), source.dtype, sizes, name
        )

    def pieces(self, size: int) -> Iterable[Piece]:
        """The bytes, some rows at a time."""
        array, *factor_sources = (source.numpy() for source in self.sources)
        rows, factor = array.reshape(self.view), self.factor(*factor_sources)
        count = size // max(1, array.nbytes // max(1, len(rows)))
        if not count:
            yield from super().pieces(size)
            return
        by_row = len(factor) == len(rows)
        for start in range(0, len(rows), count):
            part = rows[start : start + count]
            part_factor = factor[start : start + count] if by_row else factor
            yield Piece(part.nbytes, functools.partial(_fill, part, part_factor))


def _scaled(view: tuple[int, ...], factor: Callable[..., Array], array: Array, *factor_sources: Array) -> Array:
    made = np.empty(array.shape, array.dtype)
    _multiply(array.reshape(view), factor(*factor_sources), made.reshape(view))
    return made


def _fill(part: Array, factor: Array, memory: Bytes) -> None:
    _multiply(part, factor, memory.view(part.dtype).reshape(part.shape))


def _multiply(part: Array, factor: Array, out: Array) -> None:
    computed = part.dtype if part.dtype.itemsize >= 4 else np.dtype(np.float32)
    np.multiply(part, factor.astype(computed, copy=False), out=out, dtype=computed, casting="unsafe")


def is_literal(tensor: ir.TensorProtocol) -> bool:
    """Return whether the numbers were written down while the graph was built: no parameter or buffer, nothing from a file."""
    return type(tensor) is ir.Tensor


def lacks_data(tensor: ir.TensorProtocol | None) -> bool:
    """Return whether the tensor is a mere description (the module is on the meta device)."""
    return bool(getattr(tensor, "lacks_data", False))
