"""The layers of a quantized checkpoint in ONNX: their own integers, with DequantizeLinear or onnxruntime's product."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.files.mapped_pages import give_back
from fx2onnx.irx.data_file import Bytes, Piece
from fx2onnx.irx.emit import Emit
from fx2onnx.lower.weights import tensor_pieces
from fx2onnx.optimize.weights import DerivedTensor
from fx2onnx.quantize.schemes import FP4, NF4, Array, packed, unpacked
from fx2onnx.sources.hf.packed_linear import PackedLinear
from fx2onnx.targets.form import DEFAULT, find
from fx2onnx.targets.match import has_kernel, word_of

D = ir.DataType
DOMAIN = "com.microsoft"
LEAST_OPSET = 21
"""The first opset with blocks, and codes of 4 bits."""
ROWS_BYTES = 1 << 20


def _copied(memory: torch.Tensor, size: int) -> Iterator[Piece]:
    """The bytes of contiguous memory, copied as they are made: only then can its pages be given back."""
    found: Any = memory.reshape(-1).view(torch.uint8).numpy()
    for start in range(0, len(found), size):
        part = found[start : start + size]
        yield Piece(len(part), functools.partial(_copy, part))


def _copy(part: Array, place: Bytes) -> None:
    place[:] = part


class Reading:
    """The readers of a tensor's memory: its pages are given back when all pieces are made, which several threads do."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self._open = 1  # until no more pieces come
        self._counting = threading.Lock()

    def pieces(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The same pieces, watched."""
        for piece in pieces:
            self._count(1)
            yield Piece(piece.length, functools.partial(self._make, piece))
        self._count(-1)

    def _make(self, piece: Piece, place: Bytes) -> Bytes | None:
        made = piece.make(place)
        self._count(-1)
        return made

    def _count(self, by: int) -> None:
        with self._counting:
            self._open += by
            is_read = not self._open
        if is_read:
            give_back(self._memory.data_ptr(), self._memory.nbytes)


class StoredTensor(DerivedTensor):
    """Memory of a checkpoint under another dtype; a transposition of words is made when it is written."""

    def __init__(self, memory: torch.Tensor, dtype: ir.DataType, sizes: tuple[int, ...], name: str) -> None:
        self.memory = memory
        super().__init__(self._whole, (), dtype, sizes, name)

    @property
    def raw(self) -> Any:
        """The place of the tensor in its file: what a model by reference asks."""
        return self.memory

    def _whole(self) -> Array:
        found: Any = self.memory.contiguous().reshape(-1).view(torch.uint8).numpy()
        return _as_dtype(found, self.dtype, self.shape.numpy())

    def pieces(self, size: int) -> Iterator[Piece]:
        """The bytes, as they lie where they do so."""
        made = _copied(self.memory, size) if self.memory.is_contiguous() else tensor_pieces(self.memory, size)
        return Reading(self.memory).pieces(made)


class CodesTensor(DerivedTensor):
    """Codes of 4 bits that are brought into rows when they are written, some rows at a time."""

    def __init__(self, layer: PackedLinear, dtype: ir.DataType, sizes: tuple[int, ...], name: str) -> None:
        self.layer = layer
        super().__init__(self._whole, (), dtype, sizes, name)

    def _whole(self) -> Array:
        codes: Any = self.layer.codes(0, self.layer.rows).numpy()
        return _as_dtype(packed(codes) if self.layer.bits == 4 else codes.reshape(-1), self.dtype, self.shape.numpy())

    def pieces(self, size: int) -> Iterator[Piece]:
        """The bytes of some rows."""
        del size
        return Reading(self.layer.packed).pieces(self._pieces())

    def _pieces(self) -> Iterator[Piece]:
        count = max(ROWS_BYTES // self.layer.columns // 16 * 16, 16)
        for start in range(0, self.layer.rows, count):
            stop = min(start + count, self.layer.rows)
            length = math.ceil((stop - start) * self.layer.columns * self.layer.bits / 8)
            yield Piece(length, functools.partial(self._bytes, start, stop))

    def _bytes(self, start: int, stop: int, _: Bytes) -> Bytes:
        codes: Any = self.layer.codes(start, stop).numpy()
        return packed(codes) if self.layer.bits == 4 else np.ascontiguousarray(codes).reshape(-1)


def _as_dtype(content: Array, dtype: ir.DataType, sizes: tuple[int, ...]) -> Array:
    if dtype.bitwidth < 8:
        return unpacked(content)[: math.prod(sizes)].reshape(sizes)
    return content.view(dtype.numpy()).reshape(sizes)


def translation(target: str | None, *, by_reference: bool = False) -> Callable[..., ir.Value]:
    """The translation of ``PackedLinear`` for a target; ``by_reference``: with codes as they lie."""
    return functools.partial(_linear, target or DEFAULT, by_reference)


def require_blocks(op: Emit) -> None:
    """Raises UserError E202 where the opset has no blocks."""
    if op.opset < LEAST_OPSET:
        raise UserError(
            "E202",
            f"opset {op.opset} cannot express the weights of a quantized checkpoint",
            why=f"DequantizeLinear takes blocks from opset {LEAST_OPSET} on",
            next=f"opset_version={LEAST_OPSET} or newer",
        )


def _linear(
    target: str, by_reference: bool, op: Emit, layer: PackedLinear, x: ir.Value, *, weights: dict[str, ir.Value]
) -> ir.Value:
    require_blocks(op)
    if layer.order is not None:
        x = op.Gather(x, op.const(layer.order.numpy()), axis=-1)
    found = None
    if layer.table is not None:
        found = _table_product(target, op, layer, x, weights)
        if found is None:
            found = _looked_up(op, layer, x, weights, by_reference)
    elif by_reference and layer.layout is not None:
        found = _dequantized_in_place(op, layer, x, weights)
    else:
        found = _product(target, op, layer, x, weights)
        if found is None:
            found = _dequantized(op, layer, x, weights)
    if layer.offset is not None:
        groups = layer.offset.shape[0]
        parts = op.reshape(x, (*op.dims(x)[:-1], groups, layer.columns // groups))
        sums = op.ReduceSum(parts, axes=[-1], keepdims=0)
        found = op.Add(found, op.MatMul(sums, op.cast(weights["offset"], op.dtype(x))))
    return found if layer.bias is None else op.Add(found, op.cast(weights["bias"], op.dtype(found)))


def _product(target: str, op: Emit, layer: PackedLinear, x: ir.Value, weights: dict[str, ir.Value]) -> ir.Value | None:
    """``MatMulNBits``, in float32 between casts for dtypes that it lacks; None where the target or the layout has none."""
    group = layer.group
    if layer.bits != 4 or group < 16 or group & (group - 1) or layer.columns % group or find(target).rows is None:
        return None

    def has(dtype: ir.DataType) -> bool:
        word = word_of(dtype)
        return has_kernel(target, DOMAIN, "MatMulNBits", 1, ((word, "uint8", word, "uint8"), (word,)))

    wide = op.dtype(x) if has(op.dtype(x)) else D.FLOAT
    if not has(wide):
        return None
    blocks = layer.columns // group
    codes = _codes(op, layer, D.UINT8, (layer.rows, blocks, group // 2), weights)
    scale = op.reshape(op.cast(weights["scale"], wide), (layer.rows * blocks,))
    inputs = [op.cast(x, wide), codes, scale]
    assert layer.zero is not None
    if bool((layer.zero != 8).any()):
        zero: Any = layer.zero.numpy()
        inputs.append(op.const(packed(np.pad(zero, ((0, 0), (0, blocks % 2))))))
    dims = (*op.dims(x)[:-1], layer.rows)
    (found,) = op.custom(
        DOMAIN, "MatMulNBits", inputs, [(wide, dims)],
        K=layer.columns, N=layer.rows, bits=4, block_size=group, accuracy_level=1,
    )  # fmt: skip
    return op.cast(found, op.dtype(x))


def _table_product(
    target: str, op: Emit, layer: PackedLinear, x: ir.Value, weights: dict[str, ir.Value]
) -> ir.Value | None:
    """``MatMulBnb4`` for the tables that it knows; None for others, and where the target has none."""
    assert layer.table is not None
    group, table = layer.group, layer.table.float().numpy()
    kind = next((kind for kind, known in enumerate((FP4, NF4)) if np.allclose(table, known, atol=1e-6)), None)
    if kind is None or group < 16 or group & (group - 1) or find(target).rows is None:
        return None
    word = word_of(op.dtype(x))
    wide = op.dtype(x) if has_kernel(target, DOMAIN, "MatMulBnb4", 1, ((word, "uint8", word), (word,))) else D.FLOAT
    if not has_kernel(target, DOMAIN, "MatMulBnb4", 1, ((word_of(wide), "uint8", word_of(wide)), (word_of(wide),))):
        return None
    size = layer.rows * layer.columns
    codes = _codes(op, layer, D.UINT8, (size // 2,), weights)
    scale = op.reshape(op.cast(weights["scale"], wide), (size // group,))
    (found,) = op.custom(
        DOMAIN, "MatMulBnb4", [op.cast(x, wide), codes, scale], [(wide, (*op.dims(x)[:-1], layer.rows))],
        K=layer.columns, N=layer.rows, block_size=group, quant_type=kind,
    )  # fmt: skip
    return op.cast(found, op.dtype(x))


def _looked_up(
    op: Emit, layer: PackedLinear, x: ir.Value, weights: dict[str, ir.Value], by_reference: bool
) -> ir.Value:
    """``Gather(table, codes) * scale`` and a product."""
    assert layer.table is not None
    name, dtype = f"{weights['packed'].name}.codes", op.dtype(x)
    blocks = (layer.rows, layer.columns // layer.group, layer.group)
    if by_reference:
        codes = op.reshape(_in_place(op, layer, D.INT32, weights), blocks)
    else:
        codes = op.builder.add_initializer(name, CodesTensor(layer, D.UINT4, blocks, name), blocks)
    values = op.Gather(
        op.const(layer.table.float().numpy().astype(dtype.numpy()), dtype), op.cast(codes, D.INT32), axis=0
    )
    scaled = op.Mul(values, op.reshape(op.cast(weights["scale"], dtype), (*blocks[:2], 1)))
    return op.MatMul(x, op.Transpose(op.reshape(scaled, (layer.rows, layer.columns)), perm=[1, 0]))


def _dequantized(op: Emit, layer: PackedLinear, x: ir.Value, weights: dict[str, ir.Value]) -> ir.Value:
    """``DequantizeLinear`` in blocks of a row, and a product."""
    sizes, dtype = (layer.rows, layer.columns), op.dtype(x)
    kind = {
        torch.uint8: D.UINT4 if layer.bits == 4 else D.UINT8,
        torch.int8: D.INT8,
        torch.float8_e4m3fn: D.FLOAT8E4M3FN,
    }
    code_dtype = kind[layer.codes(0, 1).dtype]
    inputs = [_codes(op, layer, code_dtype, sizes, weights), op.cast(weights["scale"], dtype)]
    if layer.zero is not None:
        zero: Any = layer.zero.numpy()
        inputs.append(op.const(zero.astype(code_dtype.numpy()), code_dtype))
    numbers = op.node("DequantizeLinear", *inputs, axis=1, block_size=layer.group, outputs=[(dtype, sizes)])
    return op.MatMul(x, op.Transpose(numbers, perm=[1, 0]))


def _dequantized_in_place(op: Emit, layer: PackedLinear, x: ir.Value, weights: dict[str, ir.Value]) -> ir.Value:
    """``DequantizeLinear`` of codes as they lie in the checkpoint, brought into rows by the graph; scales and zero points beside it."""
    assert layer.layout is not None
    assert layer.zero is not None
    sizes, dtype, groups = (layer.rows, layer.columns), op.dtype(x), layer.scale.shape[1]
    wide = D.INT8 if layer.layout.is_signed else D.UINT8
    codes = _in_place(op, layer, wide, weights)
    if layer.order is not None:
        codes = op.Gather(codes, op.const(layer.order.numpy()), axis=1)
    inputs = [codes, op.cast(_scale_in_place(op, layer, weights), dtype)]
    zero: Any = layer.zero.numpy()
    if not layer.layout.is_signed:
        is_same = bool((zero == zero[0, 0]).all())
        stored = op.const(zero[:1, :1] if is_same else zero, D.UINT4 if layer.bits == 4 else wide)
        inputs.append(op.expand(op.cast(stored, wide), (layer.rows, groups)))
    numbers = op.node("DequantizeLinear", *inputs, axis=1, block_size=layer.group, outputs=[(dtype, sizes)])
    return op.MatMul(x, op.Transpose(numbers, perm=[1, 0]))


def _scale_in_place(op: Emit, layer: PackedLinear, weights: dict[str, ir.Value]) -> ir.Value:
    """Scales of rows; from the checkpoint's, where they are those of groups."""
    stored, own = layer.scale.t(), weights["scale"]
    if not stored.is_contiguous():
        return own
    name, sizes = f"{own.name}.stored", (stored.shape[0], layer.rows)
    value = op.builder.add_initializer(name, StoredTensor(stored, op.dtype(own), sizes, name), sizes)
    return op.Transpose(value, perm=[1, 0])


def _in_place(op: Emit, layer: PackedLinear, wide: ir.DataType, weights: dict[str, ir.Value]) -> ir.Value:
    """The codes of the rows, a dtype of 8 bits or more each: Reshape takes none of 4 in onnxruntime."""
    layout, name = layer.layout, f"{weights['packed'].name}.codes"
    assert layout is not None
    narrow = wide if layer.bits == 8 else D.INT4 if layout.is_signed else D.UINT4
    tensor = StoredTensor(layer.packed, narrow, layout.sizes, name)
    codes = op.cast(op.builder.add_initializer(name, tensor, layout.sizes), wide)
    if layout.is_reversed:
        places = np.arange(layout.sizes[-1])[::-1]
        codes = op.Gather(codes, op.const(np.ascontiguousarray(places)), axis=len(layout.sizes) - 1)
    if layout.order != tuple(range(len(layout.order))):
        codes = op.Transpose(codes, perm=list(layout.order))
    return op.reshape(codes, (layer.rows, layer.columns))


def _codes(
    op: Emit, layer: PackedLinear, dtype: ir.DataType, sizes: tuple[int, ...], weights: dict[str, ir.Value]
) -> ir.Value:
    name = f"{weights['packed'].name}.codes"
    tensor: DerivedTensor
    if layer.as_rows is None:
        tensor = CodesTensor(layer, dtype, sizes, name)
    else:
        tensor = StoredTensor(layer.as_rows, dtype, sizes, name)
    return op.builder.add_initializer(name, tensor, sizes)
