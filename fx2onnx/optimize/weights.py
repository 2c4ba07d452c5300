"""Weights computed from weights, at the moment they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fx2onnx.irx.data_file import Bytes, blocks_of

Array: TypeAlias = npt.NDArray[Any]


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
        super().__init__(self._made, dtype=dtype, shape=ir.Shape(sizes), cache=False, name=name)

    def _made(self) -> ir.TensorProtocol:
        array = self.function(*(source.numpy() for source in self.sources))
        wanted = self.dtype.numpy()
        return ir.Tensor(np.ascontiguousarray(array.astype(wanted, copy=False)), dtype=self.dtype, name=self.name)

    @property
    def lacks_data(self) -> bool:
        """Whether a source is a mere description without numbers."""
        return any(lacks_data(source) for source in self.sources)

    def blocks(self, scratch: Bytes) -> Iterator[Bytes]:
        """The bytes, from the one copy that is made now."""
        return blocks_of(self._made(), scratch)


class TransposedTensor(DerivedTensor):
    """A weight in another axis order; made by the source itself where it knows a faster way than NumPy."""

    def __init__(self, source: ir.TensorProtocol, perm: tuple[int, ...], name: str) -> None:
        self.source = source
        self.perm = perm
        sizes = source.shape.numpy()
        super().__init__(
            lambda array: array.transpose(perm), (source,), source.dtype, [sizes[axis] for axis in perm], name
        )

    def _made(self) -> ir.TensorProtocol:
        permuted = getattr(self.source, "permuted", None)
        if permuted is not None:
            made: ir.TensorProtocol = permuted(self.perm)
            return made
        return super()._made()


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
        super().__init__(self._scaled, (source, *factor_sources), source.dtype, sizes, name)

    def _scaled(self, array: Array, *factor_sources: Array) -> Array:
        rows = np.concatenate(list(self._rows(array, self.factor(*factor_sources), len(array) or 1)))
        return rows.reshape(array.shape)

    def _rows(self, array: Array, factor: Array, count: int) -> Iterator[Array]:
        rows = array.reshape(self.view)
        spread = np.broadcast_to(factor, self.view)
        for start in range(0, len(rows), count):
            part = computing(rows[start : start + count])
            yield (part * spread[start : start + count].astype(part.dtype)).astype(array.dtype, copy=False)

    def blocks(self, scratch: Bytes) -> Iterator[Bytes]:
        """The bytes, some rows at a time. Buffers: they and what they are made of take half of ``scratch``'s bytes, elsewhere."""
        array, *factor_sources = (source.numpy() for source in self.sources)
        row_bytes = max(1, array.nbytes // max(1, self.view[0]))
        for rows in self._rows(array, self.factor(*factor_sources), max(1, len(scratch) // 4 // row_bytes)):
            yield rows.reshape(-1).view(np.uint8)


def is_literal(tensor: ir.TensorProtocol) -> bool:
    """Whether the numbers were written down while the graph was built: no parameter or buffer, nothing from a file."""
    return type(tensor) is ir.Tensor


def lacks_data(tensor: ir.TensorProtocol | None) -> bool:
    """Whether the tensor is a mere description (the module is on the meta device)."""
    return bool(getattr(tensor, "lacks_data", False))


def computing(array: Array) -> Array:
    """The array in the dtype to compute in: float32 for the half precisions."""
    return array if array.dtype.itemsize >= 4 else array.astype(np.float32)
