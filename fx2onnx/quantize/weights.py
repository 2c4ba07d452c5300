"""A weight's codes, scales and zero points as tensors whose bytes are made some rows at a time when they are written."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.irx.data_file import Bytes, Piece
from fx2onnx.optimize.weights import (
    ArrangedTensor,
    DerivedTensor,
    JoinedTensor,
    ScaledTensor,
    TransposedTensor,
    lacks_data,
)
from fx2onnx.quantize.schemes import Array, Codes, Scheme, blocked, packed, unpacked

D = ir.DataType
WORKING_BYTES = 1 << 20
"""float32 numbers that are looked at in one go: they stay in a core's cache."""


@dataclass(frozen=True, eq=False)
class RowWeight:
    """A weight as rows, the reduced axis last, and what its codes are.

    ``perm`` brings the source's axes in this order, ``sizes`` are those after it; the rows are all but ``columns``.
    """

    source: ir.TensorProtocol
    perm: tuple[int, ...] | None
    sizes: tuple[int, ...]
    scheme: Scheme
    block: int
    factor: Callable[[], Array] | None = None
    """The factor of each row by a folded normalization, applied after the codes are made."""
    factor_sources: tuple[ir.TensorProtocol, ...] = ()
    given: Codes | None = None
    """The codes that a calibration chose instead of the nearest ones."""

    @property
    def name(self) -> str:
        return self.source.name or ""

    @property
    def columns(self) -> int:
        return self.sizes[-1]

    @property
    def rows(self) -> int:
        return math.prod(self.sizes[:-1])

    @property
    def blocks(self) -> int:
        """Blocks of a row; the last may be short."""
        return -(-self.columns // self.block)

    def array(self) -> Array:
        """The numbers, where possible as they lie in memory."""
        array = self.source.numpy()
        return array if self.perm is None else array.transpose(self.perm)

    def blocks_of(self, array: Array, start: int, stop: int) -> Array:
        """[rows, blocks, block] of some rows, zeros behind a short block. Raises UserError E203 where a number is not finite."""
        return blocked(self.finite(array, start, stop), self.block)

    def finite(self, array: Array, start: int, stop: int) -> Array:
        """[rows, columns] of some rows, in float32. Raises UserError E203 where a number is not finite."""
        part = array.reshape(self.rows, -1)[start:stop] if array.flags.c_contiguous else _rows_of(array, start, stop)
        wide = np.ascontiguousarray(part, np.float32)
        if not np.isfinite(wide).all():
            raise UserError(
                "E203",
                f"the weight {self.name} has numbers that are not finite",
                why="NaN and infinity have no code",
                next=f"leave it as it is: --exclude '{self.name}'",
            )
        return wide

    def spans(self, even: int = 2) -> Iterator[tuple[int, int]]:
        """Rows that are looked at together; so many that numbers of which a row has ``even`` are an even count."""
        count = max(WORKING_BYTES // (4 * self.columns), 1)
        count += count * even % 2
        for start in range(0, self.rows, count):
            yield start, min(start + count, self.rows)

    def made(self, array: Array, start: int, stop: int) -> tuple[Array, Array, Array | None]:
        """Codes [rows, blocks, block], scales and zero points [rows, blocks] of some rows."""
        if self.given is not None:
            return self.given.part(start, stop)
        blocks = self.blocks_of(array, start, stop)
        scales = self.scheme.scales(blocks, self.source.dtype.numpy())
        zeros = self.scheme.zeros(blocks, scales)
        return self.scheme.codes(blocks, scales, zeros), scales, zeros

    def scales(self, array: Array, start: int, stop: int) -> Array:
        """Scales [rows, blocks] of some rows."""
        if self.given is not None:
            return self.given.scales[start:stop]
        return self.scheme.scales(self.blocks_of(array, start, stop), self.source.dtype.numpy())

    def zeros(self, array: Array, start: int, stop: int) -> Array:
        """Zero points [rows, blocks] of some rows, of a scheme that has them."""
        if self.given is not None:
            zeros = self.given.zeros
            assert zeros is not None
            return zeros[start:stop]
        blocks = self.blocks_of(array, start, stop)
        found = self.scheme.zeros(blocks, self.scheme.scales(blocks, self.source.dtype.numpy()))
        assert found is not None
        return found

    def cut(self, codes: Array) -> Array:
        """[rows, columns] without what fills the last block up."""
        return codes.reshape(len(codes), -1)[:, : self.columns]

    def values(self) -> Array:
        """The numbers that the codes stand for, in the source's own axis order."""
        array = self.array()
        found = np.empty((self.rows, self.columns), self.source.dtype.numpy())
        for start, stop in self.spans():
            codes, scales, zeros = self.made(array, start, stop)
            values = self.cut(self.scheme.values(codes, scales, zeros))
            found[start:stop] = values if self.given is None else self.given.undone(values)
        found = found.reshape(array.shape)
        return found if self.perm is None else found.transpose(np.argsort(self.perm))


@dataclass(frozen=True, eq=False)
class StackedWeight(RowWeight):
    """A weight of which each turn of a loop takes one: ``sizes`` are those of a turn."""

    turns: int = 1

    @property
    def rows(self) -> int:
        """The rows of all turns."""
        return self.turns * math.prod(self.sizes[:-1])


def _rows_of(array: Array, start: int, stop: int) -> Array:
    """Some rows of an array that does not lie as it is indexed."""
    if array.ndim == 2:
        return array[start:stop]
    inner = array.shape[-2]
    whole = array[start // inner : -(-stop // inner)]
    offset = start // inner * inner
    return whole.reshape(-1, array.shape[-1])[start - offset : stop - offset]


def unfolded(tensor: ir.TensorProtocol) -> tuple[ir.TensorProtocol, tuple[int, ...] | None, ScaledTensor | None]:
    """The weight that ``tensor`` is made of: its transposition, and what scales its rows."""
    if isinstance(tensor, ScaledTensor):
        return tensor.sources[0], None, tensor
    if isinstance(tensor, TransposedTensor):
        return tensor.source, tensor.perm, None
    return tensor, None, None


def parts_of(tensor: ir.TensorProtocol) -> list[ir.TensorProtocol]:
    """The weights that ``tensor`` has beside each other, or whose rows it has in another order; itself, where it is one."""
    if isinstance(tensor, ArrangedTensor):
        return [part for source in tensor.sources for part in parts_of(source)]
    if not isinstance(tensor, JoinedTensor):
        return [tensor]
    return [unfolded(part)[0] for part in tensor.sources]


class RowsTensor(DerivedTensor):
    """A tensor made of a weight some rows at a time: ``make(array, start, stop)`` gives what these rows have.

    ``per_row``: so many numbers a row. Those of 4 bits are made packed, two a byte.
    """

    def __init__(
        self,
        weight: RowWeight,
        name: str,
        dtype: ir.DataType,
        sizes: tuple[int, ...],
        per_row: int,
        make: Callable[[Array, int, int], Array],
    ) -> None:
        self.weight = weight
        self.make = make
        self.per_row = per_row
        super().__init__(self._whole, (), dtype, sizes, name)

    def of_sizes(self, sizes: tuple[int, ...]) -> RowsTensor:
        """The same numbers in another shape."""
        return RowsTensor(self.weight, self.name or "", self.dtype, sizes, self.per_row, self.make)

    @property
    def lacks_data(self) -> bool:
        """True if the weight is a mere description without numbers."""
        return any(map(lacks_data, (self.weight.source, *self.weight.factor_sources)))

    def _spans(self) -> Iterator[tuple[int, int]]:
        return self.weight.spans(self.per_row if self.dtype.bitwidth < 8 else 2)

    def _whole(self) -> Array:
        array = self.weight.array()
        whole = np.concatenate([self.make(array, start, stop).reshape(-1) for start, stop in self._spans()])
        if self.dtype.bitwidth < 8:
            whole = unpacked(whole)[: self.size]
            whole = whole.view(np.int8) - (whole > 7) * np.int8(16) if self.dtype == D.INT4 else whole
        return whole.reshape(self.shape.numpy())

    def pieces(self, size: int) -> Iterator[Piece]:
        """The bytes, some rows at a time."""
        del size
        array = self.weight.array()
        for start, stop in self._spans():
            length = math.ceil((stop - start) * self.per_row * self.dtype.itemsize)
            yield Piece(length, functools.partial(self._bytes, array, start, stop))

    def _bytes(self, array: Array, start: int, stop: int, _: Bytes) -> Bytes:
        return np.ascontiguousarray(self.make(array, start, stop)).reshape(-1).view(np.uint8)


def codes_tensor(weight: RowWeight, name: str, sizes: tuple[int, ...]) -> ir.TensorProtocol:
    """The codes row by row, as the scheme's dtype."""

    def make(array: Array, start: int, stop: int) -> Array:
        codes = weight.cut(weight.made(array, start, stop)[0])
        return packed(codes) if weight.scheme.bits == 4 else codes

    return RowsTensor(weight, name, weight.scheme.dtype, sizes, weight.columns, make)


def block_codes_tensor(
    weight: RowWeight, name: str, *, is_high_first: bool = False, is_flat: bool = False, in_rows: bool = False
) -> ir.TensorProtocol:
    """The codes as MatMulNBits takes them: unsigned, [rows, blocks, bytes of a block], a short block filled up.

    MatMulBnb4 has the first of two codes in the high half, and all on one axis; QMoE has those of a row on one (``in_rows``).
    """
    scheme = weight.scheme
    length = weight.block * (scheme.product_bits or scheme.bits) // 8

    def make(array: Array, start: int, stop: int) -> Array:
        pairs = scheme.for_product(weight.made(array, start, stop)[0])
        return (pairs << 4) | (pairs >> 4) if is_high_first else pairs

    per_row = weight.blocks * length
    sizes: tuple[int, ...] = (weight.rows * per_row,) if is_flat else (weight.rows, weight.blocks, length)
    sizes = (*weight.sizes[:-1], per_row) if in_rows else sizes
    return RowsTensor(weight, name, D.UINT8, sizes, per_row, make)


def scales_tensor(weight: RowWeight, name: str, sizes: tuple[int, ...]) -> ir.TensorProtocol:
    """The scales, by what a folded normalization multiplies the rows with."""

    def make(array: Array, start: int, stop: int) -> Array:
        scales = weight.scales(array, start, stop)
        if weight.factor is not None:
            scales = (scales * weight.factor().reshape(-1, 1)[start:stop]).astype(scales.dtype)
        return scales

    return RowsTensor(weight, name, weight.source.dtype, sizes, weight.blocks, make)


def zeros_tensor(weight: RowWeight, name: str, sizes: tuple[int, ...]) -> ir.TensorProtocol:
    """The zero points, packed as they follow each other."""
    return RowsTensor(
        weight, name, weight.scheme.dtype, sizes, weight.blocks, lambda *rows: packed(weight.zeros(*rows))
    )


def block_zeros_tensor(weight: RowWeight, name: str, *, in_rows: bool = False) -> ir.TensorProtocol:
    """The zero points as MatMulNBits takes them: packed, each row from a new byte."""
    length, odd = -(-weight.blocks // 2), weight.blocks % 2

    def make(array: Array, start: int, stop: int) -> Array:
        return packed(np.pad(weight.zeros(array, start, stop), ((0, 0), (0, odd))))

    return RowsTensor(
        weight, name, D.UINT8, (*weight.sizes[:-1], length) if in_rows else (weight.rows * length,), length, make
    )
