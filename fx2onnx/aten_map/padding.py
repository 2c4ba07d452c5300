"""Padding: constant, reflect, replicate, circular."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.layout import joined
from fx2onnx.aten_map.table.axes import END, is_empty, sliced, unsqueeze, whole, zeros
from fx2onnx.aten_map.table.dtypes import as_dtype, compute_dtype
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike

aten = torch.ops.aten
ONNX_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
ENUM_MODES = ("reflect", "replicate", "circular", "constant")
"""``at::padding_mode`` by number."""


def padded(op: Emit, value: ir.Value, pad: Sequence[DimLike], mode: str, number: Any = 0) -> ir.Value:
    """``torch.nn.functional.pad``: pairs (before, after) from the last axis backwards; negative ones crop.

    ONNX:  Pad. Where the mode copies elements, negative pads are Slices: before a circular pad, after the others.
    """
    rank, dims, dtype = op.rank(value), op.result_dims(), op.dtype(value)
    if is_empty(dims):
        return zeros(op, dims, dtype)
    begins: list[DimLike] = [0] * rank
    ends: list[DimLike] = [0] * rank
    for place in range(len(pad) // 2):
        begins[rank - 1 - place], ends[rank - 1 - place] = pad[2 * place], pad[2 * place + 1]
    crops = [whole(begins[axis]) for axis in range(rank)], [whole(ends[axis]) for axis in range(rank)]
    if mode != "constant":
        begins, ends = [_at_least_zero(pad) for pad in begins], [_at_least_zero(pad) for pad in ends]
    if mode == "circular":
        value = _cropped(op, value, *crops)
    if all(pad == 0 for pad in (*begins, *ends)):
        return value if mode == "circular" else _cropped(op, value, *crops)
    if is_empty(op.dims(value)):
        return op.expand(as_dtype(op, 0 if number is None else number, dtype), dims)
    if mode == "circular" and op.opset < 19:
        return _wrapped(op, value, begins, ends)
    if mode != "constant":
        dims = tuple(whole(size + begins[axis] + ends[axis]) for axis, size in enumerate(op.dims(value)))
    inner = compute_dtype(op, "Pad", dtype)
    is_default = mode != "constant" or number is None or (number == 0 and math.copysign(1, number) > 0)
    filler = None if is_default else as_dtype(op, number, inner)
    named = None if mode == "constant" else ONNX_MODES[mode]
    result = op.Pad(
        op.cast(value, inner),
        pads=op.sizes([*begins, *ends]),
        constant_value=filler,
        mode=named,
        outputs=[(inner, dims)],
    )
    result = op.cast(result, dtype)
    return _cropped(op, result, *crops) if mode in ("reflect", "replicate") else result


def _at_least_zero(pad: DimLike) -> DimLike:
    return pad if isinstance(pad, Dim) else max(pad, 0)


def _cropped(op: Emit, value: ir.Value, begins: Sequence[DimLike], ends: Sequence[DimLike]) -> ir.Value:
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        first = -begin if isinstance(begin, int) and begin < 0 else 0
        last = -end if isinstance(end, int) and end < 0 else 0
        if first or last:
            size = whole(op.dims(value)[axis] - first - last)
            value = sliced(op, value, axis, first, -last if last else END, size)
    return value


def _wrapped(op: Emit, value: ir.Value, begins: Sequence[DimLike], ends: Sequence[DimLike]) -> ir.Value:
    """Circular padding below opset 19: the far ends joined to the near ones."""
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        if begin == 0 and end == 0:
            continue
        size = op.dims(value)[axis]
        parts = [value]
        if begin != 0:
            parts.insert(0, sliced(op, value, axis, whole(size - begin), END, begin))
        if end != 0:
            parts.append(sliced(op, value, axis, 0, end, end))
        value = joined(op, parts, axis)
    return value


@translates(aten.pad.default)
def pad(op: Emit, self: ir.Value, pad: Sequence[DimLike], mode: str, value: float | None) -> ir.Value:
    """pad(Tensor self, SymInt[] pad, str mode="constant", float? value=None) -> Tensor"""
    return padded(op, self, pad, mode, 0 if value is None else value)


@translates(aten.constant_pad_nd.default)
def constant_pad_nd(op: Emit, self: ir.Value, pad: Sequence[DimLike], value: Any) -> ir.Value:
    """constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor"""
    return padded(op, self, pad, "constant", value)


@translates(aten._pad_enum.default)
def _pad_enum(op: Emit, self: ir.Value, pad: Sequence[DimLike], mode: int, value: float | None) -> ir.Value:
    """_pad_enum(Tensor self, SymInt[] pad, int mode, float? value=None) -> Tensor"""
    return padded(op, self, pad, ENUM_MODES[mode], 0 if value is None else value)


def _pad(mode: str) -> Callable[..., ir.Value]:
    return lambda op, self, padding: padded(op, self, padding, mode)


register_shared(_pad("circular"), "Pad", *overloads_of("_pad_circular"))
register_shared(_pad("reflect"), "Pad", *overloads_of("reflection_pad1d reflection_pad2d reflection_pad3d"))
register_shared(_pad("replicate"), "Pad", *overloads_of("replication_pad1d replication_pad2d replication_pad3d"))


@translates(aten.pad_sequence.default)
def pad_sequence(
    op: Emit, sequences: Sequence[ir.Value], batch_first: bool, padding_value: float, padding_side: str
) -> ir.Value:
    """pad_sequence(Tensor[] sequences, bool batch_first=False, float padding_value=0., str padding_side="right") -> Tensor

    Each sequence padded to the longest, then stacked.
    """
    dtype, dims = op.result[0]
    longest = dims[1 if batch_first else 0]
    rows = []
    for sequence in sequences:
        missing = whole(longest - op.dims(sequence)[0])
        rank = op.rank(sequence)
        pads: list[DimLike] = [0] * (2 * rank)
        pads[rank if padding_side == "right" else 0] = missing
        wide = op.cast(sequence, dtype)
        if op.dims(sequence)[1:] != dims[2:]:  # PyTorch copies it into its place, which broadcasts
            wide = op.expand(wide, (op.dims(sequence)[0], *dims[2:]))
        if missing != 0:
            wide = op.Pad(
                wide,
                pads=op.sizes(pads),
                constant_value=as_dtype(op, padding_value, dtype),
                outputs=[(dtype, (longest, *dims[2:]))],
            )
        rows.append(unsqueeze(op, wide, 0 if batch_first else 1))
    return joined(op, rows, 0 if batch_first else 1)
