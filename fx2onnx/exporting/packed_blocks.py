"""Layers on blocks of GGUF in ONNX: codes of 4 bits with a scale for each group, brought into rows while they are written.

Codes of more bits are two of 4: ``Layout.halves``. onnxruntime's exact product of 8-bit codes takes 50 times as long as
two of 4-bit codes (2,048 x 2,048, one token).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.aten_map.table.dtypes import onnx_dtype
from fx2onnx.exporting.packed import DOMAIN, ROWS_BYTES, Reading, require_blocks
from fx2onnx.irx.builder import Key
from fx2onnx.irx.data_file import Bytes, Piece
from fx2onnx.irx.emit import Emit
from fx2onnx.optimize.weights import DerivedTensor
from fx2onnx.quantize.schemes import Array, packed
from fx2onnx.sources.hf.gguf_layers import BlockEmbedding, BlockLinear, BlockRows
from fx2onnx.targets.form import DEFAULT, find
from fx2onnx.targets.match import has_kernel

D = ir.DataType


def translations(target: str | None) -> dict[type, Callable[..., ir.Value]]:
    """The translations of calls of layers on blocks for a target."""
    return {
        BlockLinear: functools.partial(_linear, target or DEFAULT),
        BlockEmbedding: functools.partial(_embedding, target or DEFAULT),
    }


class BlockTensor(DerivedTensor):
    """Numbers made of blocks, some rows at a time, when they are written."""

    def __init__(
        self,
        blocks: BlockRows,
        part: Callable[[int, int], Array],
        dtype: ir.DataType,
        sizes: tuple[int, ...],
        name: str,
    ) -> None:
        self.blocks, self.part = blocks, part
        super().__init__(lambda: part(0, blocks.rows).reshape(sizes), (), dtype, sizes, name)

    def pieces(self, size: int) -> Iterator[Piece]:
        """The bytes of some rows."""
        del size
        return Reading(self.blocks.memory).pieces(self._pieces())

    def _pieces(self) -> Iterator[Piece]:
        rows = self.blocks.rows
        count = max(ROWS_BYTES // self.blocks.columns // 16 * 16, 16)
        for start in range(0, rows, count):
            stop = min(start + count, rows)
            yield Piece(self.nbytes // rows * (stop - start), functools.partial(self._bytes, start, stop))

    def _bytes(self, start: int, stop: int, _: Bytes) -> Bytes:
        return np.ascontiguousarray(self.part(start, stop)).reshape(-1).view(np.uint8)


class _Weights:
    """The initializers of a weight in blocks, each made once: an embedding and the head may have the same."""

    def __init__(self, op: Emit, blocks: BlockRows, stored: ir.Value) -> None:
        self.op, self.blocks, self.layout, self.stored = op, blocks, blocks.layout, stored
        self.halves = self.layout.bits // 4
        self.parts = self.halves * blocks.groups

    def nibbles(self) -> ir.Value:
        """Two codes a byte: [rows, groups of the high halves and then of the low ones, bytes of a group]."""

        def part(start: int, stop: int) -> Array:
            codes = self.blocks.read(self.layout.codes, start, stop)
            if self.halves == 1:
                return packed(codes)
            return packed(np.concatenate(self.layout.halves(codes), 1))

        return self._once("codes", part, D.UINT8, (self.blocks.rows, self.parts, self.layout.group // 2))

    def scales(self) -> ir.Value:
        """float32, as ``nibbles`` has the groups."""

        def part(start: int, stop: int) -> Array:
            scales = self.blocks.read(self.layout.scales, start, stop)
            return np.concatenate([scales * np.float32(self.layout.step), scales], 1) if self.halves == 2 else scales

        return self._once("scales", part, D.FLOAT, (self.blocks.rows, self.parts))

    def offsets(self) -> ir.Value:
        """float32 [rows, groups]."""
        offsets = self.layout.offsets
        assert offsets is not None
        part = functools.partial(self.blocks.read, offsets)
        return self._once("offsets", part, D.FLOAT, (self.blocks.rows, self.blocks.groups))

    def zeros(self) -> ir.Value:
        """Zero points, two a byte, by rows."""
        high, low = self.layout.zeros if self.halves == 2 else (0, self.layout.zero)
        groups = self.blocks.groups
        row = np.array([high] * groups * (self.halves - 1) + [low] * groups, np.uint8)
        found = packed(np.pad(row, (0, len(row) % 2)))
        sizes = (self.blocks.rows, len(found))
        return self._once("zeros", lambda start, stop: np.tile(found, (stop - start, 1)), D.UINT8, sizes)

    def signed(self) -> ir.Value:
        """Codes less the zero point, [rows, columns], of 4 or 8 bits."""
        dtype = {4: D.INT4, 8: D.INT8} if self.layout.zero else {4: D.UINT4, 8: D.UINT8}
        sizes = (self.blocks.rows, self.blocks.columns)

        def part(start: int, stop: int) -> Array:
            codes = self.blocks.read(self.layout.codes, start, stop) - np.uint8(self.layout.zero)
            return packed(codes) if self.layout.bits == 4 else codes

        return self._once("signed", part, dtype[self.layout.bits], sizes)

    def _once(
        self, word: str, part: Callable[[int, int], Array], dtype: ir.DataType, sizes: tuple[int, ...]
    ) -> ir.Value:
        emitted = self.op.builder.emitted
        key = Key("gguf", (self.stored,), (word,))
        if key not in emitted:
            name = f"{self.stored.name}.{word}"
            emitted[key] = self.op.builder.add_initializer(
                name, BlockTensor(self.blocks, part, dtype, sizes, name), sizes
            )
        return emitted[key]


def _linear(target: str, op: Emit, layer: BlockLinear, x: ir.Value, *, weights: dict[str, ir.Value]) -> ir.Value:
    """``MatMulNBits`` or ``DequantizeLinear`` and a product, and offsets by the sums of x over groups; all in float32."""
    require_blocks(op)
    blocks, dtype, wide = layer.blocks, op.dtype(x), op.cast(x, D.FLOAT)
    found = _product(target, op, _Weights(op, blocks, weights["packed"]), wide)
    if blocks.layout.offsets is not None:
        parts = op.reshape(wide, (*op.dims(x)[:-1], blocks.groups, blocks.layout.group))
        sums = op.ReduceSum(parts, axes=[-1], keepdims=0)
        offsets = _Weights(op, blocks, weights["packed"]).offsets()
        found = op.Add(found, op.MatMul(sums, op.Transpose(offsets, perm=[1, 0])))
    if layer.bias is not None:
        found = op.Add(found, op.cast(weights["bias"], D.FLOAT))
    return op.cast(found, dtype)


def _product(target: str, op: Emit, weight: _Weights, x: ir.Value) -> ir.Value:
    blocks, layout = weight.blocks, weight.layout
    types = (("float32", "uint8", "float32", "uint8"), ("float32",))
    if find(target).rows is None or not has_kernel(target, DOMAIN, "MatMulNBits", 1, types):
        codes = weight.signed()
        scales = op.Slice(weight.scales(), [weight.parts - blocks.groups], [weight.parts], [1], [1])
        sizes = (blocks.rows, blocks.columns)
        inputs = [codes, scales]
        numbers = op.node("DequantizeLinear", *inputs, axis=1, block_size=layout.group, outputs=[(D.FLOAT, sizes)])
        return op.MatMul(x, op.Transpose(numbers, perm=[1, 0]))
    inputs = [op.Concat(x, x, axis=-1) if weight.halves == 2 else x, weight.nibbles(), weight.scales()]
    if weight.halves == 2 or layout.zero != 8:
        inputs.append(weight.zeros())
    (found,) = op.custom(
        DOMAIN, "MatMulNBits", inputs, [(D.FLOAT, (*op.dims(x)[:-1], blocks.rows))],
        K=weight.halves * blocks.columns, N=blocks.rows, bits=4, block_size=layout.group, accuracy_level=1,
    )  # fmt: skip
    return found


def _embedding(
    target: str, op: Emit, layer: BlockEmbedding, ids: ir.Value, *, weights: dict[str, ir.Value]
) -> ir.Value:
    """Rows of codes, scales and offsets are picked, and made numbers."""
    del target
    require_blocks(op)
    weight, blocks, dims = _Weights(op, layer.blocks, weights["packed"]), layer.blocks, op.dims(ids)
    group, groups = blocks.layout.group, blocks.groups
    picked = op.Gather(weight.nibbles(), ids, axis=0)
    mask, shift = op.const(np.uint8(15)), op.const(np.uint8(4))
    pairs = [op.BitwiseAnd(picked, mask), op.BitShift(picked, shift, direction="RIGHT")]
    both = op.Concat(*(op.Unsqueeze(each, axes=[-1]) for each in pairs), axis=-1)
    codes: Any = op.cast(op.reshape(both, (*dims, weight.parts, group)), D.FLOAT)
    scales = op.Gather(weight.scales(), ids, axis=0)
    zero = blocks.layout.zero
    if weight.halves == 2:
        high, low = (_groups(op, codes, start, groups) for start in (0, groups))
        step, zeros = blocks.layout.step, blocks.layout.zeros
        codes, zero = op.Add(op.Mul(high, op.const(np.float32(step))), low), step * zeros[0] + zeros[1]
        scales = _groups(op, scales, groups, groups, axis=-1)
    if zero:
        codes = op.Sub(codes, op.const(np.float32(zero)))
    numbers = op.Mul(codes, op.Unsqueeze(scales, axes=[-1]))
    if blocks.layout.offsets is not None:
        numbers = op.Add(numbers, op.Unsqueeze(op.Gather(weight.offsets(), ids, axis=0), axes=[-1]))
    found = op.cast(op.reshape(numbers, (*dims, blocks.columns)), onnx_dtype(layer.dtype))
    return (
        found if layer.factor is None else op.Mul(found, op.cast(op.const(np.float32(layer.factor)), op.dtype(found)))
    )


def _groups(op: Emit, value: ir.Value, start: int, count: int, axis: int = -2) -> ir.Value:
    return op.Slice(value, [start], [start + count], [axis], [1])
